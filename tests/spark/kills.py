"""`python -m tests.spark.kills --export 20 --stream 10 --sink 10`: the kills of docs/BENCHMARKS.md.

Kills an export, a query that reads and a query that writes at random moments, and masters with
them, on a cluster of its own, while new messages come; then counts: nothing lost, nothing twice.
"""

import argparse
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from tests.spark.programs import Program, Running
from tests.spark.topics import Topics
from tests.support.process.harness import paceline_command, running_cluster

from paceline.platform.runtime import SystemClock

STARTING_S = (3.0, 14.0)
"""From before the first task on, on two cores."""
WORKING_S = (0.0, 6.0)
"""Once it has begun: to after the last file."""
BEGIN_MS_MAX = 120_000
POLL_S = 0.02
CLOCK = SystemClock()
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


class Kills:
    """Kills programs one after another, and counts."""

    def __init__(self, topics: Topics, dice: random.Random, count: int) -> None:
        self._topics = topics
        self._dice = dice
        self._count = count
        self.done = 0
        self.masters = 0

    @property
    def is_over(self) -> bool:
        return self.done >= self._count

    def kill(self, running: Running, progress: Callable[[], object]) -> None:
        """Kill it at a moment: most of them in the middle of its work, which has begun when
        `progress` changes; some while it starts. Now and then the master besides."""
        before = progress()
        with contextlib.closing(running):
            if self._dice.random() < 0.75:
                end = CLOCK.monotonic_ms() + BEGIN_MS_MAX
                while progress() == before and running.process.poll() is None:
                    assert CLOCK.monotonic_ms() < end, "it never began: " + running.said()
                    threading.Event().wait(POLL_S)
                self._wait(running, self._dice.uniform(*WORKING_S))
            else:
                self._wait(running, self._dice.uniform(*STARTING_S))
            if self._dice.random() < 0.3:
                self._topics.kill(self._topics.master())
                self.masters += 1
            if running.process.poll() is None:
                running.kill()
                self.done += 1

    def _wait(self, running: Running, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(seconds)


def export(topics: Topics, folder: Path, count: int, dice: random.Random) -> int:
    topic = topics.make("kills-export", queues=8)
    to = folder / "export"
    command = ["export", "--topic", topic, "--to", str(to), "--bootstrap", topics.endpoints]
    arguments = paceline_command(*command, "--master", "local[2]", "--json")
    bodies: list[str] = []
    kills = Kills(topics, dice, count)
    while not kills.is_over:
        bodies += topics.fill(topic, ROWS, first=len(bodies), size=600)
        kills.kill(Running(arguments), lambda: sorted((to / "_paceline").glob("*.json")))
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
    kills = Kills(topics, dice, count)
    while not kills.is_over:
        bodies += topics.fill(source, ROWS, first=len(bodies), size=200)
        kills.kill(program.start(), lambda: sorted((folder / "state").glob("offsets/*")))
    with contextlib.closing(program.start()) as last:
        assert last.wait(300) == 0, last.said()
    found = Counter(message.body.decode() for message in topics.read(target, len(bodies)))
    return told("read and write", kills, Counter(dict.fromkeys(bodies, 1)), found)


def told(what: str, kills: Kills, wanted: "Counter[str]", found: "Counter[str]") -> int:
    lost, more = wanted - found, found - wanted
    sys.stdout.write(
        f"{what}: {kills.done} kills, and {kills.masters} of masters, {wanted.total():,} messages,"
        f" {lost.total():,} lost, {more.total():,} too many\n"
    )
    sys.stdout.flush()
    return lost.total() + more.total()


if __name__ == "__main__":
    sys.exit(main())
