"""Exports in the session of the tests, without a JVM for each; and as the command runs them."""

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
from tests.spark.topics import Topics
from tests.support.process.harness import paceline_command

from paceline.spark.export.command import Work, carry_out_in
from paceline.spark.export.run import ExportOrder

TIMEOUT_S = 180
MIB = 1024 * 1024


def export(
    spark: Any,
    topics: Topics,
    topic: str,
    to: Path,
    *,
    is_compact: bool = False,
    is_verify: bool = False,
    options: dict[str, str] | None = None,
    **order: Any,
) -> dict[str, Any]:
    """What `paceline export` does once Spark has started; the summary."""
    given = {"endpoints": topics.endpoints, "topics": topic, **(options or {})}
    work = Work(
        order=ExportOrder(to=to, options=given, **order),
        master=None,
        is_compact=is_compact,
        is_verify=is_verify,
        file_bytes=256 * MIB,
    )
    return carry_out_in(spark, work, tell=lambda what: None)


def arguments(topics: Topics, topic: str, to: Path, *more: str) -> list[str]:
    """The command line of an export."""
    fixed = ["export", "--topic", topic, "--to", str(to), "--bootstrap", topics.endpoints]
    return paceline_command(*fixed, "--master", "local[2]", "--json", *more)


def run_export(topics: Topics, topic: str, to: Path, *more: str, code: int = 0) -> dict[str, Any]:
    """Run `paceline export --json`; the summary, or the problem."""
    finished = subprocess.run(
        arguments(topics, topic, to, *more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == code, finished.stderr.decode()[-3000:]
    said = finished.stdout if code == 0 else finished.stderr
    document: dict[str, Any] = orjson.loads(said.strip().splitlines()[-1])
    return document


def bodies_in(folder: Path) -> Counter[str]:
    """By a reader that knows nothing of manifests."""
    if not any((folder / "data").rglob("*.parquet")):
        return Counter()
    table = pq.read_table(folder / "data", columns=["body"])
    return Counter(bytes(body).decode() for body in table["body"].to_pylist())
