"""Sealed queues of static topics in the fold: nothing comes after a seal (R28, R29, INV-9)."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.projections.fold import folded
from tests.support.projections.logs import HandLog

from paceline.errors import CorruptLogError
from paceline.records.header import Kind
from paceline.types import PhysicalOffset
from paceline_broker.projections import snapshots
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.seals import Seal, seal_document

KEY = 1 << 16


def a_log() -> HandLog:
    log = HandLog()
    log.begin_epoch(1)
    log.topic(1)
    return log


def seal(log: HandLog, *queues: int, topic_id: int = 1) -> None:
    log.internal(Kind.OPERATION, seal_document((topic_id, queue) for queue in queues))


def test_a_seal_remembers_where_its_queue_ended() -> None:
    log = a_log()
    log.send(7)
    log.send(2, queue_id=1)

    seal(log, 0, 2)

    position = log.projections.position
    assert log.projections.seals.by_key == {
        KEY: Seal(7, position),
        KEY + 2: Seal(0, position),
    }


def test_a_log_that_goes_on_in_a_sealed_queue_is_damaged() -> None:
    log = a_log()
    log.send(3)
    seal(log, 0)

    log.send(1, queue_id=1)
    with pytest.raises(CorruptLogError, match="sealed"):
        log.send(1)


def test_sealed_again_it_ends_where_it_ended() -> None:
    log = a_log()
    log.send(3)
    seal(log, 0)
    first = log.projections.seals.by_key[KEY]

    seal(log, 0)

    assert log.projections.seals.by_key[KEY] == first


def test_a_deleted_topic_takes_its_seals_along() -> None:
    """R35."""
    log = a_log()
    seal(log, 0)
    seal(log, 0, topic_id=2)
    assert log.projections.topic_ids() == [1, 2]

    log.topic(2, is_deleted=True)

    assert list(log.projections.seals.by_key) == [KEY]
    assert log.projections.topic_ids() == [1]


def test_a_snapshot_of_before_has_no_seals() -> None:
    log = a_log()
    log.send(3)
    old = snapshots.decode(log.projections.snapshot())
    del old.document["seals"]

    assert Projections.restore(snapshots.encode(old)).seals.by_key == {}


@pytest.mark.parametrize(
    "document", [{"topics": {"sealed": [[1]]}}, {"topics": {"sealed": 1}}, {"topics": {}}]
)
def test_a_malformed_seal_stops_the_replica(document: dict[str, Any]) -> None:
    log = a_log()

    with pytest.raises(CorruptLogError):
        log.internal(Kind.OPERATION, document)


steps = st.lists(
    st.tuples(st.sampled_from(["send", "seal", "delete"]), st.integers(1, 2), st.integers(0, 2)),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(steps, st.integers(0, 30))
def test_folding_from_any_checkpoint_gives_the_same_seals(history: list[Any], at: int) -> None:
    """INV-9, through a snapshot at every place of the log."""
    log = a_log()
    deleted: set[int] = set()
    for action, topic_id, queue_id in history:
        if topic_id in deleted:
            continue
        if action == "delete":
            log.topic(topic_id, is_deleted=True)
            deleted.add(topic_id)
        elif action == "seal":
            seal(log, queue_id, topic_id=topic_id)
        elif topic_id << 16 | queue_id not in log.projections.seals.by_key:
            log.send(2, topic_id=topic_id, queue_id=queue_id)
    at = min(at, len(log.batches))
    restored = Projections.restore(folded(log.batches[:at]).snapshot())
    assert restored.position == PhysicalOffset(sum(map(len, log.batches[:at])))

    later = folded(log.batches[at:], restored)

    assert later.snapshot() == log.projections.snapshot()
    for key, sealed in log.projections.seals.by_key.items():
        assert log.projections.queue_end(key) == sealed.end
    assert orjson.loads(orjson.dumps(later.seals.to_json())) == later.seals.to_json()
