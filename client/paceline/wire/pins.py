"""Pure: pins, by which readers of old messages keep retention away from them (R26), on the wire."""

from dataclasses import asdict, dataclass
from typing import Any

from paceline.types import PhysicalOffset

LEASE_MS_MIN = 1000
LEASE_MS_MAX = 7 * 24 * 3600 * 1000
"""Whoever has died must not keep a disk full for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinView:
    """One owner's pin in one broker group: nothing at or above `position` is deleted."""

    owner: str
    position: PhysicalOffset
    expires_unix_ms: int
    """In the time of the group's log. Renewed by setting it again."""
    lease_ms: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "PinView":
        return cls(
            owner=document["owner"],
            position=PhysicalOffset(document["position"]),
            expires_unix_ms=document["expires_unix_ms"],
            lease_ms=document["lease_ms"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PinsOfGroup:
    """All pins of one broker group, by owner, and where its log begins."""

    log_start: PhysicalOffset
    pins: tuple[PinView, ...]

    def to_json(self) -> dict[str, Any]:
        return {"log_start": self.log_start, "pins": [pin.to_json() for pin in self.pins]}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "PinsOfGroup":
        return cls(
            log_start=PhysicalOffset(document["log_start"]),
            pins=tuple(PinView.from_json(pin) for pin in document["pins"]),
        )
