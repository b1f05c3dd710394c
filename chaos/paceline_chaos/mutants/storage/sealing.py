"""Rules of sealed queues, taken out (R28); caught by the script in which a master seals alone."""

from typing import Any

from paceline.wire.static_topics import Segment
from paceline_broker.projections.seals import Seal, Seals
from paceline_broker.retention import queue_sealing
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


class _Unheeded(dict[int, Seal]):
    """Seals that can be told of, and that nobody finds who asks whether a queue has one."""

    def __contains__(self, key: object) -> bool:
        return False


def _told_at_once() -> list[Patch]:
    """The controllers hear of a seal before anybody else has it."""

    def is_to_report(segment: Segment, seal: Seal, confirm: int) -> bool:
        return is_news(segment, seal, seal.position)

    is_news = queue_sealing.is_to_report
    return [(queue_sealing, "is_to_report", is_to_report)]


def _takes_on() -> list[Patch]:
    """What comes before the sender's view is newer is appended behind the seal."""

    def begin(seals: Any) -> None:
        seals.by_key = _Unheeded()

    return [(Seals, "__init__", begin)]


SEALING = (
    Mutant(
        rule="R28-seal",
        meaning="a seal is told before it is confirmed",
        patches=_told_at_once,
        **of_moment("sealed"),
    ),
    Mutant(
        rule="R28-sealed",
        meaning="a sealed queue takes what still comes",
        patches=_takes_on,
        **of_moment("sealed"),
    ),
)
