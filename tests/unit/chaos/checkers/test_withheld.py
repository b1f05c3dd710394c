"""L5 while locks are withheld after an acting master: what R36 and R33 take, and nothing more."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.chaos.hand import SECOND, Hand

from paceline_broker.acting.locks import longest_leases_ms
from paceline_chaos.checkers import judge
from paceline_chaos.checkers.evidence.bounds import Bounds
from paceline_chaos.checkers.evidence.evidence import Evidence
from paceline_chaos.checkers.evidence.withheld import outside, withheld_spans
from paceline_chaos.cluster_sim.limits import bounds_of
from paceline_chaos.cluster_sim.topology import FAST, Timers, draw_topology

BOUNDS = Bounds(withheld_us=12 * SECOND)
"""L5 judges from 15 s on, windows of 5 s; the phase "heal" is at 10 s."""


def standing_still(
    *opened: int, until: int, end: int = 40, locks: bool = True, token: int | None = 5
) -> Hand:
    """Epochs that open at these seconds after an acting master that granted locks; the group gets a
    message at 1 s and the other one at `until`."""
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0, reason="first")
    hand.decide("epoch_opened", 1, master_epoch=1)
    hand.send("a", 0, (SECOND // 2, SECOND // 2 + 9))
    hand.send("b", 1, (SECOND // 2 + 10, SECOND // 2 + 19))
    hand.deliver(0, "a", (SECOND, SECOND + 9), token=token)
    if locks:
        hand.decide("acting_locks_opened", 2 * SECOND, acting=3, master_epoch=2)
    for number, at in enumerate(opened):
        elect(hand, 3 + number, at)
    hand.phase("heal", 10 * SECOND)
    hand.deliver(1, "b", (until * SECOND, until * SECOND + 9), token=token)
    hand.phase("end", end * SECOND)
    return hand


def elect(hand: Hand, epoch: int, at: int, **members: Any) -> None:
    hand.elect(1, epoch, [1, 2], at=at * SECOND - 9, reason="operator", **members)
    hand.decide("epoch_opened", at * SECOND, master_epoch=epoch)


def is_broken(hand: Hand) -> bool:
    verdict = judge(hand.history, bounds=BOUNDS)
    return "L5" in {violation.property for violation in verdict.violations}


def test_who_needs_a_lock_waits_until_the_leases_of_an_acting_master_have_run_out() -> None:
    hand = standing_still(9, until=25)

    assert not is_broken(hand)
    assert judge(hand.history, bounds=BOUNDS).counters["excused.withheld_locks"] == 1


def test_and_no_longer_than_that_and_a_window() -> None:
    assert is_broken(standing_still(9, until=27))


def test_an_epoch_that_begins_meanwhile_withholds_anew() -> None:
    assert not is_broken(standing_still(9, 20, until=36))
    assert is_broken(standing_still(9, 20, until=38))


def test_an_epoch_that_begins_later_withholds_nothing() -> None:
    """Log time is past the end: a message that was sent since is acknowledged."""
    hand = standing_still(9, until=36)
    hand.send("c", 2, (22 * SECOND, 22 * SECOND + 9))
    elect(hand, 4, 23)

    assert is_broken(hand)
    assert withheld_spans(Evidence(hand.history, BOUNDS), "g") == [(9 * SECOND - 9, 21 * SECOND)]


def test_log_time_stands_still_while_nothing_is_written() -> None:
    assert not is_broken(standing_still(9, 23, until=38))


def test_an_epoch_that_never_opened_may_have_left_its_start_record() -> None:
    hand = standing_still(until=26)
    hand.elect(1, 3, [1, 2], at=8 * SECOND, reason="operator")
    elect(hand, 4, 10)

    assert not is_broken(hand)


@pytest.mark.parametrize("kind", [{"locks": False}, {"token": None}])
def test_whoever_needs_no_lock_and_a_group_where_none_was_granted_do_not_wait(
    kind: dict[str, Any],
) -> None:
    assert is_broken(standing_still(9, until=25, **kind))


def test_what_is_withheld_all_along_is_not_judged() -> None:
    judged = judge(standing_still(9, until=21, end=25).history, bounds=BOUNDS).counters

    assert judged["judged.L5"] == 0


def test_stretches_outside_of_spans() -> None:
    assert list(outside([(5, 9), (2, 6)], 0, 12)) == [(0, 2), (9, 12)]
    assert list(outside([(0, 20)], 3, 12)) == []
    assert list(outside([(14, 20)], 3, 12)) == [(3, 12)]


def test_bounds_say_what_a_broker_with_such_settings_withholds() -> None:
    for timers in (FAST, Timers()):
        topology = replace(draw_topology(0), timers=timers)
        withheld_us = bounds_of(topology, has_gray=False).withheld_us
        assert withheld_us == 1000 * longest_leases_ms(timers.lock_lease_ms)
    assert Bounds().withheld_us == 1000 * longest_leases_ms(60_000)
