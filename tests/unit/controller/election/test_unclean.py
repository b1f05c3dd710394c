"""Elections that lose records, where the group has asked for them (R21)."""

from dataclasses import replace

from tests.support.controller.builders import G1, SETTINGS
from tests.support.controller.liveness_bed import Bed, a_running_group

from paceline.types import MasterEpoch, ReplicaId
from paceline_controller.election.unclean import SETTLE_MS
from paceline_controller.state.commands import SetGroupSettings


def a_group_whose_members_die(*, is_wanted: bool, is_acting: bool = False) -> Bed:
    """Replica 3 has left the set, 1 and 2 die."""
    bed = a_running_group()
    bed.driver.group.settings = replace(
        SETTINGS, enable_elect_unclean_master=is_wanted, enable_slave_acting_master=is_acting
    )
    bed.driver.alter(1, 2)
    for number in (2, 1):
        bed.close(number)
        bed.probe(number, is_refused=True)
    return bed


def test_the_best_other_replica_leads_when_no_member_lives() -> None:
    bed = a_group_whose_members_die(is_wanted=True)

    bed.run(SETTLE_MS - 200, 3)
    assert not bed.elections
    bed.run(400, 3)

    [election] = bed.elections
    assert (election.winner, election.is_unclean, election.reason) == (3, True, "unclean")
    bed.apply()
    group = bed.driver.group
    assert (group.sync_state_set, group.is_unclean) == ({3}, True)
    assert group.unclean_elections_count == 1
    assert group.view().is_unclean
    assert group.history[-1]["is_unclean"]


def test_by_default_nobody_loses_records() -> None:
    bed = a_group_whose_members_die(is_wanted=False)

    bed.run(3 * SETTLE_MS, 3)

    assert not bed.elections


def test_a_member_that_comes_back_in_time_leads_cleanly() -> None:
    bed = a_group_whose_members_die(is_wanted=True)
    bed.run(SETTLE_MS - 500, 3)

    bed.run(1000, 2, 3)

    [election] = bed.elections
    assert (election.winner, election.is_unclean) == (2, False)


def test_a_member_that_is_there_but_ill_is_waited_for() -> None:
    bed = a_group_whose_members_die(is_wanted=True)

    for _ in range(3 * SETTLE_MS // 100):
        bed.beat(2, is_healthy=False)
        bed.run(100, 3)

    assert not bed.elections


def test_a_learner_never_leads_not_even_uncleanly() -> None:
    """R18."""
    bed = a_group_whose_members_die(is_wanted=True)
    bed.driver.group.replicas[ReplicaId(3)].is_learner = True

    bed.run(3 * SETTLE_MS, 3)

    assert not bed.elections


def test_the_setting_is_a_setting_of_the_group() -> None:
    bed = a_running_group()
    wanted = replace(SETTINGS, enable_elect_unclean_master=True)

    assert bed.driver.do(SetGroupSettings(group=G1, settings=wanted))["ok"]

    assert bed.driver.group.next_settings == wanted


def test_the_later_epoch_is_better_than_the_longer_log() -> None:
    """What replica 2 has above the others is a tail of an earlier epoch that nobody confirmed."""
    bed = a_running_group()
    bed.driver.group.settings = replace(SETTINGS, enable_elect_unclean_master=True)
    bed.driver.group.sync_state_set = {ReplicaId(1)}
    bed.close(1)
    bed.probe(1, is_refused=True)

    for _ in range((SETTLE_MS + 300) // 100):
        bed.beat(2, end=20_000, last_epoch=MasterEpoch(1))
        bed.beat(3, end=15_000, last_epoch=MasterEpoch(3))
        bed.run(100)

    assert [(choice.winner, choice.position) for choice in bed.elections[:1]] == [(3, 15_000)]


def test_of_one_epoch_the_longer_log_is_better() -> None:
    bed = a_running_group()
    bed.driver.group.settings = replace(SETTINGS, enable_elect_unclean_master=True)
    bed.driver.group.sync_state_set = {ReplicaId(1)}
    bed.close(1)
    bed.probe(1, is_refused=True)

    for _ in range((SETTLE_MS + 300) // 100):
        bed.beat(2, end=15_000, last_epoch=MasterEpoch(3))
        bed.beat(3, end=20_000, last_epoch=MasterEpoch(3))
        bed.run(100)

    assert [(choice.winner, choice.position) for choice in bed.elections[:1]] == [(3, 20_000)]


def test_the_setting_takes_effect_while_nobody_leads() -> None:
    """It waits for the next epoch, and this epoch is the one that it asks for."""
    bed = a_group_whose_members_die(is_wanted=False)
    bed.run(2 * SETTLE_MS, 3)
    wanted = replace(bed.driver.group.settings, enable_elect_unclean_master=True)
    assert bed.driver.do(SetGroupSettings(group=G1, settings=wanted))["ok"]

    bed.run(SETTLE_MS + 200, 3)

    [election] = bed.elections
    assert (election.winner, election.is_unclean) == (3, True)
    bed.apply()
    assert bed.driver.group.settings == wanted


def test_the_setting_ends_the_term_of_an_acting_master() -> None:
    """R36: any later epoch does."""
    bed = a_group_whose_members_die(is_wanted=False, is_acting=True)
    bed.run(SETTLE_MS + 200, 3)
    bed.apply()
    assert bed.driver.group.acting == 3
    epoch = bed.driver.group.master_epoch
    wanted = replace(bed.driver.group.settings, enable_elect_unclean_master=True)
    assert bed.driver.do(SetGroupSettings(group=G1, settings=wanted))["ok"]
    bed.elections.clear()

    bed.run(SETTLE_MS + 200, 3)

    [election] = bed.elections
    assert (election.winner, election.is_unclean) == (3, True)
    bed.apply()
    group = bed.driver.group
    assert (group.acting, group.master, group.master_epoch) == (None, 3, epoch + 1)


def test_the_setting_that_is_taken_back_before_it_counted_loses_nothing() -> None:
    bed = a_group_whose_members_die(is_wanted=True)
    refused = replace(bed.driver.group.settings, enable_elect_unclean_master=False)
    assert bed.driver.do(SetGroupSettings(group=G1, settings=refused))["ok"]

    bed.run(3 * SETTLE_MS, 3)

    assert not bed.elections
