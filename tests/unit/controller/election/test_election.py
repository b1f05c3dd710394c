"""Whom the leader proposes, from what it believes."""

from typing import Any

from tests.support.controller.builders import Driver, a_group
from tests.support.controller.registration import a_pair, restarted

from paceline.types import MasterEpoch, ReplicaId
from paceline_controller.election.election import (
    NoElection,
    ReplicaHealth,
    ReplicaStatus,
    choose,
    choose_first,
)
from paceline_controller.state.commands import ElectMaster
from paceline_controller.state.model import Group

GONE, SILENT = (
    ReplicaHealth(standing=ReplicaStatus.GONE),
    ReplicaHealth(standing=ReplicaStatus.SILENT),
)
UNKNOWN = ReplicaHealth(standing=ReplicaStatus.UNKNOWN)


NEWEST = 1_000
"""A version that no view of these tests reaches."""


def healthy(end: int = 100, **changes: Any) -> ReplicaHealth:
    return ReplicaHealth(
        standing=ReplicaStatus.HEALTHY, end=end, **{"view_version": NEWEST, **changes}
    )


def ill(end: int = 100) -> ReplicaHealth:
    return ReplicaHealth(standing=ReplicaStatus.UNHEALTHY, end=end, view_version=NEWEST)


def decide(group: Group, *beliefs: ReplicaHealth, **arguments: Any) -> ElectMaster | NoElection:
    by_id = {ReplicaId(number + 1): belief for number, belief in enumerate(beliefs)}
    return choose(group, by_id, term=1, reason="test", **arguments)


def chosen(decision: ElectMaster | NoElection) -> tuple[int, tuple[int, ...]]:
    assert isinstance(decision, ElectMaster), decision
    return decision.winner, decision.without


def test_the_longest_healthy_member_wins_and_the_dead_are_named() -> None:
    decision = decide(a_group().group, GONE, healthy(90), healthy(100))

    assert chosen(decision) == (3, (1,))


def test_later_epoch_wins_over_a_longer_tail_of_an_earlier_one() -> None:
    """Nobody confirmed that tail, and what was answered early since is in the other log (R37)."""
    decision = decide(
        a_group().group,
        GONE,
        healthy(200, last_epoch=MasterEpoch(1)),
        healthy(100, last_epoch=MasterEpoch(2)),
    )

    assert chosen(decision) == (3, (1,))


def test_those_found_gone_are_left_out_before_the_silent_and_the_ill() -> None:
    driver = a_group(replicas=3)
    driver.register(4)
    driver.alter(1, 2, 3, 4)

    assert chosen(decide(driver.group, ill(), SILENT, GONE, healthy())) == (4, (3, 2, 1))


def test_an_unhealthy_member_is_not_elected_however_long() -> None:
    assert chosen(decide(a_group().group, GONE, ill(999), healthy(1))) == (3, (1, 2))


def test_the_preferred_wins_over_the_longest() -> None:
    decision = decide(a_group().group, healthy(), healthy(90), healthy(), preferred=ReplicaId(2))

    assert chosen(decision) == (2, ())


def test_the_leaving_master_is_never_the_winner_and_left_out_last() -> None:
    decision = decide(a_group().group, healthy(999), healthy(), GONE, leaving=ReplicaId(1))

    assert chosen(decision) == (2, (3, 1))


def test_it_waits_for_a_member_that_may_still_report() -> None:
    assert isinstance(decide(a_group().group, GONE, healthy(), UNKNOWN), NoElection)


def test_nobody_is_chosen_when_all_are_silent() -> None:
    assert isinstance(decide(a_group().group, GONE, SILENT, SILENT), NoElection)


def test_a_report_from_before_the_floor_rose_does_not_elect() -> None:
    driver = a_group()
    driver.raise_floor(500)

    assert isinstance(decide(driver.group, GONE, healthy(499), GONE), NoElection)
    assert chosen(decide(driver.group, GONE, healthy(500), GONE))[0] == 2


def test_one_that_could_not_open_its_epoch_is_the_last_choice() -> None:
    decision = decide(a_group().group, healthy(999, failures_count=1), healthy(1), GONE)

    assert chosen(decision)[0] == 2


def test_among_suspects_the_longest_wins_whoever_is_preferred() -> None:
    driver = a_group()
    for replica in (1, 2, 3):
        restarted(driver, replica, is_suspect=True)

    decision = decide(driver.group, healthy(80), healthy(90), healthy(), preferred=ReplicaId(1))

    assert chosen(decision)[0] == 3  # R23: what the others cut may have been acknowledged


def test_a_suspect_stands_behind_a_member_that_could_not_open_its_epoch() -> None:
    driver = a_group()
    restarted(driver, 1)
    restarted(driver, 2, is_suspect=True)

    decision = decide(driver.group, healthy(failures_count=1), healthy(90), ill())

    assert chosen(decision)[0] == 1


def test_a_suspect_is_not_elected_while_a_member_that_may_recover_has_more() -> None:
    """R23: what it cut may be what only the ill one, or the one that leaves, still has."""
    driver = a_group()
    restarted(driver, 1)
    restarted(driver, 2, is_suspect=True)

    assert isinstance(decide(driver.group, ill(120), healthy(100), ill(90)), NoElection)
    leaving = ReplicaId(1)
    leaves = decide(driver.group, healthy(120), healthy(100), ill(90), leaving=leaving)
    assert isinstance(leaves, NoElection)
    assert chosen(decide(driver.group, ill(100), healthy(100), ill(90)))[0] == 2


def test_a_suspect_waits_for_every_member_and_stands_behind_them() -> None:
    driver = a_group()
    restarted(driver, 1)
    restarted(driver, 2, is_suspect=True)

    assert isinstance(decide(driver.group, GONE, healthy(999), GONE), NoElection)
    # R23: under the new master it leaves the set, and grows back.
    assert chosen(decide(driver.group, healthy(1), healthy(999), healthy(2))) == (3, (2,))


def test_a_report_from_before_a_suspect_started_does_not_elect_it() -> None:
    """R23: it came before the member had the last that the suspect's former start confirmed."""
    driver = a_group()
    restarted(driver, 1)
    before = driver.machine.version
    restarted(driver, 2, is_suspect=True)

    def reported(view_version: int) -> ElectMaster | NoElection:
        third = healthy(80, view_version=view_version)
        return decide(driver.group, ill(80), healthy(90), third, leaving=ReplicaId(3))

    assert isinstance(reported(before), NoElection)
    assert chosen(reported(driver.machine.version))[0] == 2


def test_a_suspect_is_not_elected_in_a_set_below_min() -> None:
    """R23: who was removed has what the set confirmed; the suspect may have cut just that."""
    driver = a_group()
    driver.alter(1, 2)
    driver.register(1, replica_id=ReplicaId(1))  # again with an old incarnation: out (R9)
    restarted(driver, 2, is_suspect=True)
    assert driver.group.sync_state_set == {2}

    assert isinstance(decide(driver.group, healthy(120), healthy(100), healthy(90)), NoElection)


def test_a_suspect_is_not_elected_in_a_set_that_a_registration_narrowed() -> None:
    """R23: r was confirmed by both; 1 has cut it, and 2, which has it, was removed."""
    driver = a_pair()
    driver.register(2, replica_id=ReplicaId(2))
    restarted(driver, 1, is_suspect=True)
    assert driver.group.sync_state_set == {1}

    assert isinstance(decide(driver.group, healthy(100), healthy(120)), NoElection)


def test_an_election_does_not_leave_out_a_suspect_that_would_leave_one_member() -> None:
    driver = a_pair()
    restarted(driver, 1, is_suspect=True)
    restarted(driver, 2, is_suspect=True)

    assert chosen(decide(driver.group, healthy(100), healthy(120))) == (2, ())
    assert chosen(decide(driver.group, ill(100), healthy(120))) == (2, (1,))


def test_after_a_power_cut_with_torn_tails_everywhere_one_of_the_suspects_leads() -> None:
    """The first of them leaves the set, since the master is not yet known to be dead; the two that
    are left have all that was confirmed, unless both of their disks have lost it."""
    driver = a_group()
    for replica in (2, 3, 1):
        restarted(driver, replica, is_suspect=True)
    assert driver.group.sync_state_set == {1, 3}

    assert chosen(decide(driver.group, healthy(90), healthy(200), healthy(100)))[0] == 3


def test_replicas_beyond_the_set_have_no_say() -> None:
    driver = a_group()
    driver.alter(1, 2)

    assert chosen(decide(driver.group, GONE, healthy(1), healthy(999)))[0] == 2


def test_what_it_chooses_the_machine_accepts() -> None:
    driver = a_group()
    driver.raise_floor(50)

    decision = decide(driver.group, GONE, healthy(60), healthy(50))

    assert isinstance(decision, ElectMaster)
    assert driver.do(decision)["ok"]


def a_new_group(count: int) -> Driver:
    driver = Driver()
    driver.found()
    for number in range(1, count + 1):
        driver.register(number)
    return driver


def test_a_new_group_begins_when_all_its_replicas_are_there() -> None:
    driver = a_new_group(3)
    beliefs = {ReplicaId(number): healthy(0) for number in (1, 2, 3)}

    decision = choose_first(driver.group, beliefs, term=1, has_waited=False)

    assert isinstance(decision, ElectMaster)
    assert driver.do(decision)["ok"]
    assert driver.group.sync_state_set == {1, 2, 3}


def test_a_new_group_begins_with_min_after_a_while() -> None:
    group = a_new_group(2).group
    beliefs = {ReplicaId(number): healthy(0) for number in (1, 2)}

    assert isinstance(choose_first(group, beliefs, term=1, has_waited=False), NoElection)
    assert isinstance(choose_first(group, beliefs, term=1, has_waited=True), ElectMaster)


def test_a_new_group_does_not_begin_below_min() -> None:
    group = a_new_group(1).group

    decision = choose_first(group, {ReplicaId(1): healthy(0)}, term=1, has_waited=True)

    assert isinstance(decision, NoElection)
