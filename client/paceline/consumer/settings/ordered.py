"""How an ordered consumer works: what an application may set, with RocketMQ's names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from paceline.consumer.hooks import ConsumeMessageHook
from paceline.consumer.settings.push import PushSettings
from paceline.errors import ConfigError
from paceline.message import ReceivedMessage

OnLate: TypeAlias = Callable[[ReceivedMessage], None]
"""Told of a message whose listener call ended after its lock's lease: it is processed again."""

SUSPEND_MS_MIN, SUSPEND_MS_MAX = 10, 30_000
_LEASE_MS_MAX = 59_000
"""Below the brokers' longest lease, 60 s, with some share for clocks of another pace."""


class SuspendQueueError(Exception):
    """Raised by a listener: leave the message where it is and come again after `suspend_ms`.

    RocketMQ's SUSPEND_CURRENT_QUEUE_A_MOMENT with a time of its own; counts as a failed call.
    """

    def __init__(self, suspend_ms: int) -> None:
        super().__init__(f"suspend the queue for {suspend_ms} ms")
        self.suspend_ms = min(SUSPEND_MS_MAX, max(SUSPEND_MS_MIN, suspend_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedSettings:
    """How an ordered consumer works."""

    concurrency: int = 20
    """Queues that are processed at one time (consumeThreadMax)."""
    start: str = "last"
    """Where a group begins on a queue it has never committed: "first", "last" or "timestamp"
    (consumeFromWhere)."""
    consume_timestamp: int | None = None
    """With start "timestamp": Unix time in ms; None = 30 minutes ago."""
    consume_message_batch_max_size: int = 1
    """Most messages of one call of a batch listener."""
    suspend_current_queue_time_ms: int = 1_000
    """After a failed call the queue waits so long, and the message is tried again in place."""
    max_reconsume_times: int = -1
    """How often a failed message is tried again; then it becomes a dead letter of the group, and
    its queue goes on (maxReconsumeTimes). -1: for ever, so that one bad message holds its queue."""
    max_time_consume_continuously_ms: int = 60_000
    """A queue's turn while others wait for one."""
    rebalance_lock_max_live_time_ms: int = 30_000
    """Our leases, by our own clock from when we asked (RocketMQ's client; its brokers wait 60 s for
    a member that died, ours as long as this)."""
    rebalance_lock_interval_ms: int = 20_000
    """Leases are renewed so often, all of a broker group in one call."""
    unlock_delay_ms: int = 20_000
    """How long giving up a queue, or `close`, waits for its running listener."""
    commit_interval_ms: int = 1_000
    messages_per_queue_max: int = 1_000
    """Fetched and not done (pullThresholdForQueue)."""
    bytes_per_queue_max: int = 100 * 1024 * 1024
    consume_hooks: tuple[ConsumeMessageHook, ...] = ()
    """Called around each listener call."""
    fetch_bytes_max: int = 4 * 1024 * 1024
    queue_bytes_max: int = 1024 * 1024

    def validate(self) -> None:
        """Raises ConfigError with the sentence for the user."""
        self.of_owner().validate()
        self._check("suspend_current_queue_time_ms", SUSPEND_MS_MIN, SUSPEND_MS_MAX)
        self._check("max_reconsume_times", -1, 2**31 - 2)
        self._check("max_time_consume_continuously_ms", 1, 3_600_000)
        self._check("rebalance_lock_max_live_time_ms", 1_000, _LEASE_MS_MAX)
        self._check("rebalance_lock_interval_ms", 100, _LEASE_MS_MAX)
        self._check("unlock_delay_ms", 0, 600_000)
        if self.rebalance_lock_interval_ms >= self.rebalance_lock_max_live_time_ms:
            raise ConfigError(
                f"rebalance_lock_interval_ms ({self.rebalance_lock_interval_ms}) must be below "
                f"rebalance_lock_max_live_time_ms ({self.rebalance_lock_max_live_time_ms}): a "
                "lease is renewed before it ends"
            )

    def of_owner(self) -> PushSettings:
        """What the keeping of queues has to know."""
        return PushSettings(
            concurrency=self.concurrency,
            start=self.start,
            consume_timestamp=self.consume_timestamp,
            consume_message_batch_max_size=self.consume_message_batch_max_size,
            messages_per_queue_max=self.messages_per_queue_max,
            bytes_per_queue_max=self.bytes_per_queue_max,
            # In order the oldest message that is not done is the next one: no span to bound.
            span_max=65_535,
            commit_interval_ms=self.commit_interval_ms,
            close_timeout_ms=self.unlock_delay_ms,
            fetch_bytes_max=self.fetch_bytes_max,
            queue_bytes_max=self.queue_bytes_max,
        )

    def _check(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            raise ConfigError(f"{name} must be from {low} to {high}, not {value}")
