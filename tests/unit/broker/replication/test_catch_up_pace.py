"""Catch-up gives way to acknowledgements, and takes all there is when nobody sends."""

from paceline.types import PhysicalOffset
from paceline_broker.replication.master.catch_up_pace import (
    CALM_MS_START,
    FLOOR_TICKS,
    LIMIT_EXTRA_MS,
    LIMIT_RATIO,
    LOOP_SHARE,
    MIB,
    RATE_MAX,
    RATE_MIN,
    RATE_START,
    CatchUpPace,
)
from paceline_broker.replication.master.confirm_waits import ConfirmWaits

PIECE = 256 * 1024


class Clock:
    """Ticks of 100 ms; in each some sends that wait, and as much catch-up as is let through."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.end = 0
        self.log_end = 1000
        self.appended_per_tick = 0
        self.pace = CatchUpPace(0)
        self.waits = ConfirmWaits()

    def confirm(self, now_ms: int) -> None:
        self.pace.waited(self.waits.confirmed(PhysicalOffset(self.end), now_ms), now_ms)

    def tick(self, *waits_ms: int, catches_up: bool) -> int:
        """One tick with sends, one after another; the bytes sent to who catches up."""
        sent, stop_ms = 0, self.now_ms + 100
        left = list(waits_ms)
        confirmed_ms = -1
        while self.now_ms < stop_ms:
            if self.now_ms == confirmed_ms:
                self.confirm(self.now_ms)
            if left and self.now_ms >= confirmed_ms:
                self.end += 1
                self.waits.wrote(PhysicalOffset(self.end), self.now_ms)
                confirmed_ms = self.now_ms + left.pop(0)
            while catches_up and self.pace.wait_ms(PIECE, self.now_ms) == 0:
                sent += PIECE
            self.now_ms += 1
        self.confirm(max(self.now_ms, confirmed_ms))
        self.log_end += self.appended_per_tick
        end = PhysicalOffset(self.log_end)
        longest_ms = self.waits.longest_ms(self.now_ms)
        self.pace.tick(self.now_ms, end, 100, longest_ms=longest_ms, is_behind=catches_up)
        return sent

    def calm(self, wait_ms: int) -> None:
        """Enough sends while nobody catches up."""
        for _ in range(50):
            self.tick(*[wait_ms] * 3, catches_up=False)


def test_what_is_sent_keeps_to_the_rate() -> None:
    clock = Clock()
    clock.calm(10)

    sent = clock.tick(10, catches_up=True)

    assert abs(sent - RATE_START / 10) < 3 * MIB


def test_the_limit_follows_the_slowest_of_a_hundred_in_calm() -> None:
    clock = Clock()
    for _ in range(100):
        clock.tick(4, 4, 4, 4, 4, 4, 4, 4, 4, 20, catches_up=False)

    clock.tick(4, catches_up=True)

    assert LIMIT_RATIO * 20 <= clock.pace.limit_ms <= LIMIT_RATIO * 20 + LIMIT_EXTRA_MS
    # What it costs meanwhile is not taken for the calm.
    for _ in range(20):
        clock.tick(50, catches_up=True)
    clock.tick(4, catches_up=False)
    clock.tick(4, catches_up=True)
    assert clock.pace.limit_ms <= LIMIT_RATIO * 20 + LIMIT_EXTRA_MS


def test_it_grows_while_sends_wait_no_longer_than_before() -> None:
    clock = Clock()
    clock.calm(20)

    for _ in range(10):
        clock.tick(20, 20, 20, catches_up=True)

    assert clock.pace.bytes_per_s > 4 * RATE_START


def test_one_wait_beyond_the_limit_takes_the_rate_down_before_the_tick_is_over() -> None:
    clock = Clock()
    clock.calm(20)
    for _ in range(5):
        clock.tick(20, 20, 20, catches_up=True)
    before = clock.pace.bytes_per_s

    clock.pace.waited([60], clock.now_ms + 60)

    assert clock.pace.bytes_per_s < 0.8 * before


def test_it_gives_way_until_waits_are_what_they_were_and_then_grows_with_care() -> None:
    clock = Clock()
    clock.calm(20)
    for _ in range(5):
        clock.tick(20, 20, 20, catches_up=True)

    for _ in range(12):
        clock.tick(60, catches_up=True)
    assert clock.pace.bytes_per_s == RATE_MIN

    ticks = 0
    while clock.pace.bytes_per_s == RATE_MIN:
        clock.tick(*[4] * 20, catches_up=True)
        ticks += 1
    assert 20 < ticks < 80  # a hundred waits within the limit for each beyond it


def test_without_sends_it_takes_all_there_is() -> None:
    clock = Clock()

    for _ in range(10):
        clock.tick(catches_up=True)

    assert clock.pace.bytes_per_s == RATE_MAX


def test_beside_sends_it_leaves_the_loop_to_them() -> None:
    """What the loop loses before a message is written is in no wait that the master measures."""
    clock = Clock()
    clock.calm(10)
    clock.pace.spent(PIECE, LOOP_SHARE * PIECE / (64 * MIB))

    for _ in range(10):
        clock.tick(*[10] * 5, catches_up=True)
    beside_sends = clock.pace.bytes_per_s
    for _ in range(10):
        clock.tick(catches_up=True)

    assert 63 * MIB < beside_sends < 65 * MIB
    assert clock.pace.bytes_per_s == RATE_MAX, "without sends there is nobody to leave it to"


def test_a_send_that_still_waits_counts_as_what_it_has_waited() -> None:
    clock = Clock()
    clock.calm(5)
    clock.tick(catches_up=True)
    before = clock.pace.bytes_per_s

    now_ms, end = clock.now_ms + 100, PhysicalOffset(2000)
    clock.pace.tick(now_ms, end, 100, longest_ms=100, is_behind=True)

    assert clock.pace.bytes_per_s < before


def test_it_never_gives_way_so_far_that_the_replica_would_not_arrive() -> None:
    clock = Clock()
    clock.calm(10)
    clock.appended_per_tick = 2 * MIB  # 20 MiB/s

    for _ in range(50):
        clock.tick(90, catches_up=True)

    assert clock.pace.bytes_per_s >= 39 * MIB


def test_waits_that_giving_way_does_not_shorten_become_the_calm() -> None:
    """A new master knows no calm, and a load may change: it must not crawl for ever."""
    clock = Clock()
    for _ in range(FLOOR_TICKS + 2):
        clock.tick(80, catches_up=True)
    assert clock.pace.bytes_per_s == RATE_MIN

    for _ in range(150):
        clock.tick(80, catches_up=True)

    assert clock.pace.limit_ms > 80 > CALM_MS_START
    assert clock.pace.bytes_per_s > RATE_MIN


def test_a_floor_that_moves_with_the_load_is_a_floor_too() -> None:
    """With real sends no two ticks append as much: the pace stayed down for ever."""
    clock = Clock()
    clock.appended_per_tick = 2 * MIB
    clock.calm(10)

    for number in range(150):
        clock.appended_per_tick = 2 * MIB + (number % 3) * 65536
        clock.tick(40, 40, catches_up=True)

    assert clock.pace.limit_ms > 40
    assert clock.pace.bytes_per_s > 60 * MIB


def test_each_catch_up_begins_with_care() -> None:
    clock = Clock()
    for _ in range(10):
        clock.tick(catches_up=True)
    clock.tick(5, catches_up=False)

    clock.pace.wait_ms(PIECE, clock.now_ms)

    assert clock.pace.bytes_per_s == RATE_START
