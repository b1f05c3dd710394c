"""R36: when the controllers have a replica act as master, which one, and what ends it."""

from dataclasses import replace
from typing import Any

from tests.support.controller.builders import G1, SETTINGS, Driver, a_group, reason
from tests.support.controller.liveness_bed import TIMEOUT_MS, Bed
from tests.support.controller.registration import restarted

from paceline.types import Incarnation, MasterEpoch, ReplicaId
from paceline.wire.session import OpenActingLocks
from paceline_controller.election.acting import SETTLE_MS
from paceline_controller.election.liveness import TICK_MS
from paceline_controller.election.liveness_events import ElectionFinished, LeadershipChanged
from paceline_controller.state import Machine
from paceline_controller.state.commands import AppointActing, SetGroupSettings

LEASES_MS = 70_000
SILENT_MS = TIMEOUT_MS + 2 * TICK_MS


def a_narrow_group(*, replicas: int = 3) -> Driver:
    """Replica 1 leads the set of 1 and 2; the others are no members."""
    driver = a_group(replicas=replicas)
    driver.report_open(confirm=100)
    assert driver.alter(1, 2)["ok"]
    return driver


def a_narrow_bed(*, replicas: int = 3) -> Bed:
    bed = Bed(a_narrow_group(replicas=replicas))
    bed.run(200, *range(1, replicas + 1))
    assert not bed.elections
    return bed


def appointments(bed: Bed) -> list[AppointActing]:
    return [one for one in bed.elections if isinstance(one, AppointActing)]


def appointment(driver: Driver, number: int, **changes: Any) -> AppointActing:
    group = driver.group
    arguments = {
        "group": G1,
        "term": 1,
        "master_epoch": group.master_epoch,
        "set_epoch": group.set_epoch,
        "members": group.members(),
        "acting": ReplicaId(number),
        "incarnation": Incarnation(1),
        "reason": "nobody_electable",
        **changes,
    }
    return AppointActing(**arguments)


def ask_locks(driver: Driver, number: int, **changes: Any) -> OpenActingLocks:
    arguments = {
        "group": G1,
        "replica_id": ReplicaId(number),
        "incarnation": Incarnation(1),
        "master_epoch": driver.group.master_epoch,
        "leases_ms": LEASES_MS,
        **changes,
    }
    return OpenActingLocks(**arguments)


def an_acting_group() -> Driver:
    driver = a_narrow_group()
    assert driver.do(appointment(driver, 3))["ok"]
    return driver


# -- when, and whom -------------------------------------------------------------------------------


def test_when_all_members_are_dead_for_the_settle_time_a_live_one_acts() -> None:
    bed = a_narrow_bed()

    bed.run(TIMEOUT_MS + SETTLE_MS - 4 * TICK_MS, 3)
    assert not bed.elections
    bed.run(8 * TICK_MS, 3)

    [decision] = appointments(bed)
    assert decision.acting == 3


def test_of_several_the_smallest_id_acts_and_never_a_learner() -> None:
    driver = a_narrow_group(replicas=5)
    driver.group.replicas[ReplicaId(3)].is_learner = True
    bed = Bed(driver)
    bed.run(200, 1, 2, 3, 4, 5)

    bed.run(SILENT_MS + SETTLE_MS + 4 * TICK_MS, 3, 4, 5)

    assert [one.acting for one in appointments(bed)] == [4]


def test_nobody_acts_while_a_member_can_be_elected() -> None:
    bed = a_narrow_bed()

    bed.run(SILENT_MS + SETTLE_MS + 4 * TICK_MS, 2, 3)

    assert not appointments(bed)
    assert bed.elections


def test_a_member_that_lives_but_cannot_lead_does_not_act() -> None:
    """R36: never a member. A suspect (R23) waits for the others; who else lives serves reads."""
    bed = a_narrow_bed()
    restarted(bed.driver, 2, is_suspect=True)

    bed.run(SILENT_MS + SETTLE_MS + 6 * TICK_MS, 2, 3)

    [decision] = appointments(bed)
    assert decision.acting == 3


def test_a_leader_that_was_cut_off_gives_the_members_time_to_be_heard() -> None:
    """When the cut heals one of them is heard first; that proves no death."""
    bed = a_narrow_bed()
    bed.run(SILENT_MS + 2 * SETTLE_MS)
    assert not bed.elections

    bed.run(4 * TICK_MS, 3)
    bed.run(SETTLE_MS, 1, 2, 3)

    assert not bed.elections


def test_a_new_leader_begins_to_count_anew() -> None:
    bed = a_narrow_bed()
    bed.run(SILENT_MS + SETTLE_MS - 4 * TICK_MS, 3)

    bed.step(LeadershipChanged(is_leader=True, term=1))
    bed.run(SETTLE_MS, 3)

    assert not bed.elections


def test_switched_off_nobody_acts() -> None:
    driver = a_narrow_group()
    driver.group.settings = replace(SETTINGS, enable_slave_acting_master=False)
    bed = Bed(driver)
    bed.run(200, 1, 2, 3)

    bed.run(SILENT_MS + SETTLE_MS + 4 * TICK_MS, 3)

    assert not bed.elections
    assert reason(driver.do(appointment(driver, 3))) == "ACTING_DISABLED"


def test_setting_that_is_put_while_nobody_can_lead_counts_at_once() -> None:
    """It waits for the next epoch, which nobody else could begin."""
    driver = a_narrow_group()
    on, off = SETTINGS, replace(SETTINGS, enable_slave_acting_master=False)
    driver.group.settings = off
    bed = Bed(driver)
    bed.run(200, 1, 2, 3)
    bed.run(SILENT_MS + SETTLE_MS, 3)
    assert not bed.elections
    assert driver.do(SetGroupSettings(group=G1, settings=on))["ok"]

    bed.run(SETTLE_MS + 4 * TICK_MS, 3)

    [decision] = appointments(bed)
    assert driver.do(decision)["ok"]
    assert driver.group.acting == 3


def test_setting_that_is_taken_back_ends_the_term_at_once() -> None:
    driver = an_acting_group()
    off = replace(SETTINGS, enable_slave_acting_master=False)

    assert driver.do(SetGroupSettings(group=G1, settings=off))["ok"]

    assert driver.group.acting is None
    assert driver.group.history[-1]["reason"] == "settings"
    assert driver.machine.view().groups[G1].acting is None
    assert reason(driver.do(appointment(driver, 3))) == "ACTING_DISABLED"


def test_the_acting_one_stays_until_a_member_can_be_elected_and_then_ends() -> None:
    bed = a_narrow_bed()
    bed.run(SILENT_MS + SETTLE_MS + 4 * TICK_MS, 3)
    bed.apply()
    epoch = bed.driver.group.master_epoch
    bed.run(2 * SETTLE_MS, 3)
    assert len(bed.elections) == 1

    bed.run(300, 2, 3)
    bed.apply()

    group = bed.driver.group
    assert (group.master, group.acting, group.master_epoch) == (2, None, epoch + 1)


def test_if_the_acting_one_dies_another_is_appointed() -> None:
    bed = a_narrow_bed(replicas=4)
    bed.run(SILENT_MS + SETTLE_MS + 4 * TICK_MS, 3, 4)
    bed.apply()

    bed.run(SILENT_MS + SETTLE_MS + 4 * TICK_MS, 4)

    decision = appointments(bed)[-1]
    assert decision.acting == 4


# -- the state machine ----------------------------------------------------------------------------


def test_an_appointment_takes_an_epoch_and_leaves_set_and_floor_alone() -> None:
    driver = a_narrow_group()
    before = driver.group.master_epoch, driver.group.set_epoch, driver.group.confirm_floor

    result = driver.do(appointment(driver, 3))

    group = driver.group
    assert result["ok"]
    assert (group.master_epoch, group.set_epoch, group.confirm_floor) == (
        before[0] + 1,
        before[1],
        before[2],
    )
    assert group.sync_state_set == {1, 2}
    view = group.view()
    assert (view.master, view.acting, view.acting_incarnation) == (None, 3, 1)
    assert [event["kind"] for event in driver.events] == [
        "master_vacated",
        "acting_master_appointed",
    ]


def test_an_appointment_that_no_longer_fits_is_refused() -> None:
    driver = a_narrow_group()
    refusals: dict[str, dict[str, Any]] = {
        "STALE_MASTER_EPOCH": {"master_epoch": MasterEpoch(0)},
        "STALE_SET_EPOCH": {"set_epoch": driver.group.set_epoch - 1},
        "STALE_TERM": {"term": 0},
        "IS_MEMBER": {"acting": ReplicaId(2)},
        "STALE_INCARNATION": {"incarnation": Incarnation(7)},
        "REPLICA_UNKNOWN": {"acting": ReplicaId(9)},
    }

    for code, changes in refusals.items():
        before = driver.group.to_json()
        assert reason(driver.do(appointment(driver, 3, **changes))) == code
        assert driver.group.to_json() == before


def test_members_that_started_again_meanwhile_refuse_an_appointment() -> None:
    driver = a_narrow_group()
    late = appointment(driver, 3)
    restarted(driver, 2)

    assert not driver.do(late)["ok"]


def test_the_old_master_can_change_nothing_after_an_appointment() -> None:
    driver = a_narrow_group()
    group = driver.group
    master = {"master": ReplicaId(1), "master_epoch": group.master_epoch}
    driver.do(appointment(driver, 3))

    result = driver.alter(1, 2, 3, **master, master_incarnation=Incarnation(1))

    assert reason(result) == "STALE_MASTER_EPOCH"


def test_another_start_of_it_acts_no_more() -> None:
    """R1's rule for masters holds here too: what a process was, its successor is not."""
    driver = an_acting_group()
    epoch = driver.group.master_epoch

    restarted(driver, 3)

    assert driver.group.acting is None
    assert driver.group.master_epoch == epoch
    assert driver.group.history[-1]["kind"] == "acting_master_ended"


def test_a_replica_that_is_forgotten_acts_no_more() -> None:
    driver = an_acting_group()

    driver.raw({"kind": "remove_replica", "group": G1, "replica_id": 3})

    assert driver.group.acting is None


def test_locks_are_on_record_until_an_epoch_has_opened() -> None:
    driver = an_acting_group()
    assert driver.group.view().acting_leases_ms == 0
    assert driver.do(ask_locks(driver, 3))["ok"]
    assert driver.do(ask_locks(driver, 3))["ok"]
    assert driver.group.view().acting_leases_ms == LEASES_MS

    driver.elect(1)
    assert driver.group.view().acting_leases_ms == LEASES_MS
    driver.elect(2)
    assert driver.group.view().acting_leases_ms == LEASES_MS
    driver.report_open(confirm=200)

    assert driver.group.view().acting_leases_ms == 0


def test_locks_are_refused_to_whom_is_not_acting_now() -> None:
    driver = an_acting_group()

    for changes in (
        {"replica_id": ReplicaId(2)},
        {"incarnation": Incarnation(2)},
        {"master_epoch": MasterEpoch(1)},
    ):
        assert reason(driver.do(ask_locks(driver, 3, **changes))) == "NOT_ACTING"
    asked = ask_locks(driver, 3)
    driver.elect(1)
    assert reason(driver.do(asked)) == "NOT_ACTING"


def test_a_snapshot_keeps_who_acts_and_an_older_one_has_nobody() -> None:
    driver = an_acting_group()
    driver.do(ask_locks(driver, 3))
    restored = Machine()

    restored.restore(driver.machine.snapshot())

    assert restored.digest() == driver.machine.digest()
    document = driver.group.to_json()
    for member in ("acting", "acting_incarnation", "acting_leases_ms"):
        del document[member]
    assert type(driver.group).from_json(document).acting is None


def test_settings_of_an_older_version_mean_on() -> None:
    driver = a_group()
    document = SetGroupSettings(group=G1, settings=SETTINGS).to_json()
    del document["settings"]["enable_slave_acting_master"]

    assert driver.raw(document)["ok"]
    assert driver.group.settings.enable_slave_acting_master


def test_an_election_that_finished_lets_the_judge_look_again() -> None:
    bed = a_narrow_bed()
    bed.run(SILENT_MS + SETTLE_MS + 4 * TICK_MS, 3)
    assert len(bed.elections) == 1

    bed.step(ElectionFinished(group=G1))  # it was refused
    bed.run(200, 3)

    assert len(bed.elections) == 2
