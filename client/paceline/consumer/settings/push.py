"""How a push consumer works: what an application may set."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from paceline.consumer.hooks import ConsumeMessageHook
from paceline.errors import ConfigError
from paceline.message import ReceivedMessage


class ConsumeLater(Exception):  # noqa: N818 - an answer, as RECONSUME_LATER is, and no error
    """A listener returns or raises this: the message is to come again later.

    `delay_level`: 0 = as the group's retry policy says, 1 to 18 = that level of the delay ladder,
    below 0 = never: it becomes a dead letter at once.
    """

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"consume later, delay level {delay_level}")
        self.delay_level = delay_level


Listener: TypeAlias = Callable[[ReceivedMessage], Awaitable[ConsumeLater | None]]
"""Processes one message; an exception means that it is to come again later, as `ConsumeLater` does,
raised or returned, which may say when."""
BatchListener: TypeAlias = Callable[[Sequence[ReceivedMessage]], Awaitable[int | None]]
"""Processes messages of one queue, in order; an exception means that all are to be tried again, and
a number how many of them, from the first on, are done (RocketMQ's ackIndex + 1); None = all."""
OnGivenUp: TypeAlias = Callable[[ReceivedMessage, Exception], None]
"""Told of a message whose last attempt failed; it is counted as done afterwards."""

CONSUME_BATCH_MAX = 1024
MESSAGE_MODELS = ("clustering", "broadcasting")
STARTS = ("first", "last", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings:
    """How a push consumer works; names and defaults follow RocketMQ where it has them."""

    message_model: str = "clustering"
    """"clustering": the members share the queues; "broadcasting": each gets every message."""
    concurrency: int = 20
    """Listener calls at one time (consumeThreadMax)."""
    start: str = "last"
    """Where a group begins on a queue it has never committed: "first", "last", or "timestamp"
    (consumeFromWhere)."""
    consume_timestamp: int | None = None
    """With start "timestamp": begin with what was stored at or after this Unix time in ms; None =
    30 minutes ago (consumeTimestamp)."""
    consume_message_batch_max_size: int = 32
    """Most messages of one call of a batch listener (RocketMQ's default is 1)."""
    messages_per_queue_max: int = 1_000
    """Fetched and not done, per queue (pullThresholdForQueue); above it the queue pauses."""
    bytes_per_queue_max: int = 100 * 1024 * 1024
    """(pullThresholdSizeForQueue)"""
    messages_per_topic_max: int = -1
    """Of all queues of a topic that this member holds, shared evenly (pullThresholdForTopic)."""
    bytes_per_topic_max: int = -1
    """(pullThresholdSizeForTopic)"""
    span_max: int = 2_000
    """From the oldest message that is not done to the newest (consumeConcurrentlyMaxSpan)."""
    send_back: bool = True
    """A failed message goes back to its broker and comes again later, from the group's retry topic;
    False: it is tried again here, in this process's memory, and its queue's offset waits for it."""
    max_reconsume_times: int = -1
    """How often a message comes again before it is a dead letter (maxReconsumeTimes); -1 = as the
    group's `retry_max_times` says."""
    attempts_max: int = 16
    """Without `send_back`: calls of the listener for one message before it is given up."""
    retry_first_ms: int = 100
    retry_max_ms: int = 10_000
    consume_timeout_ms: int | None = None
    """A listener call that takes longer has its messages sent back, and the queue goes on without
    them (consumeTimeout); for broadcasting it is only reported. None: after as many minutes as the
    group's `consume_timeout_minute` says (15)."""
    commit_interval_ms: int = 1_000
    """(persistConsumerOffsetInterval, there 5 s)"""
    offsets_folder: str = "~/.paceline/offsets"
    """Where a broadcasting member keeps its offsets (RocketMQ's ~/.rocketmq_offsets)."""
    persist_interval_ms: int = 5_000
    """How often it writes them (persistConsumerOffsetInterval)."""
    close_timeout_ms: int = 10_000
    """How long giving up a queue, or `close`, waits for running listeners."""
    consume_hooks: tuple[ConsumeMessageHook, ...] = ()
    """Called around each listener call."""
    fetch_bytes_max: int = 4 * 1024 * 1024
    queue_bytes_max: int = 1024 * 1024

    @property
    def sends_back(self) -> bool:
        """Whether failed messages go back to their brokers; each member of a broadcasting group has
        to do with them itself, as in RocketMQ."""
        return self.send_back and self.message_model == "clustering"

    def validate(self) -> None:
        """Raises ConfigError with the sentence for the user."""
        if self.message_model not in MESSAGE_MODELS:
            known = ", ".join(MESSAGE_MODELS)
            raise ConfigError(f"message_model must be one of {known}, not {self.message_model!r}")
        if self.start not in STARTS:
            raise ConfigError(f"start must be one of {', '.join(STARTS)}, not {self.start!r}")
        if self.consume_timestamp is not None and self.consume_timestamp < 0:
            raise ConfigError(f"consume_timestamp is a Unix time in ms: {self.consume_timestamp}")
        _check_range(self, 1, "concurrency", 1_000)
        if self.consume_timeout_ms is not None:
            _check_range(self, 1_000, "consume_timeout_ms", 24 * 3600 * 1000)
        _check_range(self, 1, "consume_message_batch_max_size", CONSUME_BATCH_MAX)
        _check_range(self, 1, "messages_per_queue_max", 65_535)
        _check_range(self, 1, "bytes_per_queue_max", 1024 * 1024 * 1024)
        _check_range(self, 1, "span_max", 65_535)
        _check_range(self, 1, "attempts_max", 2**31 - 1)
        _check_range(self, -1, "max_reconsume_times", 2**31 - 1)
        for name, high in (("messages_per_topic_max", 6_553_500), ("bytes_per_topic_max", 1 << 37)):
            if getattr(self, name) != -1:
                _check_range(self, 1, name, high)


def _check_range(settings: PushSettings, low: int, name: str, high: int) -> None:
    value = getattr(settings, name)
    if not low <= value <= high:
        raise ConfigError(f"{name} must be from {low} to {high}, not {value}")
