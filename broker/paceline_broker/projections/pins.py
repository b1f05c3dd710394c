"""Pure: pins, by which a reader of old messages keeps retention from passing an offset (R26).

A pin has an owner, a position of the log and a lease, which its owner renews. Both ways in which it
ends are records: the owner's, and the master's retention record, which names the pins it drops: run
out, or fallen because the disk filled up. The fold reads no clock (R29).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline.types import PhysicalOffset


class Pin(NamedTuple):
    """Nothing at or above `position` is deleted while it stands."""

    position: PhysicalOffset
    expires_unix_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRequest:
    """The document of a pin record. `position` None: the owner gives its pin up."""

    owner: str
    position: int | None
    lease_ms: int

    def to_json(self) -> dict[str, Any]:
        return {"lease_ms": self.lease_ms, "owner": self.owner, "position": self.position}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "PinRequest":
        return cls(
            owner=document["owner"],
            position=document["position"],
            lease_ms=document["lease_ms"],
        )


class Pins:
    """All pins of a broker's log, by owner."""

    def __init__(self) -> None:
        self._pins: dict[str, Pin] = {}

    def get(self, owner: str) -> Pin | None:
        return self._pins.get(owner)

    def all(self) -> dict[str, Pin]:
        """A copy, by owner."""
        return {owner: self._pins[owner] for owner in sorted(self._pins)}

    def apply(self, request: PinRequest, *, now_unix_ms: int) -> None:
        """Fold a pin record; its lease runs from the record's store time."""
        if request.position is None:
            self._pins.pop(request.owner, None)
            return
        self._pins[request.owner] = Pin(
            PhysicalOffset(request.position), now_unix_ms + request.lease_ms, request.lease_ms
        )

    def drop(self, owners: list[str]) -> None:
        """Fold the part of a retention record that ends pins."""
        for owner in owners:
            self._pins.pop(owner, None)

    def to_json(self) -> list[list[Any]]:
        return [[owner, *pin] for owner, pin in self.all().items()]

    @classmethod
    def from_json(cls, rows: list[list[Any]]) -> "Pins":
        pins = cls()
        for owner, position, expires, lease in rows:
            pins._pins[owner] = Pin(PhysicalOffset(position), expires, lease)
        return pins
