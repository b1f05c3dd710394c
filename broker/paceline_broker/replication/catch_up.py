"""Sending the log to replicas that are behind, no faster than the acknowledgements bear.

A catching-up replica costs the master's loop, the network and a disk that others share; at full
speed the slowest acknowledgements took seven times as long. `CatchUpPace` (pure) watches how long
appended bytes wait for confirm: as long as that is what it was before anybody caught up, within
half of it, the rate grows; beyond it falls. Without sends there is nothing to spare.
"""

import asyncio
from collections.abc import Callable

from paceline.errors import StorageError
from paceline.ports import Buffer, Clock
from paceline.runtime import spawn
from paceline.types import PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.replication.push import Push
from paceline_broker.replication.term_ports import TermSettings

MIB = 1024 * 1024
RATE_START, RATE_MIN, RATE_MAX = 64 * MIB, 8 * MIB, 2048 * MIB
GROWTH, FALL, FREE_GROWTH = 1.15, 0.7, 2.0
TOLERATED_RATIO = 1.5
"""The goal for p99 while a replica catches up, and a little for the clock's milliseconds."""
TOLERATED_MS = 3
GAIN = 2.0
"""Never slower than this times what is appended, or the replica would never arrive."""
CALM_WEIGHT = 0.05
"""Of one tick in the mean of what waiting costs while nobody catches up: some two seconds."""
CALM_MS_START = 10.0
BURST_MS = 20


class CatchUpPace:
    """How fast replicas may catch up now. Time is the process's running time in ms."""

    def __init__(self, now_ms: int) -> None:
        self.bytes_per_s = float(RATE_START)
        self.calm_ms = CALM_MS_START
        """What the slowest of a tick waited while nobody caught up."""
        self._sample: tuple[PhysicalOffset, int] | None = None
        self._worst_ms: int | None = None
        self._budget = 0.0
        self._budget_ms = now_ms
        self._is_in_use = False
        self._end = PhysicalOffset(0)
        self._appended_per_s = 0.0

    @property
    def wants_sample(self) -> bool:
        return self._sample is None

    def wrote(self, end: PhysicalOffset, now_ms: int) -> None:
        """Bytes up to `end` wait for confirm from now on; one at a time is followed."""
        if self._sample is None:
            self._sample = (end, now_ms)

    def confirmed(self, confirm: PhysicalOffset, now_ms: int) -> None:
        if self._sample is not None and confirm >= self._sample[0]:
            self._took(now_ms - self._sample[1])
            self._sample = None

    def _took(self, waited_ms: int) -> None:
        self._worst_ms = max(waited_ms, self._worst_ms or 0)

    def tick(self, now_ms: int, end: PhysicalOffset, elapsed_ms: int) -> None:
        """A tenth of a second is over, the log ends at `end`: grow, or give way."""
        if self._end and elapsed_ms:
            appended_per_s = 1000 * (end - self._end) / elapsed_ms
            self._appended_per_s += 0.3 * (appended_per_s - self._appended_per_s)
        self._end = end
        if self._sample is not None:  # still waiting: at least so long
            self._took(now_ms - self._sample[1])
        worst_ms, self._worst_ms = self._worst_ms, None
        is_in_use, self._is_in_use = self._is_in_use, False
        if not is_in_use:
            if worst_ms is not None:
                self.calm_ms += CALM_WEIGHT * (worst_ms - self.calm_ms)
            return
        factor = FREE_GROWTH
        if worst_ms is not None:
            is_well = worst_ms <= TOLERATED_RATIO * self.calm_ms + TOLERATED_MS
            factor = GROWTH if is_well else FALL
        least = max(RATE_MIN, GAIN * self._appended_per_s)
        self.bytes_per_s = min(max(self.bytes_per_s * factor, least), RATE_MAX)

    def wait_ms(self, size_bytes: int, now_ms: int) -> float:
        """0: send this piece now (it is counted); else how long to wait and ask again."""
        self._is_in_use = True
        per_ms = self.bytes_per_s / 1000
        self._budget = min(self._budget + (now_ms - self._budget_ms) * per_ms, BURST_MS * per_ms)
        self._budget_ms = now_ms
        if self._budget < 0:
            return -self._budget / per_ms
        self._budget -= size_bytes  # a debt of one piece: large ones pass too
        return 0.0


class CatchUp:
    """The pump of one term: one bounded frame per callback to each replica that is behind."""

    def __init__(
        self,
        commit_log: CommitLog,
        clock: Clock,
        settings: TermSettings,
        *,
        is_current: Callable[[Push], bool],
        write_frame: Callable[[Push, list[Buffer], int], None],
        fail: Callable[[str], None],
    ) -> None:
        self.pace = CatchUpPace(clock.monotonic_ms())
        self._log = commit_log
        self._clock = clock
        self._settings = settings
        self._is_current = is_current
        self._write_frame = write_frame
        self._fail = fail
        self._loop = asyncio.get_running_loop()

    def pump_soon(self, push: Push) -> None:
        if not push.is_pumping:
            push.is_pumping = True
            self._loop.call_soon(self.pump, push)

    def pump(self, push: Push) -> None:
        """Send the next piece of the log to a replica that is not at its end."""
        push.is_pumping = False
        if push.is_live or not self._is_current(push):
            return
        if push.sent - push.acked > self._settings.window_bytes:
            return  # its next acknowledgement calls again
        if push.sent < self._log.start:  # deleted meanwhile: it comes again, for a checkpoint (R14)
            push.link.close()
            return
        try:
            piece = self._log.read_raw(push.sent, self._settings.catch_up_frame_bytes)
        except StorageError as error:
            self._fail(f"reading the log at {push.sent}: {error.message}")
            return
        if len(piece) == 0:
            push.is_live = True
        elif self._log.is_cold(piece):
            push.is_pumping = True
            spawn(self._warm(push, piece), name=f"warm-for-replica-{push.replica}")
        else:
            self._send(push, piece)

    def _send(self, push: Push, piece: memoryview) -> None:
        is_near = self._log.written - push.sent <= self._settings.window_bytes
        # The last stretch goes at once: who is behind for a moment only is not catching up.
        wait_ms = 0.0 if is_near else self.pace.wait_ms(len(piece), self._clock.monotonic_ms())
        if wait_ms > 0:
            push.is_pumping = True
            self._loop.call_later(max(wait_ms, 1.0) / 1000, self.pump, push)
            return
        self._write_frame(push, [piece], len(piece))
        self.pump_soon(push)

    async def _warm(self, push: Push, piece: memoryview) -> None:
        try:
            await self._log.warm(piece)
        except StorageError as error:
            self._fail(f"reading the log at {push.sent}: {error.message}")
        self.pump(push)
