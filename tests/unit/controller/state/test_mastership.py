"""Preconditions of elections, set changes, epoch openings and floors: one line each."""

from typing import Any

import orjson
import pytest
from tests.support.controller.builders import G1, Driver, a_group, reason
from tests.support.controller.registration import a_pair, restarted

from paceline.types import GroupName, Incarnation, ReplicaId, TopicName
from paceline.wire.cluster import HISTORY_ENTRIES_MAX, GroupSettings
from paceline_controller.state.commands import CreateTopic, SetGroupSettings, SetWritePermission


def untouched(driver: Driver) -> tuple[object, ...]:
    group = driver.group
    return (
        group.master,
        group.master_epoch,
        group.set_epoch,
        frozenset(group.sync_state_set),
        group.confirm_floor,
        driver.machine.version,
    )


# -- elections ------------------------------------------------------------------------------------


def test_an_election_begins_the_next_epoch_without_the_dead() -> None:
    driver = a_group()

    result = driver.elect(2, without=(ReplicaId(1),))

    assert result["ok"]
    group = driver.group
    assert (group.master, group.master_epoch, group.sync_state_set) == (2, 2, {2, 3})
    assert not group.is_open


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"term": 0}, "STALE_TERM"),
        ({"master_epoch": 0}, "STALE_MASTER_EPOCH"),
        ({"master_epoch": 2}, "STALE_MASTER_EPOCH"),
        ({"set_epoch": 0}, "STALE_SET_EPOCH"),
        ({"winner": ReplicaId(9)}, "REPLICA_UNKNOWN"),
        ({"members": {ReplicaId(2): Incarnation(1)}}, "STALE_INCARNATION"),
        (
            {"members": {ReplicaId(n): Incarnation(2 if n == 2 else 1) for n in (1, 2, 3)}},
            "STALE_INCARNATION",
        ),
        (
            {"members": {ReplicaId(n): Incarnation(2 if n == 3 else 1) for n in (1, 2, 3)}},
            "STALE_INCARNATION",
        ),
        ({"without": (ReplicaId(2),)}, "WINNER_LEFT_OUT"),
        ({"floor": 7}, "STALE_FLOOR"),
        ({"is_first": True}, "NOT_FIRST"),
        ({"group": "g9"}, "GROUP_UNKNOWN"),
    ],
)
def test_a_refused_election_bumps_nothing(changes: dict[str, Any], expected: str) -> None:
    driver = a_group()
    before = untouched(driver)

    result = driver.elect(2, **changes)

    assert reason(result) == expected
    assert untouched(driver) == before


def test_only_members_of_the_set_are_elected() -> None:
    driver = a_group()
    driver.alter(1, 2)

    result = driver.elect(3, members={**driver.group.members(), ReplicaId(3): Incarnation(1)})

    assert reason(result) == "NOT_IN_SET"


def test_a_learner_is_never_elected_not_even_first() -> None:
    driver = Driver()
    driver.found()
    for number in (1, 2, 3):
        driver.register(number, is_learner=number == 1)
    members = {ReplicaId(number): Incarnation(1) for number in (1, 2, 3)}

    assert reason(driver.elect(1, is_first=True, members=members)) == "LEARNER"
    assert reason(driver.elect(2, is_first=True, members=members)) == "NOT_EMPTY"


def test_the_first_election_needs_min_replicas() -> None:
    driver = Driver()
    driver.found()
    driver.register(1)

    result = driver.elect(1, is_first=True, members={ReplicaId(1): Incarnation(1)})

    assert reason(result) == "BELOW_MIN"


def test_an_election_never_takes_the_set_below_min() -> None:
    driver = a_group()

    driver.elect(3, without=(ReplicaId(1), ReplicaId(2)))

    # R8: the one named first is left out, the other dead member stays one.
    assert driver.group.sync_state_set == {2, 3}


def test_the_same_broker_elected_again_is_a_new_epoch() -> None:
    driver = a_group()
    restarted(driver, 1)

    driver.elect(1)

    assert (driver.group.master, driver.group.master_incarnation) == (1, 2)
    assert driver.group.master_epoch == 2


def test_a_candidate_below_the_floor_is_refused_and_removed() -> None:
    driver = a_group()
    driver.raise_floor(5000)

    result = driver.elect(2, position=4999)

    assert reason(result) == "BELOW_CONFIRM_FLOOR"
    assert driver.group.sync_state_set == {1, 3}
    assert driver.group.master_epoch == 1


def test_a_suspect_is_elected_only_when_every_member_has_reported() -> None:
    driver = a_group()
    restarted(driver, 1)
    restarted(driver, 2, is_suspect=True)

    assert reason(driver.elect(2)) == "SUSPECT"
    assert driver.elect(2, have_all_reported=True)["ok"]


def test_a_suspect_in_a_set_below_min_is_elected_only_by_the_operator() -> None:
    driver = a_group()
    driver.alter(1, 2)
    driver.register(1, replica_id=ReplicaId(1))  # again with an old incarnation: out (R9)
    restarted(driver, 2, is_suspect=True)

    assert reason(driver.elect(2, have_all_reported=True)) == "SUSPECT"
    assert driver.elect(2, is_unclean=True)["ok"]


def test_a_suspect_in_a_narrowed_set_is_elected_only_by_the_operator() -> None:
    """Min is 1, so the set is never below it; what 1 has cut may be with 2, which was removed."""
    driver = a_pair()
    driver.register(2, replica_id=ReplicaId(2))  # again with an old incarnation: out (R9)
    restarted(driver, 1, is_suspect=True)
    assert (driver.group.sync_state_set, driver.group.is_incomplete) == ({1}, True)

    assert reason(driver.elect(1, have_all_reported=True)) == "SUSPECT"
    assert driver.elect(1, is_unclean=True)["ok"]
    assert not driver.group.is_incomplete  # what it has is all there is now


def test_a_narrowed_set_is_whole_once_its_master_has_changed_it() -> None:
    """It grew by one that has all that was confirmed, as its master knows."""
    driver = a_group(replicas=4)
    driver.alter(1, 2, 3)
    driver.register(3, replica_id=ReplicaId(3))
    assert driver.group.is_narrowed

    late = driver.alter(1, 2, 4, set_epoch=driver.group.set_epoch - 1)
    assert (reason(late), driver.group.is_narrowed) == ("STALE_SET_EPOCH", True)

    assert driver.alter(1, 2, 4)["ok"]
    assert not driver.group.is_narrowed


def test_a_narrowed_set_that_only_shrinks_stays_so() -> None:
    """Who leaves may have the only good copy of what was confirmed before."""
    driver = a_group(replicas=4)
    driver.register(4, replica_id=ReplicaId(4))

    assert driver.alter(1, 2)["ok"]

    assert driver.group.is_narrowed


@pytest.mark.parametrize("is_older", [True, False])
def test_a_narrowed_set_stays_so_in_a_snapshot_and_one_of_before_may_be_one(
    is_older: bool,
) -> None:
    driver = a_group()
    driver.register(3, replica_id=ReplicaId(3))
    document = orjson.loads(driver.machine.snapshot())
    assert document["groups"][0]["is_narrowed"]
    if is_older:
        del document["groups"][0]["is_narrowed"]

    driver.machine.restore(orjson.dumps(document))

    assert driver.group.is_narrowed


def test_a_lost_member_that_grew_into_the_set_is_electable_again() -> None:
    """It was marked for ever: after the loss was accepted it could never lead again (R9)."""
    driver = a_group()
    driver.group.replicas[ReplicaId(3)].is_lost = True
    driver.elect(2, is_unclean=True, members={ReplicaId(2): Incarnation(1)})

    assert driver.alter(2, 3)["ok"]

    assert driver.elect(3)["ok"]


def test_an_unclean_election_sets_winner_alone_marks_the_epoch_and_lowers_the_floor() -> None:
    driver = a_group()
    driver.raise_floor(5000)

    result = driver.elect(3, is_unclean=True, members={ReplicaId(3): Incarnation(1)}, position=100)

    assert result["ok"]
    group = driver.group
    assert group.is_unclean
    assert (group.sync_state_set, group.confirm_floor) == ({3}, 100)
    assert group.unclean_elections_count == 1


def test_settings_take_effect_with_the_next_epoch() -> None:
    driver = a_group()
    settings = GroupSettings(total_replicas=3, min_in_sync_replicas=3, durability="memory")
    driver.do(SetGroupSettings(group=G1, settings=settings))
    assert driver.group.settings.min_in_sync_replicas == 2

    driver.elect(2, without=(ReplicaId(1),))

    assert driver.group.settings == settings
    # And the election that brings them keeps the new min already.
    assert driver.group.sync_state_set == {1, 2, 3}


def test_a_wiped_group_is_read_and_not_written_until_it_is_restored() -> None:
    driver = a_group()
    driver.do(CreateTopic(topic=TopicName("t"), queues={G1: 4}))

    wiped = driver.do(SetWritePermission(group=G1, is_writable=False))
    again = driver.do(SetWritePermission(group=G1, is_writable=False))
    view = driver.machine.view()
    topic = view.topics[TopicName("t")]
    assert (topic.queues, topic.write_queues) == ({G1: 4}, {G1: 0})
    assert view.groups[G1].is_write_wiped
    assert again["version"] == wiped["version"]  # nothing to publish

    driver.do(SetWritePermission(group=G1, is_writable=True))

    assert driver.machine.view().topics[TopicName("t")].write_queues == {G1: 4}
    kinds = [entry["kind"] for entry in driver.group.history]
    assert kinds[-2:] == ["write_permission_set"] * 2
    unknown = driver.do(SetWritePermission(group=GroupName("g9"), is_writable=True))
    assert (unknown["ok"], unknown["reason"]) == (False, "GROUP_UNKNOWN")


def test_the_history_is_bounded() -> None:
    driver = a_group()

    for number in range(HISTORY_ENTRIES_MAX + 10):
        driver.elect(1 + number % 3)

    assert len(driver.group.history) == HISTORY_ENTRIES_MAX
    assert driver.group.history[-1]["master_epoch"] == driver.group.master_epoch


# -- set changes ----------------------------------------------------------------------------------


def test_a_master_shrinks_and_grows_its_set() -> None:
    driver = a_group()

    shrunk = driver.alter(1, 2, confirm=4000)
    grown = driver.alter(1, 2, 3)

    assert (shrunk["sync_state_set"], shrunk["set_epoch"]) == ([1, 2], 2)
    assert (grown["sync_state_set"], grown["set_epoch"]) == ([1, 2, 3], 3)
    assert driver.group.confirm_floor == 4000


@pytest.mark.parametrize(
    ("members", "changes", "expected"),
    [
        ((1, 2), {"master_epoch": 2}, "STALE_MASTER_EPOCH"),
        ((1, 2), {"master": ReplicaId(2)}, "NOT_MASTER"),
        ((1, 2), {"master_incarnation": Incarnation(2)}, "NOT_MASTER"),
        ((1, 2), {"set_epoch": 0}, "STALE_SET_EPOCH"),
        ((1, 2, 9), {}, "REPLICA_UNKNOWN"),
        (
            (1, 2),
            {"members": {ReplicaId(1): Incarnation(1), ReplicaId(2): Incarnation(2)}},
            "STALE_INCARNATION",
        ),
        ((2, 3), {}, "MASTER_MISSING"),
        ((1, 2, 3), {}, "NO_CHANGE"),
        ((1,), {}, "BELOW_MIN"),
    ],
)
def test_a_refused_set_change_changes_nothing(
    members: tuple[int, ...], changes: dict[str, Any], expected: str
) -> None:
    driver = a_group()
    before = untouched(driver)

    result = driver.alter(*members, **changes)

    assert reason(result) == expected
    assert untouched(driver) == before


def test_a_set_below_min_may_grow_step_by_step() -> None:
    driver = a_group()
    driver.elect(1, is_unclean=True, members={ReplicaId(1): Incarnation(1)})
    assert driver.group.sync_state_set == {1}

    assert driver.alter(1, 3)["ok"]


def test_a_learner_does_not_enter_the_set() -> None:
    driver = a_group()
    driver.register(4, is_learner=True)

    assert reason(driver.alter(1, 2, 3, 4)) == "LEARNER"


def test_a_suspect_that_grew_into_the_set_is_none_any_more() -> None:
    driver = a_group()
    restarted(driver, 3, is_suspect=True)

    driver.alter(1, 2, 3)

    assert not driver.group.replicas[ReplicaId(3)].is_suspect


# -- what a master reports ------------------------------------------------------------------------


def test_opening_an_epoch_raises_the_floor_and_may_be_said_twice() -> None:
    driver = a_group()

    assert driver.report_open(confirm=168)["ok"]
    assert driver.report_open(confirm=168)["ok"]

    assert driver.group.is_open
    assert driver.group.confirm_floor == 168


def test_the_floor_never_falls() -> None:
    driver = a_group()
    driver.raise_floor(5000)

    driver.raise_floor(4000)

    assert driver.group.confirm_floor == 5000


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"master_epoch": 2}, "STALE_MASTER_EPOCH"),
        ({"master": ReplicaId(2)}, "NOT_MASTER"),
        ({"master_incarnation": Incarnation(7)}, "NOT_MASTER"),
    ],
)
def test_a_deposed_master_neither_opens_nor_raises(changes: dict[str, Any], expected: str) -> None:
    driver = a_group()
    before = untouched(driver)

    assert reason(driver.report_open(**changes)) == expected
    assert reason(driver.raise_floor(9000, **changes)) == expected
    assert untouched(driver) == before


def test_the_history_tells_who_joined_and_left_and_why() -> None:
    driver = a_group()
    driver.report_open()
    assert driver.alter(1, 2, reason="lag")["ok"]
    assert driver.alter(1, 2, 3, reason="caught_up")["ok"]
    assert driver.elect(2, without=(ReplicaId(1),), causes=((ReplicaId(1), "gone"),))["ok"]

    left, joined, elected = driver.group.history[-3:]
    assert (left["left"], left["joined"], left["reason"]) == ([3], [], "lag")
    assert (joined["left"], joined["joined"], joined["reason"]) == ([], [3], "caught_up")
    assert elected["left"] == [[1, "gone"]]
