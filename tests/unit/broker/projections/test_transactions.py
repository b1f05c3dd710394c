"""The fold of transactions: what is open, how it ended, and for how long that is known (R34)."""

import random

import pytest
from tests.support.projections.logs import START_MS, HandLog

from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import Cause, Kind, pack_source
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.transactions import Ended, Half, operation_document

KEY = 1 << 16


class HalfLog(HandLog):
    """A log with half messages."""

    def __init__(self) -> None:
        super().__init__()
        self.begin_epoch(1)
        self.topic(1)
        self.topic(2)

    def halves(
        self, count: int = 1, *, topic_id: int = 1, again: tuple[int, ...] = ()
    ) -> list[int]:
        """Append half messages, or old ones again; the sources of the new records."""
        position = self.end
        batch = encode_batch(
            [b"x"] * (len(again) or count),
            born_unix_ms=self.now_ms,
            topic_id=topic_id,
            queue_id=0,
            kind=Kind.HALF,
            sources=list(again) or None,
            flags=Cause.AGAIN if again else 0,
        )
        self.append(batch)
        return [pack_source(position, index) for index in range(len(again) or count)]

    def derive(self, *sources: int, cause: Cause = Cause.COMMITTED, topic_id: int = 1) -> None:
        batch = encode_batch(
            [b"x"] * len(sources),
            born_unix_ms=self.now_ms,
            topic_id=topic_id,
            queue_id=0,
            sources=sources,
            flags=cause,
        )
        self.append(batch, base=self.projections.queue_end(topic_id << 16))

    def operate(self, **sources: list[int]) -> None:
        self.internal(Kind.OPERATION, operation_document(**sources))

    def ended(self, source: int) -> Ended | None:
        half = self.projections.transactions.find(source)
        return None if half is None else half.ended

    def found(self, source: int) -> Half:
        half = self.projections.transactions.find(source)
        assert half is not None
        return half


def test_a_half_is_in_no_queue_until_its_commit_which_is_the_message() -> None:
    """R34, INV-8: the derived batch delivers and closes in one record."""
    log = HalfLog()
    first, second, third = log.halves(3)

    assert log.projections.queue_end(KEY) == 0
    assert log.projections.transactions.open_count == 3
    log.derive(first, third)

    assert log.projections.queue_end(KEY) == 2
    assert [log.ended(source) for source in (first, second, third)] == [
        Ended.COMMITTED,
        Ended.OPEN,
        Ended.COMMITTED,
    ]
    assert [half.source for half in log.projections.transactions.all_open()] == [second]


def test_a_rollback_closes_without_a_message_and_what_has_ended_stays_as_it_ended() -> None:
    log = HalfLog()
    (source,) = log.halves()
    log.operate(rolled_back=[source])
    log.derive(source)  # no master writes this; the fold is total

    assert log.ended(source) is Ended.ROLLED_BACK
    assert log.projections.transactions.open_count == 0
    assert log.projections.transactions.oldest_open() is None


def test_checks_are_counted_in_log_time_until_the_end() -> None:
    log = HalfLog()
    first, second = log.halves(2)
    log.now_ms += 6_000
    log.operate(checked=[first])
    log.now_ms += 30_000
    log.operate(checked=[first, second])

    transactions = log.projections.transactions
    assert transactions.checked(first) == (2, START_MS + 36_000)
    assert transactions.checked(second) == (1, START_MS + 36_000)
    log.derive(first, cause=Cause.CHECKED_OUT, topic_id=2)
    assert log.ended(first) is Ended.CHECKED_OUT
    assert transactions.checked(first) == (0, 0)


@pytest.mark.parametrize("wrong", [0, 1, pack_source(10_000, 0)])
def test_a_name_that_no_half_has_finds_nothing(wrong: int) -> None:
    log = HalfLog()
    (source,) = log.halves()

    assert log.ended(source + 1) is None
    assert log.ended(wrong) is None


def test_halves_of_a_deleted_topic_are_dropped_others_stay() -> None:
    """R35."""
    log = HalfLog()
    mine, ended = log.halves(2)
    (other,) = log.halves(topic_id=2)
    log.derive(ended)
    log.operate(checked=[mine])

    log.topic(1, is_deleted=True)

    assert [log.ended(source) for source in (mine, ended, other)] == [
        Ended.DROPPED,
        Ended.COMMITTED,
        Ended.OPEN,
    ]
    assert log.projections.transactions.open_count == 1


def test_a_half_written_again_keeps_its_name_time_and_checks() -> None:
    """R14, R26: retention goes on, the transaction does not notice."""
    log = HalfLog()
    first, second, third = log.halves(3)
    log.derive(second)
    log.operate(checked=[third])
    log.now_ms += 1000
    new = log.halves(again=(first, third))
    border = unpacked(new[0])

    transactions = log.projections.transactions
    assert transactions.oldest_open() == border
    assert [half.source for half in transactions.all_open()] == [first, third]
    log.retain(log_start=border)

    assert log.ended(second) is None, "forgotten with its position"
    moved = log.found(third)
    assert (moved.position, moved.number, moved.stored_unix_ms) == (border, 1, START_MS)
    assert transactions.checked(third).times == 1
    assert log.ended(new[0]) is None, "the new place is no name"
    log.derive(first)
    assert log.ended(first) is Ended.COMMITTED
    again = log.halves(again=(third,))
    log.retain(log_start=unpacked(again[0]))
    assert log.ended(first) is None
    assert log.ended(third) is Ended.OPEN
    assert transactions.open_count == 1


def unpacked(source: int) -> int:
    return source >> 16


def a_random_log(seed: int, steps: int = 60) -> HalfLog:
    dice = random.Random(seed)  # noqa: TID251 - a test's own dice
    log = HalfLog()
    known: list[int] = []
    for _ in range(steps):
        log.now_ms += dice.choice([0, 1, 500])
        some = dice.sample(known, min(len(known), dice.randint(1, 4)))
        match dice.randrange(9):
            case 0 | 1 | 2:
                known += log.halves(dice.randint(1, 5), topic_id=dice.randint(1, 2))
            case 3 if some:
                log.derive(*some, cause=dice.choice([Cause.COMMITTED, Cause.CHECKED_OUT]))
            case 4 if some:
                log.operate(rolled_back=some, checked=dice.sample(known, 1))
            case 5:
                log.operate(checked=some)
            case 6:
                oldest = log.projections.transactions.oldest_open()
                if oldest is not None:
                    halves = log.projections.transactions.open_halves(oldest)
                    new = log.halves(
                        again=tuple(half.source for half in halves), topic_id=halves[0].key >> 16
                    )
                    log.retain(log_start=dice.choice([oldest, unpacked(new[0])]))
            case 7:
                log.retain(log_start=dice.randrange(log.end + 1))
            case _:
                log.topic(dice.randint(1, 2), is_deleted=dice.random() < 0.3)
    return log


@pytest.mark.parametrize("seed", range(25))
def test_folding_on_from_any_checkpoint_gives_the_same(seed: int) -> None:
    """INV-9."""
    log = a_random_log(seed)
    final = log.projections.snapshot()
    projections = Projections()
    for batch in log.batches:
        projections = Projections.restore(projections.snapshot())
        view = BatchView(batch)
        projections.apply(view.header, view)
    assert projections.snapshot() == final
    transactions = projections.transactions
    listed = list(transactions.all_open())
    assert len(listed) == transactions.open_count
    assert {half.ended for half in listed} <= {Ended.OPEN}
    assert transactions.open_batches() == sorted({half.position for half in listed})
