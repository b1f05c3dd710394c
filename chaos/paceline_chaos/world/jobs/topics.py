"""The administrator: makes topics of a small set of names, and looks them up linearizably.

Two administrators ask for the same name with other settings, so that "exists" is an answer too.
"""

from paceline.admin import AdminClient
from paceline.errors import PacelineError, TopicNotFoundError
from paceline.runtime import pause
from paceline_chaos.history.model import CreateTopic, DescribeTopic
from paceline_chaos.world.jobs.around import CALL_TIMEOUT_MS, Around, ask_leader

_NAMES = 12


class TopicMaker:
    """Creates and looks up topics."""

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
                    name = f"topic-{around.whole(1, _NAMES)}"
                    if cluster.view is not None and around.happens(0.3):
                        await self._create(admin, name, sorted(cluster.view.groups))
                    elif cluster.view is not None:
                        with around.recorder.asking(
                            DescribeTopic, client=around.client, topic=name
                        ) as asking:
                            try:
                                path = f"/v1/topics/{name}?linearizable=true"
                                answer = await ask_leader(cluster, around, path)
                            except TopicNotFoundError:
                                asking.ok(topic_id=None)
                            except PacelineError as error:
                                asking.raised(error)
                            else:
                                asking.ok(topic_id=answer["topic_id"])
                    await pause(around.random.uniform(0, 4 * around.think_ms))
        finally:
            await cluster.close()

    async def _create(self, admin: AdminClient, name: str, groups: list[str]) -> None:
        around = self._around
        queues = {group: around.whole(1, 2) for group in groups}
        with around.recorder.asking(
            CreateTopic, client=around.client, topic=name, queues=queues
        ) as asking:
            try:
                made = await admin.create_topic(name, queues=queues)
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok(topic_id=int(made.topic_id))
