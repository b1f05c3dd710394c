"""The fold as a whole: locks, commits, epochs, snapshots (R28, R29, R33, INV-9, INV-11)."""

import random
import struct
from collections.abc import Sequence

import orjson
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.projections.fold import folded
from tests.support.projections.logs import START_MS, HandLog

from paceline.errors import CorruptLogError, PacelineError
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import Cause, Kind, pack_source, parse_header
from paceline.types import PhysicalOffset, QueueOffset
from paceline_broker.projections import snapshots
from paceline_broker.projections.locks import Token
from paceline_broker.projections.offsets import Committed
from paceline_broker.projections.producers import Verdict
from paceline_broker.projections.projections import (
    FEATURE_LEVEL,
    Projections,
    TopicRecord,
    needs_payload,
)

KEY = 1 << 16


def a_log() -> HandLog:
    log = HandLog()
    log.begin_epoch(1)
    log.topic(1)
    return log


# -- locks ----------------------------------------------------------------------------------------


def test_lock_is_held_until_its_lease_runs_out_in_log_time() -> None:
    log = a_log()
    first = log.lock("a")
    assert first.code is None
    log.now_ms += 59_999
    assert log.lock("b").code == "LOCK_HELD"

    log.now_ms += 1
    second = log.lock("b")

    assert second.code is None
    assert second.lock.token > first.lock.token  # INV-11


def test_holder_that_shows_its_token_keeps_it() -> None:
    log = a_log()
    token = log.lock("a").lock.token
    log.now_ms += 30_000

    renewed = log.lock("a", token=token)

    assert (renewed.code, renewed.lock.token) == (None, token)
    assert renewed.lock.expires_unix_ms == log.now_ms + 60_000


def test_holder_without_its_token_fences_its_own_past() -> None:
    log = a_log()
    old = log.lock("a").lock.token

    new = log.lock("a").lock.token

    assert new > old
    assert log.lock("a", token=old).code == "LOCK_FENCED"
    log.send(5)
    assert log.commit(3, token=old).code == "LOCK_FENCED"
    assert log.commit(3, token=new).code is None


def test_unlock_frees_only_with_the_token() -> None:
    log = a_log()
    token = log.lock("a").lock.token

    assert log.lock("b", token=token, is_unlock=True).code == "LOCK_FENCED"
    assert log.lock("a", token=Token(*(0, 0)), is_unlock=True).code == "LOCK_FENCED"  # type: ignore[arg-type]
    assert log.lock("a", token=token, is_unlock=True).code is None
    assert log.lock("a", token=token, is_unlock=True).code is None, "given back before"
    assert log.lock("b").code is None


def test_epoch_start_renews_leases_that_stood_when_the_log_stopped() -> None:
    log = a_log()
    log.lock("a", KEY)
    log.lock("b", KEY + 1, lease_ms=1000)
    log.now_ms += 2000
    log.send()
    log.now_ms += 3_600_000

    log.begin_epoch(2)

    assert log.lock("c", KEY).code == "LOCK_HELD"
    assert log.lock("c", KEY + 1).code is None
    log.now_ms += 60_000
    assert log.lock("c", KEY).code is None


# -- commits --------------------------------------------------------------------------------------


def test_commit_never_lowers_and_stays_within_the_queue() -> None:
    log = a_log()
    log.send(10)

    assert log.commit(4).committed.offset == 4
    assert log.commit(4).code is None
    back = log.commit(3)
    assert (back.code, back.committed.offset) == ("OFFSET_MOVED_BACK", 4)
    assert log.commit(11).code == "OFFSET_OUT_OF_RANGE"
    assert log.commit(10).committed.offset == 10


def test_where_queues_stood_when_a_group_began_on_their_topic_is_kept() -> None:
    """What came later to any of them is the group's to read, whoever opens it when."""
    log = a_log()
    log.send(3, queue_id=1)
    assert log.projections.joined_at("g", KEY) is None
    log.commit(0)
    log.send(2, queue_id=1)
    log.commit(1, KEY + 1)
    log.send(4, queue_id=2)

    for projections in (log.projections, Projections.restore(log.projections.snapshot())):
        stood = [projections.joined_at("g", KEY + queue) for queue in range(4)]
        assert stood == [0, 3, 0, 0]
        assert projections.joined_at("other", KEY) is None
        assert projections.joined_at("g", 2 << 16) is None
    log.topic(1, is_deleted=True)
    assert log.projections.joined_at("g", KEY) is None


def test_reset_lowers_and_late_commits_of_before_are_refused() -> None:
    log = a_log()
    log.send(10)
    log.commit(8, generation=0)

    reset = log.commit(2, is_reset=True)

    assert (reset.committed.offset, reset.committed.generation) == (2, 1)
    assert log.commit(9, generation=0).code == "OFFSET_MOVED_BACK"
    assert log.commit(3, generation=1).code is None


def test_commit_without_a_token_is_refused_while_the_queue_is_locked() -> None:
    log = a_log()
    log.send(10)
    token = log.lock("a").lock.token

    assert log.commit(1).code == "LOCK_FENCED"
    assert log.commit(1, group="other").code is None
    assert log.commit(2, token=token).code is None
    log.now_ms += 60_000
    assert log.commit(3).code is None, "the lease has run out"
    assert log.commit(4, token=token).code is None, "nobody else had it since"


def test_unclean_epoch_clamps_commits_voids_locks_and_fences_producers() -> None:
    log = a_log()
    log.send(2, producer_id=7, base_sequence=0)
    log.lock("a")
    projections = log.projections
    projections.offsets._groups["g"] = {KEY: Committed(QueueOffset(99), 0)}

    log.begin_epoch(2, is_unclean=True)

    committed = projections.offsets.get("g", KEY)
    assert committed == Committed(QueueOffset(2), 1), "a new generation: a late commit is refused"
    assert len(projections.producers) == 0
    assert log.lock("b").code is None
    # R21: what lies below, nobody knows whose it is.
    began = BatchView(log.batches[-2]).header.physical_offset
    assert projections.producers.voided_at == began > 0
    assert Projections.restore(projections.snapshot()).producers.voided_at == began


# -- order, kinds, topics -------------------------------------------------------------------------


def test_batch_that_is_not_the_next_one_is_refused() -> None:
    log = a_log()
    log.send()
    projections = folded(log.batches[:1])
    view = BatchView(log.batches[2])

    with pytest.raises(CorruptLogError, match="comes at"):
        projections.apply(view.header, view)


@pytest.mark.parametrize("kind", [Kind.OPERATION, Kind.SEND_BACK, Kind.GROUP])
def test_unknown_kind_stops_the_replica(kind: Kind) -> None:
    log = a_log()

    with pytest.raises(CorruptLogError, match="not known to this version"):
        log.internal(kind, {})


def test_higher_feature_level_stops_the_replica() -> None:
    log = a_log()

    with pytest.raises(CorruptLogError, match="upgrade first"):
        log.internal(
            Kind.EPOCH_START,
            {"epoch": 2, "feature_level": FEATURE_LEVEL + 1, "is_unclean": False},
        )


def test_malformed_internal_record_is_damage() -> None:
    log = a_log()

    with pytest.raises(CorruptLogError, match="malformed"):
        log.internal(Kind.LOCK, {"group": "g"})


def test_deleted_topic_takes_all_that_hangs_on_it() -> None:
    """R35."""
    log = a_log()
    log.topic(2)
    for topic_id in (1, 2):
        log.send(3, topic_id=topic_id, producer_id=7, base_sequence=0)
        log.lock("a", topic_id << 16)
        log.commit(0, topic_id << 16, is_reset=True)

    log.topic(1, is_deleted=True)

    projections = log.projections
    assert list(projections.topics) == [2]
    assert projections.queue_end(KEY) == 0
    assert projections.offsets.get("g", KEY) is None
    assert projections.lock_token("g", KEY) is None
    assert projections.queue_end(2 << 16) == 3
    assert len(projections.producers) == 1


def test_retention_moves_starts_and_forgets_silent_producers() -> None:
    log = a_log()
    log.send(3, producer_id=7, base_sequence=0)
    border = int(log.projections.position)
    log.now_ms += 1000
    log.send(2, producer_id=8, base_sequence=0)

    log.retain(log_start=border, before_ms=START_MS + 1)

    queue = log.projections.consume_queues.get(KEY)
    assert queue is not None
    assert (queue.start, queue.end) == (0, 5), "not before confirm has passed the record (INV-8)"
    assert len(log.projections.producers) == 1
    before = log.projections.snapshot()
    log.projections.retain(PhysicalOffset(log.projections.position - 1))
    assert queue.start == 0
    log.projections.retain(log.projections.position)
    assert (queue.start, queue.end) == (3, 5)
    assert log.projections.snapshot() == before, "the state is that of the records (INV-9)"
    assert Projections.restore(before).snapshot() == before


def test_watched_queue_is_reported_once_with_its_position() -> None:
    log = a_log()
    queue = log.projections.consume_queues.get_or_make(KEY)
    queue.is_watched = True

    log.send()
    log.send()

    assert [(touched.queue.key, queue.is_watched) for touched in log.projections.touched] == [
        (KEY, False)
    ]
    assert log.projections.touched[0].position < log.projections.position


# -- snapshots ------------------------------------------------------------------------------------


def a_random_log(seed: int, steps: int = 60) -> HandLog:
    """A log of everything the fold knows, decided by a seed."""
    generator = random.Random(seed)  # noqa: TID251 - a test's own dice
    log = a_log()
    sequences: dict[tuple[int, int], int] = {}
    epoch = 1
    for _ in range(steps):
        log.now_ms += generator.choice([0, 1, 500, 40_000])
        key = KEY + generator.randrange(3)
        match generator.randrange(9):
            case 0 | 1 | 2:
                count, producer = generator.randint(1, 4), generator.randrange(3)
                at = sequences.get((producer, key), 0)
                if producer and at == log_next(log, producer, key):
                    log.send(count, queue_id=key & 7, producer_id=producer, base_sequence=at)
                    sequences[producer, key] = at + count
                else:
                    log.send(count, queue_id=key & 7)
            case 3 | 4:
                token = log.projections.lock_token("g", key)
                shown = generator.choice([None, token])
                log.lock(
                    generator.choice("ab"), key, token=shown, is_unlock=generator.random() < 0.3
                )
            case 5 | 6:
                end = log.projections.queue_end(key)
                token = generator.choice([None, log.projections.lock_token("g", key)])
                log.commit(
                    generator.randint(0, end + 1),
                    key,
                    token=token,
                    is_reset=generator.random() < 0.2,
                    generation=generator.choice([None, 0, 1]),
                )
            case 7:
                epoch += 1
                log.begin_epoch(epoch, is_unclean=generator.random() < 0.2)
                sequences = {}
            case _:
                log.topic(generator.randint(2, 4), queues=generator.randint(1, 9))
    return log


def log_next(log: HandLog, producer: int, key: int) -> int:
    state = log.projections.producers._states.get((producer, key))
    return 0 if state is None else state.last_sequence + 1


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), cut=st.floats(0, 1))
def test_fold_from_any_checkpoint_gives_the_same_state(seed: int, cut: float) -> None:
    """INV-9."""
    log = a_random_log(seed)
    expected = log.projections.snapshot()

    border = int(cut * len(log.batches))
    checkpoint = folded(log.batches[:border]).snapshot()
    again = folded(log.batches, Projections.restore(checkpoint))

    assert again.snapshot() == expected
    assert folded(log.batches).snapshot() == expected
    assert Projections.restore(expected).snapshot() == expected


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), at=st.floats(0, 1), flip=st.integers(1, 255))
def test_damaged_snapshot_is_refused(seed: int, at: float, flip: int) -> None:
    snapshot = bytearray(a_random_log(seed % 5, steps=10).projections.snapshot())
    index = min(int(at * len(snapshot)), len(snapshot) - 1)
    snapshot[index] ^= flip

    with pytest.raises(CorruptLogError):
        Projections.restore(bytes(snapshot))


@given(content=st.binary(max_size=200))
def test_any_bytes_are_a_snapshot_or_corrupt(content: bytes) -> None:
    with pytest.raises(PacelineError):
        Projections.restore(content)


# -- messages that wait, and batches made out of them ---------------------------------------------


def test_a_waiting_message_is_in_no_queue_and_its_producer_goes_on() -> None:
    """R34, R31: sequences of a queue run through what waits for it."""
    log = a_log()
    log.send(producer_id=9, base_sequence=0)
    place = log.end
    waiting = encode_batch(
        [b"later"],
        born_unix_ms=START_MS,
        due_unix_ms=[START_MS + 1000],
        topic_id=1,
        queue_id=0,
        kind=Kind.DELAY,
        producer_id=9,
        base_sequence=1,
    )
    log.append(waiting)

    assert log.projections.queue_end(1 << 16) == 1
    verdict, original = log.projections.producers.decide(1 << 16, parse_header(waiting))
    assert verdict is Verdict.DUPLICATE
    assert original is not None
    assert original.base_queue_offset == place
    assert folded(log.batches).snapshot() == log.projections.snapshot()


def test_a_derived_batch_is_a_message_of_its_queue() -> None:
    log = a_log()
    log.send()
    derived = encode_batch(
        [b"now"],
        born_unix_ms=START_MS,
        sources=[pack_source(96, 0)],
        topic_id=1,
        queue_id=0,
        flags=Cause.DELAYED,
    )
    log.append(derived, base=1)

    assert needs_payload(parse_header(derived))
    assert log.projections.queue_end(1 << 16) == 2


def test_a_snapshot_of_before_the_message_model_is_still_read() -> None:
    """Format 1 ends with the document and has no parts."""
    projections = folded(a_random_log(3).batches)
    found = snapshots.decode(projections.snapshot())
    document = orjson.dumps(found.document, option=orjson.OPT_SORT_KEYS)
    sizes = (len(found.consume_queues), len(found.producers))
    head = struct.pack("<IIQqQQ", 1, 0, found.position, found.log_time_ms, *sizes)
    rest = head + found.consume_queues + found.producers + document
    old = struct.pack("<II", snapshots.MAGIC, crc32c(rest)) + rest

    assert Projections.restore(old).snapshot() == projections.snapshot()


def test_named_parts_come_back() -> None:
    parts: dict[str, Sequence[bytes]] = {"b": (b"",), "a": (b"12",), "c": (b"345",)}
    whole = snapshots.Snapshot(
        position=PhysicalOffset(8),
        log_time_ms=5,
        consume_queues=b"q",
        producers=b"pp",
        document={"x": 1},
        parts=parts,
    )

    assert snapshots.decode(snapshots.encode(whole)) == whole


# -- consumer groups that go ----------------------------------------------------------------------


def a_group_topic(log: HandLog, topic_id: int, *, is_deleted: bool = False) -> None:
    """The topic of retries of group "g"."""
    record = TopicRecord(topic="%RETRY%g", topic_id=topic_id, queues=1, is_deleted=is_deleted)
    log.internal(Kind.TOPIC, record.to_json())


def test_what_a_consumer_group_has_goes_with_the_topic_of_its_retries() -> None:
    """R35: the record of that deletion is the group's; one of the same name begins anew."""
    log = a_log()
    log.send(3)
    a_group_topic(log, 5)
    for group in ("g", "other"):
        log.commit(1, group=group, is_reset=True)
        log.lock("a", KEY, group=group)
        log.internal(Kind.POP, {"items": [["start", group, [[KEY + 1, 0]]]]})

    a_group_topic(log, 5, is_deleted=True)

    for projections in (log.projections, Projections.restore(log.projections.snapshot())):
        assert projections.offsets.of_group("g") == {}
        assert projections.joined_at("g", KEY) is None
        assert projections.lock_token("g", KEY) is None
        assert projections.receipts.of_group("g") == {}
        assert projections.groups() == {"other"}
        assert projections.offsets.get("other", KEY) is not None
        assert projections.lock_token("other", KEY) is not None
        assert projections.group_ids == {}
    assert folded(log.batches).snapshot() == log.projections.snapshot()


def test_a_group_that_is_there_again_keeps_its_state_when_the_old_one_is_forgotten_late() -> None:
    log = a_log()
    log.send(3)
    a_group_topic(log, 5)
    a_group_topic(log, 7)
    log.commit(2)

    a_group_topic(log, 5, is_deleted=True)

    assert log.projections.offsets.of_group("g")
    again = Projections.restore(log.projections.snapshot())
    assert again.group_ids == log.projections.group_ids == {"g": 7}


def test_of_two_incarnations_whose_newer_one_goes_first_the_older_is_the_group_again() -> None:
    """INV-9: a state that was restored in between says so too."""
    log = a_log()
    a_group_topic(log, 5)
    a_group_topic(log, 7)
    a_group_topic(log, 7, is_deleted=True)

    again = Projections.restore(log.projections.snapshot())
    assert again.group_ids == log.projections.group_ids == {"g": 5}
