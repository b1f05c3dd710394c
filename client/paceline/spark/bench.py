"""`python -m paceline.spark.bench --bootstrap HOST:PORT`: what the source and the sinks reach.

Fills a topic with random bodies, then reads it three ways in alternating runs in one session: to no
sink and to Parquet by Arrow, and to no sink by a reader that hands Spark tuples made of the same
batches (only the last step differs). Prints the medians; docs/BENCHMARKS.md keeps them.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from paceline.admin import AdminClient
from paceline.blocking import BlockingProducer
from paceline.errors import PacelineError, TopicExistsError
from paceline.message import Message
from paceline.runtime import SystemRandom
from paceline.spark.options import read_options
from paceline.spark.session import open_session, plain_error
from paceline.spark.source import PacelineDataSource, PacelineReader

FILL_RECORDS = 2000
QUEUES = 4


class TupleSource(PacelineDataSource):
    """The same source, its last step a Python loop over rows."""

    @classmethod
    def name(cls) -> str:
        return "paceline_tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TupleReader(read_options(self.options), schema)


class _TupleReader(PacelineReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            columns = [column.to_pylist() for column in batch.columns]
            for row in zip(*columns, strict=True):
                yield tuple(dict(cell) if isinstance(cell, list) else cell for cell in row)


def main(arguments: list[str]) -> int:
    """Exit code 0, or 1 when something failed."""
    parser = argparse.ArgumentParser(prog="paceline.spark.bench", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    found = parser.parse_args(arguments)
    topic = f"spark-bench-{found.size}"
    fill(found.bootstrap, topic, rows=found.rows, size=found.size)
    spark = open_session("local[2]", name="bench", settings={"spark.driver.memory": "2g"})
    try:
        spark.dataSource.register(TupleSource)
        figures = measured(spark, found.bootstrap, topic, runs=found.runs)
    except Exception as error:
        raise plain_error(error) from error
    finally:
        spark.stop()
    megabytes = found.rows * found.size / 1e6
    for name, seconds in figures.items():
        line = {
            "case": name,
            "rows": found.rows,
            "size": found.size,
            "seconds": round(seconds, 2),
            "mb_per_s": round(megabytes / seconds, 1),
        }
        sys.stdout.write(orjson.dumps(line).decode() + "\n")
    return 0


def measured(spark: SparkSession, bootstrap: str, topic: str, *, runs: int) -> dict[str, float]:
    """Median seconds by case; the first run of each is warm-up."""

    def frame(source: str, **options: str) -> DataFrame:
        reader = spark.read.format(source).option("endpoints", bootstrap).option("topic", topic)
        return reader.options(**options).load()

    folder = Path(tempfile.mkdtemp(prefix="paceline-spark-bench"))

    def to_nothing(source: str, **options: str) -> Callable[[], None]:
        return lambda: frame(source, **options).write.format("noop").mode("overwrite").save()

    def to_parquet(**options: str) -> Callable[[], None]:
        path = str(folder / "parquet")
        return lambda: frame("paceline", **options).write.mode("overwrite").parquet(path)

    plain = {"includeProperties": "false"}
    cases = {
        "noop": to_nothing("paceline"),
        "noop-tuples": to_nothing("paceline_tuples"),
        "parquet": to_parquet(),
        "parquet-without-properties": to_parquet(**plain),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    try:
        for run in range(runs + 1):
            for name, work in cases.items():
                began = time.perf_counter()
                work()
                if run:
                    seconds[name].append(time.perf_counter() - began)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def fill(bootstrap: str, topic: str, *, rows: int, size: int) -> None:
    """A topic with random bodies, unless it is there."""
    if not asyncio.run(_made(bootstrap, topic)):
        return
    random = SystemRandom()
    with BlockingProducer(bootstrap) as producer:
        for first in range(0, rows, FILL_RECORDS):
            count = min(FILL_RECORDS, rows - first)
            noise = random.token(count * size)
            producer.send_many(
                Message(topic, noise[at * size : (at + 1) * size], key=f"k{first + at}", tag="t")
                for at in range(count)
            )


async def _made(bootstrap: str, topic: str) -> bool:
    """Make the topic; False if it exists."""
    async with AdminClient(bootstrap) as admin:
        try:
            await admin.create_topic(topic, queues=QUEUES)
        except TopicExistsError:
            return False
        return True


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PacelineError as error:
        sys.exit(f"paceline: {error.message}")
