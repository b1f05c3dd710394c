"""How a simple consumer works: what an application may set."""

from dataclasses import dataclass

from paceline.consumer.hooks import ConsumeMessageHook
from paceline.errors import ConfigError

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
