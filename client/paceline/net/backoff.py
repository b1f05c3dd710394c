"""Pure: what to do after an error, and how long to wait before the next attempt.

R32 rests on one question: did every attempt of a batch certainly store nothing? Only the error
classes answer it (`is_definite`), so no other module of the client judges errors by name.
"""

from enum import Enum

from paceline.errors import (
    FencedEpochError,
    OutOfOrderSequenceError,
    PacelineError,
    QueueNotFoundError,
    Retry,
    ShuttingDownError,
    TopicNotFoundError,
    UnknownProducerError,
)
from paceline.platform.ports import Random

BACKOFF_FIRST_MS = 5
"""A new master opens its epoch within a few milliseconds; the first retry should find it open."""
BACKOFF_MAX_MS = 250
"""Under a failover the watch wakes us, so this only bounds load on a cluster that cannot serve."""


class Verdict(Enum):
    """What an error answer to one attempt of a batch means."""

    RETRY = "retry"
    """Definitely not stored by this attempt, and a later one may succeed."""
    UNKNOWN = "unknown"
    """It may be stored: the batch is pinned to its queue, byte-identical (R32)."""
    SEQUENCE = "sequence"
    """A gap before this batch (R31): harmless while an earlier batch of the queue is pending."""
    FATAL = "fatal"
    """Definitely not stored, and no retry can help."""


def judge(error: PacelineError) -> Verdict:
    """The verdict over one attempt that was answered with, or failed by, `error`."""
    if not error.is_definite:
        return Verdict.UNKNOWN
    if isinstance(error, OutOfOrderSequenceError | UnknownProducerError):
        return Verdict.SEQUENCE
    # A broker that is behind the view does not know a new topic yet; a deleted topic leaves the
    # view, and the producer fails its batches then.
    if isinstance(error, TopicNotFoundError | QueueNotFoundError):
        return Verdict.RETRY
    if isinstance(error, FencedEpochError | ShuttingDownError) or error.retry is not Retry.NEVER:
        return Verdict.RETRY
    return Verdict.FATAL


class Backoff:
    """Exponential waits with full jitter over their upper half; a success starts again."""

    __slots__ = ("_first_ms", "_max_ms", "_next_ms", "_random")

    def __init__(
        self, random: Random, *, first_ms: float = BACKOFF_FIRST_MS, max_ms: float = BACKOFF_MAX_MS
    ) -> None:
        self._random = random
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._next_ms = first_ms

    def next_ms(self) -> float:
        """The wait before the next attempt, in milliseconds."""
        wait_ms = self._next_ms
        self._next_ms = min(self._max_ms, wait_ms * 2)
        return wait_ms * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """An attempt succeeded."""
        self._next_ms = self._first_ms
