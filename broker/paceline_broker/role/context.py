"""What the role is given once, and what it makes of it for one epoch."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from paceline.platform.address import parse_address
from paceline.platform.ports import Clock, Random
from paceline.platform.secret import ClusterSecrets
from paceline.platform.telemetry import Node
from paceline.security.node_tls import Dial
from paceline.wire.cluster import ClusterView, GroupView, ReplicaView
from paceline_broker.acting.withheld import WithheldWatch
from paceline_broker.config import BrokerConfig
from paceline_broker.log.flusher import Flusher
from paceline_broker.replication.master.events import AlterSyncStateSet, MasterSettings
from paceline_broker.replication.master.ports import Probe
from paceline_broker.replication.master.server import ReplicationServer
from paceline_broker.replication.replica.client import ReplicationClient
from paceline_broker.replication.replica.ports import ReplicaHooks, ReplicaIdentity, ReplicaSettings
from paceline_broker.role.controller_requests import Controllers
from paceline_broker.role.mastership import Mastership, MastershipOwner
from paceline_broker.storage.store import Store


class RoleListener(Protocol):
    """Who is told what becomes of the role: the process."""

    def role_changed(self) -> None:
        """Another state, mastership or acting term."""
        ...

    def view_changed(self, view: ClusterView, /) -> None:
        """A newer view is taken."""
        ...

    def refuse(self, sentence: str, /) -> None:
        """The process must end, and why."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContext:
    """Given by `app.py`."""

    listener: RoleListener

    config: BrokerConfig
    secrets: ClusterSecrets
    dial: Dial
    store: Store
    server: ReplicationServer
    links: Controllers
    probe: Callable[[ReplicaView], Awaitable[bool]]
    """Whether that start of a replica is surely gone (R12); see member_probe.py."""
    clock: Clock
    random: Random
    node: Node
    withheld: WithheldWatch = field(default_factory=WithheldWatch)


def make_mastership(
    around: RoleContext,
    group: GroupView,
    *,
    owner: MastershipOwner,
    propose: Callable[[Mastership, AlterSyncStateSet], None],
    probe: Probe,
    flusher: Flusher,
) -> Mastership:
    """The mastership of the group's present epoch, which the store has adopted; see its errors."""
    known, config = around.store.identity.identity, around.config
    assert known.cluster_id is not None
    assert known.replica_id is not None
    return Mastership(
        owner=owner,
        propose=propose,
        probe=probe,
        store=around.store,
        flusher=flusher,
        view=group,
        cluster_id=known.cluster_id,
        group=known.group,
        replica_id=known.replica_id,
        incarnation=known.incarnation,
        clock=around.clock,
        settings=MasterSettings(replica_lag_ms_max=config.replica_lag_ms_max),
        unconfirmed_bytes_max=config.unconfirmed_bytes_max,
        withheld=around.withheld,
    )


def make_client(around: RoleContext, group: GroupView, *, hooks: ReplicaHooks) -> ReplicationClient:
    """The client that follows the group's master in its epoch, which the store has adopted."""
    master, known = group.master_view(), around.store.identity.identity
    assert master is not None
    assert known.cluster_id is not None
    assert known.replica_id is not None
    assert group.master_epoch == around.store.identity.epoch  # R2
    host, port = parse_address(master.replication_address)
    return ReplicationClient(
        identity=ReplicaIdentity(
            cluster_id=known.cluster_id,
            group=known.group,
            replica_id=known.replica_id,
            store_id=known.store_id,
            incarnation=known.incarnation,
            epoch=group.master_epoch,
        ),
        host=host,
        port=port,
        dial=around.dial,
        secrets=around.secrets,
        commit_log=around.store.log,
        counts_flushed=group.settings.durability == "fsync",
        is_ready=True,
        hooks=hooks,
        clock=around.clock,
        random=around.random,
        settings=ReplicaSettings(),
    )
