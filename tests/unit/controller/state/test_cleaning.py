"""Replicas and groups that operators take off the record."""

from tests.support.controller.builders import G1, Driver, a_group, users_topics

from paceline.types import ReplicaId, TopicName
from paceline_controller.state.commands import CreateTopic
from paceline_controller.state.operator_commands import RemoveGroup, RemoveReplica


def remove(driver: Driver, number: int, *, is_forced: bool = False) -> dict[str, object]:
    return driver.do(RemoveReplica(group=G1, replica_id=ReplicaId(number), is_forced=is_forced))


def test_a_member_is_removed_only_by_force_and_the_set_says_so() -> None:
    driver = a_group()

    assert remove(driver, 3)["reason"] == "IS_MEMBER"
    assert remove(driver, 3, is_forced=True)["ok"]

    group = driver.group
    assert group.sync_state_set == {1, 2}
    assert group.is_narrowed  # what was confirmed may lie with it alone (R23)
    assert [entry["kind"] for entry in group.history[-2:]] == [
        "member_removed",
        "replica_forgotten",
    ]


def test_a_removed_master_vacates() -> None:
    driver = a_group()

    assert remove(driver, 1, is_forced=True)["ok"]

    assert driver.group.master is None
    assert 1 not in driver.group.replicas


def test_the_last_member_is_never_removed() -> None:
    """R9: without it nobody knows what was confirmed."""
    driver = a_group()
    for number in (1, 2):
        assert remove(driver, number, is_forced=True)["ok"]

    assert remove(driver, 3, is_forced=True)["reason"] == "LAST_MEMBER"


def test_a_group_with_queues_of_topics_goes_only_by_force() -> None:
    driver = a_group()
    assert driver.do(CreateTopic(topic=TopicName("t"), queues={G1: 2}))["ok"]

    assert driver.do(RemoveGroup(group=G1, is_forced=False))["reason"] == "GROUP_HAS_TOPICS"
    assert driver.do(RemoveGroup(group=G1, is_forced=True))["ok"]

    assert not driver.machine.groups
    assert not users_topics(driver.machine)
