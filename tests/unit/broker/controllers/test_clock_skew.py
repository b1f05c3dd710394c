"""R29: nothing is old by a clock that differs from the controllers' majority."""

import pytest

from paceline_broker.controllers.clock_skew import FRESH_MS_MAX, ClockSkew, ClockTrust

NOW_MS, UNIX_MS, SKEW_MS = 1_000_000, 1_800_000_000_000, 5000


def _clocks(*skews_ms: int, controllers_count: int = 3) -> ClockSkew:
    clocks = ClockSkew(controllers_count=controllers_count, skew_ms_max=SKEW_MS)
    for number, skew_ms in enumerate(skews_ms):
        clocks.told(f"c{number}", unix_ms=UNIX_MS + skew_ms, now_ms=NOW_MS)
    return clocks


@pytest.mark.parametrize(
    ("skews_ms", "expected"),
    [
        ((), ClockTrust.UNKNOWN),
        ((0,), ClockTrust.UNKNOWN),
        ((0, 0), ClockTrust.AGREES),
        ((SKEW_MS, -SKEW_MS), ClockTrust.AGREES),
        ((0, 0, 3_600_000), ClockTrust.AGREES),  # one controller's clock is wrong
        ((SKEW_MS + 1, 0), ClockTrust.UNKNOWN),
        ((SKEW_MS + 1, -SKEW_MS - 1, 0), ClockTrust.DIFFERS),
        ((3_600_000, 3_600_000), ClockTrust.DIFFERS),
    ],
)
def test_the_majority_of_all_controllers_decides(
    skews_ms: tuple[int, ...], expected: ClockTrust
) -> None:
    assert _clocks(*skews_ms).trust(own_unix_ms=UNIX_MS, now_ms=NOW_MS) is expected


def test_the_middle_one_of_those_heard_says_what_it_is() -> None:
    later = {"now_ms": NOW_MS + 2000}

    assert _clocks(100, 0, 3_600_000).told_unix_ms(**later) == UNIX_MS + 2100
    assert _clocks(0).told_unix_ms(**later) is None
    assert _clocks(0, 0, 0).told_unix_ms(now_ms=NOW_MS + FRESH_MS_MAX + 1) is None


def test_a_jump_of_the_own_clock_shows_at_once() -> None:
    clocks = _clocks(0, 0, 0)
    later = {"now_ms": NOW_MS + 2000}
    assert clocks.trust(own_unix_ms=UNIX_MS + 2000, **later) is ClockTrust.AGREES
    assert clocks.trust(own_unix_ms=UNIX_MS + 2000 + 6000, **later) is ClockTrust.DIFFERS
    assert clocks.trust(own_unix_ms=UNIX_MS - 6000, **later) is ClockTrust.DIFFERS


def test_what_was_told_long_ago_counts_for_nothing() -> None:
    clocks = _clocks(0, 0, 0)
    age_ms = FRESH_MS_MAX + 1
    trust = clocks.trust(own_unix_ms=UNIX_MS + age_ms, now_ms=NOW_MS + age_ms)
    assert trust is ClockTrust.UNKNOWN
