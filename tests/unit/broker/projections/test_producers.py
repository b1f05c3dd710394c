"""Idempotent producers: R30 and R31, case by case."""

import pytest
from tests.support.projections.logs import a_header

from paceline.errors import (
    OutOfOrderSequenceError,
    ProducerFencedError,
    UnknownProducerError,
)
from paceline_broker.projections.producers import (
    SEQUENCE_MASK,
    Producers,
    ProducerState,
    Verdict,
)

KEY = 1 << 16


def producers_with(*batches: tuple[int, int], epoch: int = 0) -> Producers:
    """One producer's stored batches as (sequence, count), at queue offsets equal to sequences."""
    producers = Producers()
    for sequence, count in batches:
        header = a_header(sequence=sequence, count=count, epoch=epoch)
        assert producers.decide(KEY, header)[0] is Verdict.NEW
        producers.add(KEY, header, sequence, 1000 + sequence)
    return producers


def test_next_sequence_is_new() -> None:
    producers = producers_with((0, 3))

    assert producers.decide(KEY, a_header(sequence=3)) == (Verdict.NEW, None)


def test_batch_of_the_window_is_a_duplicate_with_its_offset() -> None:
    producers = producers_with((0, 3), (3, 2), (5, 1))

    verdict, original = producers.decide(KEY, a_header(sequence=3, count=2))

    assert verdict is Verdict.DUPLICATE
    assert original is not None
    assert (original.base_queue_offset, original.store_unix_ms) == (3, 1003)


def test_batch_older_than_the_window_is_a_duplicate_of_unknown_offset() -> None:
    producers = producers_with(*((number, 1) for number in range(6)))

    assert producers.decide(KEY, a_header(sequence=1))[0] is Verdict.DUPLICATE
    assert producers.decide(KEY, a_header(sequence=0)) == (Verdict.DUPLICATE_OFFSET_UNKNOWN, None)


def test_gap_is_out_of_order_and_names_what_is_expected() -> None:
    producers = producers_with((0, 3))

    with pytest.raises(OutOfOrderSequenceError) as caught:
        producers.decide(KEY, a_header(sequence=4))

    assert caught.value.details["expected"] == 3


@pytest.mark.parametrize(("sequence", "count"), [(2, 2), (1, 1), (0, 2), (0, 4), (2, 1)])
def test_partial_overlap_is_refused(sequence: int, count: int) -> None:
    producers = producers_with((0, 3))

    with pytest.raises(OutOfOrderSequenceError):
        producers.decide(KEY, a_header(sequence=sequence, count=count))


def test_unknown_producer_must_begin_at_zero() -> None:
    with pytest.raises(UnknownProducerError):
        Producers().decide(KEY, a_header(sequence=1))


def test_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    producers = producers_with((0, 3))
    with pytest.raises(UnknownProducerError):
        producers.decide(KEY, a_header(sequence=3, epoch=1))

    renewed = a_header(sequence=0, epoch=1)
    assert producers.decide(KEY, renewed)[0] is Verdict.NEW
    producers.add(KEY, renewed, 3, 2000)

    with pytest.raises(ProducerFencedError, match="epoch 0 is older than 1"):
        producers.decide(KEY, a_header(sequence=3))
    assert producers.decide(KEY, renewed)[0] is Verdict.DUPLICATE


def test_queues_and_producers_do_not_know_each_other() -> None:
    producers = producers_with((0, 3))

    assert producers.decide(KEY + 1, a_header(sequence=0))[0] is Verdict.NEW
    assert producers.decide(KEY, a_header(sequence=0, producer_id=8))[0] is Verdict.NEW


def test_snapshot_knows_the_batches_since_the_snapshot_before() -> None:
    producers, later = producers_with((0, 3)), producers_with((0, 3))
    assert producers.snapshot() == later.snapshot()

    later.add(KEY, a_header(sequence=3, count=2), 3, 9)
    assert producers.snapshot() != later.snapshot()
    producers.add(KEY, a_header(sequence=3, count=2), 3, 9)
    assert producers.snapshot() == later.snapshot()
    assert Producers.restore(memoryview(later.snapshot())).snapshot() == later.snapshot()


def test_sequences_go_on_at_zero_after_the_last_one() -> None:
    producers = producers_with((0, 1))
    state = producers._states[7, KEY]
    state.last_sequence = SEQUENCE_MASK - 2
    state.window.clear()
    last = a_header(sequence=SEQUENCE_MASK - 1, count=2)
    assert producers.decide(KEY, last)[0] is Verdict.NEW
    producers.add(KEY, last, 10, 0)

    wrapped = a_header(sequence=0, count=3)

    assert producers.decide(KEY, wrapped)[0] is Verdict.NEW
    producers.add(KEY, wrapped, 12, 0)
    assert producers.decide(KEY, last)[0] is Verdict.DUPLICATE
    assert producers.decide(KEY, wrapped)[0] is Verdict.DUPLICATE
    with pytest.raises(OutOfOrderSequenceError):
        producers.decide(KEY, a_header(sequence=4))


def test_silent_producers_are_forgotten_by_a_record_only() -> None:
    producers = producers_with((0, 1))

    producers.forget_before(1000)
    assert len(producers) == 1
    producers.forget_before(1001)

    assert len(producers) == 0


def test_snapshot_restores_windows() -> None:
    producers = producers_with(*((number, 2) for number in range(0, 20, 2)))

    restored = Producers.restore(memoryview(producers.snapshot()))

    assert restored.snapshot() == producers.snapshot()
    assert restored.decide(KEY, a_header(sequence=18, count=2))[0] is Verdict.DUPLICATE


def test_a_snapshot_does_not_tell_in_which_order_producers_came_or_were_prepared() -> None:
    """INV-9: replicas compare snapshots, and one of them was restored from one."""
    names = [3, 1, 2]
    first, second = Producers(), Producers()
    for producers, order in ((first, names), (second, sorted(names))):
        for name in order:
            producers.add(KEY, a_header(sequence=0, producer_id=name), 0, 1000)
    assert second.pack_some(2), "one is left"
    second.add(KEY, a_header(sequence=1, producer_id=1), 1, 1001)
    first.add(KEY, a_header(sequence=1, producer_id=1), 1, 1001)
    while second.pack_some(1):
        pass
    restored = Producers.restore(memoryview(first.snapshot()))

    assert first.snapshot() == second.snapshot() == restored.snapshot()


def test_what_was_prepared_is_not_packed_again_by_the_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producers = Producers()
    for name in range(5):
        producers.add(KEY, a_header(sequence=0, producer_id=name), 0, 1000)
    while producers.pack_some(2):
        pass
    producers.add(KEY, a_header(sequence=1, producer_id=4), 1, 1001)
    packed = []
    pack = ProducerState.pack

    def counted(state: ProducerState, producer_id: int, key: int) -> None:
        packed.append(producer_id)
        pack(state, producer_id, key)

    monkeypatch.setattr(ProducerState, "pack", counted)
    producers.snapshot()

    assert packed == [4]


def test_forgotten_producers_leave_nothing_to_prepare() -> None:
    producers = Producers()
    producers.add(KEY, a_header(sequence=0, producer_id=1), 0, 1000)
    producers.add(KEY, a_header(sequence=0, producer_id=2), 0, 2000)

    producers.forget_before(1500)

    assert len(producers) == 1
    assert not producers.pack_some(5)
    assert len(Producers.restore(memoryview(producers.snapshot()))) == 1
