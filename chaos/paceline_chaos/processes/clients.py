"""The clients of a run: the workload of `paceline_chaos.cluster_sim.workload` on real sockets.

Each client has an address of its own, so that its links can be cut. All live in the harness's
process and on its loop: what stalls the harness stalls them, and is recorded (watch.py).
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import CorruptLogError, PacelineError
from paceline.net.cluster import Cluster
from paceline.net.connect import ClientTls
from paceline.platform.runtime import SeededRandom, SystemClock, cancel_and_wait, spawn
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.reading import pull_http
from paceline_chaos.cluster_sim.rights.securing import credentials_of
from paceline_chaos.cluster_sim.workload import TOPIC, create_topic, run_client
from paceline_chaos.history.entering import are_acknowledged
from paceline_chaos.history.model import Queue
from paceline_chaos.history.recorder import Recorder, RecorderOf
from paceline_chaos.processes.cluster import HARNESS_HOST, Node
from paceline_chaos.processes.security import key_of
from paceline_chaos.processes.specs import LoadSpec

DRAIN = "drain"
"""The client that reads everything in the end."""
_FIRST_HOST = 101
END_TIMEOUT_MS = 20_000
"""Covers the delivery timeout of the workload's producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundAround(Around):
    """The surroundings of a client whose connections start from an address of its own."""

    source_host: str


class Clients:
    """All clients of one run."""

    def __init__(
        self,
        load: LoadSpec,
        recorder: Recorder,
        bootstrap: Sequence[str],
        *,
        seed: str,
        node_names: Mapping[str, str],
        brokers: Sequence[tuple[str, str]],
        tls: ClientTls | None,
    ) -> None:
        """`tls`: of a secure cluster, in which each has a key (`security.secure`); None: of one
        that is open."""
        self._load = load
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []
        self.errors: list[BaseException] = []
        """What no client may raise."""
        self._arounds: list[tuple[str, BoundAround]] = []
        self._recorder = recorder
        keys: dict[str, list[str]] = {}
        jobs = [job for job, count in load.clients.items() for _ in range(count)]
        for number, job in enumerate(jobs, start=1):
            name, host = f"client-{number}", f"127.0.0.{_FIRST_HOST + number}"
            around = BoundAround(
                client=name,
                bootstrap=bootstrap,
                recorder=recorder
                if tls is None
                else RecorderOf(recorder, access_key=key_of(name), source=host),
                clock=SystemClock(),
                random=SeededRandom(f"{seed}-{name}"),
                seed=str(seed),
                topic=TOPIC,
                body_bytes_max=load.body_bytes_max,
                think_ms=load.think_ms,
                is_over=lambda: self._is_over,
                node_names=node_names,
                brokers=brokers,
                credentials=None if tls is None else credentials_of(key_of(name)),
                tls=tls,
                keys=keys,
                source_host=host,
            )
            self._arounds.append((job, around))

    @property
    def hosts(self) -> dict[str, str]:
        """Client -> its address."""
        return {around.client: around.source_host for _, around in self._arounds}

    async def prepare(self) -> None:
        """Make the topic."""
        await create_topic(self._arounds[0][1], queues=self._load.queues)

    def start(self) -> None:
        for job, around in self._arounds:
            self._tasks.append(spawn(self._run(job, around), name=around.client))

    async def _run(self, job: str, around: BoundAround) -> None:
        try:
            await run_client([job], around)
        except Exception as error:  # the top frame of a client: the verdict tells it
            self.errors.append(error)

    async def finish(self) -> bool:
        """Begin nothing new, and wait for what goes on; whether all ended in time."""
        self._is_over = True
        if not self._tasks:
            return True
        _, late = await asyncio.wait(self._tasks, timeout=END_TIMEOUT_MS / 1000)
        await cancel_and_wait(*late)
        return not late

    def are_acknowledged(self, since_us: int) -> bool:
        """Whether every sender had something acknowledged that it asked for since then."""
        senders = {around.client for job, around in self._arounds if job == "send"}
        return are_acknowledged(self._recorder.history, senders, since_us=since_us)

    async def read_everything(self, brokers: Sequence[Node]) -> dict[str, str]:
        """Every queue from every broker, from the first message to the last; recorded as pulls.

        Brokers that call their own log damaged and show no more of it -> what they say. Repair is
        a later feature; whether others show everything is for the checkers to say.
        """
        damaged: dict[str, str] = {}
        around = dataclasses.replace(
            self._arounds[0][1], client=DRAIN, is_over=lambda: False, source_host=HARNESS_HOST
        )
        cluster = around.cluster()
        try:
            async with asyncio.TaskGroup() as group:
                for node in brokers:
                    for number in range(self._load.queues):
                        queue = Queue(TOPIC, node.group, number)
                        group.create_task(_read_queue(cluster, around, node, queue, damaged))
        finally:
            await cluster.close()
        return damaged

    async def abort(self) -> None:
        await cancel_and_wait(*self._tasks)


async def _read_queue(
    cluster: Cluster, around: Around, node: Node, queue: Queue, damaged: dict[str, str]
) -> None:
    offset = 0
    while True:
        rows = await pull_http(cluster, around, node.address, queue, offset, f"drain/{node.name}")
        if isinstance(rows, CorruptLogError):
            damaged[node.name] = rows.message
            return
        if isinstance(rows, PacelineError):
            await around.think()
        elif not rows:
            return
        else:
            offset = rows[-1].offset + 1
