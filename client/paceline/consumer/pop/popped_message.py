"""What a simple consumer is told to do, and what it receives."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from paceline.errors import ConfigError
from paceline.hooks import ConsumeMessageHook
from paceline.message import ReceivedMessage

MESSAGES_MAX = 32
WAIT_MS_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleSettings:
    """How a simple consumer works; the limits are the brokers'."""

    max_messages: int = MESSAGES_MAX
    """Of one receive: 1 to 32."""
    invisible_ms: int = 60_000
    """How long nobody else is given a message: 10 s to 12 h."""
    wait_ms: int = WAIT_MS_MAX
    """How long a receive waits for a first message: up to 20 s."""
    start: str = "first"
    """Where a group begins on a queue it has never consumed: "first" or "last"."""
    ordered: bool = False
    """A queue's messages one receive after the other: the next when the last are acknowledged."""
    auto_renew: bool = False
    """Lengthen the invisible time of what was received and not acknowledged, again and again."""
    auto_renew_ms_max: int = 15 * 60 * 1000
    """No longer than this after the receive (RocketMQ's consumeTimeout)."""
    call_timeout_ms: int = 10_000
    """For acknowledgements and changes, over failovers."""
    consume_hooks: tuple[ConsumeMessageHook, ...] = ()
    """Called around the handing out of messages."""

    def validate(self) -> None:
        """Raises ConfigError with the sentence for the user."""
        if self.start not in ("first", "last"):
            raise ConfigError(f'start must be "first" or "last", not {self.start!r}')
        for name, low, high in (
            ("max_messages", 1, MESSAGES_MAX),
            ("invisible_ms", 10_000, 12 * 3600 * 1000),
            ("wait_ms", 0, WAIT_MS_MAX),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} must be {low} to {high}, not {getattr(self, name)}")


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


Acknowledged: TypeAlias = PoppedMessage | str
"""What `ack` takes: a message, or the handle of one."""


def popped(message: ReceivedMessage, handle: str, attempt: int, until: int) -> PoppedMessage:
    return PoppedMessage(*message[:10], handle, attempt, until)  # no lock token
