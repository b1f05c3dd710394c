"""Members of a group that ask for their messages (lite pull): commits, seeks, pauses (S21, S22).

A message is processed once the member says so: by the poll after it, by a commit, or by a clean
close. What was polled when its process dies, or when it closes after an error, was not.
"""

from functools import partial

from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import pause
from paceline.queues import QueueName
from paceline_chaos.cluster_sim.jobs.around import Around
from paceline_chaos.cluster_sim.jobs.consuming import ask_committed, look_at_offsets
from paceline_chaos.cluster_sim.jobs.reading import asking_to_process, history_queue
from paceline_chaos.history.model import Commit, Deliver
from paceline_chaos.history.recorder import Asking

LITE_GROUP = "lite-1"
_SESSION_POLLS = 40
_POLL_MS = 500
_MESSAGES_MAX = 20
_ACT_SHARE = 0.1
_BACK_MAX = 29
_CRASH_SHARE = 0.2


class LitePoller:
    """A member that polls; joins and leaves."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("lite")
        self._sessions = 0
        self._polled: list[Asking[Deliver]] = []

    async def run(self) -> None:
        """One membership after another until it is over."""
        around = self._around
        while not around.is_over():
            self._sessions += 1
            cluster = around.cluster()
            links = GroupLinks(cluster)
            member = f"{around.alias}/lite-{self._sessions}"
            is_auto = around.happens(0.5)
            consumer = LitePullConsumer(
                cluster,
                group=LITE_GROUP,
                topics=[around.topic],
                settings=LitePullSettings(
                    start="first", auto_commit=is_auto, auto_commit_interval_ms=1_000
                ),
                client_id=member,
            )
            leave = partial(self._leave, consumer, is_auto=is_auto)
            async with around.session(links.close, leave, cluster.close):
                await consumer.start()
                await self._session(cluster, links, consumer, member, is_auto=is_auto)

    async def _leave(self, consumer: LitePullConsumer, *, is_auto: bool) -> None:
        """Some crash: nobody will say that what they have polled was processed."""
        is_clean = not self._around.happens(_CRASH_SHARE)
        if is_clean and is_auto:
            self._processed()
        for asking in self._polled:
            asking.fail("LEFT")
        self._polled.clear()
        await consumer.close(is_processed=is_clean)

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
        for _ in around.turns(_SESSION_POLLS):
            if is_auto:
                self._processed()
            for message in await consumer.poll(max_messages=_MESSAGES_MAX, timeout_ms=_POLL_MS):
                self._polled.append(asking_to_process(around, LITE_GROUP, member, message))
            await pause(around.random.uniform(0, around.think_ms))
            if not is_auto and around.happens(0.5):
                self._processed()  # from here on it counts, whatever becomes of the commit
                await consumer.commit()
            await look_at_offsets(around, cluster, links, LITE_GROUP, around.topic)
            if around.happens(_ACT_SHARE):
                await self._act(links, consumer, member)

    async def _act(self, links: GroupLinks, consumer: LitePullConsumer, member: str) -> None:
        """Pause, go on, or seek back a little."""
        around, ours = self._around, consumer.queues
        if not ours:
            return
        name = around.choice(ours)
        match around.whole(0, 2):
            case 0:
                consumer.pause([name])
                await pause(around.random.uniform(0, 1_000))
                consumer.resume()
            case 1:
                consumer.resume()
            case _:
                await self._seek(links, consumer, name, member)

    async def _seek(
        self, links: GroupLinks, consumer: LitePullConsumer, name: QueueName, member: str
    ) -> None:
        around = self._around
        queue = history_queue(name)
        stood = await ask_committed(around, links, LITE_GROUP, queue)
        if stood is None:
            return
        offset = max(0, stood - around.whole(0, _BACK_MAX))
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

    def _processed(self) -> None:
        for asking in self._polled:
            asking.ok()
        self._polled.clear()
