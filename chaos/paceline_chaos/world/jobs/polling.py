"""Members of a group that ask for their messages (lite pull): commits, seeks, pauses (S21, S22).

A message is processed once the member says so: by the poll after it, by a commit, or by a clean
close. What was polled when its process dies, or when it closes after an error, was not.
"""

from paceline.consumer.links import GroupLinks
from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.errors import PacelineError
from paceline.message import ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.routing import QueueName
from paceline.runtime import SeededRandom, pause
from paceline_chaos.history.model import Commit, Deliver, Queue
from paceline_chaos.history.recorder import Asking
from paceline_chaos.world.jobs.around import Around, queues_in
from paceline_chaos.world.jobs.consuming import ask_committed
from paceline_chaos.world.jobs.reading import seen

LITE_GROUP = "lite-1"
_SESSION_POLLS = 40
_POLL_MS = 500
_MESSAGES_MAX = 20
_LOOK_SHARE = 0.1
_ACT_SHARE = 0.1
_BACK_MAX = 30
_CRASH_SHARE = 0.2


class LitePoller:
    """A member that polls; joins and leaves."""

    def __init__(self, around: Around) -> None:
        self._around = around
        # A stream of its own: what the client's other jobs draw stays as it is.
        self._random = SeededRandom(f"{around.alias}/lite")
        self._sessions = 0
        self._polled: list[Asking[Deliver]] = []

    async def run(self) -> None:
        """One membership after another until it is over."""
        around = self._around
        while not around.is_over():
            self._sessions += 1
            cluster = Cluster(
                around.bootstrap,
                clock=around.clock,
                random=self._random,
                source_host=around.source_host,
            )
            links = GroupLinks(cluster)
            member = f"{around.alias}/lite-{self._sessions}"
            is_auto = self._random.uniform(0, 1) < 0.5
            consumer = LitePullConsumer(
                cluster,
                group=LITE_GROUP,
                topics=[around.topic],
                settings=LitePullSettings(
                    start="first", auto_commit=is_auto, auto_commit_interval_ms=1_000
                ),
                client_id=member,
            )
            try:
                await consumer.start()
                await self._session(cluster, links, consumer, member, is_auto=is_auto)
            except PacelineError:
                await pause(self._random.uniform(0, 2 * around.think_ms))
            finally:
                await links.close()
                is_clean = self._random.uniform(0, 1) >= _CRASH_SHARE
                if is_clean and is_auto:
                    self._processed()
                self._left()
                await consumer.close(is_processed=is_clean)
                await cluster.close()

    async def _session(
        self,
        cluster: Cluster,
        links: GroupLinks,
        consumer: LitePullConsumer,
        member: str,
        *,
        is_auto: bool,
    ) -> None:
        around = self._around
        for _ in range(_SESSION_POLLS):
            if around.is_over():
                return
            if is_auto:
                self._processed()
            for message in await consumer.poll(messages_max=_MESSAGES_MAX, timeout_ms=_POLL_MS):
                self._polled.append(self._begin(member, message))
            await pause(self._random.uniform(0, around.think_ms))
            if not is_auto and self._random.uniform(0, 1) < 0.5:
                self._processed()  # from here on it counts, whatever becomes of the commit
                await consumer.commit_sync()
            queues = queues_in(cluster, around.topic)
            if queues and self._random.uniform(0, 1) < _LOOK_SHARE:
                await ask_committed(around, links, LITE_GROUP, self._choice(queues))
            if self._random.uniform(0, 1) < _ACT_SHARE:
                await self._act(links, consumer, member)

    async def _act(self, links: GroupLinks, consumer: LitePullConsumer, member: str) -> None:
        """Pause, go on, or seek back a little."""
        ours = consumer.queues
        if not ours:
            return
        name = ours[int(self._random.uniform(0, len(ours)))]
        match int(self._random.uniform(0, 3)):
            case 0:
                consumer.pause([name])
                await pause(self._random.uniform(0, 1_000))
                consumer.resume()
            case 1:
                consumer.resume()
            case _:
                await self._seek(links, consumer, name, member)

    async def _seek(
        self, links: GroupLinks, consumer: LitePullConsumer, name: QueueName, member: str
    ) -> None:
        around = self._around
        queue = Queue(str(name.topic), str(name.group), int(name.queue))
        stood = await ask_committed(around, links, LITE_GROUP, queue)
        if stood is None:
            return
        offset = max(0, stood - int(self._random.uniform(0, _BACK_MAX)))
        with around.recorder.asking(
            Commit,
            client=around.client,
            consumer_group=LITE_GROUP,
            member=member,
            queue=queue,
            offset=offset,
            is_reset=True,
        ) as asking:
            try:
                await consumer.seek(name, offset)
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok()

    def _choice(self, queues: list[Queue]) -> Queue:
        return queues[int(self._random.uniform(0, len(queues)))]

    def _begin(self, member: str, message: ReceivedMessage) -> Asking[Deliver]:
        return self._around.recorder.asking(
            Deliver,
            client=self._around.client,
            consumer_group=LITE_GROUP,
            member=member,
            queue=Queue(message.topic, message.group, message.queue_id),
            message=seen(message.queue_offset, message.body),
        )

    def _processed(self) -> None:
        for asking in self._polled:
            asking.ok()
        self._polled.clear()

    def _left(self) -> None:
        """Nobody will say that these were processed."""
        for asking in self._polled:
            asking.fail("LEFT")
        self._polled.clear()
