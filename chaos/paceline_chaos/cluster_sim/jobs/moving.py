"""Groups that are moved while they consume, and members that each get everything.

The mover is a member of a group that pauses, resumes, seeks and is reset (R33): what it committed
and was told is judged as for any group (S21, S22). The broadcaster keeps its offsets in a file on
its own disk, which survives its process: over all its lives it skips nothing (S35).
"""

from typing import Any

from paceline.consumer.push import PushConsumer, PushSettings
from paceline.errors import PacelineError
from paceline.message import ReceivedMessage
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import pause
from paceline.wire.calls.offsets import Reset
from paceline_chaos.cluster_sim.jobs.around import Around, IntendedError, queues_in
from paceline_chaos.cluster_sim.jobs.consuming import ask_committed, call_group
from paceline_chaos.cluster_sim.jobs.reading import asking_to_process
from paceline_chaos.history.model import Commit, Queue

MOVED_GROUP = "moved-1"
BROADCAST_GROUP = "broadcast-1"
_LOOKS = 60
"""So many looks at the clock, then the member leaves and joins again."""
_LOOK_MS = 100
_PROCESS_MS_MAX = 20.0
_ACT_SHARE = 0.15
_LOOK_AGAIN_MS_MAX = 800
"""After a move: commits of the time before it have come by then."""


class Member:
    """A push consumer that records what it is given."""

    def __init__(self, around: Around, group: str, member: str, settings: PushSettings) -> None:
        self._around = around
        self._group = group
        self._member = member
        self.cluster = around.cluster()
        self.consumer = PushConsumer(
            self.cluster,
            group=group,
            topics=[around.topic],
            listener=self._listen,
            settings=settings,
            client_id=member,
            disk=around.disk,
        )

    async def close(self) -> None:
        await self.consumer.close()
        await self.cluster.close()

    async def _listen(self, message: ReceivedMessage) -> None:
        around = self._around
        is_broadcast = self._group == BROADCAST_GROUP
        with asking_to_process(
            around, self._group, self._member, message, is_broadcast=is_broadcast
        ) as asking:
            if around.happens(0.1):
                await pause(around.random.uniform(0, _PROCESS_MS_MAX))
            if around.happens(0.01):
                raise IntendedError
            asking.ok()


class Mover:
    """A member of the group that is moved, and who moves it."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._sessions = 0
        self._looks = around.apart("moved").random

    async def run(self) -> None:
        """One membership after another until it is over."""
        around = self._around
        settings = PushSettings(
            start="first", concurrency=4, commit_interval_ms=300, send_back=False
        )
        while not around.is_over():
            self._sessions += 1
            name = f"{around.alias}/move-{self._sessions}"
            member = Member(around, MOVED_GROUP, name, settings)
            links = GroupLinks(member.cluster)
            async with around.session(links.close, member.close):
                await member.consumer.start()
                for _ in around.turns(_LOOKS):
                    await pause(_LOOK_MS)
                    if around.happens(_ACT_SHARE):
                        await self._act(member, links, name)

    async def _act(self, member: Member, links: GroupLinks, name: str) -> None:
        around = self._around
        queues = queues_in(member.cluster, around.topic)
        if not queues:
            return
        queue = around.choice(queues)
        match around.choice(("pause", "resume", "resume", "ask", "ask", "move")):
            case "pause":
                member.consumer.pause(member.consumer.queues[:1])
            case "resume":
                member.consumer.resume()
            case "ask":
                await ask_committed(around, links, MOVED_GROUP, queue)
            case _:
                await self._move(member, links, queue, name)

    async def _move(self, member: Member, links: GroupLinks, queue: Queue, name: str) -> None:
        """Seek as a member, or reset as an operator does: near to where the group stands."""
        around = self._around
        stood = await ask_committed(around, links, MOVED_GROUP, queue)
        if stood is None:
            return
        offset = max(0, stood - around.whole(0, 30))
        ours = [key for key in member.consumer.queues if _is(key, queue)]
        with around.recorder.asking(
            Commit,
            client=around.client,
            consumer_group=MOVED_GROUP,
            member=name,
            queue=queue,
            offset=offset,
            is_reset=True,
        ) as asking:
            try:
                if ours and around.happens(0.5):
                    await member.consumer.seek(ours[0], offset)
                else:
                    await reset_group(links, MOVED_GROUP, queue, offset)
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok()
        await pause(self._looks.uniform(0, _LOOK_AGAIN_MS_MAX))
        await ask_committed(around, links, MOVED_GROUP, queue)


def _is(key: Any, queue: Queue) -> bool:
    return bool(key.group == queue.group and key.queue == queue.queue)


async def reset_group(links: GroupLinks, group: str, queue: Queue, offset: int) -> None:
    """As an operator does. Raises PacelineError."""
    request = Reset(
        group=group,
        topic=queue.topic,
        queues=[queue.queue],
        offset=offset,
        new=True,  # its first member may not have been heard of here
    )
    await call_group(links, queue, request)


class Broadcaster:
    """One member of the broadcasting group, over all its lives."""

    def __init__(self, around: Around) -> None:
        self._around = around

    async def run(self) -> None:
        """Until it is over; it starts anew now and then, and after each kill of its process."""
        around = self._around
        settings = PushSettings(
            message_model="broadcasting",
            start="first",
            concurrency=4,
            commit_interval_ms=200,
            persist_interval_ms=500,
            offsets_folder="/offsets",
        )
        while not around.is_over():
            member = Member(around, BROADCAST_GROUP, around.client, settings)
            async with around.session(member.close):
                await member.consumer.start()
                for _ in around.turns(around.whole(1, 2 * _LOOKS)):
                    await pause(_LOOK_MS)
