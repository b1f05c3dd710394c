"""R26, R14, R29: what a master gives up, and what holds it back."""

from dataclasses import replace

import pytest

from paceline.types import PhysicalOffset
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.projections.pins import Pin
from paceline_broker.retention.policy import (
    NOTHING,
    Aged,
    Decision,
    RetentionSettings,
    Situation,
    decide,
)

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000
SETTINGS = RetentionSettings(
    reserved_ms=72 * HOUR_MS, size_bytes_max=0, clean_forcibly_ratio=85, warning_ratio=90
)


def _at(position: int) -> PhysicalOffset:
    return PhysicalOffset(position)


def _situation(*ages_hours: float) -> Situation:
    """Sealed segments of 100 bytes, their newest batches that old; 50 bytes more are active."""
    segments = [
        Aged(_at(100 * (index + 1)), int(NOW_MS - age * HOUR_MS))
        for index, age in enumerate(ages_hours)
    ]
    return Situation(
        segments=segments,
        log_start=_at(0),
        end=_at(100 * len(segments) + 50),
        ceiling=_at(100 * len(segments) + 40),
        pins={},
        needed_from=None,
        used_ratio=0,
        now_unix_ms=NOW_MS,
        trust=ClockTrust.AGREES,
    )


OLD = _situation(100, 90, 80, 1)


def _pin(position: int, *, expires_in_ms: int = 1) -> Pin:
    return Pin(_at(position), NOW_MS + expires_in_ms, 1000)


def test_what_is_older_than_the_reserved_time_goes_and_nothing_younger() -> None:
    assert decide(OLD, SETTINGS) == Decision(_at(300), ())
    assert decide(_situation(71.9, 1), SETTINGS) == NOTHING
    assert decide(_situation(1, 100), SETTINGS) == NOTHING, "the oldest part goes first, or none"
    assert decide(replace(OLD, log_start=_at(300), segments=OLD.segments[3:]), SETTINGS) == NOTHING


def test_by_size_the_oldest_segments_go_until_the_rest_fits() -> None:
    young = _situation(4, 3, 2, 1)  # 450 bytes
    assert decide(young, replace(SETTINGS, size_bytes_max=450)) == NOTHING
    assert decide(young, replace(SETTINGS, size_bytes_max=449)) == Decision(_at(100), ())
    assert decide(young, replace(SETTINGS, size_bytes_max=250)) == Decision(_at(200), ())
    assert decide(young, replace(SETTINGS, size_bytes_max=10)) == Decision(_at(400), ())


def test_a_full_disk_takes_one_segment_at_a_time_whatever_its_age() -> None:
    young = _situation(3, 2, 1)
    assert decide(replace(young, used_ratio=84), SETTINGS) == NOTHING
    assert decide(replace(young, used_ratio=85), SETTINGS) == Decision(_at(100), ())


@pytest.mark.parametrize(("ceiling", "start"), [(340, 300), (299, 200), (100, 100), (99, None)])
def test_the_newest_durable_checkpoint_is_never_passed(ceiling: int, start: int | None) -> None:
    """R14."""
    found = decide(replace(OLD, ceiling=_at(ceiling)), SETTINGS)
    assert found.log_start == start


def test_a_pin_holds_until_it_runs_out_or_the_disk_is_full() -> None:
    """R26: pins of exports fall first, then writes are refused."""
    pinned = replace(OLD, pins={"spark": _pin(150)})
    assert decide(pinned, SETTINGS) == Decision(_at(100), ())
    run_out = replace(OLD, pins={"spark": _pin(150, expires_in_ms=0)})
    assert decide(run_out, SETTINGS) == Decision(_at(300), ("spark",))
    assert decide(replace(pinned, used_ratio=89), SETTINGS) == Decision(_at(100), ())
    assert decide(replace(pinned, used_ratio=90), SETTINGS) == Decision(_at(300), ("spark",))


def test_a_pin_runs_out_also_when_nothing_is_old() -> None:
    young = replace(_situation(1), pins={"a": _pin(0, expires_in_ms=-1), "b": _pin(0)})
    assert decide(young, SETTINGS) == Decision(None, ("a",))


def test_pending_data_is_written_again_before_its_segment_goes() -> None:
    """R14, R26: data of timers and half messages is never deleted."""
    needed = replace(OLD, needed_from=_at(120), used_ratio=99)
    found = decide(needed, SETTINGS)
    assert found.log_start == 100
    assert found.append_again_below == 300
    assert decide(replace(OLD, needed_from=_at(300)), SETTINGS) == Decision(_at(300), ())


def test_a_clock_that_differs_gives_up_nothing() -> None:
    """R29: not by age, nor by size, nor for the disk."""
    full = replace(OLD, used_ratio=99, pins={"a": _pin(0, expires_in_ms=-1)})
    settings = replace(SETTINGS, size_bytes_max=1)
    assert decide(replace(full, trust=ClockTrust.DIFFERS), settings) == NOTHING


def test_a_clock_that_nobody_confirms_makes_nothing_old() -> None:
    """R29: while the controllers are away, size and disk still count, ages and leases do not."""
    alone = replace(OLD, trust=ClockTrust.UNKNOWN, pins={"a": _pin(150, expires_in_ms=-1)})
    assert decide(alone, SETTINGS) == NOTHING
    assert decide(alone, replace(SETTINGS, size_bytes_max=250)) == Decision(_at(100), ())
    assert decide(replace(alone, used_ratio=85), SETTINGS) == Decision(_at(100), ())
