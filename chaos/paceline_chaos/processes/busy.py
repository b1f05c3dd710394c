"""`paceline chaos busy`: does anybody stop a master, or change the leader, on a busy machine?

A cluster of real processes beside busy loops, while every sync takes a while. Operators make topics
and a producer sends all the time; at the end the leading controller is killed. What the controllers
did is read from their logs.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline import Message, Producer
from paceline.admin.client import AdminClient
from paceline.errors import DeadlineError, PacelineError
from paceline.platform.runtime import SeededRandom, SystemClock, cancel_and_wait, pause, spawn
from paceline_chaos.processes.cluster import Cluster
from paceline_chaos.processes.node.fork_server import ForkServer
from paceline_chaos.processes.specs import ClusterSpec
from paceline_chaos.processes.watch import Tail

LEADER_CHANGES_MAX = 2
ASKED_MS_MAX = 5_000
NOTICED_MS_MAX = 2_000
"""Goals: of a run of ten minutes with eight loops on two cores."""
SYNC_MS_MIN, SYNC_MS_MAX = 200, 1_500
SYNC_REDRAWN_MS = 300
OPERATORS = 2
ASK_INTERVAL_MS = 500
SEND_INTERVAL_MS = 100
BODY = b"x" * 1000
READY_TIMEOUT_MS, NEXT_LEADER_TIMEOUT_MS = 60_000, 30_000
_POLL_MS = 50
_SHOWN_FAILURES_MAX = 5
_LOOP = "while True: pass"
_EVENTS = frozenset({"raft_leadership", "raft_link_down", "master_elected"})


@dataclass(slots=True, kw_only=True)
class Figures:
    """What one run came to."""

    seconds: float
    loops: int
    leader_changes: int = 0
    masters_replaced: int = 0
    topics: int = 0
    """Made, each by an admin call of its own."""
    topic_ms_max: int = 0
    sends: int = 0
    send_ms_max: int = 0
    noticed_ms: int | None = None
    """From the kill of the leader until another controller knew; None: none said so."""
    next_leader_ms: int | None = None
    failures: list[str] = field(default_factory=list)
    """Of admin calls and sends."""

    @property
    def is_met(self) -> bool:
        """Whether the goals are."""
        return (
            self.leader_changes <= LEADER_CHANGES_MAX
            and self.masters_replaced == 0
            and not self.failures
            and self.topics > 0
            and self.topic_ms_max <= ASKED_MS_MAX
            and self.sends > 0
            and self.noticed_ms is not None
            and self.noticed_ms <= NOTICED_MS_MAX
            and self.next_leader_ms is not None
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_met": self.is_met}


class Busy:
    """One run on a cluster whose nodes have been started; `run` once."""

    def __init__(self, cluster: Cluster, figures: Figures) -> None:
        self._cluster = cluster
        self._bootstrap = ",".join(cluster.bootstrap)
        self._clock = SystemClock()
        self._tails = [Tail(node.log_path) for node in cluster.controllers]
        self._said: list[dict[str, Any]] = []
        """Lines of all controllers' logs of the events that count."""
        self.figures = figures

    async def run(self) -> None:
        figures = self.figures
        await self._ready()
        began_ms = self._clock.unix_ms()
        with _busy_loops(figures.loops):
            slow_disks = spawn(self._slow_disks(), name="slow-disks")
            try:
                await self._use(self._clock.monotonic_ms() + int(figures.seconds * 1000))
                figures.leader_changes = len(self._led(began_ms))
                figures.masters_replaced = len(
                    {line["index"] for line in self._lines("master_elected", began_ms)}
                )
                await self._kill_leader()
            finally:
                await cancel_and_wait(slow_disks)

    async def _ready(self) -> None:
        """All are in sync, and there is a topic."""
        deadline_ms = self._clock.monotonic_ms() + READY_TIMEOUT_MS
        async with AdminClient(self._bootstrap) as admin:
            while self._clock.monotonic_ms() < deadline_ms:
                with contextlib.suppress(PacelineError):
                    groups = (await admin.cluster_status())["groups"]
                    if groups and len(groups[0]["sync_state_set"]) == self._cluster.spec.brokers:
                        await admin.topics.create("busy", queues=4)
                        return
                await pause(_POLL_MS)
        raise DeadlineError(
            f"the cluster was not ready in time: see the logs in {self._cluster.folder}"
        )

    async def _slow_disks(self) -> None:
        random = SeededRandom("busy")
        while True:
            for node in self._cluster.nodes.values():
                node.control.set("sync_delay_ms", int(random.uniform(SYNC_MS_MIN, SYNC_MS_MAX)))
            await pause(SYNC_REDRAWN_MS)

    # -- who uses the cluster

    async def _use(self, stop_ms: int) -> None:
        operators = [self._make_topics(number, stop_ms) for number in range(OPERATORS)]
        await asyncio.gather(*operators, self._send(stop_ms))

    async def _make_topics(self, operator: int, stop_ms: int) -> None:
        figures = self.figures
        async with AdminClient(self._bootstrap) as admin:
            number = 0
            while self._clock.monotonic_ms() < stop_ms:
                number += 1
                made = admin.topics.create(f"busy-{operator}-{number}", queues=2)
                took_ms = await self._timed(made)
                if took_ms is not None:
                    figures.topics += 1
                    figures.topic_ms_max = max(figures.topic_ms_max, took_ms)
                await pause(ASK_INTERVAL_MS)

    async def _send(self, stop_ms: int) -> None:
        figures = self.figures
        async with Producer(self._bootstrap) as producer:

            async def send_one() -> None:
                took_ms = await self._timed(producer.send(Message("busy", BODY)))
                if took_ms is not None:
                    figures.sends += 1
                    figures.send_ms_max = max(figures.send_ms_max, took_ms)

            async with asyncio.TaskGroup() as sends:
                while self._clock.monotonic_ms() < stop_ms:
                    sends.create_task(send_one())
                    await pause(SEND_INTERVAL_MS)

    async def _timed(self, asked: Awaitable[Any]) -> int | None:
        """How long it took; None: it failed, which is kept."""
        began_ms = self._clock.monotonic_ms()
        try:
            await asked
        except PacelineError as error:
            self.figures.failures.append(f"{error.code}: {error.message}")
            return None
        return self._clock.monotonic_ms() - began_ms

    # -- what the controllers said

    async def _kill_leader(self) -> None:
        """kill -9 of the leader, on the same disks: when others knew, and when one led."""
        leader = self._cluster.nodes[self._led(0)[-1]["node"].removeprefix("controller:")]
        killed_ms = self._clock.unix_ms()
        self._cluster.kill(leader)
        deadline_ms = self._clock.monotonic_ms() + NEXT_LEADER_TIMEOUT_MS
        while not (led := self._led(killed_ms)) and self._clock.monotonic_ms() < deadline_ms:
            await pause(_POLL_MS)
        self.figures.next_leader_ms = led[0]["unix_ms"] - killed_ms if led else None
        noticed = [
            line["unix_ms"]
            for line in self._lines("raft_link_down", killed_ms)
            if line["peer"] == leader.name
        ]
        self.figures.noticed_ms = min(noticed) - killed_ms if noticed else None

    def _led(self, since_ms: int) -> list[dict[str, Any]]:
        """Each controller that has begun to lead since then, in order."""
        lines = self._lines("raft_leadership", since_ms)
        return [line for line in lines if line["is_leader"]]

    def _lines(self, event: str, since_ms: int) -> list[dict[str, Any]]:
        for tail in self._tails:
            self._said += [line for line in tail.lines() if line["event"] in _EVENTS]
        found = [one for one in self._said if one["event"] == event and one["unix_ms"] >= since_ms]
        return sorted(found, key=lambda line: line["unix_ms"])


@contextlib.contextmanager
def _busy_loops(count: int) -> Iterator[None]:
    processes = [
        subprocess.Popen([sys.executable, "-c", _LOOP], stdin=subprocess.DEVNULL)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(seconds: float, folder: Path, *, loops: int) -> Figures:
    """Start a cluster in `folder`, measure, end it. Not from within a running loop."""
    server = ForkServer()  # before there is a loop, a thread or a node
    cluster = Cluster(
        folder / "data", ClusterSpec(segment_size_bytes=64 << 20), server, has_shadow=False
    )
    busy = Busy(cluster, Figures(seconds=seconds, loops=loops))
    try:
        for node in cluster.nodes.values():
            cluster.start(node)
        asyncio.run(busy.run())
    finally:
        cluster.kill_all()
        server.close()
    return busy.figures


def told(figures: Figures) -> str:
    """For people."""

    def took(value_ms: int | None) -> str:
        return "not at all" if value_ms is None else f"after {value_ms} ms"

    lines = [
        f"{figures.loops} busy loops and syncs of {SYNC_MS_MIN} to {SYNC_MS_MAX} ms "
        f"for {figures.seconds:g} s",
        f"{figures.leader_changes} changes of leader, {figures.masters_replaced} masters replaced",
        f"{figures.topics} topics made, the slowest in {figures.topic_ms_max} ms; "
        f"{figures.sends} sends, the slowest in {figures.send_ms_max} ms",
        f"kill -9 of the leader: noticed {took(figures.noticed_ms)}, "
        f"the next one leads {took(figures.next_leader_ms)}",
    ]
    lines += figures.failures[:_SHOWN_FAILURES_MAX]
    if len(figures.failures) > _SHOWN_FAILURES_MAX:
        lines.append(f"and {len(figures.failures) - _SHOWN_FAILURES_MAX} more")
    return "\n".join([*lines, f"goals {'met' if figures.is_met else 'NOT met'}"])
