"""Pure: sealed queues of static topics: they take no more messages.

The record of the seal says only which queues; where each ended is the state at that place of the
log (R29), so every replica knows the same end, and a later master reports what an earlier one
sealed.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from paceline_broker.projections.consume_queues import topic_of


class Seal(NamedTuple):
    """One sealed queue."""

    end: int
    """Its queue's end, for ever."""
    position: int
    """The end of the record in the log: what is told of the seal waits until confirm is here."""


class Seals:
    """All sealed queues of a broker's log, by queue key."""

    def __init__(self) -> None:
        self.by_key: dict[int, Seal] = {}
        """The hot path looks each batch's queue up in it."""

    def add(self, key: int, seal: Seal) -> None:
        """Fold a seal; the first one of a queue counts."""
        self.by_key.setdefault(key, seal)

    def keys(self) -> set[int]:
        return set(self.by_key)

    def drop_topic(self, topic_id: int) -> None:
        """The topic was deleted (R35)."""
        for key in [key for key in self.by_key if topic_of(key) == topic_id]:
            del self.by_key[key]

    def to_json(self) -> list[list[Any]]:
        return [[key, *self.by_key[key]] for key in sorted(self.by_key)]

    @classmethod
    def from_json(cls, rows: list[list[Any]]) -> "Seals":
        seals = cls()
        for key, end, position in rows:
            seals.by_key[key] = Seal(end, position)
        return seals


def seal_document(topic_queues: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """The document of an operation that seals (topic id, queue)s."""
    return {"topics": {"sealed": [list(pair) for pair in sorted(topic_queues)]}}
