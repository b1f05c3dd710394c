"""Streams: exactly what is there, limits, late topics, restarts, lag."""

import asyncio
from pathlib import Path
from typing import Any

from tests.spark.topics import Topics

from paceline import AdminClient


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
