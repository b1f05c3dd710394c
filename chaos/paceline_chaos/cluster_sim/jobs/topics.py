"""The administrator: makes topics, and looks them up linearizably.

All administrators name topics by the time: the names of this moment are new to all of them, so a
look-up meets a creation, and who answers what was true a moment ago is seen (S18). Two ask for the
same name with other settings, so that "exists" is an answer too.
"""

import asyncio

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError, TopicNotFoundError
from paceline.net.cluster import Cluster
from paceline.platform.runtime import pause
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around, ask_leader
from paceline_chaos.history.model import CreateTopic, DescribeTopic

_NEW_NAME_US = 700_000
_LOOKERS = 2
_NAMES = 3
"""Names that are looked at in one moment."""


class TopicMaker:
    """Creates and looks up topics."""

    def __init__(self, around: Around) -> None:
        self._around = around

    async def run(self) -> None:
        """Until it is over."""
        cluster = self._around.cluster()
        cluster.start()
        try:
            async with (
                AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin,
                asyncio.TaskGroup() as group,
            ):
                group.create_task(self._make_all(cluster, admin), name="make-topics")
                for number in range(_LOOKERS):
                    group.create_task(self._look_all(cluster), name=f"look-up-{number}")
        finally:
            await cluster.close()

    async def _make_all(self, cluster: Cluster, admin: AdminClient) -> None:
        around = self._around
        while not around.is_over():
            if cluster.view is not None:
                await self._create(admin, self._name(), sorted(cluster.view.groups))
            await pause(around.random.uniform(0, 8 * around.think_ms))

    async def _look_all(self, cluster: Cluster) -> None:
        """Beside the creations: their client waits until its own view has them."""
        around = self._around
        while not around.is_over():
            if cluster.view is not None:
                await self._look_up(cluster, self._name())
            await pause(around.random.uniform(0, 4 * around.think_ms))

    def _name(self) -> str:
        newest = self._around.recorder.now_us() // _NEW_NAME_US
        return f"topic-{newest - self._around.whole(0, _NAMES - 1)}"

    async def _look_up(self, cluster: Cluster, name: str) -> None:
        around = self._around
        path = f"/v1/topics/{name}?linearizable=true"
        with around.recorder.asking(DescribeTopic, client=around.client, topic=name) as asking:
            try:
                answer = await ask_leader(cluster, around, path)
            except TopicNotFoundError:
                asking.ok(topic_id=None)
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok(topic_id=answer["topic_id"])

    async def _create(self, admin: AdminClient, name: str, groups: list[str]) -> None:
        around = self._around
        queues = {group: around.whole(1, 2) for group in groups}
        with around.recorder.asking(
            CreateTopic, client=around.client, topic=name, queues=queues
        ) as asking:
            try:
                made = await admin.topics.create(name, queues=queues)
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok(topic_id=int(made.topic_id))
