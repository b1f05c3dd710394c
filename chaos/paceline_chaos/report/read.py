"""What a run left in its folder, for whoever judges it again: input from outside, so it is checked.

Every refusal is one sentence: which file, what is wrong with it, what to do.
"""

from pathlib import Path

import orjson

from paceline.errors import BadRequestError
from paceline_chaos.history import codec
from paceline_chaos.history.model import History, Phase, ReplicaDump
from paceline_chaos.verdict import Violation

HISTORY, VERDICT = "history.jsonl", "verdict.json"


def read_history(path: Path) -> tuple[History, bool]:
    """The history, and whether the run came to its end: of one that was killed the last line may be
    torn, and is left out. BadRequestError if it is none."""
    try:
        if path.stat().st_size == 0:
            raise BadRequestError(f"{path} is empty: the run ended before it began; run it again")
        history = codec.load(path, is_torn_end_allowed=True)
    except OSError as error:
        raise BadRequestError(
            f"{path} cannot be read ({error.strerror}): name the history.jsonl of a run"
        ) from error
    except codec.HistoryFormatError as error:
        raise BadRequestError(
            f"{path} is not a history as `paceline chaos` writes it: {error}"
        ) from error
    return history, is_whole(history)


def is_whole(history: History) -> bool:
    """Whether a run came to its end, and to the dumps of every replica behind it: without them
    nobody can say that nothing is lost."""
    has_ended = any(isinstance(entry, Phase) and entry.name == "end" for entry in history.entries)
    dumped = {entry.node for entry in history.entries if isinstance(entry, ReplicaDump)}
    bed, groups = history.world.get("bed"), history.world.get("groups")
    if bed == "processes" and isinstance(groups, dict):
        return has_ended and all(dumped.issuperset(nodes) for nodes in groups.values())
    return has_ended and (bed is None or bool(dumped))


def verdict_beside(path: Path) -> Path:
    """Where the verdict on a history is."""
    return path.with_name(VERDICT if path.name == HISTORY else f"{path.stem}.{VERDICT}")


def read_observed(path: Path) -> list[Violation]:
    """What the harness saw and the history does not tell, from the verdict beside it, if any."""
    beside = verdict_beside(path)
    try:
        told = orjson.loads(beside.read_bytes()).get("observed", [])
        return [
            Violation(
                property=str(one["property"]),
                sentence=str(one["sentence"]),
                proof=tuple(int(number) for number in one["proof"]),
            )
            for one in told
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise BadRequestError(
            f"{beside} is damaged ({error}): move it away to judge the history alone"
        ) from error
