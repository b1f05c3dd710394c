"""Pure: the rate of catching up, limited so that acknowledgements are not delayed.

Whoever catches up costs the master's loop, the network and, where machines are shared, a disk. What
that does to acknowledgements is measured: how long appended bytes wait for confirm. While nobody
catches up, the newest waits are remembered: what 99 of 100 of them stay under is the *calm*, and
the limit for 99 of 100 is twice that. A wait beyond it takes the rate down at once and costs what
a hundred waits within it earn; the rate grows only while there is something earned. A tighter limit
did not shorten waits where two cores serve a whole cluster (docs/BENCHMARKS.md, Catching up).
Without sends nothing is at stake, and the rate doubles. All times are the process's running time.

Waits are counted in whole milliseconds and only from a message's write on, so they do not show what
the loop lost before. Hence a second bound: while there are sends, writing pieces takes the loop a
twentieth of its time at most.
"""

from collections import deque

from paceline.types import PhysicalOffset

MIB = 1024 * 1024
RATE_START, RATE_MIN, RATE_MAX = 128 * MIB, 8 * MIB, 2048 * MIB
FIRST_GROWTH, GROWTH, FALL, FREE_GROWTH = 1.2, 1.05, 0.7, 2.0
"""Of one tick: before the first fall, after it; at each confirm that came late; without sends."""
GAIN = 2.0
"""Never slower than this times what is appended, or the replica would never arrive."""
LIMIT_RATIO, LIMIT_EXTRA_MS = 2.0, 1
"""Of the calm, and one for the clock's whole milliseconds."""
CALM_COUNT, CALM_COUNT_MIN = 1000, 100
CALM_MS_START = 10
"""Taken for the calm while fewer waits are known: a new master may find a replica far behind."""
EARNED, EARNED_OF_TICK = 0.01, 0.1
"""Of one wait within the limit; and of a tick at least, for few sends a second."""
CREDIT_START, CREDIT_MAX, CREDIT_MIN = 1.0, 3.0, -10.0
NEAR_FLOOR = 1.2
"""The floor moves with what is appended, a little in every tick."""
FLOOR_TICKS = 10
"""So long at the floor: what waits take now is not what catching up costs."""
BURST_MS = 20
LOOP_SHARE = 0.05
"""Of the loop's time, for writing pieces while there are sends."""
COST_WEIGHT = 0.05
"""Of the newest piece, in what a byte is taken to cost."""


class CatchUpPace:
    """How fast replicas may catch up now. Owner: the term."""

    def __init__(self, now_ms: int) -> None:
        self.bytes_per_s = float(RATE_START)
        self.limit_ms = float(LIMIT_RATIO * CALM_MS_START + LIMIT_EXTRA_MS)
        """A wait beyond this is too long."""
        self._calm: deque[int] = deque(maxlen=CALM_COUNT)
        self._waits: list[int] = []
        """That ended in this tick."""
        self._credit = CREDIT_START
        self._has_fallen = False
        self._late_ms = now_ms
        self._floor_ticks = 0
        self._budget = 0.0
        self._budget_ms = now_ms
        self._is_in_use = False
        self._end = PhysicalOffset(0)
        self._appended_per_s = 0.0
        self._cost_s = 0.0
        """Of the loop's time, for a byte."""

    # -- what appended bytes wait

    def waited(self, waits_ms: list[int], now_ms: int) -> None:
        """Bytes were confirmed now, after they had waited so long (`ConfirmWaits`)."""
        self._waits += waits_ms
        if self._is_in_use and max(waits_ms, default=0) > self.limit_ms:
            self._fall(now_ms)

    def _fall(self, now_ms: int) -> None:
        """At once, as the next one is about to wait for the same; but once for one cause."""
        if now_ms - self._late_ms >= self.limit_ms:
            self._late_ms = now_ms
            self._has_fallen = True
            self.bytes_per_s = max(self.bytes_per_s * FALL, self._least())

    # -- the rate

    def tick(
        self,
        now_ms: int,
        end: PhysicalOffset,
        elapsed_ms: int,
        *,
        longest_ms: int | None,
        is_behind: bool,
    ) -> None:
        """A tenth of a second is over, the log ends at `end`: grow, or not.

        `longest_ms`: so long the oldest of the unconfirmed bytes wait. `is_behind`: somebody still
        is.
        """
        if self._end and elapsed_ms:
            appended_per_s = 1000 * (end - self._end) / elapsed_ms
            self._appended_per_s += 0.3 * (appended_per_s - self._appended_per_s)
        self._end = end
        waits, self._waits = self._waits, []
        if self._is_in_use:
            self._adapt(waits, longest_ms, now_ms)
            self._is_in_use = is_behind
        else:
            self._calm.extend(waits)

    def _begin(self, now_ms: int) -> None:
        """Somebody is behind again."""
        self._is_in_use = True
        self._credit, self._has_fallen, self._floor_ticks = CREDIT_START, False, 0
        self._late_ms = self._budget_ms = now_ms
        self._budget = 0.0
        self.bytes_per_s = max(float(RATE_START), self._least())
        self._set_limit()

    def _set_limit(self) -> None:
        calm = sorted(self._calm)
        calm_ms = calm[len(calm) * 99 // 100] if calm else 0
        if len(calm) < CALM_COUNT_MIN:
            calm_ms = max(calm_ms, CALM_MS_START)
        self.limit_ms = LIMIT_RATIO * calm_ms + LIMIT_EXTRA_MS

    def _adapt(self, waits: list[int], longest_ms: int | None, now_ms: int) -> None:
        if longest_ms is not None and longest_ms > self.limit_ms:
            waits = [*waits, longest_ms]  # and it still waits
            self._fall(now_ms)
        late_count = sum(wait_ms > self.limit_ms for wait_ms in waits)
        earned = max(EARNED * (len(waits) - late_count), EARNED_OF_TICK)
        self._credit = min(max(self._credit + earned - late_count, CREDIT_MIN), CREDIT_MAX)
        factor, most = 1.0, self._loop_limit()
        if not waits and longest_ms is None:
            factor, most = FREE_GROWTH, RATE_MAX
        elif self._credit > 0 and late_count == 0:
            factor = GROWTH if self._has_fallen else FIRST_GROWTH
        self.bytes_per_s = max(min(self.bytes_per_s * factor, most), self._least())
        self._learn_at_the_floor(waits)

    def _learn_at_the_floor(self, waits: list[int]) -> None:
        """The load has changed, or nothing was known: giving way further would not help."""
        is_at_floor = self.bytes_per_s <= NEAR_FLOOR * self._least()
        self._floor_ticks = self._floor_ticks + 1 if is_at_floor else 0
        if self._floor_ticks > FLOOR_TICKS:
            self._calm.extend(waits)
            self._set_limit()

    def _least(self) -> float:
        return max(RATE_MIN, GAIN * self._appended_per_s)

    def _loop_limit(self) -> float:
        return min(LOOP_SHARE / self._cost_s, RATE_MAX) if self._cost_s > 0 else RATE_MAX

    # -- the budget

    def spent(self, size_bytes: int, loop_s: float) -> None:
        """Writing a piece took the loop so long."""
        cost_s = loop_s / size_bytes
        self._cost_s += COST_WEIGHT * (cost_s - self._cost_s) if self._cost_s else cost_s

    def wait_ms(self, size_bytes: int, now_ms: int) -> float:
        """0: send this piece now (it is counted); else how long to wait and ask again."""
        if not self._is_in_use:
            self._begin(now_ms)
        per_ms = self.bytes_per_s / 1000
        self._budget = min(self._budget + (now_ms - self._budget_ms) * per_ms, BURST_MS * per_ms)
        self._budget_ms = now_ms
        if self._budget < 0:
            return -self._budget / per_ms
        self._budget -= size_bytes  # a debt of one piece: large ones pass too
        return 0.0
