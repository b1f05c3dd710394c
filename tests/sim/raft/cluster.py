"""Three `RaftQuorum`s in this process, on loopback sockets and this machine's disk."""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import orjson

from paceline.cli.local.free_ports import free_ports
from paceline.errors import NotLeaderError, OutcomeUnknownError
from paceline.platform.disk_real import RealDisk
from paceline.platform.ports import Disk
from paceline.platform.runtime import SystemClock, SystemRandom, pause
from paceline.platform.secret import ClusterSecrets
from paceline.security.node_tls import NodeTls
from paceline.types import ControllerId
from paceline_controller.quorum import Command, Event, Result
from paceline_controller.raft.host import RaftQuorum
from paceline_controller.raft.settings import RaftSettings

SECRET = b"cluster secret"
SECRETS = ClusterSecrets(SECRET)
NAMES = [ControllerId(f"c{number}") for number in (1, 2, 3)]


class ListMachine:
    """A list that commands append to."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def apply(self, command: Command, *, index: int) -> tuple[Result, list[Event]]:
        self.values.append(command["value"])
        return {"ok": True, "count": len(self.values)}, [{"appended": command["value"]}]

    def snapshot(self) -> bytes:
        return orjson.dumps(self.values)

    def restore(self, snapshot: bytes) -> None:
        self.values = orjson.loads(snapshot)

    def digest(self) -> str:
        return hashlib.sha256(self.snapshot()).hexdigest()

    def digest_of_part(self, number: int) -> str:
        return self.digest()


class Cluster:
    """Nodes by name; `machines` and `failures` beside them."""

    def __init__(self, folder: str, *, settings: RaftSettings | None = None) -> None:
        self.folder = folder
        self.settings = settings
        self.addresses = dict(zip(NAMES, _free_addresses(len(NAMES)), strict=True))
        self.nodes: dict[ControllerId, RaftQuorum] = {}
        self.machines: dict[ControllerId, ListMachine] = {}
        self.failures: dict[ControllerId, Exception] = {}
        self._killed: list[RaftQuorum] = []

    def make(
        self,
        name: ControllerId,
        *,
        secrets: ClusterSecrets = SECRETS,
        cluster_name: str = "test",
        disk: Disk | None = None,
        tls: NodeTls | None = None,
    ) -> RaftQuorum:
        machine = self.machines[name] = ListMachine()
        node = self.nodes[name] = RaftQuorum(
            machine,
            controller_id=name,
            listen=self.addresses[name],
            peers=self.addresses,
            data_folder=f"{self.folder}/{name}",
            disk=disk or RealDisk(),
            clock=SystemClock(),
            random=SystemRandom(),
            secrets=secrets,
            source_host="127.0.0.1",
            cluster_name=cluster_name,
            settings=self.settings,
            tls=tls,
            on_fatal=lambda error: self._failed(name, error),
        )
        return node

    def _failed(self, name: ControllerId, error: Exception) -> None:
        if not isinstance(error, ConnectionAbortedError):
            self.failures[name] = error

    async def start(self, *names: ControllerId) -> None:
        for name in names or NAMES:
            await self.make(name).start()

    def spare_address(self) -> tuple[str, int]:
        """Of a controller to come."""
        return _free_addresses(1)[0]

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in [*self.nodes.values(), *self._killed]))

    def kill(self, name: ControllerId) -> None:
        """Cut every connection and stop ticking, as far as one process can die inside another."""
        node = self.nodes.pop(name)
        node.failed(ConnectionAbortedError("killed by the test"))
        self._killed.append(node)

    async def leader(self) -> RaftQuorum:
        """The established leader, as soon as there is one."""
        await eventually(lambda: any(node.status().is_leader for node in self.nodes.values()))
        return next(node for node in self.nodes.values() if node.status().is_leader)

    def name_of(self, node: RaftQuorum) -> ControllerId:
        return next(name for name, other in self.nodes.items() if other is node)

    async def write(self, value: Any) -> Result:
        """Propose at whoever leads, until it is taken."""
        while True:
            leader = await self.leader()
            try:
                return await leader.propose({"value": value}, timeout_ms=1_000)
            except (NotLeaderError, OutcomeUnknownError):
                await pause(5)

    async def settled(self) -> None:
        """All running nodes have applied the same."""
        await self.write("settled")
        await eventually(lambda: len({m.digest() for m in self.running_machines()}) == 1)

    def running_machines(self) -> list[ListMachine]:
        return [self.machines[name] for name in self.nodes]


async def eventually(condition: Callable[[], bool], *, limit_ms: int = 10_000) -> None:
    """Wait until the condition holds; fails after `limit_ms`."""
    async with asyncio.timeout(limit_ms / 1000):
        while not condition():
            await pause(2)


def _free_addresses(count: int) -> list[tuple[str, int]]:
    return [("127.0.0.1", port) for port in free_ports(count, host="127.0.0.1")]
