"""The operator: now and then another master is ordered, by name or whoever is fit; at once, or when
the present one has drained.

No fault: whatever else is going on, what somebody asks for loses nothing (R17, R20).
The rescuer's do: where nobody has led for a while, it goes on with a replica that is there (R21).
"""

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.platform.runtime import pause
from paceline.wire.cluster import GroupView
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around
from paceline_chaos.history.model import OrderElection

_PAUSE_MS_MIN, _PAUSE_MS_MAX = 1_500, 8_000
_LEADERLESS_MS_MIN, _LEADERLESS_MS_MAX = 1_500, 4_500
"""How long a rescuer waits for somebody to lead again."""
_LOOK_MS = 200


class Operator:
    """Orders elections."""

    def __init__(self, around: Around) -> None:
        self._around = around

    async def run(self) -> None:
        """Until it is over."""
        around = self._around
        cluster = around.cluster()
        cluster.start()
        try:
            async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
                while not around.is_over():
                    await self._elect(cluster, admin)
                    end_ms = around.random.uniform(_PAUSE_MS_MIN, _PAUSE_MS_MAX)
                    while end_ms > 0 and not around.is_over():
                        await pause(100)
                        end_ms -= 100
        finally:
            await cluster.close()

    async def _elect(self, cluster: Cluster, admin: AdminClient) -> None:
        around, view = self._around, cluster.view
        if view is None or not view.groups:
            return
        group = view.groups[around.choice(sorted(view.groups))]
        replicas = sorted(group.replicas)
        preferred = around.choice(replicas) if replicas and around.happens(0.5) else None
        try:
            if around.happens(0.5):
                await admin.broker_groups.transfer(group.group, to=preferred)
            else:
                await admin.broker_groups.elect(group.group, preferred=preferred)
        except PacelineError:
            return  # refused, or nobody knows: the next one comes


class Rescuer:
    """Orders unclean elections of replicas outside the set, where nobody leads for long."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._patience_ms = around.random.uniform(_LEADERLESS_MS_MIN, _LEADERLESS_MS_MAX)
        self._leaderless_ms: dict[str, int] = {}
        """Group -> since when."""

    async def run(self) -> None:
        """Until it is over."""
        around = self._around
        cluster = around.cluster()
        cluster.start()
        try:
            async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
                while not around.is_over():
                    await pause(_LOOK_MS)
                    await self._look(cluster, admin)
        finally:
            await cluster.close()

    async def _look(self, cluster: Cluster, admin: AdminClient) -> None:
        now_ms = self._around.clock.monotonic_ms()
        view = cluster.view
        for name, group in sorted(view.groups.items()) if view is not None else ():
            if group.master is not None or group.master_epoch == 0:
                self._leaderless_ms.pop(name, None)
            elif now_ms - self._leaderless_ms.setdefault(name, now_ms) >= self._patience_ms:
                await self._rescue(admin, group)

    async def _rescue(self, admin: AdminClient, group: GroupView) -> None:
        """One order; if it is refused, the next look tries another replica."""
        around = self._around
        outside = sorted(set(group.replicas) - group.sync_state_set)
        if not outside:
            return
        replica = around.choice(outside)
        asking = around.recorder.asking(
            OrderElection,
            client=around.client,
            group=str(group.group),
            replica=int(replica),
            is_unclean=True,
        )
        try:
            await admin.broker_groups.elect(group.group, preferred=replica, unclean=True)
        except PacelineError as error:
            asking.raised(error)
        else:
            asking.ok()
            self._leaderless_ms.pop(group.group, None)
