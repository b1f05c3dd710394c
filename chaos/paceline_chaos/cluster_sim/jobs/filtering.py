"""Groups that want some messages of the topic, by tag or by SQL92, and who sends all sorts (S39).

Bursts are sent in one loop turn, so that batches hold messages that are wanted beside others. The
members push, pull and receive; what they are given, and where their groups stand, is entered.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from paceline.consumer.pull import PullConsumer, PullSettings
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.settings.simple import SimpleSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import PacelineError
from paceline.filters import Subscription, make_filter
from paceline.message import Message, ReceivedMessage
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import pause
from paceline.producer.producer import Producer
from paceline.queues import QueueName
from paceline_chaos.checkers.evidence.wanting import AT_BOUNDS, SQL, TAGS
from paceline_chaos.cluster_sim.bodies import make_body
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around
from paceline_chaos.cluster_sim.jobs.consuming import ask_committed, look_at_offsets
from paceline_chaos.cluster_sim.jobs.popping import INVISIBLE_MS
from paceline_chaos.cluster_sim.jobs.reading import asking_to_process, history_queue
from paceline_chaos.cluster_sim.jobs.sending import SETTINGS, asking_to_send, enter_outcome
from paceline_chaos.history.model import Commit, Send
from paceline_chaos.history.recorder import Asking

TAGS_GROUP, SQL_GROUP, RECEIVING_GROUP = "tagged-1", "graded-1", "sifted-1"
PULL_GROUP = "picked-"
"""With the client's name behind it: nobody shares its queues."""
_TYPES = {TAGS: "TAG", SQL: "SQL92"}
_TAGS = ("", "red", "box", "letter")
_COLOURS = ("red", "green", "blue")
_BURST_MAX = 6
_SESSION_TURNS = 100
_LOOK_MS = 150
_WAIT_MS = 1_000
_LOOK_SHARE = 0.15
_COMMIT_SHARE = 0.3


class Filterer:
    """A client that sends what is wanted and what is not; a member of groups with filters."""

    def __init__(self, around: Around) -> None:
        self._around = around.apart("filter")
        self._numbers = 0
        self._sessions = 0

    async def run(self) -> None:
        """Everything at the same time, until it is over."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_all(), name="send-tagged")
            group.create_task(self._push_all(TAGS_GROUP, TAGS), name="push-tagged")
            group.create_task(self._push_all(SQL_GROUP, SQL), name="push-graded")
            group.create_task(self._pull_all(), name="pull-picked")
            group.create_task(self._receive_all(), name="receive-sifted")

    # -- sending -----------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        around = self._around
        while not around.is_over():
            self._sessions += 1
            cluster = around.cluster()
            producer = Producer(cluster, settings=SETTINGS)
            async with around.session(partial(producer.close, timeout_ms=0), cluster.close):
                await producer.start()
                for _ in around.turns(_SESSION_TURNS):
                    await self._burst(producer)
                    await around.think()

    async def _burst(self, producer: Producer) -> None:
        asked = []
        for _ in range(self._around.whole(1, _BURST_MAX)):
            message, asking = self._message()
            try:
                asked.append((asking, producer.send(message)))
            except PacelineError as error:
                asking.raised(error)
        for asking, sending in asked:
            await enter_outcome(asking, sending)

    def _message(self) -> tuple[Message, Asking[Send]]:
        around = self._around
        self._numbers += 1
        value = f"{around.alias}-filter-{self._numbers}"
        body = make_body(value, around.whole(8, around.body_bytes_max))
        tag, properties = around.choice(_TAGS), self._properties()
        session = f"{around.alias}/filter-{self._sessions}"
        asking = asking_to_send(around, value, body, session, tag=tag, properties=properties)
        return Message(around.topic, body, tag=tag or None, properties=properties), asking

    def _properties(self) -> dict[str, str]:
        """Some are not there, some are no numbers."""
        around = self._around
        found = {}
        if around.happens(0.8):
            grams = around.choice(AT_BOUNDS) if around.happens(0.5) else around.whole(0, 800)
            found["grams"] = "many" if around.happens(0.1) else str(grams)
        if around.happens(0.5):
            found["colour"] = around.choice(_COLOURS)
        if around.happens(0.8):
            found["rank"] = str(around.whole(0, 5))
        return found

    # -- pushed ------------------------------------------------------------------------------------

    async def _push_all(self, group: str, wanted: str) -> None:
        """One membership after another."""
        around, session = self._around, 0
        while not around.is_over():
            session += 1
            cluster = around.cluster()
            links = GroupLinks(cluster)
            member = f"{around.alias}/{group}-{session}"
            subscription = Subscription(around.topic, make_filter(_TYPES[wanted], wanted))
            consumer = PushConsumer(
                cluster,
                group=group,
                topics=[subscription],
                listener=self._listener(group, member, wanted),
                settings=PushSettings(
                    start="first", concurrency=4, commit_interval_ms=300, send_back=False
                ),
                client_id=member,
            )
            async with around.session(links.close, consumer.close, cluster.close):
                await consumer.start()
                for _ in around.turns(_SESSION_TURNS):
                    await pause(_LOOK_MS)
                    await look_at_offsets(
                        around, cluster, links, group, around.topic, share=_LOOK_SHARE
                    )

    def _listener(self, group: str, member: str, wanted: str) -> Any:
        around = self._around

        async def listen(message: ReceivedMessage) -> None:
            with asking_to_process(around, group, member, message, wanted=wanted) as asking:
                if around.happens(0.05):
                    await pause(around.random.uniform(0, 100))
                asking.ok()

        return listen

    # -- pulled ------------------------------------------------------------------------------------

    async def _pull_all(self) -> None:
        """One consumer after another, each from where the group stands."""
        around = self._around
        while not around.is_over():
            cluster = around.cluster()
            links = GroupLinks(cluster)
            consumer = PullConsumer(cluster, settings=PullSettings(call_timeout_ms=CALL_TIMEOUT_MS))
            async with around.session(links.close, consumer.close, cluster.close):
                await consumer.start()
                await self._pull(consumer, links)

    async def _pull(self, consumer: PullConsumer, links: GroupLinks) -> None:
        around = self._around
        group = f"{PULL_GROUP}{around.client}"
        names = await consumer.queues(around.topic)
        ranges = await consumer.ranges(names)
        positions: dict[QueueName, int | str] = {}
        for name in names:
            stood = await ask_committed(around, links, group, history_queue(name))
            if stood is None:
                return
            positions[name] = max(stood, int(ranges[name].start))
        await consumer.assign(positions, wanted=make_filter(_TYPES[SQL], SQL))
        for _ in around.turns(_SESSION_TURNS):
            messages = await consumer.poll(
                max_messages=around.whole(1, 20), timeout_ms=int(2 * around.think_ms)
            )
            for message in messages:
                asking_to_process(around, group, around.alias, message, wanted=SQL).ok()
            if around.happens(_COMMIT_SHARE):
                await self._commit(consumer, group, around.choice(names))

    async def _commit(self, consumer: PullConsumer, group: str, name: QueueName) -> None:
        """All that was polled of a queue has been processed; what nobody wants counts as that."""
        around = self._around
        offset = int(consumer.position(name))
        with around.recorder.asking(
            Commit,
            client=around.client,
            consumer_group=group,
            member=around.alias,
            queue=history_queue(name),
            offset=offset,
        ) as asking:
            try:
                taken = await consumer.commit(group, {name: offset})
            except PacelineError as error:
                asking.raised(error)
            else:
                asking.ok(is_provisional=name.group in taken)

    # -- received ----------------------------------------------------------------------------------

    async def _receive_all(self) -> None:
        """Simple consumers, one after another: what is not wanted is passed over for the group."""
        around, session = self._around, 0
        subscription = Subscription(around.topic, make_filter(_TYPES[SQL], SQL))
        while not around.is_over():
            session += 1
            cluster = around.cluster()
            links = GroupLinks(cluster)
            member = f"{around.alias}/{RECEIVING_GROUP}-{session}"
            consumer = SimpleConsumer(
                cluster,
                group=RECEIVING_GROUP,
                topics=[subscription],
                settings=SimpleSettings(invisible_ms=INVISIBLE_MS, wait_ms=_WAIT_MS),
                client_id=member,
            )
            async with around.session(links.close, consumer.close, cluster.close):
                await consumer.start()
                for _ in around.turns(_SESSION_TURNS):
                    for message in await consumer.receive(around.whole(1, 16)):
                        asking_to_process(around, RECEIVING_GROUP, member, message, wanted=SQL).ok()
                        with suppress(PacelineError):  # it comes again
                            await consumer.ack(message)
                    await around.think()
                    await look_at_offsets(
                        around, cluster, links, RECEIVING_GROUP, around.topic, share=_LOOK_SHARE
                    )
