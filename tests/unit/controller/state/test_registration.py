"""Who may register as what, and which member falls out of the set by it."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from tests.support.controller.builders import G1, Driver, a_group, reason
from tests.support.controller.registration import a_pair, restarted

from paceline.types import GroupName, Incarnation, MasterEpoch, ReplicaId
from paceline_controller.state.commands import RemoveReplica
from paceline_controller.state.model import State
from paceline_controller.state.operator_commands import RemoveGroup


def test_replicas_get_ids_from_one() -> None:
    driver = Driver()
    driver.found()

    ids = [driver.register(number)["replica_id"] for number in (1, 2, 3)]

    assert ids == [1, 2, 3]


def test_a_broker_group_has_a_number_that_is_never_given_again() -> None:
    driver = Driver()
    driver.found()
    for number, group in enumerate(("g9", "g10", "g1"), start=1):
        driver.register(number, group=GroupName(group))
    driver.do(RemoveGroup(group=GroupName("g1"), is_forced=True))
    driver.register(4, group=GroupName("a"))

    numbers = {name: group.number for name, group in driver.machine.view(()).groups.items()}
    snapshot = orjson.loads(State.to_bytes(driver.machine._state))
    del snapshot["next_group_number"]
    older = State.from_bytes(orjson.dumps(snapshot))

    assert numbers == {"g9": 1, "g10": 2, "a": 4}
    assert {name: group.number for name, group in older.groups.items()} == {
        "a": 1,
        "g10": 2,
        "g9": 3,
    }
    assert older.next_group_number == 4


def test_a_store_whose_answer_was_lost_gets_the_same_id() -> None:
    driver = Driver()
    driver.found()
    driver.register(1)

    result = driver.register(1, incarnation=2)

    assert result["replica_id"] == 1


def test_a_forgotten_replicas_id_is_not_used_again() -> None:
    driver = a_group()
    driver.alter(1, 2)
    driver.do(RemoveReplica(group=G1, replica_id=ReplicaId(3)))

    assert driver.register(4)["replica_id"] == 4


def test_a_member_is_not_forgotten() -> None:
    driver = a_group()

    result = driver.do(RemoveReplica(group=G1, replica_id=ReplicaId(3)))

    assert reason(result) == "IS_MEMBER"


def test_a_store_with_records_and_no_group_on_record_needs_the_operator() -> None:
    driver = Driver()
    driver.found()

    assert reason(driver.register(1, is_empty=False, end=100)) == "RECOVERY_NEEDED"
    assert not driver.machine.groups


def test_an_unknown_store_with_records_is_refused_in_a_founded_group() -> None:
    driver = a_group()

    assert reason(driver.register(9, is_empty=False, end=100)) == "STORE_UNKNOWN"


def test_an_unknown_replica_id_is_refused() -> None:
    driver = a_group()

    assert reason(restarted(driver, 1, replica_id=ReplicaId(9))) == "REPLICA_UNKNOWN"


def test_a_clean_restart_of_a_member_keeps_it_a_member() -> None:
    driver = a_group()

    result = restarted(driver, 2)

    assert result["ok"]
    assert driver.group.sync_state_set == {1, 2, 3}
    assert driver.group.master == 1


def test_a_new_start_of_the_master_vacates_mastership_at_once() -> None:
    driver = a_group()

    restarted(driver, 1)

    assert driver.group.master is None
    assert driver.group.master_epoch == 1
    assert driver.group.sync_state_set == {1, 2, 3}


@pytest.mark.parametrize("incarnation", [1, 2, 3])
def test_an_incarnation_that_does_not_rise_leaves_the_set_and_is_refused(
    incarnation: int,
) -> None:
    driver = a_group()
    restarted(driver, 2, incarnation=3)

    result = restarted(driver, 2, incarnation=incarnation)

    assert reason(result) == "INCARNATION_STALE"
    assert result["incarnation"] == 3
    assert driver.group.sync_state_set == {1, 3}
    assert driver.group.replicas[ReplicaId(2)].incarnation == 3


@pytest.mark.parametrize(
    "changes",
    [{"store_id": "another"}, {"is_unclean": True}, {"is_learner": True}],
    ids=["R9-other-store", "R13-unclean", "R18-learner"],
)
def test_a_member_that_lost_its_log_leaves_the_set(changes: dict[str, Any]) -> None:
    driver = a_group()
    driver.group.settings = replace(driver.group.settings, durability="memory")

    restarted(driver, 2, **changes)

    assert driver.group.sync_state_set == {1, 3}


def test_a_member_that_ends_below_the_confirm_floor_leaves_the_set() -> None:
    driver = a_group()
    driver.raise_floor(5000)

    restarted(driver, 2, end=4999)

    assert driver.group.sync_state_set == {1, 3}


def test_a_member_whose_log_ends_before_the_epoch_that_opened_leaves_the_set() -> None:
    """A copy of its disk from the epoch before: long enough, but its tail was cut since (R16)."""
    driver = a_group()
    driver.report_open(confirm=100)
    assert driver.elect(2)["ok"]
    driver.report_open(confirm=200)

    assert restarted(driver, 3, end=900, last_epoch=MasterEpoch(1))["ok"]

    assert driver.group.sync_state_set == {1, 2}


def test_an_epoch_that_never_opened_is_asked_of_nobody() -> None:
    driver = a_group()
    driver.report_open(confirm=100)
    assert driver.elect(2)["ok"]

    restarted(driver, 3, end=900, last_epoch=MasterEpoch(1))

    assert driver.group.sync_state_set == {1, 2, 3}


def test_after_an_unclean_election_older_epochs_count_again() -> None:
    """What the winner has is all there is now, whatever had opened before (R21)."""
    driver = a_group()
    driver.report_open(confirm=100)
    assert driver.elect(2)["ok"]
    driver.report_open(confirm=200)
    members = {ReplicaId(3): Incarnation(1)}
    assert driver.elect(3, is_unclean=True, members=members, position=150)["ok"]

    restarted(driver, 3, end=150, last_epoch=MasterEpoch(1))

    assert not driver.group.replicas[ReplicaId(3)].is_lost


def test_a_suspect_leaves_the_set_while_another_leads() -> None:
    driver = a_group()

    restarted(driver, 2, is_suspect=True)

    assert driver.group.sync_state_set == {1, 3}


def test_a_suspect_stays_a_member_while_nobody_leads() -> None:
    driver = a_group()
    restarted(driver, 1)

    restarted(driver, 2, is_suspect=True)

    assert driver.group.sync_state_set == {1, 2, 3}
    assert driver.group.replicas[ReplicaId(2)].is_suspect


def test_suspects_of_one_power_cut_never_take_the_set_below_min() -> None:
    """The recorded master may be dead: without this the set was {3} and nobody electable (R8)."""
    driver = a_group()
    assert driver.group.settings.min_in_sync_replicas == 2

    restarted(driver, 2, is_suspect=True)
    restarted(driver, 3, is_suspect=True)

    assert len(driver.group.sync_state_set) >= 2


def test_suspicion_alone_leaves_no_set_of_one_whatever_min_says() -> None:
    """The recorded master may be dead, and start as a suspect that has cut what only 2 has now."""
    driver = a_pair()

    restarted(driver, 2, is_suspect=True)

    assert driver.group.sync_state_set == {1, 2}


def test_with_fsync_durability_a_power_loss_of_all_costs_no_member() -> None:
    driver = a_group()

    for number in (1, 2, 3):
        restarted(driver, number, is_unclean=True)  # R13 is about memory durability

    assert driver.group.sync_state_set == {1, 2, 3}
    assert driver.elect(2, have_all_reported=True)["ok"]


def test_the_last_member_stays_but_nobody_is_electable() -> None:
    driver = a_group()
    driver.group.settings = replace(driver.group.settings, durability="memory")
    for number in (1, 2, 3):
        restarted(driver, number, is_unclean=True)

    result = driver.elect(3, have_all_reported=True)

    assert driver.group.sync_state_set == {3}
    assert driver.group.replicas[ReplicaId(3)].is_lost
    assert reason(result) == "MEMBER_LOST"


def test_a_new_settings_default_does_not_touch_an_existing_group() -> None:
    driver = a_group()
    before = driver.group.settings

    driver.register(4, defaults=before.__class__(total_replicas=5, min_in_sync_replicas=3))

    assert driver.group.settings == before


def test_the_only_member_cannot_become_a_learner() -> None:
    """R18, R9: it would leave the group without a set. One of several is demoted, and promoted."""
    driver = a_group()
    demoted = restarted(driver, 3, is_learner=True)
    assert demoted["ok"]
    assert driver.group.sync_state_set == {1, 2}
    assert driver.group.history[-1]["reason"] == "learner"
    assert restarted(driver, 3, incarnation=3)["ok"]
    assert not driver.group.replicas[ReplicaId(3)].is_learner

    driver.group.sync_state_set = {ReplicaId(1)}
    refused = restarted(driver, 1, is_learner=True)

    assert reason(refused) == "LAST_MEMBER"
    assert driver.group.sync_state_set == {1}
    assert not driver.group.replicas[ReplicaId(1)].is_lost
