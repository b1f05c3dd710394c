"""Queues of a member that could not be started: when each is tried again, and who hears of it.

What passes (a failover, a lock that another member still has) is tried again after a growing wait,
and said to the log now and then. What the brokers refuse for good is tried again as well, since an
operator may change it, but the application is told: it would wait for messages that never come.
"""

import logging
from collections.abc import Callable
from typing import TypeAlias

from paceline.errors import (
    BadRequestError,
    ConfigError,
    ForbiddenError,
    PacelineError,
    UnauthenticatedError,
)
from paceline.net.backoff import Backoff
from paceline.platform.ports import Clock, Random
from paceline.queues import QueueKey

log = logging.getLogger("paceline.client")

FIRST_MS, WAIT_MS_MAX = 50, 1_000
SAID_MS = 10_000
"""Between two lines about one kind of error."""
_FOR_GOOD = (BadRequestError, ConfigError, ForbiddenError, UnauthenticatedError)

OnError: TypeAlias = Callable[[QueueKey | None, PacelineError], None]
"""Told once of a queue that the brokers refuse to let this consumer read, and why; without a queue
once of each right or key that the consumer lacks, again if that comes back after a minute."""


class NotStarted:
    """Owned by one consumer."""

    def __init__(self, clock: Clock, random: Random, *, on_error: OnError | None) -> None:
        self._clock = clock
        self._random = random
        self._on_error = on_error
        self._backoffs: dict[QueueKey, Backoff] = {}
        self._told: set[QueueKey] = set()
        self._said_ms: dict[str, int] = {}
        self._unsaid: dict[str, int] = {}

    def failed(self, key: QueueKey, error: PacelineError) -> float:
        """How many milliseconds to wait before the queue is claimed anew."""
        self._say(key, error)
        if isinstance(error, _FOR_GOOD) and key not in self._told and self._on_error is not None:
            self._told.add(key)
            self._on_error(key, error)
        if key not in self._backoffs:
            self._backoffs[key] = Backoff(self._random, first_ms=FIRST_MS, max_ms=WAIT_MS_MAX)
        return self._backoffs[key].next_ms()

    def started(self, key: QueueKey) -> None:
        self._backoffs.pop(key, None)
        self._told.discard(key)

    def _say(self, key: QueueKey, error: PacelineError) -> None:
        now_ms, code = self._clock.monotonic_ms(), error.code
        said_ms = self._said_ms.get(code)
        if said_ms is not None and now_ms < said_ms + SAID_MS:
            self._unsaid[code] = self._unsaid.get(code, 0) + 1
            return
        self._said_ms[code] = now_ms
        fields = {
            "queue": str(key),
            "error": error.message,
            "others_since": self._unsaid.pop(code, 0),
        }
        level = logging.ERROR if isinstance(error, _FOR_GOOD) else logging.WARNING
        log.log(level, "queue_not_started", extra=fields)
