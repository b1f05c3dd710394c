"""Two ends of a replication connection in one process: real sockets, real logs on a memory disk."""

import asyncio
from collections.abc import Callable

from tests.support.replication.builders import a_view

from paceline.errors import StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import SeededRandom, SystemClock, pause
from paceline.platform.secret import ClusterSecrets
from paceline.records.encode import encode_batch, encode_internal
from paceline.records.header import HEADER_BYTES, Kind, stamp
from paceline.security.authority import Authority
from paceline.security.certificates import TlsFiles
from paceline.security.node_tls import Dial, NodeTls, TlsMode
from paceline.types import GroupName, Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire.cluster import GroupView
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.replication.install import CheckpointTarget, Reception
from paceline_broker.replication.master.events import AlterSyncStateSet, MasterSettings
from paceline_broker.replication.master.master import MasterReplication
from paceline_broker.replication.master.ports import TermSettings
from paceline_broker.replication.master.relaxed_acks import answers_early
from paceline_broker.replication.master.server import ReplicationServer
from paceline_broker.replication.master.term import MasterTerm
from paceline_broker.replication.replica.client import ReplicationClient
from paceline_broker.replication.replica.ports import ReplicaIdentity, ReplicaSettings

SECRETS = ClusterSecrets(b"the secret of the cluster, 32 by")
GROUP = GroupName("g1")
SEGMENT_BYTES = 64 * 1024
UNIX_MS = 1_700_000_000_000


async def eventually(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """Wait until `condition` holds; the test fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await pause(1)


def append_start(log: CommitLog, epoch: int) -> None:
    """The epoch-start record, written."""
    record = encode_internal(Kind.EPOCH_START, {"epoch": epoch}, store_unix_ms=UNIX_MS)
    append(log, record, epoch)
    log.write_pending()


def append(log: CommitLog, batch: bytes, epoch: int, *, base_queue_offset: int = 0) -> None:
    header = stamp(
        batch,
        physical_offset=log.end,
        base_queue_offset=base_queue_offset,
        store_unix_ms=UNIX_MS,
        master_epoch=epoch,
    )
    log.append(header, memoryview(batch)[HEADER_BYTES:])


def a_batch(body: bytes) -> bytes:
    return encode_batch([body], born_unix_ms=UNIX_MS, topic_id=1, queue_id=0)


def a_log() -> CommitLog:
    return CommitLog.open(MemoryDisk(), "log", segment_size_bytes=SEGMENT_BYTES)[0]


def content(log: CommitLog) -> bytes:
    """All bytes of a log."""
    return b"".join(bytes(batch) for _, batch in log.batches(log.start))


def node_tls(authority: Authority, name: str, *uris: str) -> NodeTls:
    """Of a node with a new certificate for these URIs."""
    authority.issue(name, ("127.0.0.1", *uris), now_unix_ms=SystemClock().unix_ms())
    certificate, key = authority.paths(name)
    files = TlsFiles(str(certificate), str(key), str(authority.certificate))
    return NodeTls(files, TlsMode.ENFORCING)


class MasterNode:
    """Replica 1 as master of an epoch, with its server."""

    def __init__(self, log: CommitLog | None = None, *, secrets: ClusterSecrets = SECRETS) -> None:
        self.log = log or a_log()
        self.server = ReplicationServer(group=GROUP, secrets=secrets, random=SeededRandom("m"))
        self.port = 0
        self.confirmed_to = 0
        self.is_opened = False
        self.fence: str | None = None
        self.proposals: list[AlterSyncStateSet] = []
        self.probed: list[ReplicaId] = []
        self.gone: set[int] = set()
        """Members whose port refuses. The others may be slow to come, and are probed as well."""
        self.term: MasterTerm | None = None

    async def start(self, *, tls: NodeTls | None = None) -> None:
        self.port = await self.server.start("127.0.0.1", 0, tls=tls)

    def lead(self, view: GroupView, *, settings: TermSettings | None = None) -> MasterTerm:
        append_start(self.log, view.master_epoch)
        machine = MasterReplication(
            replica_id=ReplicaId(1),
            incarnation=Incarnation(1),
            view=view,
            epoch_start_end=self.log.end,
            end=self.log.written,
            flushed=self.log.flushed,
            known_confirm=self.log.confirm,
            settings=MasterSettings(),
        )
        self.term = MasterTerm(
            machine,
            self.log,
            cluster_id="c",
            group=GROUP,
            hooks=self,
            propose=self.propose,
            probe=self.probe,
            clock=SystemClock(),
            settings=settings or TermSettings(tick_ms=20, heartbeat_ms=40),
            unconfirmed_bytes_max=1 << 30,
            counts_flushed=view.settings.durability == "fsync",
            answers_early=answers_early(view.settings),
        )
        self.server.begin_term(self.term)
        self.term.begin()
        self.flush()
        return self.term

    def send(self, *bodies: bytes) -> PhysicalOffset:
        """Append, write, push and flush one turn's batches; the end."""
        assert self.term is not None
        for body in bodies:
            append(self.log, a_batch(body), self.term.epoch)
        self.term.wrote(self.log.write_pending())
        self.flush()
        return self.log.end

    def flush(self) -> None:
        assert self.term is not None
        self.term.flushed(self.log.flush_now())

    # -- TermHooks

    def confirmed(self, confirm: PhysicalOffset) -> None:
        assert confirm > self.confirmed_to
        self.confirmed_to = confirm

    def opened(self) -> None:
        self.is_opened = True

    def fenced(self, reason: str, *, is_lossy: bool) -> None:
        self.fence = reason

    def newest_checkpoint(self) -> tuple[PhysicalOffset, bytes] | None:
        return None

    def propose(self, proposal: AlterSyncStateSet) -> None:
        self.proposals.append(proposal)

    async def probe(self, replica: ReplicaId, incarnation: Incarnation) -> bool:
        self.probed.append(replica)
        return replica in self.gone


class ReplicaNode:
    """One replica that follows a master."""

    def __init__(self, replica: int, *, log: CommitLog | None = None) -> None:
        self.replica = replica
        self.log = log or a_log()
        self.client: ReplicationClient | None = None
        self.confirmed_to = 0
        self.stop_reason: str | None = None
        self.truncations: list[int] = []
        self.flushes = True

    def follow(
        self,
        port: int,
        *,
        epoch: int = 3,
        secrets: ClusterSecrets = SECRETS,
        fsync: bool = True,
        dial: Dial | None = None,
    ) -> ReplicationClient:
        self.client = ReplicationClient(
            identity=ReplicaIdentity(
                cluster_id="c",
                group=GROUP,
                replica_id=ReplicaId(self.replica),
                store_id=f"store-{self.replica}",
                incarnation=Incarnation(1),
                epoch=MasterEpoch(epoch),
            ),
            host="127.0.0.1",
            port=port,
            dial=dial or Dial(source_host="127.0.0.1"),
            secrets=secrets,
            commit_log=self.log,
            counts_flushed=fsync,
            is_ready=True,
            hooks=self,
            clock=SystemClock(),
            random=SeededRandom(f"r{self.replica}"),
            settings=ReplicaSettings(reconnect_ms_min=5, reconnect_ms_max=20),
        )
        self.client.start()
        return self.client

    # -- ReplicaHooks

    def wrote(self) -> None:
        if self.flushes:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        assert self.client is not None
        self.client.flushed(self.log.flush_now())

    def confirmed(self, confirm: PhysicalOffset) -> None:
        self.confirmed_to = confirm

    def truncating(self, truncate_to: PhysicalOffset) -> None:
        self.truncations.append(truncate_to)

    def checkpoint_target(self, position: PhysicalOffset) -> CheckpointTarget:
        raise AssertionError("these logs begin at 0")

    def install(self, reception: Reception, start: PhysicalOffset) -> None:
        raise AssertionError("these logs begin at 0")

    def stopped(self, reason: str) -> None:
        self.stop_reason = reason

    def failed(self, error: StorageError) -> None:
        raise AssertionError(error)


class Group:
    """A master and two replicas, started and stopped together."""

    def __init__(
        self, *, replicas: tuple[int, ...] = (2, 3), secrets: ClusterSecrets = SECRETS
    ) -> None:
        self.master = MasterNode(secrets=secrets)
        self.replicas = [ReplicaNode(replica) for replica in replicas]

    async def __aenter__(self) -> "Group":
        await self.master.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for replica in self.replicas:
            if replica.client is not None:
                await replica.client.stop()
        await self.master.server.stop()

    async def form(
        self, view: GroupView | None = None, *, settings: TermSettings | None = None
    ) -> MasterTerm:
        """Lead, follow, and wait until the epoch is open."""
        view = view or a_view()
        term = self.master.lead(view, settings=settings)
        for replica in self.replicas:
            fsync = view.settings.durability == "fsync"
            replica.follow(self.master.port, epoch=view.master_epoch, fsync=fsync)
        await eventually(lambda: self.master.is_opened)
        return term

    def is_equal(self) -> bool:
        """All logs are byte-identical and everybody knows all of it as confirmed."""
        end = self.master.log.end
        return all(
            replica.log.end == end and replica.log.confirm == end for replica in self.replicas
        ) and all(content(replica.log) == content(self.master.log) for replica in self.replicas)
