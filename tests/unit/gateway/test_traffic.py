"""How much goes through a gateway."""

from paceline.platform.runtime import ManualClock
from paceline_gateway.traffic import WINDOW_S, Rate, Traffic


def test_a_rate_is_over_the_seconds_that_have_ended() -> None:
    clock = ManualClock()
    rate = Rate(clock)
    rate.add(30)
    now = rate.per_second()

    clock.advance(1_000)
    first = rate.per_second()
    clock.advance(2_000)
    rate.add(1_000_000)
    third = rate.per_second()

    assert (now, first, third) == (0, 30, 10)


def test_what_is_older_than_the_window_counts_no_more() -> None:
    clock = ManualClock()
    rate = Rate(clock)
    for _ in range(3 * WINDOW_S):
        rate.add(5)
        clock.advance(1_000)

    steady = rate.per_second()
    clock.advance(1_000 * WINDOW_S // 2)
    half = rate.per_second()
    clock.advance(1_000 * WINDOW_S // 2)
    quiet = rate.per_second()
    clock.advance(3_600_000)
    rate.add(20)
    clock.advance(1_000)

    assert (steady, half, quiet, rate.per_second()) == (5, 2.5, 0, 2)


def test_connections_are_those_of_all_doors() -> None:
    traffic = Traffic(ManualClock())

    traffic.listeners += [lambda: 3, lambda: 4]

    assert traffic.connections == 7
