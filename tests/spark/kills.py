"""`python -m tests.spark.kills --export 20 --stream 10 --sink 10`: the kills of docs/BENCHMARKS.md.

Kills an export, a query that reads and a query that writes at random moments, and masters with
them, on a cluster of its own, while new messages come; then counts: nothing lost, nothing twice.
"""

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from tests.process.harness import paceline_command, running_cluster
from tests.spark.programs import Program, Running
from tests.spark.topics import Topics

DELAY_S = (3.0, 14.0)
"""From before the first task to after the last file, on two cores."""
ROWS = 2000


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill Spark programs and count.")
    parser.add_argument("--export", type=int, default=20)
    parser.add_argument("--stream", type=int, default=10)
    parser.add_argument("--sink", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    found = parser.parse_args()
    dice = random.Random(found.seed)
    folder = Path(tempfile.mkdtemp(prefix="paceline-kills"))
    bad = 0
    try:
        with running_cluster(folder / "data", restart=True) as cluster:
            topics = Topics(cluster)
            if found.export:
                bad += export(topics, folder, found.export, dice)
            if found.stream or found.sink:
                bad += copy(topics, folder, found.stream + found.sink, dice)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


def killed(program: list[str] | Program, dice: random.Random, topics: Topics) -> bool:
    """Start it, kill it after a while; now and then the master besides. False: it ended before."""
    running = program.start() if isinstance(program, Program) else Running(program)
    with contextlib.closing(running):
        threading.Event().wait(dice.uniform(*DELAY_S))
        if dice.random() < 0.25:
            topics.kill(topics.master())
        if running.process.poll() is None:
            running.kill()
            return True
    return False


def export(topics: Topics, folder: Path, count: int, dice: random.Random) -> int:
    topic = topics.make("kills-export", queues=8)
    to = folder / "export"
    command = ["export", "--topic", topic, "--to", str(to), "--bootstrap", topics.endpoints]
    arguments = paceline_command(*command, "--master", "local[2]", "--json")
    bodies: list[str] = []
    kills = 0
    while kills < count:
        bodies += topics.fill(topic, ROWS, first=len(bodies), size=600)
        kills += killed(arguments, dice, topics)
    with contextlib.closing(Running([*arguments, "--verify"])) as last:
        assert last.wait(300) == 0, last.said()
    table = pq.read_table(to / "data", columns=["body"])
    found = Counter(bytes(body).decode() for body in table["body"].to_pylist())
    return told("export", kills, Counter(dict.fromkeys(bodies, 1)), found)


def copy(topics: Topics, folder: Path, count: int, dice: random.Random) -> int:
    """One query reads a topic and writes another: both ends are killed with it."""
    source, target = topics.make("kills-from"), topics.make("kills-to")
    program = Program("copy_stream", topics.endpoints, source, target, str(folder / "state"))
    bodies: list[str] = []
    kills = 0
    while kills < count:
        bodies += topics.fill(source, ROWS, first=len(bodies), size=200)
        kills += killed(program, dice, topics)
    with contextlib.closing(program.start()) as last:
        assert last.wait(300) == 0, last.said()
    found = Counter(message.body.decode() for message in topics.read(target, len(bodies)))
    return told("read and write", kills, Counter(dict.fromkeys(bodies, 1)), found)


def told(what: str, kills: int, wanted: "Counter[str]", found: "Counter[str]") -> int:
    lost, more = wanted - found, found - wanted
    sys.stdout.write(
        f"{what}: {kills} kills, {wanted.total():,} messages, {lost.total():,} lost,"
        f" {more.total():,} too many\n"
    )
    sys.stdout.flush()
    return lost.total() + more.total()


if __name__ == "__main__":
    sys.exit(main())
