"""Simple consumers: messages received by receipt, acknowledged, forgotten or given back (S23)."""

from typing import NamedTuple

from paceline.consumer.links import GroupLinks
from paceline.consumer.popped import PoppedMessage, SimpleSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import PacelineError
from paceline.net.cluster import Cluster
from paceline.runtime import SeededRandom, pause
from paceline_chaos.history.model import Ack, Pop, Queue
from paceline_chaos.world.jobs.around import Around, queues_in
from paceline_chaos.world.jobs.consuming import ask_committed
from paceline_chaos.world.jobs.reading import seen

POP_GROUP = "simple-1"
INVISIBLE_MS = 10_000
"""The least that brokers take: what is forgotten comes again while the world still runs."""
_WAIT_MS = 1_000
_MEMBERS = 2
_SESSION_RECEIVES = 40
_FORGET_SHARE = 0.15
_BACK_SHARE = 0.1
_LOOK_SHARE = 0.1


class _Member(NamedTuple):
    """One consumer object and what the history calls it."""

    consumer: SimpleConsumer
    name: str


class Popper:
    """Members of the simple consumers' group, which come and go."""

    def __init__(self, around: Around) -> None:
        self._around = around
        # A stream of its own: what the client's other jobs draw stays as it is.
        self._random = SeededRandom(f"{around.alias}/pop")
        self._sessions = 0

    async def run(self) -> None:
        """Some members after another, side by side, until it is over."""
        around = self._around
        while not around.is_over():
            self._sessions += 1
            cluster = Cluster(
                around.bootstrap,
                clock=around.clock,
                random=self._random,
                source_host=around.source_host,
            )
            settings = SimpleSettings(invisible_ms=INVISIBLE_MS, wait_ms=_WAIT_MS)
            members = [self._member(cluster, number, settings) for number in range(_MEMBERS)]
            links = GroupLinks(cluster)
            try:
                for member in members:
                    await member.consumer.start()
                for _ in range(_SESSION_RECEIVES):
                    if around.is_over():
                        break
                    await self._round(members)
                    queues = queues_in(cluster, around.topic)
                    if queues and self._random.uniform(0, 1) < _LOOK_SHARE:
                        queue = queues[int(self._random.uniform(0, len(queues)))]
                        await ask_committed(around, links, POP_GROUP, queue)
            except PacelineError:
                await pause(self._random.uniform(0, 2 * around.think_ms))
            finally:
                await links.close()
                for member in members:
                    await member.consumer.close()
                await cluster.close()

    def _member(self, cluster: Cluster, number: int, settings: SimpleSettings) -> _Member:
        around = self._around
        name = f"{around.alias}/pop-{self._sessions}-{number}"
        consumer = SimpleConsumer(
            cluster, group=POP_GROUP, topics=[around.topic], settings=settings, client_id=name
        )
        return _Member(consumer, name)

    async def _round(self, members: list[_Member]) -> None:
        """One receive of one of them, and what becomes of its messages."""
        around = self._around
        member = members[int(self._random.uniform(0, len(members)))]
        consumer, name = member
        if not consumer.is_quiet:
            # What comes now may have been asked for at any time before: nothing can be judged.
            for message in await consumer.receive(wait_ms=0):
                await self._ack(consumer, name, message)
            await pause(self._random.uniform(0, 2 * around.think_ms))
            return
        asked_us = around.recorder.now_us()
        messages = await consumer.receive(int(self._random.uniform(1, 17)))
        for message in messages:
            with around.recorder.asking(
                Pop,
                asked_us=asked_us,
                client=around.client,
                consumer_group=POP_GROUP,
                member=name,
                queue=_queue(message),
                message=seen(message.queue_offset, message.body),
                attempt=message.attempt,
                invisible_ms=INVISIBLE_MS,
            ) as asking:
                asking.ok()
        await pause(self._random.uniform(0, 2 * around.think_ms))
        for message in messages:
            await self._settle(consumer, name, message)

    async def _settle(self, consumer: SimpleConsumer, name: str, message: PoppedMessage) -> None:
        drawn = self._random.uniform(0, 1)
        if drawn < _FORGET_SHARE:
            return  # it comes again
        is_back = drawn < _FORGET_SHARE + _BACK_SHARE
        await self._ack(consumer, name, message, is_back=is_back)

    async def _ack(
        self, consumer: SimpleConsumer, name: str, message: PoppedMessage, *, is_back: bool = False
    ) -> None:
        """It is done, or given back."""
        with self._around.recorder.asking(
            Ack,
            client=self._around.client,
            consumer_group=POP_GROUP,
            member=name,
            queue=_queue(message),
            offset=message.queue_offset,
            is_back=is_back,
        ) as asking:
            try:
                if is_back:
                    await consumer.change_invisible(message, 0)
                else:
                    await consumer.ack(message)
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok()


def _queue(message: PoppedMessage) -> Queue:
    return Queue(message.topic, message.group, message.queue_id)
