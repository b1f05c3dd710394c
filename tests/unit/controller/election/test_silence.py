"""A silent master is deposed only when no other controller hears it either (R15)."""

from tests.support.controller.liveness_bed import TIMEOUT_MS, Bed, a_running_group

from paceline.wire.session import Role
from paceline_controller.election.contacts import HeardElsewhere
from paceline_controller.election.liveness import STALL_MS_MAX, TICK_MS


def heard_elsewhere(bed: Bed, *, age_ms: int = 100, **changes: object) -> None:
    """Another controller hears the master."""
    bed.elsewhere[1] = HeardElsewhere(bed.heartbeat(1, **changes), age_ms)


def test_a_master_that_another_controller_hears_is_alive() -> None:
    bed = a_running_group()
    heard_elsewhere(bed)

    bed.run(10 * TIMEOUT_MS, 2, 3)

    assert not bed.elections
    assert len(bed.inquiries) > 10


def test_a_master_that_nobody_hears_is_deposed_without_delay() -> None:
    bed = a_running_group()
    heard_elsewhere(bed, age_ms=1000)

    bed.run(TIMEOUT_MS - 100, 2, 3)
    assert not bed.elections
    bed.run(200, 2, 3)

    [election] = bed.elections
    assert election.reason == "silent"


def test_nobody_is_deposed_before_the_others_have_answered() -> None:
    bed = a_running_group()
    bed.answers_inquiries = False
    bed.run(2 * TIMEOUT_MS, 2, 3)
    assert not bed.elections
    [inquiry] = bed.inquiries

    bed.answer(inquiry)

    assert not bed.elections  # so old an answer proves nothing: they are asked again
    assert len(bed.inquiries) == 2
    bed.answer(bed.inquiries[1])
    assert [election.reason for election in bed.elections] == ["silent"]


def test_the_last_answer_counts() -> None:
    bed = a_running_group()
    heard_elsewhere(bed)
    bed.run(2 * TIMEOUT_MS, 2, 3)

    bed.elsewhere.clear()
    bed.run(TIMEOUT_MS - 500, 2, 3)
    assert not bed.elections
    bed.run(1000, 2, 3)

    [election] = bed.elections
    assert election.reason == "silent"


def test_what_another_controller_heard_is_used() -> None:
    """It fenced itself, told one controller so, and its other links are cut."""
    bed = a_running_group()
    heard_elsewhere(bed, role=Role.FENCED)

    bed.run(TIMEOUT_MS, 2, 3)

    [election] = bed.elections
    assert election.reason == "fenced"


def test_a_master_that_reaches_one_controller_only_and_makes_no_progress_is_replaced_soon() -> None:
    """A bridge: neither we nor the members hear it, one other controller does (R6)."""
    bed = a_running_group()
    heard_elsewhere(bed, waiting=5)

    bed.run(3000, 2, 3)

    [election] = bed.elections
    assert election.reason == "cut_off"


def test_an_older_start_that_is_heard_elsewhere_proves_nothing() -> None:
    bed = a_running_group()
    heard_elsewhere(bed, incarnation=7)

    bed.run(TIMEOUT_MS + 100, 2, 3)

    # Whoever it is, it is no news of the start that is on record; but it is heard, so: wait.
    assert not bed.elections


def test_an_answer_that_was_under_way_during_a_stall_of_our_own_is_asked_for_again() -> None:
    """R15: refused while we stood still may mean: refused long ago."""
    bed = a_running_group()
    bed.close(1)
    assert bed.probes

    bed.now += TICK_MS + STALL_MS_MAX + 50
    bed.probe(1, is_refused=True)

    assert not bed.elections
    assert bed.liveness.clock_restarts == 1
    assert len(bed.probes) == 2
    bed.probe(1, is_refused=True)
    assert [election.reason for election in bed.elections] == ["dead"]


def test_no_master_is_deposed_for_silence_in_which_we_stood_still() -> None:
    """R15: the first event after the stall is a heartbeat of another broker, not our own tick."""
    bed = a_running_group()
    bed.run(TIMEOUT_MS - 200, 2, 3)

    bed.now += 400
    bed.beat(2)

    assert not bed.elections
    bed.run(TIMEOUT_MS - 100, 2, 3)
    assert not bed.elections
    bed.run(300, 2, 3)
    assert len(bed.elections) == 1
