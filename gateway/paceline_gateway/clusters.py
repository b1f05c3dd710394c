"""The cluster, as each user of the gateway sees it.

What a client of RocketMQ asks for is done over connections of that client's user, so brokers and
controllers decide by his rights, charge his quotas and name him in the audit: a door translates, it
does not decide.

A call asks for its `UserCluster` each time, which costs a look into a table, and keeps it no longer
than a call lasts. What lives longer (a client that is asked about transactions) holds it. One that
nobody holds or asks for is closed after a while, or when others want its place.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from paceline.admin.client import AdminClient
from paceline.errors import OverloadedError, PacelineError
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.platform.ports import Clock
from paceline.platform.runtime import SystemClock, cancel_and_wait, pause, spawn
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.security.identity import Principal
from paceline.wire.users import ANONYMOUS
from paceline_gateway.traffic import Traffic

CALL_MS_MAX = 60_000
"""No call of a client lasts longer: whoever was asked for later than that may be at work."""
IDLE_MS = 300_000
SENDING = ProducerSettings(flights_max=1)
"""What many clients send while one write is under way makes one batch: with two writes at a time,
brokers spend twice as much on each message."""
CLUSTERS_MAX = 1000
_START_TIMEOUT_MS = 10_000
_LOOK_MS_MAX = 10_000


class UserCluster:
    """The cluster as one user at one address sees it.

    Names are full (`shop%orders`), or those of the default namespace of the user.
    """

    def __init__(
        self, cluster: Cluster, principal: Principal, traffic: Traffic | None = None
    ) -> None:
        """`traffic`: of the gateway."""
        self.cluster = cluster
        self.principal = principal
        self.traffic = traffic or Traffic(cluster.clock)
        self.producer = Producer(cluster, settings=SENDING)
        self.admin = AdminClient(cluster)
        self.links = GroupLinks(cluster)
        """For calls of brokers that no client object makes."""
        self.used_ms = 0
        """When it was asked for last; of `UserClusters`."""
        self.holders = 0
        self.refusal: PacelineError | None = None
        """Why it could not be started."""

    async def start(self) -> None:
        """Wait until the cluster is known, or `refusal`."""
        try:
            await self.producer.start(timeout_ms=_START_TIMEOUT_MS)
        except PacelineError as error:
            self.refusal = error

    async def close(self) -> None:
        """Wait for what is being sent, and disconnect."""
        await self.producer.close()
        await self.links.close()
        await self.admin.close()
        await self.cluster.close()

    def hold(self) -> Callable[[], None]:
        """Keep it open beyond a call, until the returned function is called, once or more."""
        self.holders += 1
        is_held = True

        def release() -> None:
            nonlocal is_held
            self.holders -= is_held
            is_held = False

        return release


class UserClusters:
    """One `UserCluster` for each user, access key, address and door. `run` closes the idle ones."""

    def __init__(
        self,
        connect: Callable[[Principal], Cluster],
        *,
        clock: Clock | None = None,
        clusters_max: int = CLUSTERS_MAX,
        idle_ms: int = IDLE_MS,
    ) -> None:
        """`connect`: makes the connections of a user."""
        self._connect = connect
        self._clock = clock or SystemClock()
        self.traffic = Traffic(self._clock)
        self._max, self._idle_ms = clusters_max, idle_ms
        self._of_user_max = clusters_max - clusters_max // 4
        """With as many addresses as it likes, a user leaves places for others."""
        self._clusters: dict[Principal, UserCluster] = {}
        self._starting: dict[UserCluster, asyncio.Task[None]] = {}
        self._retired: set[UserCluster] = set()
        """Held or at work, and asked for no more."""
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        return len(self._clusters) + len(self._retired)

    async def of(self, principal: Principal) -> UserCluster:
        """That of a user, started. PeerError: no node of the cluster answers; OverloadedError:
        others have all places."""
        key = principal._replace(request_id="") if principal.request_id else principal
        found = self._clusters.get(key)
        if found is None:
            self._make_room(key.user)
            found = self._clusters[key] = UserCluster(
                self._connect(principal), principal, self.traffic
            )
            task = self._starting[found] = spawn(found.start(), name="user-cluster")
            task.add_done_callback(partial(self._started, key, found))
        found.used_ms = self._clock.monotonic_ms()
        starting = self._starting.get(found)
        if starting is not None:
            await asyncio.shield(starting)
        if found.refusal is not None:
            raise found.refusal
        return found

    def _started(self, key: Principal, found: UserCluster, task: "asyncio.Task[None]") -> None:
        """It has started, or leaves its place, whether or not anybody waits for it still."""
        self._starting.pop(found, None)
        if task.cancelled() or (task.exception() is None and found.refusal is None):
            return
        if self._clusters.get(key) is found:
            del self._clusters[key]
        self._retired.discard(found)
        self._close(found)

    def renew(self) -> None:
        """Have all be made anew: certificates or authorities are others now."""
        self._retired.update(self._clusters.values())
        self._clusters.clear()

    async def run(self) -> None:
        """Close the idle ones, until cancelled."""
        while True:
            await pause(min(self._idle_ms / 2, _LOOK_MS_MAX))
            self.close_idle()

    def close_idle(self) -> None:
        """Close those that nobody has asked for or held for the time that they may be idle."""
        for key, each in list(self._clusters.items()):
            if self._idle_for(each) >= self._idle_ms:
                self._close(self._clusters.pop(key))
        for each in list(self._retired):
            if self._idle_for(each) >= CALL_MS_MAX:
                self._retired.discard(each)
                self._close(each)

    async def close(self) -> None:
        """Close all of them."""
        await cancel_and_wait(*self._starting.values())
        self._starting.clear()
        self.renew()
        while self._retired:
            self._close(self._retired.pop())
        await asyncio.gather(*self._closing)

    def _make_room(self, user: str) -> None:
        """A place for one more of that user; OverloadedError."""
        of_user = [key for key in self._clusters if key.user == user != ANONYMOUS]
        if len(of_user) >= self._of_user_max:
            self._end_idle(of_user, f"user {user} is served at {len(of_user)} addresses")
        elif len(self._clusters) >= self._max:
            self._end_idle(self._clusters, f"{self._max} users and addresses are served")

    def _end_idle(self, keys: Iterable[Principal], why: str) -> None:
        """The one of them that nobody has asked for for longest."""
        key = max(keys, key=lambda each: self._idle_for(self._clusters[each]))
        if self._idle_for(self._clusters[key]) < CALL_MS_MAX:
            raise OverloadedError(
                f"{why} at once by this gateway, and all are at work: start more gateways, or raise"
                " user_clusters_max",
                retry_after_ms=1000,
            )
        self._close(self._clusters.pop(key))

    def _idle_for(self, each: UserCluster) -> int:
        """For how long, ms; below zero: it is held, or starts."""
        if each.holders or each in self._starting:
            return -1
        return self._clock.monotonic_ms() - each.used_ms

    def _close(self, each: UserCluster) -> None:
        task = spawn(each.close(), name="close-user-cluster")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
