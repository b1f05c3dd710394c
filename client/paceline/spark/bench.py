"""`python -m paceline.spark.bench`: what the source and the sink reach, end to end.

Starts a cluster of three replicas (or takes `--bootstrap`), fills a topic with random bodies, and
works on it in alternating runs of one session: to no sink and to Parquet by Arrow, to no sink by a
reader that hands Spark tuples made of the same batches (only the last step differs), and from
Parquet into another topic. Prints the medians; `--write docs/BENCHMARKS.md` keeps them.
"""

import argparse
import asyncio
import contextlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from paceline import BlockingProducer
from paceline.admin.client import AdminClient
from paceline.errors import ConfigError, PacelineError, TopicExistsError
from paceline.message import Message
from paceline.platform.runtime import SystemRandom
from paceline.spark.batch import PacelineReader
from paceline.spark.options import read_options
from paceline.spark.session import open_session, plain_error
from paceline.spark.source import PacelineDataSource

FILL_RECORDS = 2000
QUEUES = 4
BEGIN, END = "<!-- spark:begin -->", "<!-- spark:end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The median of one case."""

    case: str
    rows: int
    size: int
    seconds: float

    @property
    def mb_per_s(self) -> float:
        return self.rows * self.size / 1e6 / self.seconds


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
    """Exit code 0; PacelineError when something failed."""
    parser = argparse.ArgumentParser(prog="paceline.spark.bench", description=__doc__)
    parser.add_argument("--bootstrap", help="Of a cluster that runs; without it one is started.")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", type=Path, help="Put the table into this document.")
    found = parser.parse_args(arguments)
    topic = f"spark-bench-{found.size}"
    with contextlib.ExitStack() as stack:
        bootstrap = found.bootstrap or stack.enter_context(_cluster())
        fill(bootstrap, topic, rows=found.rows, size=found.size)
        spark = open_session("local[2]", name="bench", settings={"spark.driver.memory": "2g"})
        stack.callback(spark.stop)
        try:
            figures = measured(spark, bootstrap, topic, size=found.size, runs=found.runs)
        except Exception as error:
            raise plain_error(error) from error
    for one in figures:
        sys.stdout.write(orjson.dumps(_document(one)).decode() + "\n")
    if found.write is not None:
        write_figures(found.write, figures, runs=found.runs)
    return 0


def measured(
    spark: SparkSession, bootstrap: str, topic: str, *, size: int, runs: int
) -> list[Figure]:
    """All cases in turn, `runs` times; a first run of each is warm-up."""
    spark.dataSource.register(TupleSource)
    copies = f"{topic}-copies"
    asyncio.run(_made(bootstrap, copies))
    folder = Path(tempfile.mkdtemp(prefix="paceline-spark-bench"))
    path = str(folder / "parquet")

    def frame(source: str, **options: str) -> DataFrame:
        reader = spark.read.format(source).option("endpoints", bootstrap).option("topic", topic)
        return reader.options(**options).load()

    def to_nothing(source: str) -> Callable[[], None]:
        return lambda: frame(source).write.format("noop").mode("overwrite").save()

    def to_parquet(**options: str) -> Callable[[], None]:
        return lambda: frame("paceline", **options).write.mode("overwrite").parquet(path)

    def some() -> DataFrame:
        """Half of the rows, from the files of the case before."""
        return spark.read.parquet(path).where("queue_id < 2").select("body", "key", "tag")

    def to_topic() -> None:
        writer = some().write.format("paceline").mode("append")
        writer.options(endpoints=bootstrap, topic=copies).save()

    cases = {
        "noop": to_nothing("paceline"),
        "noop-tuples": to_nothing("paceline_tuples"),
        "parquet": to_parquet(),
        "parquet-without-properties": to_parquet(includeProperties="false"),
        "sink": to_topic,
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    try:
        for run in range(runs + 1):
            for name, work in cases.items():
                began = time.perf_counter()
                work()
                if run:
                    seconds[name].append(time.perf_counter() - began)
        rows, fewer = frame("paceline", columns="offset").count(), some().count()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [
        Figure(
            case=name,
            rows=fewer if name == "sink" else rows,
            size=size,
            seconds=statistics.median(taken),
        )
        for name, taken in seconds.items()
    ]


def write_figures(path: Path, figures: list[Figure], *, runs: int) -> None:
    """Replace what stands between the two marker lines of a document."""
    text = path.read_text("utf-8")
    if BEGIN not in text or END not in text:
        raise ConfigError(f"{path} has no lines {BEGIN} and {END}")
    seconds = {one.case: one.seconds for one in figures}
    versions = f"PySpark {pyspark.__version__}, Python {platform.python_version()}"
    part = [
        BEGIN,
        "",
        f"{versions}, `local[2]`; medians of {runs} alternating runs after one of warm-up.",
        "",
        "| case | rows | bytes a body | s | MB/s |",
        "|---|---|---|---|---|",
        *(
            f"| {one.case} | {one.rows:,} | {one.size:,} | {one.seconds:.2f} | {one.mb_per_s:.0f} |"
            for one in figures
        ),
        "",
        f"Arrow beside row tuples: {seconds['noop-tuples'] / seconds['noop']:.1f} times.",
        "",
        END,
    ]
    before, rest = text.split(BEGIN, 1)
    path.write_text(before + "\n".join(part) + rest.split(END, 1)[1], "utf-8")


def _document(one: Figure) -> dict[str, Any]:
    return {
        "case": one.case,
        "rows": one.rows,
        "size": one.size,
        "seconds": round(one.seconds, 2),
        "mb_per_s": round(one.mb_per_s, 1),
    }


@contextlib.contextmanager
def _cluster() -> Iterator[str]:
    """`paceline up` on free ports, three brokers; its addresses. All gone afterwards."""
    folder = tempfile.mkdtemp(prefix="paceline-spark-bench-cluster")
    command = [sys.executable, "-m", "paceline.cli.main", "up", "--json", "--port", "0"]
    launcher = subprocess.Popen(
        [*command, "--data-dir", folder, "--no-restart"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            state = orjson.loads(line)
            if state["event"] == "ready":
                yield ",".join(state["bootstrap"])
                break
        else:
            raise ConfigError("the cluster did not start; see the lines above")
    finally:
        launcher.terminate()
        launcher.communicate()
        shutil.rmtree(folder, ignore_errors=True)


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
            await admin.topics.create(topic, queues=QUEUES)
        except TopicExistsError:
            return False
        return True


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PacelineError as error:
        sys.exit(f"paceline: {error.message}")
