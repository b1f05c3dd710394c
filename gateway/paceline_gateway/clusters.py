"""The cluster, as each user of the gateway sees it.

What a client of RocketMQ asks for is done over connections of that client's user, so brokers and
controllers decide by his rights, charge his quotas and name him in the audit: a door translates, it
does not decide.
"""

import asyncio
from collections.abc import Callable

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.producer.producer import Producer
from paceline.security.identity import Principal

_START_TIMEOUT_MS = 10_000


class UserCluster:
    """The cluster as one user at one address sees it.

    Names are full (`shop%orders`), or those of the default namespace of the user.
    """

    def __init__(self, cluster: Cluster, principal: Principal) -> None:
        self.cluster = cluster
        self.principal = principal
        self.producer = Producer(cluster)
        self.admin = AdminClient(cluster)
        self.links = GroupLinks(cluster)
        """For calls of brokers that no client object makes."""

    async def start(self) -> None:
        """Wait until the cluster is known. PeerError."""
        await self.producer.start(timeout_ms=_START_TIMEOUT_MS)

    async def close(self) -> None:
        """Wait for what is being sent, and disconnect."""
        await self.producer.close()
        await self.links.close()
        await self.admin.close()
        await self.cluster.close()


class UserClusters:
    """One `UserCluster` for each user and address."""

    def __init__(self, connect: Callable[[Principal], Cluster]) -> None:
        """`connect`: makes the connections of a user."""
        self._connect = connect
        self._clusters: dict[tuple[str, str], UserCluster] = {}
        self._starting: dict[UserCluster, asyncio.Task[None]] = {}

    async def of(self, principal: Principal) -> UserCluster:
        """That of a user, started. PeerError: no node of the cluster answers."""
        key = principal.user, principal.source
        found = self._clusters.get(key)
        if found is None:
            found = self._clusters[key] = UserCluster(self._connect(principal), principal)
            self._starting[found] = spawn(found.start(), name="user-cluster")
        starting = self._starting.get(found)
        if starting is None:
            return found
        try:
            await asyncio.shield(starting)
        except PacelineError:
            if self._starting.pop(found, None) is not None:
                del self._clusters[key]
                await found.close()
            raise
        self._starting.pop(found, None)
        return found

    async def close(self) -> None:
        """Close all of them."""
        await cancel_and_wait(*self._starting.values())
        self._starting.clear()
        while self._clusters:
            _, found = self._clusters.popitem()
            await found.close()
