"""What looks like a violation and is none; and what a history does not say is not judged."""

from dataclasses import replace

import pytest
from tests.support.chaos.hand import SECOND, SIZE, Hand

from paceline_chaos.checkers import ALL, judge
from paceline_chaos.checkers.evidence.allowances import Allowances
from paceline_chaos.checkers.evidence.bounds import Bounds
from paceline_chaos.checkers.evidence.findings import LISTED_MAX
from paceline_chaos.history.model import History, Outcome, ReplicaDump


def broken(hand: Hand) -> set[str]:
    return {violation.property for violation in judge(hand.history).violations}


def test_empty_history_says_nothing() -> None:
    verdict = judge(History(world={}))

    assert verdict.is_good
    assert {verdict.counters[f"judged.{name}"] for name in ALL} == {0}


def test_send_of_unknown_outcome_may_be_stored_late_once_or_never() -> None:
    hand = Hand()
    hand.unknown("late", (10, 20))
    hand.unknown("never", (10, 20))
    hand.send("a", 0, (30, 40))
    hand.dump(1, ["a", "late"])

    assert not broken(hand)


def test_doubles_of_a_producer_without_sequences_are_counted() -> None:
    hand = Hand()
    hand.unknown("a", is_idempotent=False)
    hand.dump(1, ["a", "a"])

    verdict = judge(hand.history)

    assert verdict.is_good
    assert verdict.counters["duplicates"] == 1


@pytest.mark.parametrize(("error", "properties"), [("LOCK_FENCED", set()), ("DENIED", {"S26"})])
def test_unlock_that_found_another_holder_may_have_been_carried_out_before(
    error: str, properties: set[str]
) -> None:
    """A repetition of one whose answer was lost; any other refusal has changed nothing."""
    hand = Hand()
    hand.lock("m1", 1, (10, 20))
    hand.unlock("m1", 1, (30, 60), outcome=Outcome.FAIL, error=error)
    hand.lock("m2", 2, (35, 50))

    assert broken(hand) == properties


def test_acknowledgement_before_confirm_promises_nothing() -> None:
    """R37: it may be lost, another message may take its offset, the end may fall behind it; what
    was called confirmed beside it may not be."""
    hand = Hand(all_ack_in_sync_state_set=False)
    hand.send("a", 0)
    hand.send("lost", 1, is_confirmed=False)
    hand.send("kept", 2, is_confirmed=False)
    hand.range(0, 1)
    hand.send("later", 1)
    hand.pull(0, ["a", "later"])
    hand.dump(1, ["a", "later", "kept"])

    verdict = judge(hand.history)

    assert verdict.is_good, verdict.violations
    assert verdict.counters["lost.unconfirmed"] == 1
    assert verdict.counters["acknowledged.unconfirmed"] == 2


def test_confirmed_loss_beside_an_allowed_one_is_found() -> None:
    hand = Hand(all_ack_in_sync_state_set=False)
    hand.send("a", 0)
    hand.send("b", 1, is_confirmed=False)
    hand.dump(1, [])

    assert broken(hand) == {"S1"}


def test_unclean_election_may_lose_what_was_acknowledged_and_read() -> None:
    hand = Hand()
    hand.elect(1, 1, [1, 2], set_epoch=1)
    hand.send("a", 0)
    hand.pull(0, ["a"])
    hand.master(1, SIZE)
    hand.order(2)
    hand.elect(2, 2, [2], set_epoch=2, is_unclean=True, reason="unclean")
    hand.master(2, 0, epoch=2)
    hand.dump(2, [])
    hand.dump(1, ["a"])

    verdict = judge(hand.history)

    assert verdict.is_good
    assert verdict.counters["unclean_elections"] == 1
    assert verdict.counters["excused.lossy"] > 0


def test_last_master_speaks_for_its_group_not_the_longest_log() -> None:
    hand = Hand()
    hand.elect(2, 1, [1, 2])
    hand.send("a", 0)
    hand.dump(1, ["a"])
    hand.dump(2, [])

    assert broken(hand) >= {"S1"}


def test_damaged_log_does_not_speak_for_its_group() -> None:
    hand = Hand()
    hand.elect(2, 1, [1, 2])
    hand.send("a", 0)
    hand.fault("disk_flip", "b2", 30)
    hand.dump(1, ["a"])
    hand.dump(2, [], confirm=SIZE, end=SIZE, damage="a flipped bit at 7")

    assert not broken(hand)


def test_disk_that_was_thrown_away_owes_nothing_and_is_still_read() -> None:
    hand = Hand()
    hand.failed("b")
    hand.send("a", 0)
    hand.dump(1, ["a"])
    hand.dump(2, [], damage="a flipped bit at 7", confirm=SIZE, is_discarded=True)
    hand.dump(3, [], damage="a flipped bit at 7", is_discarded=True)

    assert not broken(hand)

    hand.dump(2, ["b"], damage="a flipped bit at 7", confirm=0, is_discarded=True)

    assert broken(hand) == {"S4"}


def test_group_that_nobody_has_dumped_is_the_fault_of_the_bed() -> None:
    hand = Hand(groups={"g": ["b1"], "h": ["b2"]})
    hand.unknown("a")
    assert not broken(hand), "not over"

    hand.dump(1, ["a"])

    assert broken(hand) == {"HARNESS"}


def test_tail_above_confirm_may_differ() -> None:
    hand = Hand()
    hand.unknown("a")
    hand.unknown("b")
    hand.unknown("c")
    hand.elect(1, 1, [1, 2])
    hand.dump(1, ["a", "b"])
    hand.dump(2, ["a", "c"], confirm=SIZE)

    assert not broken(hand)


def test_deleted_messages_may_be_skipped_and_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is retention: `deleted_below` says how far it may go."""
    monkeypatch.setattr(Allowances, "deleted_below", lambda excuses, group: 2 * SIZE)
    hand = Hand()
    for place, value in enumerate("abc"):
        hand.send(value, place)
    hand.pull(0, ["a"], assignment="one")
    hand.pull(2, ["c"], assignment="one")
    hand.dump(1, ["a", "b", "c"])
    dump = hand.history.entries.pop()
    assert isinstance(dump, ReplicaDump)
    hand.history.entries.append(replace(dump, start=2 * SIZE, batches=dump.batches[2:]))

    assert not broken(hand)


def test_restarted_node_may_show_less_and_a_replaced_disk_forgets_epochs() -> None:
    hand = Hand()
    hand.probe(2, SIZE, 10, epoch=5)
    hand.fault("disk_lost", "b2", 20)
    hand.probe(2, 0, 30, epoch=1, incarnation=2)

    assert not broken(hand)


def test_stale_answers_say_so_and_promise_nothing() -> None:
    hand = Hand()
    hand.send("a", 0)
    hand.commit(1, member="m")
    hand.range(0, 0, maybe_stale=True)
    hand.committed(None, maybe_stale=True)
    hand.pull(0, [], node="b2", end=0)

    assert not broken(hand)


def test_message_that_failed_often_enough_may_be_passed_over() -> None:
    hand = Hand()
    hand.unknown("a")
    for _ in range(16):
        hand.deliver(0, "a", outcome=Outcome.UNKNOWN)
    hand.commit(1)

    assert not broken(hand)


def test_group_that_begins_at_the_end_owes_nothing_before() -> None:
    hand = Hand(consume_from="last")
    hand.unknown("b")
    hand.deliver(5, "b", token=1)
    hand.commit(6)

    assert not broken(hand)


@pytest.mark.parametrize(
    ("kind", "target", "is_judged"),
    [
        ("clock_step", "b1", False),
        ("clock_rate", "client-1", False),
        ("clock_step", "client-1", True),  # leases are counted by running time
        ("clock_step", "c1", True),
    ],
)
def test_wrong_clocks_of_brokers_and_paces_of_clients_void_leases_and_no_others(
    kind: str, target: str, is_judged: bool
) -> None:
    hand = Hand()
    hand.fault(kind, target, 5)
    hand.lock("m1", 1, (10, 20))
    hand.lock("m2", 2, (30, 40))

    assert broken(hand) == ({"S26"} if is_judged else set())


def test_broken_nodes_owe_nothing_after_healing() -> None:
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0)
    hand.phase("heal", SECOND, "b3")
    hand.probe(2, 0, SECOND)
    hand.probe(3, 0, SECOND)
    hand.master(1, 0, SECOND)
    hand.probe(2, 0, 60 * SECOND)

    assert not broken(hand)


def test_group_without_its_minimum_need_not_work() -> None:
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0)
    for replica in (1, 2):
        hand.probe(replica, 0, SECOND // 2)
    hand.phase("heal", SECOND, "b1")
    hand.probe(2, 0, 60 * SECOND)

    assert not broken(hand)


def test_bounds_may_be_others() -> None:
    hand = Hand()
    hand.unknown("a", (0, 60 * SECOND))

    assert judge(hand.history, bounds=Bounds(patience_us=90 * SECOND)).is_good


def test_only_what_is_asked_for_is_judged() -> None:
    hand = Hand()
    hand.send("a", 0)
    hand.dump(1, [])

    verdict = judge(hand.history, properties=["S2"])

    assert verdict.is_good
    assert "judged.S1" not in verdict.counters


def test_thousands_of_violations_are_counted_and_some_listed() -> None:
    hand = Hand()
    for place in range(500):
        hand.send(f"a{place}", place)
    hand.dump(1, [])

    verdict = judge(hand.history)

    assert len(verdict.violations) == LISTED_MAX
    assert verdict.counters["violations.S1"] == 500


@pytest.mark.parametrize("gap", [2, 3])
def test_step_over_missing_rulings_is_not_judged(gap: int) -> None:
    hand = Hand()
    hand.elect(1, 1, [1, 2], set_epoch=1, reason="first")
    hand.elect(3, 2, [2, 3], set_epoch=1 + gap, reason="operator")

    assert not broken(hand)


@pytest.mark.parametrize(("damaged", "properties"), [(1, set()), (2, {"L1"})])
def test_nobody_need_catch_up_from_a_damaged_master(damaged: int, properties: set[str]) -> None:
    """Until there is repair: what it sends is refused, and a replica stays outside of the set."""
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0)
    hand.fault("disk_flip", f"b{damaged}", SECOND // 2)
    hand.phase("heal", SECOND)
    for replica in (2, 3):
        hand.probe(replica, 0, SECOND)
    hand.master(1, 0, SECOND)
    hand.probe(3, 0, 60 * SECOND)
    for replica in (1, 2, 3):
        hand.dump(replica, [], damage="a flipped bit" if replica == damaged else None)

    assert broken(hand) == properties


def test_replica_with_a_damaged_log_need_not_come_back() -> None:
    hand = Hand()
    hand.elect(1, 1, [1, 2], at=0)
    hand.phase("heal", SECOND)
    hand.probe(2, 0, SECOND)
    hand.probe(3, 0, SECOND)
    hand.master(1, 0, SECOND)
    hand.phase("drain", 20 * SECOND)
    hand.probe(2, 0, 60 * SECOND)
    hand.fault("disk_flip", "b3", SECOND // 2)
    for replica in (1, 2, 3):
        hand.dump(replica, [], damage="a flipped bit" if replica == 3 else None)

    assert not broken(hand)
