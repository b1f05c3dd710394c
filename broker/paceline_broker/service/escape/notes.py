"""Pure: what acting masters of this data folder have sent to other groups, and no master of the own
group was told yet (R36).

A note is kept in order of sending, so telling is from the front. It names the message by what every
replica's log agrees upon: where it was first stored, in which epoch, when it is due, for which
queue. An unclean election may put another message at the same place; then the epoch differs.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple, TypeAlias

from msgspec import Meta

from paceline.wire.calls.request import U32_MAX, Number

NOTES_MAX = 1_000_000
"""Some 28 MB, in memory and on disk; an acting master with so many sends no more."""


EpochNumber: TypeAlias = Annotated[int, Meta(ge=0, le=U32_MAX)]


class SentNote(NamedTuple):
    """One message that another group has confirmed."""

    origin: Annotated[int, Meta(ge=0)]
    """Where it was first stored (`pack_source`)."""
    due_unix_ms: Number
    key: Number
    """Of the queue it goes to (`queue_key`)."""
    epoch: EpochNumber
    """Which wrote the place it was first stored at."""


class Notes:
    """Columns, as there may be many."""

    TYPES = "QqQI"

    def __init__(self) -> None:
        self._columns = tuple(array(code) for code in self.TYPES)
        self._told = 0

    def __len__(self) -> int:
        return len(self._columns[0]) - self._told

    @property
    def is_full(self) -> bool:
        return len(self) >= NOTES_MAX

    def add(self, notes: Iterable[SentNote]) -> None:
        for note in notes:
            for column, value in zip(self._columns, note, strict=True):
                column.append(value)

    def first(self, count_max: int) -> list[SentNote]:
        """The oldest ones that nobody was told."""
        span = slice(self._told, self._told + count_max)
        return [
            SentNote(*row) for row in zip(*(column[span] for column in self._columns), strict=True)
        ]

    def parts(self, count: int) -> Iterator[list[SentNote]]:
        """All that nobody was told as of now, so many at a time."""
        columns = [column[self._told :] for column in self._columns]
        for at in range(0, len(columns[0]), count):
            yield [
                SentNote(*row) for row in zip(*(c[at : at + count] for c in columns), strict=True)
            ]

    def settle(self, count: int) -> None:
        """A master has decided the oldest `count` of them."""
        assert count <= len(self), (count, len(self))
        self._told += count
        if self._told * 2 >= len(self._columns[0]):
            for column in self._columns:
                del column[: self._told]
            self._told = 0

    def origins(self) -> set[int]:
        """Of all that nobody was told."""
        return set(self._columns[0][self._told :])
