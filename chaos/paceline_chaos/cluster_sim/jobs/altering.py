"""The operator who changes the number of queues of the topic while everybody uses it.

Written queues go down, read ones follow when the consumers have drained what is left (till then it
is refused), and all come back. Nobody notices but by where messages go: nothing is lost, and while
queues are not read nothing is acknowledged in them (S36).
"""

from typing import Any

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.platform.runtime import pause
from paceline.wire.cluster import TopicView
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around
from paceline_chaos.history.model import AlterTopic

_PAUSE_MS_MIN, _PAUSE_MS_MAX = 300, 2_500
_TRIES = 6
"""How often consumers are given time to drain."""


class Alterer:
    """Shrinks the topic and lets it grow again."""

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
                    topic = cluster.topic(around.topic)
                    if topic is not None and max(topic.queues.values()) > 1:
                        await self._shrink(admin, topic)
                    await self._rest()
        finally:
            await cluster.close()

    async def _rest(self) -> None:
        await pause(self._around.random.uniform(_PAUSE_MS_MIN, _PAUSE_MS_MAX))

    async def _shrink(self, admin: AdminClient, topic: TopicView) -> None:
        """Down by the written queues, perhaps by the read ones, and back to all."""
        around = self._around
        full = {str(group): count for group, count in topic.queues.items()}
        count = around.whole(1, max(full.values()) - 1)
        narrow = {group: min(count, queues) for group, queues in full.items()}
        if not await self._alter(admin, write_queues=narrow):
            return
        for _ in range(around.whole(0, _TRIES)):
            await self._rest()
            if around.is_over() or await self._alter(admin, read_queues=narrow):
                break
        await self._rest()
        while not await self._alter(admin, queues=full) and not around.is_over():
            await self._rest()

    async def _alter(self, admin: AdminClient, **changes: Any) -> bool:
        """Whether it was done, as far as is known."""
        around = self._around
        reads = changes.get("queues", changes.get("read_queues"))
        with around.recorder.asking(
            AlterTopic,
            client=around.client,
            topic=around.topic,
            read_queues=reads,
            write_queues=changes.get("queues", changes.get("write_queues")),
        ) as asking:
            try:
                await admin.topics.alter(around.topic, **changes)
            except PacelineError as error:
                asking.raised(error)
                return False
            asking.ok()
            return True


async def restore(cluster: Cluster, around: Around, *, queues: int) -> None:
    """All queues again, as at first, for who reads everything in the end."""
    async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
        for _ in range(_TRIES):
            try:
                await admin.topics.alter(around.topic, queues=queues)
            except PacelineError:
                await pause(_PAUSE_MS_MIN)
            else:
                return
