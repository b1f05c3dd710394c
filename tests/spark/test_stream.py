"""Streams: exactly what is there, limits, late topics, restarts, lag."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.topics import Topics

from paceline import AdminClient
from paceline.platform.runtime import SystemClock


def run(
    spark: Any, topics: Topics, folder: Path, seen: list[list[str]], **options: str
) -> list[int]:
    """Run a query to the present end; what each micro-batch had goes to `seen`."""

    def take(frame: Any, number: int) -> None:
        seen.append([bytes(row["body"]).decode() for row in frame.select("body").collect()])

    stream = (
        spark.readStream.format("paceline")
        .options(endpoints=topics.endpoints, **options)
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    assert stream.awaitTermination(120)
    return [progress["numInputRows"] for progress in stream.recentProgress]


def test_limits_restarts_and_lag(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic = topics.make("stream")
    first = topics.fill(topic, 2500)
    seen: list[list[str]] = []
    options = {"topic": topic, "maxRecordsPerTrigger": "1000", "consumerGroup": "streaming"}

    run(spark, topics, tmp_path, seen, **options)
    assert [len(batch) for batch in seen if batch] == [1000, 1000, 500]
    more = topics.fill(topic, 700, first=2500)
    run(spark, topics, tmp_path, seen, **options)
    run(spark, topics, tmp_path, seen, **options)

    found = [body for batch in seen for body in batch]
    assert sorted(found) == sorted(first + more)
    # Spark tells a source of a micro-batch's end when the next one begins.
    assert lag_of(topics, "streaming") == 700


def lag_of(topics: Topics, group: str) -> int:
    async def ask() -> int:
        async with AdminClient(topics.endpoints) as admin:
            view = await admin.view()
            master = view.groups[next(iter(view.groups))].master_view()
            assert master is not None
            path = f"/v1/groups/{group}/lag"
            document = await admin._cluster.http.get(master.client_address, path, timeout_ms=3000)
            lag: int = document["lag"]
            return lag

    return asyncio.run(ask())


class Waiting:
    """A query that goes on, one micro-batch after another, and tells of the empty ones too."""

    def __init__(self, spark: Any, topics: Topics, folder: Path, **options: str) -> None:
        self.clock = SystemClock()
        self.seen: list[int] = []
        self.begun_ms = self.clock.monotonic_ms()
        self.query = (
            spark.readStream.format("paceline")
            .options(endpoints=topics.endpoints, **options)
            .load()
            .writeStream.foreachBatch(lambda frame, number: self._take(frame.count()))
            .option("checkpointLocation", str(folder))
            .trigger(processingTime="100 milliseconds")
            .start()
        )

    def _take(self, count: int) -> None:
        if count:
            self.seen.append(count)

    def until(self, is_so: Callable[[], bool]) -> int:
        """Milliseconds since the start when it is so."""
        while not is_so():
            assert self.clock.monotonic_ms() < self.begun_ms + 120_000, self.query.status
            assert self.query.isActive, self.query.exception()
            threading.Event().wait(0.02)
        return self.clock.monotonic_ms() - self.begun_ms

    def idle(self) -> int:
        """How often Spark asked for what is new, and was told: nothing."""
        return sum(progress["numInputRows"] == 0 for progress in self.query.recentProgress)


@pytest.fixture
def talkative(spark: Any) -> Iterator[Any]:
    """A session whose queries tell of idle triggers, too."""
    name = "spark.sql.streaming.noDataProgressEventInterval"
    before = spark.conf.get(name)
    spark.conf.set(name, "0")
    yield spark
    spark.conf.set(name, before)


def test_micro_batch_waits_for_its_minimum(talkative: Any, topics: Topics, tmp_path: Path) -> None:
    topic = topics.make("minimum")
    topics.fill(topic, 300)
    options = {"topic": topic, "minRecordsPerTrigger": "1000", "maxTriggerDelay": "1h"}
    stream = Waiting(talkative, topics, tmp_path, **options)
    try:
        stream.until(lambda: stream.idle() >= 5)
        assert stream.seen == []

        topics.fill(topic, 700, first=300)
        stream.until(lambda: bool(stream.seen))
        assert stream.seen == [1000]
    finally:
        stream.query.stop()


def test_micro_batch_below_its_minimum_comes_after_the_longest_delay(
    talkative: Any, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.make("delay")
    topics.fill(topic, 30)
    options = {"topic": topic, "minRecordsPerTrigger": "1000", "maxTriggerDelay": "3s"}
    stream = Waiting(talkative, topics, tmp_path, **options)
    try:
        elapsed_ms = stream.until(lambda: bool(stream.seen))

        assert stream.seen == [30]
        assert elapsed_ms >= 3000
        assert stream.idle() >= 1
    finally:
        stream.query.stop()


def test_minimum_is_not_waited_for_when_a_query_reads_what_is_there(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.make("minimum-available")
    bodies = topics.fill(topic, 30)
    seen: list[list[str]] = []

    run(spark, topics, tmp_path, seen, topic=topic, minRecordsPerTrigger="1000")

    assert sorted(body for batch in seen for body in batch) == sorted(bodies)


def test_topic_that_appears_later_is_read_from_its_start(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    early = topics.make("late-a", queues=2)
    bodies = [body for first in range(0, 50, 5) for body in topics.fill(early, 5, first=first)]
    seen: list[list[str]] = []
    options = {"topicsPattern": "late-.*", "maxBytesPerTrigger": "1000"}
    run(spark, topics, tmp_path, seen, **options)

    later = topics.make("late-b")
    bodies += topics.fill(later, 60)
    run(spark, topics, tmp_path, seen, **options)

    assert sorted(body for batch in seen for body in batch) == sorted(bodies)
    assert len([batch for batch in seen if batch]) > 2
