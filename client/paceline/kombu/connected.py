"""What the channels of one kombu connection share."""

from dataclasses import dataclass, field
from typing import Any

from paceline.kombu.declaring import Declarations
from paceline.kombu.inbox import Inbox
from paceline.kombu.receiving import Room
from paceline.kombu.session import Session
from paceline.kombu.temporary import TemporaryQueue


@dataclass(kw_only=True, eq=False)
class Connected:
    """Owned by the transport; its fields are changed in the connection's thread."""

    session: Session
    declarations: Declarations
    inbox: Inbox
    invisible_ms: int
    exchange_types: dict[str, str] = field(default_factory=dict)
    """What was declared here."""
    temporary: dict[str, TemporaryQueue] = field(default_factory=dict)
    """By name; they end with the connection."""
    callbacks: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """By queue: the channel of its consumer, and what to call."""
    rooms: set[Room] = field(default_factory=set)
    """Of all channels."""
