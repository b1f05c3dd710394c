"""When a disk counts as stalled (R22)."""

from paceline_broker.storage.disk_health import (
    MEMORY_MS,
    PATIENCE_MS_MAX,
    PATIENT_BYTES_PER_MS,
    DiskPace,
    DiskState,
    DiskWatch,
)

STALL_MS = 500
TICK_MS = 100


class Bench:
    def __init__(self) -> None:
        self.now = 1000
        self.watch = DiskWatch(stall_ms=STALL_MS, tick_ms=TICK_MS, now_ms=self.now)
        self.pace = DiskPace()

    def run(self, milliseconds: int, *, finished: int = 0, waiting: int = 100) -> bool:
        """Look each tick for so long; the last answer."""
        for _ in range(milliseconds // TICK_MS):
            self.now += TICK_MS
            state = DiskState(syncs_finished=finished, waiting_bytes=waiting)
            self.pace = self.watch.look(state, self.now)
        return self.pace.is_stalled


def test_bytes_that_wait_half_a_second_without_a_finished_sync_are_a_stall() -> None:
    bench = Bench()

    assert not bench.run(STALL_MS)
    assert bench.run(TICK_MS)
    assert not bench.run(TICK_MS, finished=1)


def test_syncs_count_and_not_positions() -> None:
    """Under load the same number of bytes may wait at every look: the disk works all the same."""
    bench = Bench()

    for finished in range(20):
        assert not bench.run(TICK_MS, finished=finished)


def test_how_long_syncs_take_is_told_for_some_seconds() -> None:
    bench = Bench()
    bench.run(800)
    assert bench.pace.sync_ms == 800

    bench.run(MEMORY_MS, finished=1, waiting=0)
    assert bench.pace.sync_ms == 800
    bench.run(MEMORY_MS, finished=1, waiting=0)
    assert bench.pace.sync_ms == 0


def test_a_disk_without_work_does_not_stall() -> None:
    bench = Bench()

    assert not bench.run(3 * STALL_MS, waiting=0)
    assert not bench.run(STALL_MS, waiting=100)


def test_a_large_sync_has_more_time_but_not_for_ever() -> None:
    bench = Bench()
    waiting = 10_000 * PATIENT_BYTES_PER_MS

    assert not bench.run(STALL_MS + PATIENCE_MS_MAX, waiting=waiting)
    assert bench.run(TICK_MS, waiting=waiting)


def test_a_stall_of_the_own_loop_accuses_no_disk() -> None:
    bench = Bench()
    assert not bench.run(STALL_MS)

    bench.now += 2000

    assert not bench.run(STALL_MS)
    assert bench.run(2 * TICK_MS)
