"""Receipts against a model that keeps one row per message, and from any checkpoint (INV-9)."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.projections.logs import HandLog

from paceline.errors import CorruptLogError
from paceline.records.decode import BatchView
from paceline.records.header import Cause, Kind, pack_source
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.receipt_queue import DONE_MAX, Grant, QueueReceipts, ReceiptState
from paceline_broker.projections.receipts import ExhaustedMessage, Receipts

KEY = 1 << 16


def pop(log: HandLog, *items: list[Any]) -> int:
    """Append a POP record; its position."""
    position = log.projections.position
    log.internal(Kind.POP, {"items": list(items)})
    return position


def floor(log: HandLog, group: str = "g", key: int = KEY) -> int:
    committed = log.projections.offsets.get(group, key)
    assert committed is not None
    return committed.offset


def a_log(messages: int = 10) -> HandLog:
    log = HandLog()
    log.begin_epoch(1)
    log.topic(1)
    log.send(messages)
    pop(log, ["start", "g", [[KEY, 0]]])
    return log


def give(log: HandLog, first: int, end: int, attempt: int = 1, until: int = 0) -> int:
    return pop(log, ["give", "g", "c", until, [[KEY, first, end, attempt]]])


class Model:
    """One row per message: what a queue of receipts must look like."""

    def __init__(self) -> None:
        self.next = 0
        self.open: dict[int, tuple[int, int, int]] = {}  # offset -> until, attempt, position
        self.acknowledged: list[tuple[int, int, int]] = []  # offset, position, attempt
        self.committed: int | None = None
        """By the newest record, if that was a commit: what is done above it is not counted then."""

    @property
    def floor(self) -> int:
        return min(
            (offset for offset in range(self.next) if offset in self.open), default=self.next
        )


def step(chance: random.Random, log: HandLog, model: Model, now: int) -> None:
    """A decision as a master takes it, folded into both."""
    receipts = log.projections.receipts.get("g", KEY)
    assert receipts is not None
    made = len(log.batches)
    match chance.choice(["new", "new", "again", "ack", "change", "pass", "commit"]):
        case "new":
            count = min(chance.randint(1, 5), log.projections.queue_end(KEY) - model.next)
            if count > 0:
                until = now + chance.randint(1, 50)
                position = give(log, model.next, model.next + count, 1, until)
                for offset in range(model.next, model.next + count):
                    model.open[offset] = (until, 1, position)
                model.next += count
        case "again":
            runs = receipts.due(now, chance.randint(1, 6))
            offsets = [offset for run in runs for offset in range(run.first, run.end)]
            assert all(model.open[offset][0] <= now for offset in offsets)
            for run in runs:
                until, attempt = now + chance.randint(1, 50), run.grant.attempt + 1
                position = give(log, run.first, run.end, attempt, until)
                for offset in range(run.first, run.end):
                    model.open[offset] = (until, attempt, position)
        case "ack" if model.open:
            offset = chance.choice(sorted(model.open))
            _, attempt, position = model.open.pop(offset)
            pop(log, ["ack", "g", [[KEY, offset, offset + 1, position]]])
            model.acknowledged.append((offset, position, attempt))
        case "change" if model.open:
            offset = chance.choice(sorted(model.open))
            _, attempt, _ = model.open[offset]
            until = now + chance.randint(0, 50)
            position = pop(log, ["change", "g", [[KEY, offset, until, attempt]]])
            model.open[offset] = (until, attempt, position)
        case "commit" if not receipts.holds(now):
            offset = chance.randint(model.floor, log.projections.queue_end(KEY))
            log.commit(offset, may_expire=True)
            model.committed = offset
            model.open = {at: row for at, row in model.open.items() if at >= offset}
            model.next = max(model.next, offset)
        case "pass" if model.next < log.projections.queue_end(KEY):
            pop(log, ["pass", "g", [[KEY, model.next + 1]]])
            model.next += 1
    if len(log.batches) > made and BatchView(log.batches[-1]).header.kind == Kind.POP:
        model.committed = None


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_receipts_are_what_a_row_per_message_says_and_restore_from_any_checkpoint(
    seed: int,
) -> None:
    chance = random.Random(seed)
    log, model = a_log(40), Model()
    checkpoints: list[tuple[int, bytes]] = []
    for now in range(0, 200, 5):
        step(chance, log, model, now)
        receipts = log.projections.receipts.get("g", KEY)
        assert receipts is not None
        found = {at: (grant[0], grant[1], grant[2]) for at, grant in receipts.in_flight.items()}
        assert (found, receipts.next, receipts.floor) == (model.open, model.next, model.floor)
        assert floor(log) == (model.floor if model.committed is None else model.committed)
        repeated = {receipts.standing(*receipt) for receipt in model.acknowledged}
        assert repeated <= {ReceiptState.DONE, ReceiptState.PAST}
        due = min((until for until, _, _ in model.open.values()), default=None)
        assert receipts.due_unix_ms == due
        invisible = any(until > now for until, _, _ in model.open.values())
        assert receipts.holds(now) is invisible
        everything = receipts.due(10**9, 1000)
        assert sum(run.end - run.first for run in everything) == len(model.open)
        if chance.random() < 0.2:
            checkpoints.append((len(log.batches), log.projections.snapshot()))

    for count, checkpoint in checkpoints:
        restored = Projections.restore(checkpoint)
        for batch in log.batches[count:]:
            view = BatchView(batch)
            restored.apply(view.header, view)
        assert restored.snapshot() == log.projections.snapshot()


def test_only_the_present_receipt_is_open_and_the_one_that_acknowledged_done() -> None:
    log = a_log()
    old = give(log, 0, 2)
    new = give(log, 0, 1, attempt=2)
    receipts = log.projections.receipts.get("g", KEY)
    assert receipts is not None

    assert receipts.standing(0, old, 1) is ReceiptState.VOID
    assert receipts.standing(0, new, 2) is ReceiptState.OPEN
    assert receipts.standing(0, new, 1) is ReceiptState.VOID
    assert receipts.standing(1, old, 1) is ReceiptState.OPEN
    assert receipts.standing(2, new, 1) is ReceiptState.UNKNOWN
    pop(log, ["ack", "g", [[KEY, 0, 1, new]]])
    assert receipts.standing(0, new, 2) is ReceiptState.DONE
    assert receipts.standing(0, old, 1) is ReceiptState.VOID


def test_acknowledgements_remembered_are_bounded_and_neighbours_cost_one() -> None:
    receipts = QueueReceipts(KEY, 0, 0)
    receipts.give(0, 4 * DONE_MAX, Grant(0, 1, 7, "c"))
    for offset in range(100):
        receipts.acknowledge(offset, offset + 1, 7)
    assert len(receipts.done) == 1
    for offset in range(101, 4 * DONE_MAX, 2):
        receipts.acknowledge(offset, offset + 1, 7)

    assert len(receipts.done) == DONE_MAX
    assert receipts.standing(4 * DONE_MAX - 1, 7, 1) is ReceiptState.DONE
    assert receipts.standing(0, 7, 1) is ReceiptState.PAST, "it is done, by whom is forgotten"


def test_snapshot_keeps_runs_not_messages() -> None:
    log = a_log(10_000)
    small = len(log.projections.receipts.snapshot())
    give(log, 0, 10_000)

    assert len(log.projections.receipts.snapshot()) < small + 100


def test_dead_letter_batch_closes_what_was_withdrawn(  # R34
) -> None:
    receipts = a_log().projections.receipts
    receipts.apply_item(["give", "g", "c", 0, [[KEY, 0, 2, 17]]], position=100)
    receipts.apply_item(["bury", "g", 9, [[KEY, 0, 4711]]], position=200)
    found = receipts.get("g", KEY)
    assert found is not None

    assert found.standing(0, 100, 17) is ReceiptState.VOID
    assert found.due(10**9, 10)[0].first == 1, "never given again"
    assert (found.floor, receipts.is_open("g", KEY)) == (0, True), "and not lost meanwhile"
    [moved] = receipts.close_dead(9, [1, 4711])
    assert moved == ("g", KEY, 1)
    assert receipts.dying == {}


def test_dead_letter_of_another_group_closes_nothing_of_this_one() -> None:  # R34
    """Both are made of the same message: each group has its own."""
    log = a_log()
    source = pack_source(1000, 0)
    for group, topic_id in (("g", 8), ("h", 9)):
        pop(log, ["start", group, [[KEY, 0]]], ["give", group, "c", 0, [[KEY, 0, 1, 17]]])
        pop(log, ["bury", group, topic_id, [[KEY, 0, source]]])
    log.dead_letter(9, source)

    assert (floor(log, "g"), floor(log, "h")) == (0, 1)
    assert list(log.projections.receipts.dying.values()) == [ExhaustedMessage("g", KEY, 0)]
    restored = Projections.restore(log.projections.snapshot())
    assert restored.receipts.dying == log.projections.receipts.dying
    log.dead_letter(8, source)
    assert floor(log, "g") == 1
    assert log.projections.receipts.dying == {}


def test_only_a_dead_letter_closes_what_is_to_be_one() -> None:  # R34
    log = a_log()
    source = pack_source(1000, 0)
    pop(log, ["give", "g", "c", 0, [[KEY, 0, 1, 17]]], ["bury", "g", 9, [[KEY, 0, source]]])

    log.dead_letter(9, source, cause=Cause.RESENT)

    assert floor(log) == 0


def test_burial_of_a_record_without_its_topic_is_kept_until_a_master_ends_it() -> None:
    log = a_log()
    source = pack_source(1000, 0)
    pop(log, ["give", "g", "c", 0, [[KEY, 0, 1, 17]]], ["bury", "g", [[KEY, 0, source]]])
    log.dead_letter(9, source)
    receipts = Receipts.restore(log.projections.receipts.snapshot())

    assert list(receipts.dying.values()) == [ExhaustedMessage("g", KEY, 0)]
    receipts.apply_item(["drop", "g", [[KEY, 0, 1]]], position=2000)
    assert receipts.dying == {}


def test_unclean_epoch_forgets_what_lies_beyond_the_queue() -> None:  # R21
    log = a_log(4)
    give(log, 0, 4)
    receipts = log.projections.receipts.get("g", KEY)
    assert receipts is not None
    receipts.give(4, 8, Grant(0, 1, 1, "c"))  # of a tail that was lost

    log.begin_epoch(2, is_unclean=True)

    assert (receipts.next, sorted(receipts.in_flight)) == (4, [0, 1, 2, 3])


def test_deleted_topic_takes_its_receipts_along() -> None:  # R35
    log = a_log()
    give(log, 0, 2)
    log.projections.receipts.apply_item(["bury", "g", 9, [[KEY, 0, 4711]]], position=200)

    log.topic(1, is_deleted=True)

    assert log.projections.receipts.get("g", KEY) is None
    assert log.projections.receipts.dying == {}


@pytest.mark.parametrize(
    "item",
    [
        ["surprise", "g", []],
        ["give", "g", "c", 0, [[KEY + 1, 0, 1, 1]]],
        ["give", "g", "c", 0, [[KEY, -1, 0, 1]]],
        ["change", "g", [[KEY, 5, 0, 1]]],
        ["ack", "g"],
    ],
)
def test_record_that_no_master_writes_stops_the_fold(item: list[Any]) -> None:
    log = a_log()
    with pytest.raises(CorruptLogError):
        pop(log, item)


def test_what_is_done_early_is_not_remembered_until_its_time() -> None:
    receipts = QueueReceipts(KEY, 0, 0)
    for offset in range(1000):
        receipts.give(offset, offset + 1, Grant(10_000 + offset, 1, offset, "c"))
        if offset % 100:
            receipts.acknowledge(offset, offset + 1, offset)

    assert len(receipts._due) <= 2 * len(receipts.in_flight) + 64
    assert [run.first for run in receipts.due(20_000, 100)] == list(range(0, 1000, 100))
