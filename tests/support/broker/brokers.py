"""Roles of brokers without a process: real stores on memory disks, real replication sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from tests.support.replication.builders import a_view
from tests.support.replication.nodes import GROUP, SECRETS, eventually

from paceline.platform.address import Address
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom, SystemClock
from paceline.platform.telemetry import Node
from paceline.records.encode import encode_batch
from paceline.records.header import HEADER_BYTES, parse_header, stamp
from paceline.security.node_tls import Dial
from paceline.types import Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire import session as wire
from paceline.wire.cluster import ClusterView, GroupView, ReplicaView
from paceline_broker.config import BrokerConfig
from paceline_broker.replication.master.server import ReplicationServer
from paceline_broker.role.context import RoleContext
from paceline_broker.role.duties import register
from paceline_broker.role.mastership import Mastership
from paceline_broker.role.role import BrokerRole
from paceline_broker.storage.identity import StoreIdentity
from paceline_broker.storage.store import lock_data_folder, open_store

CLUSTER = "c"
UNIX_MS = 1_700_000_000_000
DATA = "/data"
SEGMENT_BYTES = 64 * 1024

__all__ = ["CLUSTER", "GROUP", "Broker", "FakeControllers", "eventually"]


class FakeControllers:
    """Takes every request; answers with `result`."""

    def __init__(self) -> None:
        self.requests: list[wire.BrokerCommand] = []
        self.result: dict[str, Any] = {"ok": True, "cluster_id": CLUSTER, "replica_id": 1}
        self.beats = 0

    def beat(self) -> None:
        self.beats += 1

    async def request(self, command: wire.BrokerCommand) -> dict[str, Any]:
        self.requests.append(command)
        return dict(self.result)


class Broker:
    """One start of replica `number` on `disk`."""

    def __init__(self, number: int = 1, *, disk: MemoryDisk | None = None) -> None:
        self.number = ReplicaId(number)
        self.disk = disk or MemoryDisk()
        self.controllers = FakeControllers()
        random = SeededRandom(f"broker-{number}")
        lock = lock_data_folder(self.disk, DATA)
        self.identity = StoreIdentity(self.disk, DATA)
        self.identity.begin_incarnation(group=GROUP, boot_id="boot", random=random)
        self.store = open_store(
            self.disk, DATA, lock=lock, identity=self.identity, segment_size_bytes=SEGMENT_BYTES
        )
        self.server = ReplicationServer(group=GROUP, secrets=SECRETS, random=random)
        self.port = 0
        self.fatal: str | None = None
        self.config = BrokerConfig(
            group=GROUP,
            data_dir=DATA,
            secret_file="unused",
            controllers=("127.0.0.1:1",),
            listen=Address("127.0.0.1", 0),
            replication_listen=Address("127.0.0.1", 0),
        )
        self.role = BrokerRole(
            RoleContext(
                listener=self,
                config=self.config,
                secrets=SECRETS,
                dial=Dial(),
                store=self.store,
                server=self.server,
                links=self.controllers,
                probe=_never_gone,
                clock=SystemClock(),
                random=random,
                node=Node(name="test"),
            )
        )

    def role_changed(self) -> None: ...

    def view_changed(self, view: ClusterView) -> None: ...

    def refuse(self, sentence: str) -> None:
        self.fatal = sentence

    async def start(self, *, is_registered: bool = True) -> None:
        self.port = await self.server.start("127.0.0.1", 0)
        self.role.start()
        if is_registered:
            self.register()

    def register(self) -> None:
        self.identity.join_cluster(cluster_id=CLUSTER, replica_id=self.number)
        self.role.registered()

    async def stop(self) -> None:
        await self.role.stop()
        await self.server.stop()

    @asynccontextmanager
    async def running(self, *, is_registered: bool = True) -> AsyncIterator["Broker"]:
        await self.start(is_registered=is_registered)
        try:
            yield self
        finally:
            await self.stop()

    @property
    def mastership(self) -> Mastership:
        assert self.role.mastership is not None
        return self.role.mastership

    def send(self, body: bytes = b"hello") -> PhysicalOffset:
        """Append and fold one batch, as the service does; its end."""
        writer, projections = self.mastership, self.role.projections
        batch = encode_batch([body], born_unix_ms=UNIX_MS, topic_id=1, queue_id=0)
        now = max(UNIX_MS, projections.log_time_ms)
        queue = projections.consume_queues.get_or_make(1 << 16)
        header = stamp(
            batch,
            physical_offset=writer.end,
            base_queue_offset=queue.end,
            store_unix_ms=now,
            master_epoch=writer.epoch,
        )
        end = writer.append(header, memoryview(batch)[HEADER_BYTES:])
        projections.fold_messages(parse_header(batch), queue, queue.end, now)
        return end


async def registered(broker: Broker) -> None:
    """Register its store as a process does when it starts."""
    await register(
        links=cast(Any, broker.controllers),
        store=broker.store,
        config=broker.config,
        boot_id="boot",
        random=SeededRandom("register"),
        client_address="127.0.0.1:1",
        replication_address="127.0.0.1:2",
    )


def a_group(*brokers: Broker, **changes: Any) -> GroupView:
    """`a_view` in which these brokers stand as they are: store, incarnation, port."""
    view = a_view(**changes)
    replicas = dict(view.replicas)
    for broker in brokers:
        known = broker.identity.identity
        replicas[broker.number] = ReplicaView(
            replica_id=broker.number,
            store_id=known.store_id,
            incarnation=known.incarnation,
            client_address="127.0.0.1:1",
            replication_address=f"127.0.0.1:{broker.port}",
        )
    master = None if view.master is None else replicas[view.master].incarnation
    return replace(view, replicas=replicas, master_incarnation=master)


def tell(group: GroupView, version: int, *brokers: Broker) -> None:
    """A controller pushes this view to these brokers."""
    view = ClusterView(cluster_id=CLUSTER, version=version, groups={GROUP: group})
    for broker in brokers:
        broker.role.view_arrived(view)


def epoch_of(broker: Broker) -> MasterEpoch:
    return broker.role.epoch


def incarnation(number: int) -> Incarnation:
    return Incarnation(number)


async def _never_gone(replica: ReplicaView) -> bool:
    return False
