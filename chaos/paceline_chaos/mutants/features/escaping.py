"""The escape bridge without its rules (R36); caught by the script `escape` of the moments."""

from collections.abc import Sequence
from typing import Any

from paceline.platform.ports import Buffer
from paceline_broker.appender import Appender
from paceline_broker.escape.connection import Codes, EscapeConnection
from paceline_broker.escape.telling import SentReporter
from paceline_broker.service.escape.wait import EscapeWait
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


def _noted_unsent() -> list[Patch]:
    """What was to be sent is taken for sent."""

    async def send(connection: EscapeConnection, batches: Sequence[Buffer]) -> Codes:
        return (None,) * len(batches)

    return [(EscapeConnection, "send", send)]


def _untold() -> list[Patch]:
    """The next master hears nothing of it."""

    async def tell(telling: SentReporter) -> None:
        return None

    return [(SentReporter, "tell", tell)]


def _no_wait() -> list[Patch]:
    """A new master delivers what is overdue in the moment in which it opens."""

    def rest_ms(wait: EscapeWait, epoch: int, *, now_ms: int) -> int:
        return 0

    return [(EscapeWait, "rest_ms", rest_ms)]


def _no_record() -> list[Patch]:
    """The master alone knows what it skips."""

    record = Appender.record

    def unless_escaped(appender: Appender, kind: Any, document: Any, **named: Any) -> Any:
        if "escaped" not in document.get("timers", {}):
            return record(appender, kind, document, **named)
        appender._projections.timers.close_all(document["timers"]["escaped"])
        return None

    return [(Appender, "record", unless_escaped)]


_MOMENT = of_moment("escape")

ESCAPING = (
    Mutant(
        rule="R36-escape-confirmed",
        meaning="an acting master tells of messages that no other group has",
        patches=_noted_unsent,
        **_MOMENT,
    ),
    Mutant(
        rule="R36-escape-told",
        meaning="the next master is not told what went elsewhere",
        patches=_untold,
        **_MOMENT,
    ),
    Mutant(
        rule="R36-escape-wait",
        meaning="a new master does not wait for what it is told",
        patches=_no_wait,
        **_MOMENT,
    ),
    Mutant(
        rule="R36-escape-record",
        meaning="what is skipped is in no record",
        patches=_no_record,
        **_MOMENT,
    ),
)
"""Each with the script of its rule."""
