"""The operator: now and then another master is ordered, by name or whoever is fit.

No fault: whatever else is going on, an election that somebody asks for loses nothing (R17, R20).
"""

from paceline.admin import AdminClient
from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.runtime import pause
from paceline_chaos.world.jobs.around import CALL_TIMEOUT_MS, Around

_PAUSE_MS_MIN, _PAUSE_MS_MAX = 1_500, 8_000


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
            await admin.elect(group.group, preferred=preferred)
        except PacelineError:
            return  # refused, or nobody knows: the next one comes
