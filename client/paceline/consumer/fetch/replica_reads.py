"""Connections to replicas of one broker group, for queues that lag far behind.

The master names a replica with each answer that lies far back in its log (RocketMQ's
suggestWhichBrokerId), and the replica itself while that holds there. A connection is made when one
is first named; until it is up, and when the replica fails, the master is asked as before. Only
message reads go there: below its confirm a replica has what the master has (INV-3).
"""

import asyncio
import logging
from collections.abc import Callable

from paceline.consumer.group_settings import settings_of
from paceline.errors import PacelineError
from paceline.net.cluster import BrokerConnection, Cluster
from paceline.platform.runtime import spawn
from paceline.types import GroupName, ReplicaId

log = logging.getLogger("paceline.client")

AVOIDED_S = 10.0


class ReplicaReads:
    """Owned by a `FetchSession`."""

    def __init__(
        self,
        cluster: Cluster,
        group: GroupName,
        *,
        on_ready: Callable[[], None],
        consumer_group: str | None = None,
    ) -> None:
        """`on_ready` is called on the loop when a connection is up. `consumer_group`: whose setting
        `which_broker_when_consume_slowly` counts."""
        self._cluster = cluster
        self._group = group
        self._consumer_group = consumer_group
        self._on_ready = on_ready
        self._connections: dict[ReplicaId, BrokerConnection] = {}
        self._connecting: dict[ReplicaId, asyncio.Task[None]] = {}
        self._avoided_until: dict[ReplicaId, float] = {}
        self._is_closed = False

    def chosen(self, suggested: int) -> ReplicaId | None:
        """Whom to read on from, when a broker suggests a replica; None = the master."""
        view = self._cluster.view
        group = None if view is None else view.groups.get(self._group)
        if view is None or group is None or not suggested:
            return None
        replica = ReplicaId(suggested)
        if self._consumer_group is not None:
            settings = settings_of(view, self._consumer_group)
            wanted = settings.which_broker_when_consume_slowly
            if wanted == 0:
                return None
            if wanted > 1 and wanted in group.sync_state_set:
                replica = ReplicaId(wanted)
        is_fit = replica in group.replicas and replica != group.master
        return replica if is_fit and not self.is_avoided(replica) else None

    def connection(self, replica: ReplicaId) -> BrokerConnection | None:
        """The open connection, or None: one is on its way, or the replica is avoided."""
        connection = self._connections.get(replica)
        if connection is not None and connection.is_open:
            return connection
        if not self.is_avoided(replica) and replica not in self._connecting:
            name = f"replica-link-{self._group}-{replica}"
            self._connecting[replica] = spawn(self._connect(replica), name=name)
        return None

    def is_avoided(self, replica: ReplicaId) -> bool:
        """Whether it has failed a moment ago: ask the master."""
        now = asyncio.get_running_loop().time()
        return self._is_closed or self._avoided_until.get(replica, 0.0) > now

    def avoid(self, replica: ReplicaId, why: str) -> None:
        """It has failed: leave it alone for a while."""
        if self._is_closed or self.is_avoided(replica):
            return
        log.info("replica_avoided", extra={"group": self._group, "replica": replica, "why": why})
        self._avoided_until[replica] = asyncio.get_running_loop().time() + AVOIDED_S
        connection = self._connections.pop(replica, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._is_closed = True
        for task in self._connecting.values():
            task.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _connect(self, replica: ReplicaId) -> None:
        try:
            view = self._cluster.view
            group = None if view is None else view.groups.get(self._group)
            known = None if group is None else group.replicas.get(replica)
            if known is None:
                self.avoid(replica, "unknown")
                return
            connection = await self._cluster.connect(known.client_address, self._group)
            if self._is_closed:
                connection.close()
                return
            self._connections[replica] = connection
            log.debug("replica_connected", extra={"group": self._group, "replica": replica})
        except PacelineError as error:
            self.avoid(replica, error.message)
        finally:
            del self._connecting[replica]
            if not self._is_closed:
                self._on_ready()
