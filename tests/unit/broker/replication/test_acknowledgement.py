"""Waiting for confirm."""

from paceline.types import PhysicalOffset
from paceline_broker.replication.master.acknowledgement import WHEEL_SLOT_MS, AcknowledgementTracker


def a_tracker(*positions: int, deadline_ms: int = 3000) -> AcknowledgementTracker[str]:
    """Waiters named by their positions."""
    tracker: AcknowledgementTracker[str] = AcknowledgementTracker(confirm=PhysicalOffset(0))
    for position in positions:
        tracker.add(PhysicalOffset(position), str(position), deadline_ms=deadline_ms)
    return tracker


def test_one_sweep_completes_exactly_what_confirm_has_passed() -> None:
    tracker = a_tracker(100, 200, 200, 300)

    assert tracker.advance(PhysicalOffset(99)) == []
    assert tracker.advance(PhysicalOffset(250)) == ["100", "200", "200"]
    assert tracker.waiting_count == 1
    assert tracker.advance(PhysicalOffset(300)) == ["300"]


def test_waiter_that_timed_out_is_not_completed_later() -> None:
    tracker = a_tracker(100, deadline_ms=1000)
    tracker.add(PhysicalOffset(200), "200", deadline_ms=9000)

    assert tracker.expire(999) == []
    assert tracker.expire(1000 + 2 * WHEEL_SLOT_MS) == [(100, "100")]

    assert tracker.advance(PhysicalOffset(500)) == ["200"]
    assert tracker.expire(99_999) == []


def test_deadline_is_never_early_and_at_most_a_slot_late() -> None:
    for deadline_ms in range(1000, 1000 + 2 * WHEEL_SLOT_MS):
        tracker = a_tracker(100, deadline_ms=deadline_ms)
        expired_ms = next(now for now in range(5000) if tracker.expire(now))
        assert deadline_ms <= expired_ms <= deadline_ms + WHEEL_SLOT_MS


def test_deadline_that_has_passed_already_expires_with_the_next_sweep() -> None:
    tracker = a_tracker(100, deadline_ms=100_000)
    tracker.expire(50_000)
    tracker.add(PhysicalOffset(200), "late", deadline_ms=40_000)

    assert tracker.expire(50_000 + 2 * WHEEL_SLOT_MS) == [(200, "late")]


def test_answer_decided_later_about_an_earlier_position_waits_for_what_is_before_it() -> None:
    """R28, R30: a duplicate of a batch at 100, asked for after 300 was appended."""
    tracker = a_tracker(300)
    tracker.add(PhysicalOffset(100), "duplicate", deadline_ms=3000)

    assert tracker.advance(PhysicalOffset(200)) == []
    assert tracker.advance(PhysicalOffset(300)) == ["300", "duplicate"]


def test_end_of_the_term_gives_every_waiting_token_back_once() -> None:
    tracker = a_tracker(100, 200, deadline_ms=10)
    tracker.add(PhysicalOffset(300), "300", deadline_ms=9000)
    tracker.expire(1000)

    assert tracker.fail_all() == ["300"]
    assert tracker.fail_all() == []
    assert tracker.waiting_count == 0
