"""Streams whose users have taken more than their quota: in which order they are read from again.

A request is paid for by the length that its frame announces, before the frame is read. While a
bucket is below zero the stream stands in line for it and is not read from; once it is at zero the
first in line is served, which may take it below zero again, then the next. So all streams of a user
together take what its quota allows, and by turns, one request each.

Requests of at most `SMALL_BYTES` have a line of their own, which is served by turns with the other,
and at half of the rate while the bucket is below zero: heartbeats and fetches do not wait for
requests of 16 MiB on other streams. In the worst case, which is a user with very many streams and a
small quota, such a stream waits `OVERDUE_MS`: then it has one turn of at most `SMALL_BYTES`,
whatever was taken, since its client would hold the broker for dead after some seconds, and the
group its member after 120 s. More than the quota a user can thus take only so: 16 KiB in 2 s for
each stream, and how many those are its quota of connections says. A fetch that is overdue is
refused (429) instead while the limit of what is read is exceeded: its answer has no such bound.

A large request has to wait for its turn, and with it what comes behind it in the same stream.
Rejected: to give each stream one request a second in any case, as until now (1,000 streams took a
thousand times the quota); to read on and put requests aside (a user that is over its quota would
fill the memory that all share); empty answers to fetches, as Kafka gives them (they say that a
queue has no more).
"""

import asyncio
from collections import deque
from collections.abc import Callable

from paceline.platform.ports import Clock
from paceline.security.quotas import WAIT_MS_MAX, Bucket, UserQuota

SMALL_BYTES = 16 * 1024
"""A heartbeat with some hundred topics, a fetch of some hundred queues."""
SMALL_REQUESTS = 8
"""In one turn, and `SMALL_BYTES` together: a client has some that belong together."""
SMALL_ANSWER_BYTES = 64 * 1024
"""Of a fetch, where a second's worth is less, or the limit of what is read is exceeded."""
OVERDUE_MS = 2_000
"""A client that calls hears something within 3 s, or holds the broker for dead."""


class QuotaLines:
    """All streams of a broker that wait for a quota. Owner: the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: dict[Bucket, _Line] = {}

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def has_line(self, bucket: Bucket, *, is_small: bool) -> bool:
        line = self._lines.get(bucket)
        return line is not None and bool(line.small if is_small else line.large)

    def join(self, stream: "StreamQuota", bucket: Bucket, *, is_first: bool) -> None:
        """Stand in line; `is_first`: it had been the first of another one."""
        line = self._lines.setdefault(bucket, _Line(self, bucket))
        members = line.small if stream.is_small else line.large
        if is_first:
            members.appendleft(stream)
        else:
            members.append(stream)
        line.arm()

    def leave(self, stream: "StreamQuota", bucket: Bucket) -> None:
        line = self._lines[bucket]
        (line.small if stream.is_small else line.large).remove(stream)
        self.drop_empty(line)

    def drop_empty(self, line: "_Line") -> None:
        if not line.small and not line.large:
            line.end()
            self._lines.pop(line.bucket, None)


class _Line:
    """Of one bucket."""

    def __init__(self, lines: QuotaLines, bucket: Bucket) -> None:
        self.bucket = bucket
        self.small: deque[StreamQuota] = deque()
        self.large: deque[StreamQuota] = deque()
        self._lines = lines
        self._timer: asyncio.TimerHandle | None = None
        self._is_large_next = False

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def arm(self) -> None:
        """Look again when the next one may go on."""
        loop = asyncio.get_running_loop()
        at = loop.time() + min(self._wait_ms(), WAIT_MS_MAX) / 1000
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._serve)

    def _wait_ms(self) -> int:
        now_ms = self._lines.now_ms()
        wait_ms = self.bucket.spend(0, now_ms=now_ms)
        if not self.small:
            return wait_ms
        overdue_ms = self.small[0].since_ms + OVERDUE_MS - now_ms
        return min(wait_ms, self.bucket.small_wait_ms(now_ms=now_ms), max(0, overdue_ms))

    def _serve(self) -> None:
        """Let those go on whose turn it is. Each pays at once for what it asks, but for an answer
        when that is made: so of small ones one goes on in each turn of the loop."""
        self._timer = None
        while (stream := self._next()) is not None:
            stream.have_turn()
            if stream.is_small:
                break
        if self.small or self.large:
            self.arm()
        else:
            self._lines.drop_empty(self)

    def _next(self) -> "StreamQuota | None":
        now_ms = self._lines.now_ms()
        is_open = self.bucket.spend(0, now_ms=now_ms) == 0
        if is_open and self.large and (self._is_large_next or not self.small):
            self._is_large_next = False
            return self.large.popleft()
        if self.small:
            is_overdue = self.small[0].since_ms + OVERDUE_MS <= now_ms
            if is_open or is_overdue or not self.bucket.small_wait_ms(now_ms=now_ms):
                self._is_large_next = True
                return self.small.popleft()
        return None


class StreamQuota:
    """What counts for one stream, and whether it waits."""

    def __init__(
        self, lines: QuotaLines, quota: UserQuota | None, go_on: Callable[[], None]
    ) -> None:
        """`go_on` is called when the stream may read on, after `may_take` has said no."""
        self.quota = quota
        """Of its user."""
        self.since_ms = 0
        """Since when it waits."""
        self.is_small = False
        """What it waits with."""
        self.is_overdue = False
        """Its present turn is one that it has whatever was taken."""
        self._lines = lines
        self._go_on = go_on
        self._shared: UserQuota | None = None
        """Of the namespace that it has last taken too much of."""
        self._size = 0
        self._waits_for: Bucket | None = None
        self._is_paid = False
        self._turn_bytes = self._turn_requests = 0
        self._waited_ms = 0
        """Before its present turn."""

    @property
    def is_waiting(self) -> bool:
        return self._waits_for is not None

    def rest_of(self, wait_ms: int) -> int:
        """What is left of the time for which a long poll may wait: it has begun in the line."""
        return max(0, wait_ms - self._waited_ms)

    def may_take(self, size: int) -> bool:
        """Whether the next request may be read; it is paid for then. `size` of its body. Else it
        stands in line, and asks again when it is told to go on."""
        if self.quota is None and self._shared is None:
            return True
        if self._is_paid:
            self._is_paid = False
            return True
        if self._turn_requests and size <= self._turn_bytes:
            self._pay(size)
            return True
        self.end_turn()
        self._size, self.is_small = size, size <= SMALL_BYTES
        self.since_ms = self._lines.now_ms()
        bucket = self._blocking(is_first=False)
        if bucket is None:
            self._pay(size)
            return True
        self._wait(bucket, is_first=False)
        return False

    def have_turn(self) -> None:
        """It was the first in line: go on, unless another limit is in the way now."""
        self._waits_for = None
        self._waited_ms = self._lines.now_ms() - self.since_ms
        self.is_overdue = self.is_small and self._waited_ms >= OVERDUE_MS
        bucket = None if self.is_overdue else self._blocking(is_first=True)
        if bucket is not None:
            self._wait(bucket, is_first=True)
            return
        if self.is_small:
            self._turn_bytes, self._turn_requests = SMALL_BYTES, SMALL_REQUESTS
        self._pay(self._size)
        self._is_paid = True
        self._go_on()

    def change(self, quota: UserQuota | None) -> None:
        """Another quota counts: who waits for what counts no more asks again."""
        is_waiting = self.is_waiting
        self.leave()
        self.quota, self._shared = quota, None
        if is_waiting:
            self._go_on()

    def leave(self) -> None:
        """It waits no more."""
        if self._waits_for is not None:
            self._lines.leave(self, self._waits_for)
            self._waits_for = None
        self._is_paid = False
        self.end_turn()

    def end(self) -> None:
        """The stream has ended."""
        self.leave()
        self._go_on = _nothing  # else the two would keep each other

    def end_turn(self) -> None:
        """What was read when its turn came is taken: for more it stands in line again."""
        if not self._is_paid:  # else the loop had no room: it has yet to begin
            self._turn_bytes = self._turn_requests = self._waited_ms = 0
            self.is_overdue = False

    def spend(self, *, bytes_out: int) -> None:
        """Count an answer."""
        if self.quota is not None:
            self.quota.spend(bytes_out=bytes_out)

    def spend_shared(self, shared: UserQuota, *, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """Count it for a namespace; who takes too much of one waits with all that it does."""
        if shared.spend(bytes_in=bytes_in, bytes_out=bytes_out):
            self._shared = shared

    def answer_bytes(self, asked_bytes: int) -> int:
        """What an answer may have where so much was asked for."""
        limit = None if self.quota is None else self.quota.answer_bytes_max(SMALL_ANSWER_BYTES)
        return asked_bytes if limit is None else min(asked_bytes, limit)

    @property
    def may_fetch(self) -> bool:
        """A fetch may be answered in this turn."""
        if not self.is_overdue:
            return True
        now_ms = self._lines.now_ms()
        return all(
            quota is None
            or (bucket := quota.buckets.get("bytes_out")) is None
            or not bucket.spend(0, now_ms=now_ms)
            for quota in (self.quota, self._shared)
        )

    # -- small things ------------------------------------------------------------------------------

    def _blocking(self, *, is_first: bool) -> Bucket | None:
        """The bucket that it has to wait for longest, if there is one. `is_first`: it has stood in
        line for one of them already."""
        now_ms, found, longest_ms = self._lines.now_ms(), None, -1
        shared = self._shared
        buckets = [] if self.quota is None else list(self.quota.buckets.values())
        buckets += [] if shared is None else shared.buckets.values()
        is_owing = False
        for bucket in buckets:
            wait_ms = bucket.spend(0, now_ms=now_ms)
            is_owing = is_owing or wait_ms > 0
            if wait_ms and self.is_small:
                wait_ms = bucket.small_wait_ms(now_ms=now_ms)
            has_line = not is_first and self._lines.has_line(bucket, is_small=self.is_small)
            if (wait_ms or has_line) and wait_ms > longest_ms:
                found, longest_ms = bucket, wait_ms
        if not is_owing:
            self._shared = None
        return found

    def _pay(self, size: int) -> None:
        self._turn_bytes -= size
        self._turn_requests = max(0, self._turn_requests - 1)
        if self.quota is not None:
            self.quota.spend(bytes_in=size, requests=1)

    def _wait(self, bucket: Bucket, *, is_first: bool) -> None:
        self._waits_for = bucket
        self._lines.join(self, bucket, is_first=is_first)


def _nothing() -> None:
    """Goes on with a stream that has ended."""
