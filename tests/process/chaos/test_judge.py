"""The judge itself: what it must not let pass (a checker that cannot fail proves nothing)."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from tests.support.process.harness import RunningCluster
from tests.support.process.load import (
    Acknowledgement,
    Load,
    Place,
    check_epochs,
    check_records,
    same_bytes,
)
from tests.support.process.logs import StoredRecord, stored_records

from paceline.records.encode import encode_batch
from paceline.records.header import HEADER_BYTES, stamp
from paceline.types import MasterEpoch, PhysicalOffset, QueueOffset


def a_record(row: int, *, offset: int | None = None, worker: int = 0) -> StoredRecord:
    return StoredRecord(
        topic_id=1,
        queue_id=0,
        queue_offset=row if offset is None else offset,
        body=orjson.dumps([worker, row]),
        key=None,
    )


def a_load(*records: StoredRecord) -> Load:
    """Everything acknowledged as it is stored."""
    load = Load("orders", 1)
    for record in records:
        place = Place("g1", record.queue_id, record.queue_offset)
        load.acknowledged.append(Acknowledgement(place, record.body, 1, 0))
    return load


THREE = [a_record(0), a_record(1), a_record(2)]


def test_judge_is_content_with_what_was_acknowledged_and_more() -> None:
    check_records([*THREE, a_record(3)], a_load(*THREE), group="g1")


@pytest.mark.parametrize(
    ("stored", "complaint"),
    [
        (THREE[:2], "lost or changed"),
        ([*THREE[:2], replace(THREE[2], body=b"[0,9]")], "lost or changed"),
        ([*THREE, a_record(1, offset=3)], "stored twice"),
        ([*THREE, a_record(4, offset=3)], "worker 0: 4 after 2"),
    ],
    ids=["lost", "changed", "doubled", "reordered"],
)
def test_judge_complains(stored: list[StoredRecord], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_records(stored, a_load(*THREE), group="g1")


def test_judge_complains_of_a_message_that_was_shown_and_is_gone() -> None:
    load = a_load(*THREE)
    load.read[Place("g1", 0, 3)] = b"[0,3]"

    with pytest.raises(AssertionError, match="shown and are gone"):
        check_records(THREE, load, group="g1")


def test_judge_complains_of_one_place_for_two_messages() -> None:
    load = a_load(*THREE, THREE[0])

    with pytest.raises(AssertionError, match="one place"):
        check_records(THREE, load, group="g1")


def test_judge_complains_of_an_older_epoch_after_a_newer_one() -> None:
    load = a_load(*THREE)
    load.acknowledged[0] = load.acknowledged[0]._replace(epoch=2)

    with pytest.raises(AssertionError):
        check_epochs(load)


# -- the files ------------------------------------------------------------------------------------


def a_log(count: int) -> bytes:
    """Batches of one message each, as a broker would have stored them."""
    content = b""
    for row in range(count):
        batch = encode_batch([b"[0,%d]" % row], born_unix_ms=1, topic_id=1, queue_id=0)
        header = stamp(
            batch,
            physical_offset=PhysicalOffset(len(content)),
            base_queue_offset=QueueOffset(row),
            store_unix_ms=1,
            master_epoch=MasterEpoch(1),
        )
        content += header + batch[HEADER_BYTES:]
    return content


@pytest.fixture
def cluster(tmp_path: Path) -> RunningCluster:
    """Two brokers' folders with the same log, as left by a stopped cluster."""
    content = a_log(3)
    nodes = []
    for name in ("g1-b1", "g1-b2"):
        folder = tmp_path / name / "log"
        folder.mkdir(parents=True)
        (folder / f"{0:020}.log").write_bytes(content + bytes(512))
        (folder / "checkpoint.json").write_bytes(orjson.dumps({"confirm": len(content)}))
        nodes.append({"name": name, "role": "broker", "pid": 0, "address": ""})
    (tmp_path / "cluster.json").write_bytes(orjson.dumps({"nodes": nodes}))
    return RunningCluster(data_dir=tmp_path, bootstrap=[])


def test_judge_reads_equal_logs(cluster: RunningCluster) -> None:
    content = same_bytes(cluster, "g1", at_least=len(a_log(3)))

    assert [record.body for record in stored_records(content)] == [b"[0,0]", b"[0,1]", b"[0,2]"]


@pytest.mark.parametrize("at", [40, 100, -600])
def test_judge_complains_of_one_byte_that_differs(cluster: RunningCluster, at: int) -> None:
    path = cluster.data_dir / "g1-b2" / "log" / f"{0:020}.log"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)

    with pytest.raises(AssertionError, match="g1-b2 differs from g1-b1"):
        same_bytes(cluster, "g1", at_least=1)


def test_judge_complains_of_a_log_shorter_than_was_settled(cluster: RunningCluster) -> None:
    with pytest.raises(AssertionError):
        same_bytes(cluster, "g1", at_least=len(a_log(4)))


def test_judge_complains_of_a_hole_in_a_queue() -> None:
    content = a_log(3)
    size = len(content) // 3

    with pytest.raises(AssertionError):
        stored_records(content[:size] + content[2 * size :])
