"""The window of unconfirmed bytes follows what waits take (R27)."""

from paceline_broker.replication.master.send_window import (
    MIB,
    SIZE_MIN,
    SIZE_START,
    TARGET_MS,
    SendWindow,
)

LIMIT = 256 * MIB
TICK_MS = 100


class Bench:
    """A master whose bytes are confirmed after a time that the test chooses."""

    def __init__(self, bytes_max: int = LIMIT) -> None:
        self.now_ms = 1000
        self.window = SendWindow(now_ms=self.now_ms, bytes_max=bytes_max)

    def tick(self, *, wait_ms: int | None, used: float = 1.0, longest_ms: int | None = None) -> int:
        """A tick in which so much of the window was used and a wait ended; its size then."""
        self.now_ms += TICK_MS
        self.window.wrote(int(self.window.size_bytes * used))
        if wait_ms is not None:
            self.window.waited([wait_ms], self.now_ms)
        self.window.tick(longest_ms, self.now_ms)
        return self.window.size_bytes


def test_it_grows_while_it_is_in_use_and_nothing_waits_long() -> None:
    bench = Bench()
    bench.tick(wait_ms=5)

    sizes = [bench.tick(wait_ms=5) for _ in range(100)]

    assert sizes[0] > SIZE_START
    assert sizes[-1] * 2 == LIMIT, "half of it: beyond twice the window sends are refused"
    assert bench.window.refusal_bytes == LIMIT


def test_it_stays_while_nobody_needs_more() -> None:
    bench = Bench()

    assert {bench.tick(wait_ms=5, used=0.4) for _ in range(20)} == {SIZE_START}


def test_long_waits_take_it_down_to_its_least() -> None:
    bench = Bench()
    for _ in range(2):
        bench.tick(wait_ms=5, used=0)

    assert bench.tick(wait_ms=2 * TARGET_MS) == SIZE_START // 2

    for _ in range(100):
        bench.tick(wait_ms=2 * TARGET_MS)
    assert bench.window.size_bytes == SIZE_MIN


def test_what_was_appended_before_it_fell_takes_it_down_no_further() -> None:
    """A queue of a second is one cause: it must not halve the window in every tick."""
    bench = Bench()
    for _ in range(10):
        bench.tick(wait_ms=5)
    before = bench.window.size_bytes

    sizes = [bench.tick(wait_ms=wait_ms) for wait_ms in (300, 400, 500, 600)]

    assert sizes == [before // 2] * 4


def test_bytes_that_still_wait_count_as_what_they_have_waited() -> None:
    bench = Bench()

    assert bench.tick(wait_ms=None, longest_ms=TICK_MS) < SIZE_START


def test_a_connection_may_have_unanswered_what_is_left() -> None:
    """However many fill it, there is something left for the next one."""
    window = Bench().window
    half = SIZE_START // 2

    assert window.has_room(half, half)
    assert not window.has_room(half + 1, half)
    assert window.has_room(100, SIZE_START - 100)


def test_the_operators_limit_holds_for_the_least_as_well() -> None:
    bench = Bench(bytes_max=MIB)

    assert bench.window.refusal_bytes == MIB
    for _ in range(50):
        bench.tick(wait_ms=1000)
    assert bench.window.refusal_bytes == MIB
