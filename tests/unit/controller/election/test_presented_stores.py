"""Stores that nobody can place present themselves, and empty ones begin nothing meanwhile (R18)."""

import pytest
from tests.support.controller.builders import G1, a_group, reason
from tests.support.controller.recovery_bed import Recovery, beliefs, old_registration, presentation

from paceline.types import GroupName, Incarnation, ReplicaId
from paceline_controller.election.election import NoElection, choose_first
from paceline_controller.state import Machine
from paceline_controller.state.commands import CreateTopic, ElectMaster, RemoveGroup
from paceline_controller.state.operator_commands import ForgetStore
from paceline_controller.state.presenting import STORES_MAX, TOPIC_IDS_SKIPPED

# -- presenting -----------------------------------------------------------------------------------


def test_a_store_of_another_cluster_is_told_of_recover_and_founds_nothing() -> None:
    driver = Recovery()

    result = driver.come_back(1)

    assert reason(result) == "RECOVERY_NEEDED"
    assert "paceline cluster recover g1" in result["detail"]
    assert not driver.machine.groups


def test_what_presents_itself_is_on_record_and_stays_refused() -> None:
    driver = Recovery()

    driver.present_all()
    again = driver.present(2)

    assert reason(again) == "RECOVERY_NEEDED"
    assert set(driver.machine.presented) == {"store1", "store2", "store3"}
    assert not driver.machine.groups
    assert reason(driver.come_back(1)) == "RECOVERY_NEEDED"


def test_a_healthy_cluster_hears_no_store_of_another_one() -> None:
    driver = a_group()

    assert reason(driver.do(presentation(8))) == "OTHER_CLUSTER"
    assert reason(driver.do(old_registration(2))) == "OTHER_CLUSTER"
    assert reason(driver.do(old_registration(8, group=GroupName("g9")))) == "OTHER_CLUSTER"
    assert not driver.machine.may_present("old")
    assert not driver.machine.presented
    assert driver.group.sync_state_set == {1, 2, 3}
    assert driver.group.replicas[ReplicaId(2)].incarnation == 1


def test_a_cluster_with_topics_hears_no_store_of_another_one() -> None:
    driver = Recovery()
    driver.register(1)
    driver.do(CreateTopic(topic="new", queues={G1: 4}))  # type: ignore[arg-type]

    assert reason(driver.present(2)) == "OTHER_CLUSTER"


def test_a_store_that_was_heard_is_still_heard_when_there_are_topics() -> None:
    driver = Recovery()
    driver.present(1)
    driver.register(9)
    driver.do(CreateTopic(topic="new", queues={G1: 4}))  # type: ignore[arg-type]

    assert driver.machine.may_present("old")
    assert reason(driver.present(2)) == "RECOVERY_NEEDED"


def test_a_younger_start_replaces_what_its_store_presented() -> None:
    driver = Recovery()
    driver.present(1)

    driver.present(1, incarnation=5, end=600)

    assert driver.machine.presented["store1"].end == 600


@pytest.mark.parametrize("incarnation", [3, 4])
def test_two_copies_of_a_store_are_not_both_believed(incarnation: int) -> None:
    driver = Recovery()
    driver.present(1)

    assert reason(driver.present(1, incarnation=incarnation, end=100)) == "STORE_TWICE"
    assert driver.machine.presented["store1"].end == 500


def test_there_is_a_bound_to_what_waits() -> None:
    driver = Recovery()
    for number in range(STORES_MAX):
        driver.present(number + 1)

    assert reason(driver.present(STORES_MAX + 1)) == "TOO_MANY_STORES"
    assert reason(driver.present(1, incarnation=5)) == "RECOVERY_NEEDED"


def test_new_topics_get_no_id_that_an_old_log_may_know() -> None:
    driver = Recovery()
    driver.present_all()
    driver.recover()

    result = driver.do(CreateTopic(topic="new", queues={G1: 4}))  # type: ignore[arg-type]

    assert result["topic"]["topic_id"] >= 5 + TOPIC_IDS_SKIPPED


def test_all_of_it_is_in_the_snapshot() -> None:
    driver = Recovery()
    driver.present_all()
    presented = Machine()
    presented.restore(driver.machine.snapshot())
    assert presented.digest() == driver.machine.digest()
    assert presented.presented == driver.machine.presented

    driver.recover(gives_up_missing=True)
    recovered = Machine()
    recovered.restore(driver.machine.snapshot())

    assert recovered.digest() == driver.machine.digest()
    assert recovered.view() == driver.machine.view()
    assert recovered.may_present("old")


# -- the rule of empty stores ---------------------------------------------------------------------


def test_empty_stores_begin_no_group_while_stores_with_its_records_wait() -> None:
    """R18: whoever came first, the records are the group's."""
    driver = Recovery()
    driver.register(7)
    driver.present(1)
    for number in (8, 9):
        assert driver.register(number)["ok"]
    members = {ReplicaId(number): Incarnation(1) for number in (1, 2, 3)}

    choice = choose_first(driver.group, beliefs(driver), term=1, has_waited=True)
    forced = driver.elect(1, is_first=True, members=members)

    assert isinstance(choice, NoElection)
    assert reason(forced) == "RECOVERY_NEEDED"
    assert driver.group.master_epoch == 0


def test_empty_stores_that_came_later_wait_as_well() -> None:
    driver = Recovery()
    driver.present(1)
    for number in (7, 8, 9):
        driver.register(number)

    assert isinstance(
        choose_first(driver.group, beliefs(driver), term=1, has_waited=True), NoElection
    )


def test_empty_ones_get_no_id_of_a_store_that_waits() -> None:
    driver = Recovery()
    driver.present(1)
    driver.present(3)

    first = driver.register(7)["replica_id"]
    driver.present(5)

    assert (first, driver.register(8)["replica_id"]) == (4, 6)


def test_a_group_that_was_removed_and_comes_back_still_waits() -> None:
    driver = Recovery()
    driver.register(7)
    driver.present(1)
    driver.do(RemoveGroup(group=G1))

    driver.register(8)

    assert driver.group.is_claimed


def test_when_the_operator_forgets_the_last_store_empty_ones_begin() -> None:
    driver = Recovery()
    driver.present(1)
    driver.present(2)
    for number in (7, 8, 9):
        driver.register(number)

    driver.do(ForgetStore(store_id="store1"))
    first = choose_first(driver.group, beliefs(driver), term=1, has_waited=True)
    driver.do(ForgetStore(store_id="store2"))
    second = choose_first(driver.group, beliefs(driver), term=1, has_waited=True)

    assert isinstance(first, NoElection)
    assert isinstance(second, ElectMaster)
    assert driver.do(second)["ok"]
    assert reason(driver.do(ForgetStore(store_id="store2"))) == "STORE_UNKNOWN"


def test_empty_replicas_join_the_recovered_group_under_the_ids_they_got() -> None:
    driver = Recovery()
    assert driver.register(7)["replica_id"] == 1
    driver.present_all()

    result = driver.recover()

    assert result["ok"], result
    assert driver.group.replicas[ReplicaId(1)].store_id == "store7"
    stores = {replica.store_id for replica in driver.group.replicas.values()}
    assert stores == {"store7", "store1", "store2", "store3"}
    (chosen,) = driver.group.sync_state_set
    assert driver.group.replicas[chosen].store_id == "store1"
