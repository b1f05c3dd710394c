"""What a run left in its folder, for whoever judges it again: input from outside, so it is checked.

Every refusal is one sentence: which file, what is wrong with it, what to do.
"""

from pathlib import Path

import orjson

from paceline.errors import BadRequestError
from paceline_chaos.history import codec
from paceline_chaos.history.model import History, Phase
from paceline_chaos.verdict import Violation

VERDICT = "verdict.json"


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
    is_whole = any(isinstance(entry, Phase) and entry.name == "end" for entry in history.entries)
    return history, is_whole


def read_observed(path: Path) -> list[Violation]:
    """What the harness saw and the history does not tell, from the verdict beside it, if any."""
    beside = path.with_name(VERDICT)
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
