"""What a run of a simulated bed leaves: its history with all that judged it, and its verdict.

`paceline chaos report` judges such a history as its bed did: with the same bounds and properties,
which stand in its first line, and with what the bed saw and the history does not tell, which stands
in the verdict beside it.
"""

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

import orjson

from paceline_chaos.checkers.evidence.bounds import Bounds
from paceline_chaos.checkers.expectations import BOUNDS, PROPERTIES, judged
from paceline_chaos.history import codec
from paceline_chaos.history.model import History
from paceline_chaos.report.read import verdict_beside
from paceline_chaos.verdict import Verdict


def keep(
    history: History,
    verdict: Verdict,
    path: Path,
    *,
    bounds: Bounds | None = None,
    properties: Collection[str] | None = None,
) -> History:
    """Write history and verdict, their folder too; the history as it was written. None: the
    checkers' own bounds, all properties."""
    world = dict(history.world)
    if bounds is not None:
        world[BOUNDS] = asdict(bounds)
    if properties is not None:
        world[PROPERTIES] = list(properties)
    written = History(world=world, entries=history.entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    codec.save(written, path)
    told = judged(written)[0].violations
    document = {
        "is_good": verdict.is_good,
        "violations": [asdict(one) for one in verdict.violations],
        "observed": [asdict(one) for one in verdict.violations if one not in told],
        "counters": dict(verdict.counters),
    }
    verdict_beside(path).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    return written
