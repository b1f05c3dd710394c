"""Two broker groups: g1 has only an acting master, g2 a master, and a real connection between."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tests.support.http.door import a_batch
from tests.support.service.fakes import GROUP, Bench, a_view, until
from tests.support.service.send import Answers

from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom, cancel_and_wait, spawn
from paceline.platform.secret import ClusterSecrets
from paceline.records.decode import BatchView
from paceline.records.header import Cause, Kind
from paceline.security.node_tls import Dial
from paceline.types import GroupName, Incarnation, ReplicaId
from paceline.wire.cluster import ClusterView, GroupView
from paceline.wire.messages import Nonce
from paceline.wire.names import retry_topic
from paceline_broker.escape.bridge import Bridge
from paceline_broker.escape.connection import EscapeConnection, Sender
from paceline_broker.escape.notes_file import NotesFile
from paceline_broker.escape.session import EscapeSession
from paceline_broker.escape.telling import SentReporter
from paceline_broker.ports import Acting, Identity
from paceline_broker.replication.master.server import ReplicationServer
from paceline_broker.service.escape.wire import EscapeHello

OTHER = GroupName("g2")
SECRET = b"s" * 32
RETRY = retry_topic("billing")
TOPICS = {"orders": 4, RETRY: 1, "here-only": 2, "sealed": 2}


def two_groups(*, version: int = 2, g1_port: int = 1, g2_port: int = 1) -> ClusterView:
    """All topics have their queues in both groups, but for one; and one cannot be written to."""
    view = a_view(version=version, topics=TOPICS)
    groups = {}
    for group_name, port in ((GROUP, g1_port), (OTHER, g2_port)):
        group = view.groups[GROUP]
        master = replace(group.replicas[ReplicaId(1)], replication_address=f"127.0.0.1:{port}")
        replicas = {**group.replicas, ReplicaId(1): master}
        groups[group_name] = replace(group, group=group_name, replicas=replicas)
    topics = {}
    for name, topic in view.topics.items():
        queues = {GROUP: TOPICS[name]}
        if name != "here-only":
            queues[OTHER] = max(1, TOPICS[name] // 2)
        perm = 4 if name == "sealed" else topic.perm
        topics[name] = replace(topic, queues=queues, write_queues=queues, perm=perm)
    return replace(view, groups=groups, topics=topics)


class Returned:
    """The role of the broker that acted, once its group has a master."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.group_view: GroupView | None = None
        self.identity: Identity = replace(bench.role.identity, replica_id=ReplicaId(3))

    @property
    def acting(self) -> Acting | None:
        return self._bench.role.acting


class Scene:
    """`here` is the acting broker of g1, `there` the master of g2."""

    def __init__(self) -> None:
        self.here = Bench(is_automatic=False, enable_remote_escape=True)
        self.there = Bench(group=OTHER)
        self.disk = MemoryDisk()
        self.disk.make_folder("/data")
        self.server = ReplicationServer(
            group=OTHER, secrets=ClusterSecrets(SECRET), random=SeededRandom("s")
        )
        self.server.serve(EscapeHello, partial(EscapeSession, self.there.service.intake))
        self.secret = SECRET
        self.connected = 0
        self._random = SeededRandom("nonces")
        self.restart()

    def restart(self) -> None:
        """The broker that acted comes back with what its disk has."""
        self.kept = NotesFile(self.disk, "/data")
        self.bridge = Bridge(
            role=self.here.role,
            routes=self.here.service.routes,
            clock=self.here.clock,
            trust=lambda: self.here.trust,
            notes=self.kept,
            connect=self.connect,
        )
        self.returned = Returned(self.here)
        self.telling = SentReporter(
            self.returned, self.bridge, self.kept, self.here.service.intake, self.connect
        )

    async def connect(self, group: GroupView) -> EscapeConnection:
        self.connected += 1
        return await EscapeConnection.open(self.sender(), group)

    def sender(self, group: GroupName = GROUP) -> Sender:
        hello = EscapeHello(
            cluster_id="cluster",
            group=group,
            replica_id=ReplicaId(3),
            incarnation=Incarnation(1),
            nonce=Nonce(self._random.token(16)),
        )
        return Sender(hello=hello, secrets=ClusterSecrets(self.secret), dial=Dial())

    def delay(self, *dues: int, topic_id: int = 1, queue_id: int = 0, **more: Any) -> None:
        """Messages that wait in g1, confirmed."""
        bodies = [b"due %d" % due for due in dues]
        batch = a_batch(
            *bodies,
            kind=Kind.DELAY,
            due_unix_ms=dues,
            topic_id=topic_id,
            queue_id=queue_id,
            **more,
        )
        sink = Answers()
        self.here.service.sender.send(batch, sink, 1)
        self.here.writer.confirm_all()
        assert sink.answers, "refused or not confirmed"

    def view(self, **more: Any) -> ClusterView:
        return two_groups(g2_port=self.port, **more)

    port = 0

    def escaped(self) -> list[BatchView]:
        return [view for view in self.there.log.views() if view.header.cause == Cause.ESCAPED]

    def bodies(self) -> list[bytes]:
        return [body for view in self.escaped() for body in view.bodies()]

    def properties(self) -> Sequence[dict[str, str]]:
        return [row for view in self.escaped() for row in view.properties()]

    async def until_noted(self, count: int) -> None:
        await until(lambda: len(self.kept.notes) == count and not self.bridge.is_busy)

    async def act(self, noted: int, *, epoch: int = 7) -> None:
        """The broker acts until so many messages are noted as sent elsewhere."""
        self.here.role.become_acting(epoch)
        async with self.running():
            await self.until_noted(noted)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = spawn(self.bridge.run(), name="bridge")
        try:
            yield
        finally:
            await cancel_and_wait(task)


@asynccontextmanager
async def a_scene() -> AsyncIterator[Scene]:
    scene = Scene()
    scene.port = await scene.server.start("127.0.0.1", 0)
    scene.here.service.view_changed(scene.view())
    scene.there.service.view_changed(scene.view())
    try:
        yield scene
    finally:
        await scene.server.stop()
        await scene.here.service.close()
        await scene.there.service.close()
