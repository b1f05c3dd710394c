"""Pure: what every filter of messages has: its type, its expression, and how it is asked."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from paceline.records.decode import BatchView

SQL92 = "SQL92"


class Filter(Protocol):
    """What a subscription wants of a topic. Equal filters have equal `type` and `expression`."""

    @property
    def type(self) -> str: ...

    @property
    def expression(self) -> str: ...

    @property
    def terms(self) -> int:
        """How many tests a record may cost; 0: `wants_any` decides on a batch at once."""
        ...

    def mask(
        self, view: BatchView, first: int = 0, end: int | None = None
    ) -> Sequence[bool] | None:
        """Which records of a batch, from number `first` to before `end`, are wanted; None: all.
        CorruptLogError for a damaged column."""
        ...

    def matches(self, properties: Mapping[str, str], *, tag: str, key: str | None) -> bool:
        """Whether one message is wanted."""
        ...

    def wants_any(self, view: BatchView, first: int = 0, end: int | None = None) -> bool:
        """Whether one of these records is wanted; or may be, where to know it costs more."""
        ...


class ByExpression:
    """Equal where type and expression are."""

    type: str
    expression: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByExpression) and (self.type, self.expression) == (
            other.type,
            other.expression,
        )

    def __hash__(self) -> int:
        return hash((self.type, self.expression))
