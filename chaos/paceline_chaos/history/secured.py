"""Pure: users and rights at nodes, and the names that clients were shown (S31, S42 to S44)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_chaos.history.basis import Event, Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityApplied(Event):
    """From now on a node decides by this version of users and rights."""

    at_us: int
    node: str
    version: int
    security: Mapping[str, Any]
    """`mode` ("off", "dry-run", "on"), `users` (name -> `type`, `is_enabled`, `keys`) and
    `policies` (name -> `custom`, `default`: entries in the order in which they were put)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRights(Operation):
    """An operator switches rights on, off or on for trial, or revokes an access key."""

    what: str
    """MODE or REVOKE."""
    name: str
    """The mode, or the access key."""


MODE, REVOKE = "mode", "revoke"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListNames(Operation):
    """Somebody asks a node which topics or consumer groups there are."""

    what: str
    """Path that was asked for."""
    topics: tuple[str, ...] = ()
    consumer_groups: tuple[str, ...] = ()
