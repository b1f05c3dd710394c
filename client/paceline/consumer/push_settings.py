"""How a push consumer works: what an application may set."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from paceline.errors import ConfigError
from paceline.message import ReceivedMessage

Listener: TypeAlias = Callable[[ReceivedMessage], Awaitable[None]]
"""Processes one message; an exception means that it is to be tried again."""
OnGivenUp: TypeAlias = Callable[[ReceivedMessage, Exception], None]
"""Told of a message whose last attempt failed; it is counted as done afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings:
    """How a push consumer works; names and defaults follow RocketMQ where it has them."""

    concurrency: int = 20
    """Listener calls at one time (consumeThreadMax)."""
    start: str = "last"
    """Where a group begins on a queue it has never committed: "first" or "last"."""
    messages_per_queue_max: int = 1_000
    """Fetched and not done, per queue (pullThresholdForQueue); above it the queue pauses."""
    bytes_per_queue_max: int = 16 * 1024 * 1024
    span_max: int = 2_000
    """From the oldest message that is not done to the newest (consumeConcurrentlyMaxSpan)."""
    attempts_max: int = 16
    """Calls of the listener for one message (maxReconsumeTimes)."""
    retry_first_ms: int = 100
    retry_max_ms: int = 10_000
    commit_interval_ms: int = 1_000
    close_timeout_ms: int = 10_000
    """How long giving up a queue, or `close`, waits for running listeners."""
    fetch_bytes_max: int = 4 * 1024 * 1024
    queue_bytes_max: int = 1024 * 1024

    def validate(self) -> None:
        """Raises ConfigError with the sentence for the user."""
        if self.start not in ("first", "last"):
            raise ConfigError(f'start must be "first" or "last", not {self.start!r}')
        for name in ("concurrency", "messages_per_queue_max", "attempts_max", "span_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
