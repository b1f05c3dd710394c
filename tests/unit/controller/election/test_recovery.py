"""Groups that only their stores know, recovered by the operator (R18)."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from tests.support.controller.builders import G1, SETTINGS, a_group, reason, registration
from tests.support.controller.recovery_bed import (
    ORDERS,
    Recovery,
    beliefs,
    old_registration,
    presentation,
)

from paceline.types import GroupName, MasterEpoch, ReplicaId
from paceline_controller.election.election import NoElection, ReplicaHealth, ReplicaStatus, choose
from paceline_controller.election.unclean import choose_other
from paceline_controller.state.commands import CreateTopic, RemoveGroup
from paceline_controller.state.operator_commands import ForgetStore, RecoverGroup

# -- recovering -----------------------------------------------------------------------------------


def test_the_chosen_store_alone_is_the_set_and_nothing_is_given_up() -> None:
    driver = Recovery()
    driver.present_all()

    result = driver.recover(2)

    group = driver.group
    assert result["ok"], result
    assert (group.master, group.sync_state_set) == (None, {2})
    assert sorted(group.replicas) == [1, 2, 3]
    assert group.master_epoch > 7
    assert not group.is_unclean_due
    assert driver.machine.view().topics["orders"].packed() == {  # type: ignore[index]
        "topic": "orders",
        "topic_id": 5,
        "queues": {"g1": 8},
        "message_type": "MIXED",
    }
    assert not driver.machine.presented
    assert group.history[-1]["kind"] == "group_recovered"


def test_locks_of_an_acting_master_that_nobody_remembers_are_waited_for() -> None:
    """R36: an epoch that is in no log was perhaps one of an acting master."""
    driver = Recovery()
    for number in (1, 2, 3):
        driver.present(number, epoch=MasterEpoch(8), leases_ms=number * 10_000)

    driver.recover()

    assert driver.group.acting_leases_ms == 30_000


def test_without_such_an_epoch_nobody_waits_for_locks() -> None:
    driver = Recovery()
    driver.present_all()

    driver.recover()

    assert driver.group.acting_leases_ms == 0


def test_a_view_of_the_recovered_cluster_says_whom_it_replaces_and_leaps() -> None:
    driver = Recovery()
    driver.present_all()
    before = driver.machine.version

    driver.recover()

    view = driver.machine.view()
    assert view.replaces == ("old",)
    assert view.version > before + 1_000_000_000
    assert all(r.view_version == view.version for r in driver.group.replicas.values())


def test_the_recovered_group_elects_the_chosen_store_and_the_others_grow_into_the_set() -> None:
    driver = Recovery()
    driver.present_all()
    driver.recover(1)

    back = driver.come_back(1)
    assert back["replaces_cluster"] == "old"
    assert back["cluster_id"] == "abc"
    assert driver.elect_chosen()["ok"]
    assert not driver.group.is_unclean
    driver.report_open(confirm=600)
    for number in (2, 3):
        assert driver.come_back(number)["ok"]
    assert driver.alter(1, 2, 3)["ok"]

    assert driver.group.sync_state_set == {1, 2, 3}
    assert driver.group.unclean_elections_count == 0


def test_said_twice_it_is_done_once() -> None:
    driver = Recovery()
    driver.present_all()
    first = driver.recover(1)

    again = driver.recover(1)

    assert again["ok"]
    assert again["master_epoch"] == first["master_epoch"]
    assert reason(driver.recover(2)) == "GROUP_KNOWN"
    assert sum(entry["kind"] == "group_recovered" for entry in driver.group.history) == 1


def test_a_group_on_record_is_not_recovered() -> None:
    driver = a_group()

    result = driver.do(
        RecoverGroup(group=G1, store_id="store1", gives_up_missing=True, defaults=SETTINGS)
    )

    assert reason(result) == "GROUP_KNOWN"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "2 of 3"),
        ({"end": 501}, "holds more"),
        ({"last_epoch": MasterEpoch(8), "epoch": MasterEpoch(8), "end": 100}, "holds more"),
        ({"is_suspect": True}, "cut its log"),
        ({"is_damaged": True, "is_suspect": True}, "damaged"),
        ({"is_learner": True, "end": 501}, "holds more"),
    ],
    ids=["missing", "longer", "later-epoch", "R23-suspect", "damaged", "learner"],
)
def test_what_may_lose_records_needs_the_operators_word_and_marks_the_epoch(
    changes: dict[str, Any], why: str
) -> None:
    """R21: until an epoch is open, each that begins is unclean."""
    driver = Recovery()
    driver.present(1)
    driver.present(2)
    if changes:
        driver.present(3, **changes)

    refused = driver.recover(1)
    assert reason(refused) == "MAY_LOSE_RECORDS"
    assert why in refused["detail"]
    assert not driver.machine.groups

    assert driver.recover(1, gives_up_missing=True)["is_unclean"]
    driver.come_back(1)
    assert driver.elect_chosen()["ok"]
    assert driver.group.is_unclean
    assert driver.group.unclean_elections_count == 1


def test_a_replica_that_once_was_and_is_not_there_may_hold_more() -> None:
    """Three of them are enough for the settings, and a fourth may have been in the set."""
    driver = Recovery()
    for number in (1, 3, 4):
        driver.present(number)

    result = driver.recover(1)

    assert reason(result) == "MAY_LOSE_RECORDS"
    assert "replica 2 of the group" in result["detail"]


def test_an_unclean_epoch_that_never_opened_is_followed_by_another_one() -> None:
    driver = Recovery()
    driver.present(1)
    driver.recover(1, gives_up_missing=True)
    driver.come_back(1)
    driver.elect_chosen()

    driver.come_back(1, incarnation=5)
    driver.elect_chosen()
    assert driver.group.is_unclean
    driver.report_open(confirm=500)
    driver.come_back(1, incarnation=6, last_epoch=driver.group.master_epoch)
    driver.elect_chosen()

    assert not driver.group.is_unclean


def test_a_chosen_suspect_is_electable_because_the_operator_said_so() -> None:
    driver = Recovery()
    driver.present(1, is_suspect=True)
    driver.recover(1, gives_up_missing=True)

    driver.come_back(1, is_suspect=True)

    assert driver.elect_chosen()["ok"]


def test_a_power_loss_with_memory_durability_is_accepted_with_the_store_that_told_of_it() -> None:
    memory = replace(SETTINGS, durability="memory")
    driver = Recovery()
    driver.present(1, is_unclean=True)
    assert reason(driver.recover(1, defaults=memory)) == "MAY_LOSE_RECORDS"
    driver.recover(1, gives_up_missing=True, defaults=memory)

    driver.come_back(1, is_unclean=True, defaults=memory)

    assert driver.elect_chosen()["ok"]


def test_a_chosen_store_that_lost_more_since_is_not_elected() -> None:
    """R16: what it showed to the operator it must have when it leads."""
    driver = Recovery()
    driver.present_all()
    driver.recover(1)

    driver.come_back(1, end=400)

    choice = choose(driver.group, beliefs(driver), term=1, reason="no_master")
    assert isinstance(choice, NoElection)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"is_damaged": True}, "STORE_DAMAGED"),
        ({"is_learner": True}, "LEARNER"),
        ({"epoch": MasterEpoch(2**32 - 5)}, "EPOCH_EXHAUSTED"),
    ],
)
def test_some_stores_are_no_base_whatever_is_accepted(changes: dict[str, Any], why: str) -> None:
    driver = Recovery()
    driver.present(1, **changes)

    assert reason(driver.recover(1, gives_up_missing=True)) == why
    assert not driver.machine.groups


@pytest.mark.parametrize(
    "changes", [{"cluster_id": "older"}, {"replica_id": ReplicaId(1)}], ids=["cluster", "replica"]
)
def test_stores_that_contradict_each_other_are_sorted_out_first(changes: dict[str, Any]) -> None:
    driver = Recovery()
    driver.present(1)
    driver.present(2, **changes)

    assert reason(driver.recover(1, gives_up_missing=True)) == "STORES_CONTRADICT"
    driver.do(ForgetStore(store_id="store2"))

    assert driver.recover(1, gives_up_missing=True)["ok"]


def test_an_unknown_store_is_not_recovered() -> None:
    driver = Recovery()
    driver.present(1, group=GroupName("g2"))

    assert reason(driver.recover(1)) == "STORE_UNKNOWN"
    assert reason(driver.recover(9)) == "STORE_UNKNOWN"


def test_two_groups_of_one_cluster_share_their_topics() -> None:
    driver = Recovery()
    g2 = GroupName("g2")
    driver.present(1)
    driver.present(4, group=g2, topics=(structs.replace(ORDERS, queues=2),))
    driver.recover(1, gives_up_missing=True)

    later = driver.present(5, group=g2, replica_id=ReplicaId(2))
    driver.recover(4, group=g2, gives_up_missing=True)

    assert reason(later) == "RECOVERY_NEEDED"
    assert driver.machine.topics["orders"].read_queues == {"g1": 8, "g2": 2}  # type: ignore[index]


def test_a_topic_made_since_under_an_old_name_is_not_mixed_up() -> None:
    driver = Recovery()
    g2 = GroupName("g2")
    driver.present(1, topics=())
    driver.present(4, group=g2)
    driver.recover(1, gives_up_missing=True)
    driver.do(CreateTopic(topic="orders", queues={G1: 4}))  # type: ignore[arg-type]

    result = driver.recover(4, group=g2, gives_up_missing=True)

    assert reason(result) == "TOPIC_CONTRADICTS"
    assert g2 not in driver.machine.groups


def test_no_setting_overrules_the_operator_before_the_named_store_has_come() -> None:
    """R18, R21: with enable_elect_unclean_master another one would be elected meanwhile."""
    driver = Recovery()
    driver.present_all()
    driver.recover(1, defaults=replace(SETTINGS, enable_elect_unclean_master=True))
    driver.come_back(2)
    away = {**beliefs(driver), ReplicaId(1): ReplicaHealth(standing=ReplicaStatus.GONE)}

    before = choose_other(driver.group, away)
    driver.come_back(1)
    driver.elect_chosen()
    driver.report_open(confirm=500)
    afterwards = choose_other(driver.group, away)

    assert (before, afterwards) == (None, 2)


# -- afterwards -----------------------------------------------------------------------------------


def test_a_store_that_was_missing_is_refused_later() -> None:
    """R1: its log may have an epoch that nobody here knows of."""
    driver = Recovery()
    driver.present(1)
    driver.recover(1, gives_up_missing=True)

    assert reason(driver.come_back(3)) == "STORE_UNKNOWN"
    assert reason(driver.present(3)) == "STORE_UNKNOWN"
    assert reason(driver.present(1)) == "GROUP_KNOWN"


def test_a_store_of_this_cluster_whose_group_is_known_is_told_to_register() -> None:
    """The controllers' folders were put back while it waited."""
    driver = a_group()

    assert reason(driver.do(presentation(1, cluster_id="abc"))) == "GROUP_KNOWN"
    assert not driver.machine.presented


def test_an_old_copy_of_a_recovered_store_does_not_cost_its_replica_the_set() -> None:
    driver = Recovery()
    driver.present_all()
    driver.recover(1)
    driver.come_back(1)

    assert reason(driver.come_back(1, incarnation=3)) == "STORE_TWICE"

    assert not driver.group.replicas[ReplicaId(1)].is_lost
    assert driver.elect_chosen()["ok"]


def test_a_start_that_did_not_hear_the_answer_registers_again() -> None:
    driver = Recovery()
    driver.present_all()
    driver.recover(1)
    driver.come_back(1)

    assert driver.come_back(1, incarnation=5)["ok"]
    assert driver.come_back(1, incarnation=6, cluster_id="abc")["ok"]


def test_a_forgotten_group_of_the_same_cluster_is_recovered_as_well() -> None:
    driver = a_group()
    driver.do(RemoveGroup(group=G1))
    own = {"cluster_id": "abc"}

    assert reason(driver.do(old_registration(1, **own))) == "RECOVERY_NEEDED"
    for number in (1, 2):
        driver.do(presentation(number, **own))
    result = driver.do(
        RecoverGroup(group=G1, store_id="store2", gives_up_missing=True, defaults=SETTINGS)
    )

    assert result["ok"], result
    assert driver.machine.view().replaces == ()
    assert driver.do(old_registration(2, **own))["ok"]
    assert reason(driver.do(old_registration(3, **own))) == "REPLICA_UNKNOWN"
    assert driver.do(registration(9))["replica_id"] > 3
