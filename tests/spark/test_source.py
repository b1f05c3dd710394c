"""The batch source on a real cluster: what the client library reads, and no master is read."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.spark.topics import Topics

from paceline.errors import (
    BadRequestError,
    OffsetOutOfRangeError,
    PacelineError,
    PeerError,
    TopicNotFoundError,
)
from paceline.platform.runtime import SystemClock
from paceline.spark.session import plain_error

COUNT = 3000


@pytest.fixture(scope="module")
def filled(topics: Topics) -> str:
    topic = topics.make("source")
    topics.fill(topic, COUNT)
    return topic


def test_rows_are_what_the_client_library_reads(spark: Any, topics: Topics, filled: str) -> None:
    rows = topics.frame(spark, filled).collect()

    wanted = {
        (message.queue_id, message.queue_offset): message for message in topics.read(filled, COUNT)
    }
    assert len(rows) == COUNT
    for row in rows:
        message = wanted.pop((row["queue_id"], row["offset"]))
        assert bytes(row["body"]) == message.body
        assert row["key"] == message.key
        assert row["tag"] == (message.tag or None)
        assert row["properties"] == message.properties
        assert row["topic"] == filled
        assert row["broker_group"] == "g1"
        assert int(row["born_at"].timestamp() * 1000) == message.born_unix_ms
        assert int(row["stored_at"].timestamp() * 1000) == message.store_unix_ms
    assert wanted == {}


def test_reads_go_to_replicas(spark: Any, topics: Topics, filled: str) -> None:
    master = topics.master()
    before = topics.delivered(master, filled)

    assert topics.frame(spark, filled, minPartitions="6").count() == COUNT

    assert topics.delivered(master, filled) == before
    topics.frame(spark, filled, readFrom="master").count()
    assert topics.delivered(master, filled) == before + COUNT


def test_what_is_read_is_pinned_for_a_lease(spark: Any, topics: Topics, filled: str) -> None:
    before = {row["owner"] for row in topics.pins()}

    topics.frame(spark, filled, pin="false").count()
    assert {row["owner"] for row in topics.pins()} <= before
    topics.frame(spark, filled, leaseSeconds="77").count()

    new = [row for row in topics.pins() if row["owner"] not in before]
    assert new
    assert all(row["owner"].startswith("spark-read-") for row in new)
    assert {row["lease_ms"] for row in new} == {77_000}


def test_schema_and_columns_choose_what_is_made(spark: Any, topics: Topics, filled: str) -> None:
    by_option = topics.frame(spark, filled, columns="offset,queue_id")
    reader = spark.read.format("paceline").schema("queue_id int, offset bigint")
    by_schema = reader.options(endpoints=topics.endpoints, topic=filled).load()

    assert by_option.columns == ["offset", "queue_id"]
    assert by_option.count() == by_schema.where("offset >= 0").count() == COUNT


def test_filters_are_pushed_and_exact(spark: Any, topics: Topics, filled: str) -> None:
    frame = topics.frame(spark, filled)
    everything = [row.asDict() for row in frame.collect()]

    found = frame.where("queue_id = 2 and offset >= 100 and offset < 150 and tag = 't1'").collect()

    wanted = [
        row
        for row in everything
        if row["queue_id"] == 2 and 100 <= row["offset"] < 150 and row["tag"] == "t1"
    ]
    key = ("queue_id", "offset")
    assert sorted(tuple(row[k] for k in key) for row in found) == sorted(
        tuple(row[k] for k in key) for row in wanted
    )
    assert frame.where("queue_id = 2 and offset < 10").rdd.getNumPartitions() == 1
    assert frame.where("queue_id = 99").count() == 0


def test_session_that_forbids_pushing_reads_the_same(
    spark: Any, topics: Topics, filled: str
) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "false")
    try:
        count = topics.frame(spark, filled).where("queue_id = 2").count()
    finally:
        spark.conf.set(name, "true")

    assert count == topics.frame(spark, filled, pushdown="false").where("queue_id = 2").count() > 0


def test_tags_as_an_option(spark: Any, topics: Topics, filled: str) -> None:
    frame = topics.frame(spark, filled, tags="t1 || t2")

    assert {row["tag"] for row in frame.select("tag").distinct().collect()} == {"t1", "t2"}


def test_keys_as_an_option_and_as_a_filter(spark: Any, topics: Topics, filled: str) -> None:
    everything = [row.asDict() for row in topics.frame(spark, filled).collect()]

    by_option = topics.frame(spark, filled, keyFilter="k1 || k2", tags="t1").collect()
    by_filter = topics.frame(spark, filled).where("key in ('k1', 'k2') and tag = 't1'").collect()

    wanted = [row for row in everything if row["key"] in ("k1", "k2") and row["tag"] == "t1"]
    assert wanted
    for found in (by_option, by_filter):
        assert sorted(bytes(row["body"]) for row in found) == sorted(
            bytes(row["body"]) for row in wanted
        )


def test_spark_finds_the_format_by_itself(spark: Any, topics: Topics, filled: str) -> None:
    """A session of its own has nothing registered: the format comes from `pyspark_paceline`."""
    fresh = spark.newSession()

    frame = topics.frame(fresh, filled, columns="body", minPartitions="4")

    assert frame.rdd.getNumPartitions() >= 2
    assert frame.count() == COUNT


def test_positions_by_record_time_and_offset(spark: Any, topics: Topics, filled: str) -> None:
    assert topics.frame(spark, filled, startingOffsets="-5").count() == 20
    assert topics.frame(spark, filled, startingOffsets="-1h").count() == COUNT
    assert topics.frame(spark, filled, startingTimestamp="2100-01-01").count() == 0
    assert topics.frame(spark, filled, endingTimestamp="2020-01-01").count() == 0
    some = '{"source": {"g1": {"0": 5}}}'
    less = topics.frame(spark, filled, startingOffsets=some).count()
    assert less == COUNT - 5


def test_brokers_that_die_under_a_read_are_replaced_by_others(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    """Both tasks have read a part of their ranges, and wait: then a replica and the master die."""
    from pyspark.sql import functions as f

    topic = topics.make("dying", queues=2)
    bodies = topics.fill(topic, 15_000, size=4000)
    frame = topics.frame(spark, topic, columns="body,offset", maxBytesPerPartition="40000000")
    assert frame.rdd.getNumPartitions() == 2
    folder = str(tmp_path)

    seen: list[int] = []

    def waits(offset: int) -> int:
        """Passes on what comes; the first of each task not before it is told to."""
        import threading
        from pathlib import Path

        from pyspark import TaskContext

        if not seen:
            seen.append(offset)
            context = TaskContext.get()
            assert context is not None
            (Path(folder) / f"waits-{context.partitionId()}").touch()
            while not (Path(folder) / "go").exists():
                threading.Event().wait(0.02)
        return offset

    def kill_when_both_wait() -> None:
        try:
            wait_for(lambda: len(list(tmp_path.glob("waits-*"))) == 2)
            replica = next(
                node["name"]
                for node, status in topics.statuses()
                if status is not None and status["role"] == "replica"
            )
            topics.kill(replica)
            topics.kill(topics.master())
        finally:
            (tmp_path / "go").touch()

    waiting = f.udf(waits, "bigint", useArrow=False)
    with ThreadPoolExecutor(1) as beside:
        killing = beside.submit(kill_when_both_wait)
        rows = frame.select("body", waiting("offset").alias("offset")).collect()
        killing.result()

    assert sorted(bytes(row["body"]).decode() for row in rows) == sorted(bodies)


def wait_for(is_so: Callable[[], bool]) -> None:
    clock = SystemClock()
    deadline = clock.monotonic_ms() + 60_000
    while not is_so():
        assert clock.monotonic_ms() < deadline, "the tasks have not begun within a minute"
        threading.Event().wait(0.02)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"startingOffset": "latest"}, BadRequestError, "did you mean startingOffsets"),
        ({"topic": "nothing"}, TopicNotFoundError, "topic nothing does not exist"),
        ({"columns": "offsets"}, BadRequestError, "there is no column 'offsets'"),
        (
            {"startingOffsets": '{"source": {"g1": {"0": 999999}}}'},
            OffsetOutOfRangeError,
            "asked was 999999",
        ),
        ({"startingOffsets": "first"}, BadRequestError, "startingOffsets must be"),
        ({"endpoints": "127.0.0.1:1", "retryTimeoutMs": "0"}, PeerError, "is the cluster up"),
        ({"tokenFile": "/nowhere/token"}, BadRequestError, "tokenFile"),
    ],
)
def test_wrong_input_is_one_clear_sentence(
    spark: Any,
    topics: Topics,
    filled: str,
    options: dict[str, str],
    error: type[PacelineError],
    sentence: str,
) -> None:
    given = {"endpoints": topics.endpoints, "topic": filled, **options}

    with pytest.raises(Exception) as refusal:  # noqa: PT011 - Spark wraps it; judged below
        spark.read.format("paceline").options(**given).load().count()

    found = plain_error(refusal.value)
    assert isinstance(found, error)
    assert sentence in found.message
