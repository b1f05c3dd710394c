"""Pure: what a simple consumer receives."""

from typing import NamedTuple, TypeAlias

from paceline.message import ReceivedMessage
from paceline.wire.properties import priority_in


class PoppedMessage(NamedTuple):
    """A message that was received, with its receipt. The first fields are `ReceivedMessage`'s."""

    topic: str
    group: str
    """The broker group that holds the queue."""
    queue_id: int
    queue_offset: int
    body: bytes
    key: str | None
    tag: str
    properties: dict[str, str]
    born_unix_ms: int
    store_unix_ms: int
    handle: str
    """The receipt: what `ack` and `change_invisible` show to the broker."""
    attempt: int
    """1 = it was never given to anybody before."""
    invisible_until_unix_ms: int
    """By the broker's log; afterwards others are given the message."""

    @property
    def priority(self) -> int | None:
        """The priority that it was sent with."""
        return priority_in(self.properties)


Acknowledged: TypeAlias = PoppedMessage | str
"""What `ack` takes: a message, or the handle of one."""


def popped(message: ReceivedMessage, handle: str, attempt: int, until: int) -> PoppedMessage:
    return PoppedMessage(*message[:10], handle, attempt, until)  # no lock token
