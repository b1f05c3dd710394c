"""Catch-up gives way to acknowledgements, and takes all there is when nobody sends."""

from paceline.types import PhysicalOffset
from paceline_broker.replication.catch_up import MIB, RATE_MAX, RATE_MIN, RATE_START, CatchUpPace

PIECE = 256 * 1024


class Clock:
    """Ticks of 100 ms; in each some sends that wait, and as much catch-up as is let through."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.end = 0
        self.log_end = 1000
        self.appended_per_tick = 0
        self.pace = CatchUpPace(0)

    def tick(self, *, waited_ms: int | None, catches_up: bool) -> int:
        """One tick; the bytes that were sent to who catches up."""
        sent, stop_ms = 0, self.now_ms + 100
        if waited_ms is not None:
            self.end += 1
            self.pace.wrote(PhysicalOffset(self.end), self.now_ms)
            self.pace.confirmed(PhysicalOffset(self.end), self.now_ms + waited_ms)
        while self.now_ms < stop_ms:
            while catches_up and self.pace.wait_ms(PIECE, self.now_ms) == 0:
                sent += PIECE
            self.now_ms += 1
        self.log_end += self.appended_per_tick
        self.pace.tick(self.now_ms, PhysicalOffset(self.log_end), 100)
        return sent


def test_what_is_sent_keeps_to_the_rate() -> None:
    clock = Clock()
    for _ in range(50):
        clock.tick(waited_ms=10, catches_up=False)

    sent = clock.tick(waited_ms=10, catches_up=True)

    assert abs(sent - RATE_START / 10) < 3 * MIB


def test_it_gives_way_when_acknowledgements_take_half_as_long_again() -> None:
    clock = Clock()
    for _ in range(100):
        clock.tick(waited_ms=20, catches_up=False)
    assert abs(clock.pace.calm_ms - 20) < 1
    for _ in range(3):
        clock.tick(waited_ms=20, catches_up=True)
    grown = clock.pace.bytes_per_s
    assert grown > RATE_START

    for _ in range(20):
        clock.tick(waited_ms=60, catches_up=True)

    assert clock.pace.bytes_per_s == RATE_MIN
    for _ in range(3):
        clock.tick(waited_ms=25, catches_up=True)
    assert clock.pace.bytes_per_s > RATE_MIN
    # What it costs meanwhile is not taken for the calm.
    assert abs(clock.pace.calm_ms - 20) < 1


def test_without_sends_it_takes_all_there_is() -> None:
    clock = Clock()

    for _ in range(10):
        clock.tick(waited_ms=None, catches_up=True)

    assert clock.pace.bytes_per_s == RATE_MAX


def test_a_send_that_still_waits_counts_as_what_it_has_waited() -> None:
    clock = Clock()
    for _ in range(100):
        clock.tick(waited_ms=5, catches_up=False)
    clock.pace.wrote(PhysicalOffset(10**9), clock.now_ms)

    for _ in range(5):
        clock.tick(waited_ms=None, catches_up=True)

    assert clock.pace.bytes_per_s < RATE_START


def test_it_never_gives_way_so_far_that_the_replica_would_not_arrive() -> None:
    clock = Clock()
    clock.appended_per_tick = 2 * MIB  # 20 MiB/s

    for _ in range(50):
        clock.tick(waited_ms=500, catches_up=True)

    assert clock.pace.bytes_per_s >= 39 * MIB
