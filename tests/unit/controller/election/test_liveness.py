"""Who is judged alive and when an election is proposed; time is a number the test sets."""

from tests.support.controller.builders import G1, SETTINGS, Driver, a_group
from tests.support.controller.liveness_bed import (
    OPEN_MS,
    PROGRESS_MS,
    TIMEOUT_MS,
    Bed,
    a_running_group,
)
from tests.support.controller.registration import restarted

from paceline.types import Incarnation, MasterEpoch, ReplicaId
from paceline.wire.session import Role
from paceline_controller.election.contacts import REPROBE_MS
from paceline_controller.election.group_watch import (
    OPEN_SYNCS,
    SYNC_MS_MAX,
    TAKE_MS_MAX,
    TAKE_SYNCS,
)
from paceline_controller.election.liveness import FIRST_WAIT_MS, TICK_MS
from paceline_controller.election.liveness_events import (
    ElectionFinished,
    StateChanged,
    Tick,
)
from paceline_controller.state.commands import SetGroupSettings


def test_a_closed_session_is_probed_at_once_and_a_refusal_elects_at_once() -> None:
    bed = a_running_group()

    bed.close(1)
    bed.probe(1, is_refused=True)

    [election] = bed.elections
    assert election.reason == "dead"
    assert election.without == (1,)
    assert election.term == 1


def test_reports_are_asked_for_when_the_masters_session_closes() -> None:
    bed = a_running_group()

    bed.close(1)

    assert bed.asked == 1


def test_a_closed_session_with_a_living_master_elects_nobody() -> None:
    bed = a_running_group()

    bed.close(1)
    bed.probe(1, role="MASTER")
    bed.run(300, 2, 3)

    assert not bed.elections


def test_a_master_that_answers_probes_but_never_comes_back_is_silent_in_the_end() -> None:
    bed = a_running_group()
    bed.close(1)
    for _ in range(TIMEOUT_MS // REPROBE_MS + 2):
        bed.probe(1, role="MASTER")
        bed.run(REPROBE_MS + TICK_MS, 2, 3)

    assert bed.elections[0].reason == "silent"


def test_another_incarnation_or_role_behind_the_port_is_as_good_as_refused() -> None:
    for answer in (
        {"incarnation": 2},
        {"replica_id": 7},
        {"group": "g9"},
        {"role": "REPLICA"},
        {"epoch": MasterEpoch(7)},
    ):
        bed = a_running_group()
        bed.close(1)

        bed.probe(1, **answer)

        assert [election.reason for election in bed.elections] == ["dead"], answer


def test_a_master_that_has_yet_to_learn_of_its_election_is_not_dead() -> None:
    driver = a_group()
    bed = Bed(driver)
    bed.run(100, 1, 2, 3)
    bed.close(1)

    bed.probe(1, role="REPLICA", epoch=MasterEpoch(0))

    assert not bed.elections


def test_an_unclear_probe_is_repeated_and_proves_nothing() -> None:
    bed = a_running_group()
    bed.close(1)
    bed.probe(1)
    first = len(bed.probes)

    bed.run(REPROBE_MS + TICK_MS, 2, 3)

    assert len(bed.probes) == first + 1
    assert not bed.elections


def test_a_heartbeat_after_a_refusal_brings_the_replica_back() -> None:
    bed = a_running_group()
    bed.close(2)
    bed.probe(2, is_refused=True)

    bed.beat(2)
    bed.close(1)
    bed.probe(1, is_refused=True)

    assert bed.elections[0].without == (1,)


def test_silence_waits_for_the_whole_timeout() -> None:
    bed = a_running_group()

    bed.run(TIMEOUT_MS - 200, 2, 3)
    assert not bed.elections

    bed.run(400, 2, 3)
    assert [election.reason for election in bed.elections] == ["silent"]


def test_an_unhealthy_master_is_replaced() -> None:
    bed = a_running_group()

    bed.beat(1, is_healthy=False)

    [election] = bed.elections
    assert election.reason == "unhealthy"
    assert election.without == (1,)


def test_a_master_whose_disk_stalls_is_replaced_once_another_is_heard_to_do_better() -> None:
    bed = a_running_group()

    bed.beat(1, is_stalled=True, sync_ms=600)
    assert not bed.elections
    assert bed.asked == 1
    bed.beat(2, sync_ms=100)

    [election] = bed.elections
    assert (election.reason, election.winner) == ("unhealthy", 2)


def test_a_master_is_not_replaced_while_the_disks_of_all_are_slow() -> None:
    """Another one would stall as well, and each change would cost what it was to win."""
    bed = a_running_group()

    for _ in range(40):
        bed.beat(1, is_stalled=True, sync_ms=1500)
        bed.run(200, 2, 3, is_stalled=True, sync_ms=1200)
        bed.run(200, 2, 3, sync_ms=500)
        bed.beat(1, sync_ms=1500)
    assert not bed.elections

    bed.beat(1, is_stalled=True, sync_ms=1600)
    bed.run(100, 2, 3, sync_ms=400)
    assert bed.elections[0].reason == "unhealthy"


def test_a_disk_that_failed_is_no_better_than_one_that_stalls() -> None:
    bed = a_running_group()

    bed.beat(1, is_stalled=True, sync_ms=600)
    bed.beat(2, is_healthy=False, sync_ms=0)
    bed.run(400, 2, is_healthy=False)

    assert not bed.elections


def test_a_dead_replica_that_is_not_master_elects_nobody() -> None:
    bed = a_running_group()

    bed.close(3)
    bed.probe(3, is_refused=True)
    bed.run(3000, 1, 2)

    assert not bed.elections


def test_only_one_election_of_a_group_is_under_way() -> None:
    bed = a_running_group()
    bed.close(1)
    bed.probe(1, is_refused=True)

    bed.run(1000, 2, 3)
    assert len(bed.elections) == 1

    bed.step(ElectionFinished(group=G1))  # it came to nothing: the next look proposes again
    bed.run(200, 2, 3)
    assert len(bed.elections) == 2


def test_a_follower_elects_nobody() -> None:
    bed = Bed(a_group(), is_leader=False)
    bed.run(200, 1, 2, 3)

    bed.close(1)
    bed.run(2 * TIMEOUT_MS, 2, 3)

    assert not bed.elections
    assert not bed.probes


def test_a_new_leader_knows_at_once_what_it_heard_as_a_follower() -> None:
    driver = a_group()
    driver.report_open(confirm=100)
    bed = Bed(driver, is_leader=False)
    bed.run(200, 1, 2, 3)
    bed.close(1)

    bed.lead()
    bed.probe(1, is_refused=True)

    assert [election.reason for election in bed.elections] == ["dead"]


def test_a_new_leader_waits_for_those_it_never_heard() -> None:
    driver = a_group()
    driver.report_open(confirm=100)
    bed = Bed(driver)
    bed.beat(2)
    for target in list(bed.probes):
        if target.key.replica_id == 1:
            bed.probe(1, is_refused=True)
    assert not bed.elections  # replica 3 may have the longer log

    bed.run(TIMEOUT_MS + 100, 2)

    assert [election.winner for election in bed.elections] == [2]


def test_a_stall_of_the_own_loop_restarts_all_deadlines() -> None:
    bed = a_running_group()

    bed.now += 10 * TIMEOUT_MS
    bed.step(Tick())
    assert not bed.elections
    bed.run(TIMEOUT_MS - 100, 2, 3)
    assert not bed.elections

    bed.run(200, 2, 3)
    assert [election.reason for election in bed.elections] == ["silent"]


def test_a_small_hiccup_restarts_nothing() -> None:
    bed = a_running_group()

    bed.now += 200
    bed.step(Tick())

    assert bed.liveness.clock_restarts == 0


# -- no master, whole-cluster restart -------------------------------------------------------------


def restarted_cluster() -> Bed:
    driver = a_group()
    for number in (1, 2, 3):
        restarted(driver, number)
    return Bed(driver)


def test_after_a_whole_restart_all_members_reporting_elects_at_once() -> None:
    bed = restarted_cluster()

    bed.beat(1)
    bed.beat(2, end=10_500)
    assert not bed.elections
    bed.beat(3)

    assert [(election.winner, election.reason) for election in bed.elections] == [(2, "no_master")]


def test_after_a_whole_restart_those_present_are_taken_after_the_timeout() -> None:
    bed = restarted_cluster()

    bed.run(TIMEOUT_MS - 100, 1, 2)
    assert not bed.elections
    bed.run(200, 1, 2)

    [election] = bed.elections
    assert election.winner == 1
    assert election.without == (3,)


def test_a_restarted_master_waits_for_its_own_registration() -> None:
    bed = a_running_group()
    restarted(bed.driver, 1)

    bed.step(StateChanged())
    assert not bed.elections  # it has registered but not reported yet

    bed.beat(1)
    assert [election.reason for election in bed.elections] == ["no_master"]


def test_a_new_group_begins_at_once_with_all_and_later_with_min() -> None:
    driver = Driver()
    driver.found()
    bed = Bed(driver)
    for number in (1, 2):
        driver.register(number)
    bed.run(FIRST_WAIT_MS - 200, 1, 2, end=0)
    assert not bed.elections

    driver.register(3)
    bed.beat(3, end=0)
    [election] = bed.elections
    assert sorted(election.members) == [1, 2, 3]

    late = Bed(driver)
    late.run(FIRST_WAIT_MS + 200, 1, 2, end=0)
    assert sorted(late.elections[0].members) == [1, 2]


# -- epochs that do not work ----------------------------------------------------------------------


def test_a_master_that_does_not_open_its_epoch_is_replaced_and_preferred_last() -> None:
    bed = Bed(a_group())

    bed.run(OPEN_MS - 200, 1, 2, 3)
    assert not bed.elections
    bed.run(300, 1, 2, 3)

    [election] = bed.elections
    assert election.reason == "not_open"
    assert election.winner == 2


def test_who_failed_lately_is_tried_again_with_growing_patience_only() -> None:
    """R6: each replica once, then no epochs in turn while nobody can open one."""
    bed = Bed(a_group())
    for winner in (2, 3):
        bed.run(OPEN_MS + 100, 1, 2, 3)
        assert bed.elections[-1].winner == winner
        bed.apply()

    bed.run(2 * OPEN_MS - 300, 1, 2, 3)
    assert len(bed.elections) == 2
    bed.run(600, 1, 2, 3)
    assert len(bed.elections) == 3
    bed.apply()
    bed.run(2 * OPEN_MS - 300, 1, 2, 3)
    assert len(bed.elections) == 3


def test_a_master_that_does_not_hear_of_its_election_is_replaced_soon() -> None:
    """Its heartbeats arrive, the news of its epoch does not arrive there: a one-way cut."""
    bed = Bed(a_group())
    epoch = bed.driver.group.master_epoch

    bed.run(TAKE_MS_MAX - 200, 1, 2, 3, epoch=epoch - 1)
    assert not bed.elections
    bed.run(300, 1, 2, 3, epoch=epoch - 1)

    [election] = bed.elections
    assert (election.reason, election.winner) == ("not_taken", 2)


def test_a_master_with_slow_disks_has_time_for_its_syncs_and_no_more() -> None:
    """Its epoch is on its disk before it says that it has it; another one would take as long."""
    bed, sync_ms = Bed(a_group()), 700
    epoch = bed.driver.group.master_epoch
    due_ms = TAKE_MS_MAX + TAKE_SYNCS * sync_ms

    bed.run(due_ms - 200, 1, 2, 3, epoch=epoch - 1, sync_ms=sync_ms)
    assert not bed.elections
    bed.run(300, 1, 2, 3, epoch=epoch - 1, sync_ms=sync_ms)
    assert [election.reason for election in bed.elections] == ["not_taken"]


def test_a_master_with_slow_disks_has_time_to_open_its_epoch_and_no_more() -> None:
    bed, sync_ms = Bed(a_group()), 60_000

    bed.run(OPEN_MS + OPEN_SYNCS * SYNC_MS_MAX - 200, 1, 2, 3, sync_ms=sync_ms)
    assert not bed.elections
    bed.run(300, 1, 2, 3, sync_ms=sync_ms)
    assert [election.reason for election in bed.elections] == ["not_open"]


def test_confirm_that_stands_still_while_sends_wait_replaces_the_master() -> None:
    bed = a_running_group()

    bed.run(PROGRESS_MS + 300, 1, 2, 3, waiting=5, confirm=10_000)

    assert [election.reason for election in bed.elections] == ["no_progress"]


def test_confirm_that_moves_is_progress() -> None:
    bed = a_running_group()

    for confirm in range(10_000, 10_100):
        bed.run(100, 1, 2, 3, waiting=5, confirm=confirm)

    assert not bed.elections


def test_with_fewer_than_min_alive_a_standing_confirm_is_nobodys_fault() -> None:
    bed = a_running_group()
    for number in (2, 3):
        bed.close(number)
        bed.probe(number, is_refused=True)

    bed.run(2 * PROGRESS_MS, 1, waiting=5)

    assert not bed.elections


def test_a_master_that_rids_itself_of_no_dead_member_is_replaced() -> None:
    """R6: two of three are well, which is min; it reaches neither, and another one may."""
    bed = a_running_group()
    bed.close(3)
    bed.probe(3, is_refused=True)

    bed.run(PROGRESS_MS + 500, 1, 2, waiting=5)

    [election] = bed.elections
    assert (election.reason, election.winner, election.without) == ("no_progress", 2, (3,))


def test_new_settings_begin_an_epoch_of_the_same_master() -> None:
    bed = a_running_group()
    changed = SETTINGS.__class__(total_replicas=3, min_in_sync_replicas=1)
    bed.driver.do(SetGroupSettings(group=G1, settings=changed))

    bed.step(StateChanged())
    bed.apply()

    assert bed.driver.group.master == 1
    assert bed.driver.group.settings == changed
    bed.run(500, 1, 2, 3)
    assert len(bed.elections) == 1


def test_a_master_that_fenced_itself_in_its_epoch_is_replaced_by_another() -> None:
    bed = a_running_group()

    bed.beat(1, role=Role.FENCED, end=99_999)

    assert [(election.winner, election.reason) for election in bed.elections] == [(2, "fenced")]


def test_a_fenced_report_from_before_its_election_is_no_news() -> None:
    bed = a_running_group()

    bed.beat(1, role=Role.FENCED, epoch=MasterEpoch(0))

    assert not bed.elections


def test_an_older_incarnations_heartbeat_says_nothing() -> None:
    bed = a_running_group()
    restarted(bed.driver, 2)
    bed.step(StateChanged())

    bed.beat(2, incarnation=Incarnation(1))

    belief = bed.liveness.belief(bed.driver.group, ReplicaId(2), bed.now)
    assert belief.standing.value == "unknown"


def test_nobody_is_elected_while_all_brokers_fall_silent_together() -> None:
    """It is the controllers that were cut off: the master and its members may be well."""
    bed = a_running_group()
    bed.run(2 * TICK_MS, 1, 2)
    bed.run(4 * TICK_MS, 2, 3)  # they do not beat in step

    bed.run(2 * TIMEOUT_MS)
    assert not bed.elections

    bed.run(2 * TIMEOUT_MS, 2)
    assert [election.reason for election in bed.elections] == ["silent"]
    assert bed.elections[0].winner == 2


def test_first_to_be_heard_again_is_not_elected_before_the_master_had_time_to_come_back() -> None:
    """The links of all brokers heal together; who is heard first is a matter of milliseconds."""
    bed = a_running_group()
    bed.run(2 * TIMEOUT_MS)

    bed.run(TIMEOUT_MS // 2 - 2 * TICK_MS, 2, 3)
    bed.run(2 * TIMEOUT_MS, 1, 2, 3)

    assert not bed.elections
