"""R31 and R32 in the outbox, step by step."""

import pytest
from tests.support.client.outbox import ANSWER, QUEUE, an_outbox, put

from paceline.errors import (
    CorruptBatchError,
    NotMasterError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    UnknownProducerError,
)
from paceline.producer.batch import Batch
from paceline.producer.queue_buffer import QueueBuffer
from paceline.records.header import DELAYED_RECORDS_MAX, Kind, parse_header


def numbers(batch: Batch) -> tuple[int, int]:
    """(producer epoch, base sequence) in the bytes."""
    assert batch.encoded is not None
    header = parse_header(batch.encoded)
    return header.producer_epoch, header.base_sequence


def test_sequences_count_records_and_two_batches_are_in_flight() -> None:
    outbox = an_outbox()
    first, second, third = put(outbox, b"a", b"b"), put(outbox, b"c"), put(outbox, b"d")

    taken = [outbox.take(2), outbox.take(2), outbox.take(2)]

    assert taken == [first, second, None]
    assert (numbers(first), numbers(second)) == ((0, 0), (0, 2))
    outbox.acknowledged(first, ANSWER)
    assert outbox.take(2) is third
    assert numbers(third) == (0, 3)


def test_a_batch_of_delayed_messages_has_no_more_than_a_broker_takes() -> None:
    outbox = QueueBuffer(QUEUE, lambda: 7, kind=Kind.DELAY)

    for _ in range(DELAYED_RECORDS_MAX + 1):
        batch = outbox.open_batch(1, 1 << 30, deadline=30.0, born_unix_ms=5)
        batch.add(b"x", None, None, None, 5)
        batch.add_due(0)

    assert [len(batch.bodies) for batch in outbox.unsent] == [DELAYED_RECORDS_MAX, 1]


def test_a_refused_batch_goes_again_before_its_followers() -> None:
    outbox = an_outbox()
    first, second = put(outbox, b"a"), put(outbox, b"b")
    outbox.take(2)
    outbox.take(2)

    outbox.refused(first, NotMasterError("no"))
    waiting = outbox.take(2)
    outbox.refused(second, OutOfOrderSequenceError("gap", expected=0))

    assert waiting is None
    assert outbox.take(2) is first
    assert outbox.take(2) is second
    assert (numbers(first), numbers(second)) == ((0, 0), (0, 1))


def test_a_lost_batch_keeps_its_bytes_and_its_queue() -> None:
    outbox = an_outbox()
    batch = put(outbox, b"a")
    outbox.take(2)
    encoded = batch.encoded

    outbox.lost()

    assert outbox.give_away(2) == []
    assert outbox.take(2) is batch
    assert batch.encoded is encoded


def test_a_definitely_refused_keyless_batch_may_leave_and_its_sequence_stays() -> None:
    outbox, other = an_outbox(), an_outbox()
    moving, keyed = put(outbox, b"a"), put(outbox, b"b", key="k")
    outbox.take(1)
    outbox.refused(moving, NotMasterError("no"))

    given = outbox.give_away(2)
    for batch in given:
        other.adopt(batch)

    assert given == [moving]
    assert outbox.take(2) is keyed
    assert numbers(keyed) == (0, 0)
    assert other.take(2) is moving


def test_a_fatal_refusal_leaves_its_sequence_to_the_next_batch() -> None:
    outbox = an_outbox()
    bad, good = put(outbox, b"a"), put(outbox, b"b")
    outbox.take(2)
    outbox.take(2)

    outbox.refused(bad, CorruptBatchError("crc"))
    outbox.refused(good, UnknownProducerError("must start at 0"))

    assert outbox.drain_settled() == [bad]
    assert isinstance(bad.error, CorruptBatchError)
    assert outbox.take(2) is good
    assert numbers(good) == (0, 0)


def test_a_fatal_refusal_says_nothing_of_an_earlier_attempt_that_is_unknown() -> None:
    """The permission was taken away meanwhile, say: the first attempt may have been stored."""
    outbox = an_outbox()
    batch = put(outbox, b"a")
    outbox.take(1)
    outbox.lost()
    assert outbox.take(1) is batch

    outbox.refused(batch, CorruptBatchError("crc"))

    assert outbox.drain_settled() == [batch]
    assert isinstance(batch.error, OutcomeUnknownError)
    assert isinstance(batch.error.__cause__, CorruptBatchError)


def test_a_follower_with_an_unknown_attempt_behind_a_gap_ends_unknown_too() -> None:
    outbox = an_outbox()
    bad, follower, fresh = put(outbox, b"a"), put(outbox, b"b"), put(outbox, b"c")
    outbox.take(2)
    outbox.take(2)

    outbox.refused(bad, CorruptBatchError("crc"))
    outbox.lost()

    assert outbox.drain_settled() == [bad, follower]
    assert isinstance(follower.error, OutcomeUnknownError)
    assert outbox.take(2) is fresh
    assert numbers(fresh) == (1, 0)


def test_a_follower_may_be_acknowledged_before_an_unknown_batch_is() -> None:
    outbox = an_outbox()
    first, second, third = put(outbox, b"a"), put(outbox, b"b"), put(outbox, b"c")
    outbox.take(2)
    outbox.take(2)

    outbox.refused(first, OutcomeUnknownError("stored, not confirmed in time"))
    outbox.acknowledged(second, ANSWER)

    assert outbox.take(2) is first
    assert outbox.take(2) is third
    assert (numbers(first), numbers(third)) == ((0, 0), (0, 2))


def test_no_batch_gets_further_behind_than_brokers_remember() -> None:
    outbox = an_outbox()
    batches = [put(outbox, b"%d" % number) for number in range(8)]
    assert outbox.take(2) is batches[0]

    for batch in batches[1:5]:
        assert outbox.take(2) is batch
        outbox.acknowledged(batch, ANSWER)

    assert outbox.take(2) is None
    outbox.acknowledged(batches[0], ANSWER)
    assert outbox.take(2) is batches[5]


def test_expiry_says_not_stored_only_when_every_attempt_was_refused() -> None:
    outbox = an_outbox()
    unknown, refused = put(outbox, b"a", deadline=1.0), put(outbox, b"b", deadline=1.0)
    unsent = put(outbox, b"c", deadline=1.0)
    outbox.take(1)
    outbox.lost()
    outbox.take(2)
    outbox.take(2)
    outbox.refused(refused, OutOfOrderSequenceError("gap", expected=0))
    outbox.refused(unknown, NotMasterError("no"))

    outbox.expire(2.0)

    assert set(outbox.drain_settled()) == {unknown, refused, unsent}
    assert isinstance(unknown.error, OutcomeUnknownError)
    assert refused.error is not None
    assert refused.error.is_definite
    assert isinstance(unsent.error, NotMasterError)
    later = put(outbox, b"d")
    outbox.take(2)
    assert numbers(later) == (1, 0)


def test_a_forgotten_producer_starts_a_new_epoch_with_the_same_message() -> None:
    outbox = an_outbox()
    first, second = put(outbox, b"a"), put(outbox, b"b")
    outbox.take(1)
    outbox.acknowledged(first, ANSWER)
    outbox.take(1)

    outbox.refused(second, UnknownProducerError("nothing of it is stored"))

    assert outbox.take(1) is second
    assert numbers(second) == (1, 0)


def test_sequence_zero_that_is_refused_as_a_gap_is_an_error_not_a_loop() -> None:
    outbox = an_outbox()
    batch = put(outbox, b"a")
    outbox.take(1)

    outbox.refused(batch, OutOfOrderSequenceError("gap", expected=4))

    assert outbox.drain_settled() == [batch]
    assert isinstance(batch.error, OutOfOrderSequenceError)


def test_the_producer_id_is_renewed_when_its_epochs_are_used_up() -> None:
    outbox = an_outbox()
    outbox.producer_epoch = 65_535
    batch = put(outbox, b"a", deadline=1.0)
    outbox.take(1)

    outbox.expire(2.0)

    assert isinstance(batch.error, OutcomeUnknownError)
    assert (outbox.producer_id, outbox.producer_epoch, outbox.next_sequence) == (8, 0, 0)


@pytest.mark.parametrize("borns", [(5, 5, 5), (5, 6, 7)])
def test_a_batch_carries_keys_tags_and_birth_times_of_each_message(
    borns: tuple[int, ...],
) -> None:
    outbox = an_outbox()
    batch = outbox.open_batch(1, 1, deadline=1, born_unix_ms=borns[0])
    batch.add(b"a", None, None, None, borns[0])
    batch.add(b"b", "key", "tag", {"p": "q"}, borns[1])
    batch.add_bodies([b"c"], None, borns[2])
    outbox.take(1)

    from paceline.records.decode import BatchView

    assert batch.encoded is not None
    view = BatchView(batch.encoded)
    assert [bytes(body) for body in view.bodies()] == [b"a", b"b", b"c"]
    assert list(view.keys()) == [None, "key", None]
    assert list(view.tags()) == ["", "tag", ""]
    assert list(view.properties()) == [{}, {"p": "q"}, {}]
    assert list(view.born()) == list(borns)
