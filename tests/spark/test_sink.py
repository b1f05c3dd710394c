"""Sinks: each row once, whatever task is retried and whichever query is killed."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.spark.programs import Program, kill_when
from tests.spark.topics import Topics

from paceline.errors import BadRequestError
from paceline.spark.session import plain_error

COUNT = 4000


def bodies_in(topics: Topics, topic: str, count: int) -> Counter[str]:
    return Counter(message.body.decode() for message in topics.read(topic, count))


def rows(spark: Any, count: int) -> Any:
    return spark.range(0, count, 1, 3).selectExpr(
        "concat('row-', id) as body",
        "concat('k', id % 40) as key",
        "if(id % 2 = 0, 'even', null) as tag",
        "map('id', cast(id as string)) as properties",
    )


def write(topics: Topics, frame: Any, topic: str, **options: str) -> None:
    frame.write.format("paceline").options(
        endpoints=topics.endpoints, topic=topic, chunkRecords="100", **options
    ).mode("append").save()


def test_rows_arrive_whole_and_equal_keys_keep_their_order(spark: Any, topics: Topics) -> None:
    topic = topics.make("sink")
    write(topics, rows(spark, COUNT), topic)

    found = topics.read(topic, COUNT)

    assert {message.body.decode() for message in found} == {f"row-{n}" for n in range(COUNT)}
    for message in found:
        number = int(message.body.decode().removeprefix("row-"))
        assert message.key == f"k{number % 40}"
        assert (message.tag or None) == ("even" if number % 2 == 0 else None)
        assert message.properties == {"id": str(number)}


def test_job_that_is_written_again_stores_nothing_twice(spark: Any, topics: Topics) -> None:
    topic = topics.make("sink-job")
    for _ in range(2):
        write(topics, rows(spark, COUNT), topic, jobId="job-1")

    assert topics.frame(spark, topic).count() == COUNT


@pytest.mark.parametrize("is_deduplicated", [True, False])
def test_task_that_fails_half_way_and_is_retried_stores_each_row_once(
    spark: Any, topics: Topics, tmp_path: Path, is_deduplicated: bool
) -> None:
    """The first attempt of each partition dies after some hundred rows were stored: without
    deduplication they are there twice."""
    from pyspark.sql import functions as f

    marks = str(tmp_path)

    def fail_once(body: str) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        mark = Path(marks) / str(context.partitionId())
        if int(body.removeprefix("row-")) % 1333 == 1000 and not mark.exists():
            mark.touch()
            raise RuntimeError("this attempt dies")
        return body.ljust(4000, ".")  # more than the pipes between JVM and Python hold

    topic = topics.make(f"sink-retry-{is_deduplicated}")
    dying = f.udf(fail_once, "string", useArrow=False)
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "50")
    try:
        frame = rows(spark, COUNT).withColumn("body", dying("body"))
        write(topics, frame, topic, dedup=str(is_deduplicated).lower())
    finally:
        spark.conf.unset(name)

    assert len(list(tmp_path.iterdir())) == 3
    count = topics.frame(spark, topic).count()
    assert count == COUNT if is_deduplicated else count > COUNT
    found = bodies_in(topics, topic, count)
    assert {body.rstrip(".") for body in found} == {f"row-{n}" for n in range(COUNT)}
    assert set(found.values()) == {1} or not is_deduplicated


def test_stream_killed_at_random_moments_stores_each_row_once(
    spark: Any, topics: Topics, tmp_path: Path
) -> None:
    source, target = topics.make("stream-from"), topics.make("stream-to")
    bodies = topics.fill(source, COUNT)
    program = Program("copy_stream", topics.endpoints, source, target, str(tmp_path / "state"))
    for count in (700, 1400):
        with contextlib.closing(program.start()) as running:
            kill_when(running, lambda count=count: count_in(topics, target) > count)  # type: ignore[misc]
    with contextlib.closing(program.start()) as running:
        assert running.wait(120) == 0, running.said()

    assert topics.frame(spark, target).count() == COUNT
    assert bodies_in(topics, target, COUNT) == Counter(dict.fromkeys(bodies, 1))


def count_in(topics: Topics, topic: str) -> int:
    from paceline.spark.brokers import Brokers
    from paceline.spark.options import read_options
    from paceline.spark.plan import Planner

    options = read_options({"endpoints": topics.endpoints, "topic": topic})
    with Brokers(options.access) as brokers:
        planner = Planner(options, brokers)
        ends = planner.ends(planner.queues())
    return sum(end for _, end in ends.values())


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (["'x' as value"], {"topic": "sink"}, "not value"),
        (["'x' as body", "1 as tag"], {"topic": "sink"}, "column tag is int"),
        (["'x' as body"], {}, "give the option topic"),
        (["'x' as body"], {"topic": "sink", "acks": "1"}, "acks must be one of all, -1"),
        (["'x' as body"], {"topic": "sink", "queueSelector": "r"}, "option 'queueselector'"),
        (["'x' as body", "'nowhere' as topic"], {}, "topic nowhere does not exist"),
        (["cast(null as string) as body"], {"topic": "sink"}, "a row has no body"),
    ],
)
def test_wrong_rows_and_options_are_refused(
    spark: Any, topics: Topics, columns: list[str], options: dict[str, str], sentence: str
) -> None:
    frame = spark.range(1).selectExpr(*columns)

    with pytest.raises(Exception) as refusal:  # noqa: PT011 - Spark wraps it; judged below
        frame.write.format("paceline").options(endpoints=topics.endpoints, **options).mode(
            "append"
        ).save()

    assert sentence in plain_error(refusal.value).message


def test_topic_is_never_overwritten(spark: Any, topics: Topics) -> None:
    with pytest.raises(Exception) as refusal:  # noqa: PT011 - Spark wraps it; judged below
        rows(spark, 1).write.format("paceline").options(
            endpoints=topics.endpoints, topic="sink"
        ).mode("overwrite").save()

    assert isinstance(plain_error(refusal.value), BadRequestError)
