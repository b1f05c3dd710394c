"""The flights example, what docs/SPARK.md shows, and an export by a standalone master."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
from tests.spark.topics import Topics
from tests.support.process.examples import (
    ADDRESS_IN_DOCUMENTS,
    fenced_blocks,
    reader_folder,
    run_line,
)

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300


def run(arguments: list[str], **environment: str) -> str:
    finished = subprocess.run(
        arguments,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **environment},
    )
    assert finished.returncode == 0, (finished.stdout + finished.stderr).decode()[-3000:]
    return finished.stdout.decode()


def test_delays_of_flights_are_those_of_the_source_file(topics: Topics) -> None:
    program = str(ROOT / "docs/examples/flights.py")
    few = ["--bootstrap", topics.endpoints, "--rows", "3000"]

    said = run([sys.executable, program, *few])

    assert "carriers, equal to the figures of the source file" in said

    # In a notebook, where the topic is there from before.
    said = run([sys.executable, "-m", "tests.spark.notebook", program, topics.endpoints])

    assert "16 carriers, equal to the figures of the source file" in said
    # The picture in the documents shows these figures.
    picture = (ROOT / "docs/examples/flights.svg").read_text().replace("\N{MINUS SIGN}", "-")
    means = re.findall(r"^(\w\w) .* (-?[0-9.]+) minutes late$", said, re.MULTILINE)
    assert len(means) == 16
    assert [one for one in means if f">{one[0]} {one[1]}<" not in picture] == []


def test_programs_and_command_of_the_page_run(spark: Any, topics: Topics, tmp_path: Path) -> None:
    """Those that begin with "from pyspark.sql import SparkSession" and `def copy(`."""
    topics.fill(topics.make("orders"), 200)
    topics.make("copies")
    programs = [one.text for one in fenced_blocks("docs/SPARK.md") if one.language == "python"]
    export = "paceline export --topic orders --to /data/orders --partition-by dt --verify"

    read: dict[str, Any] = {}
    for text in programs:
        exec(text.replace(ADDRESS_IN_DOCUMENTS, topics.endpoints), read)
    read["copy"](read["orders"])
    command = export.replace("/data", str(tmp_path))
    run_line(command, reader_folder(tmp_path), [topics.endpoints], timeout_s=TIMEOUT_S)

    assert len(programs) == 2
    assert read["orders"].count() == len(topics.read("copies", 200)) == 200
    assert list((tmp_path / "orders/data").rglob("dt=*/*.parquet"))


def test_standalone_master_with_two_workers_exports(topics: Topics, tmp_path: Path) -> None:
    topic = topics.make("standalone")
    topics.fill(topic, 3000)
    script = str(ROOT / "deploy/spark/standalone.sh")
    arguments = ["bash", script, topics.endpoints, topic, str(tmp_path / "out"), "--verify"]

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = run(arguments, PYTHON=sys.executable, SPARK_MASTER_PORT=str(port))

    summary = orjson.loads(said.strip().splitlines()[-1])
    assert (summary["rows"], summary["faults"], summary["verified_rows"]) == (3000, [], 3000)
