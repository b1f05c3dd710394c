"""A static topic whose logical queues move between broker groups while everybody uses it (S37).

Senders have several batches of one key on their way, so that a move meets what is unsent, under way
and unknown at once; two members of the library's ordered consumer read the logical queues segment
by segment. The operator remaps at random times, whatever else is broken.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError, TopicExistsError
from paceline.message import Message
from paceline.net.cluster import Cluster
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.producer.producer import Producer
from paceline.producer.results import Sending
from paceline.types import TopicName
from paceline.wire.topics import FIFO
from paceline_chaos.cluster_sim.bodies import make_body
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around
from paceline_chaos.cluster_sim.jobs.inorder import InOrder
from paceline_chaos.cluster_sim.jobs.sending import SETTINGS, asking_to_send, enter_outcome
from paceline_chaos.history.model import Send
from paceline_chaos.history.recorder import Asking

STATIC_TOPIC = "mapped"
GROUP = "inorder-mapped"
LOGICAL_QUEUES = 3
_KEYS = 2
_UNDER_WAY_MAX = 6
_SESSION_MESSAGES = 150
_PAUSE_MS_MIN, _PAUSE_MS_MAX = 200, 3_000


class Remapper:
    """The operator, the senders and the members of the ordered group."""

    def __init__(self, around: Around) -> None:
        self._around = replace(around, topic=STATIC_TOPIC)
        self._numbers = 0

    async def run(self) -> None:
        """Until it is over."""
        around = self._around
        # Before anybody asks for it: where topics make themselves it would be an ordinary one.
        await around.try_again(lambda: around.as_admin(_make_topic, timeout_ms=CALL_TIMEOUT_MS))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._remap_all(), name="remap")
            for number in range(2):
                member = InOrder(around, group=GROUP, label=f"mapped{number}")
                group.create_task(member.run(), name=f"member-{number}")
            session = 0
            while not around.is_over():
                session += 1
                await self._send_all(f"{around.alias}/mapped-{session}")

    # -- the operator ------------------------------------------------------------------------------

    async def _remap_all(self) -> None:
        around = self._around
        cluster = around.cluster()
        cluster.start()
        try:
            async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
                while not around.is_over():
                    await pause(around.random.uniform(_PAUSE_MS_MIN, _PAUSE_MS_MAX))
                    await self._remap(cluster, admin)
        finally:
            await cluster.close()

    async def _remap(self, cluster: Cluster, admin: AdminClient) -> None:
        around, view = self._around, cluster.view
        topic = None if view is None else view.topics.get(TopicName(STATIC_TOPIC))
        if view is None or topic is None:
            return
        number = around.whole(0, len(topic.logical_queues) - 1)
        last = topic.logical_queues[number].last
        target = around.choice(sorted(view.groups))
        try:
            await admin.topics.remap_queue(STATIC_TOPIC, number, target, generation=last.generation)
        except PacelineError:
            return  # refused, or nobody knows: the next one comes

    # -- the senders -------------------------------------------------------------------------------

    async def _send_all(self, session: str) -> None:
        around = self._around
        cluster = around.cluster()
        producer = Producer(cluster, settings=SETTINGS)
        senders: list[asyncio.Task[None]] = []
        async with around.session(
            lambda: cancel_and_wait(*senders), partial(producer.close, timeout_ms=0), cluster.close
        ):
            await producer.start()
            senders += [
                spawn(self._send(producer, session, f"{around.client}-mapped{n}"), name=f"key-{n}")
                for n in range(_KEYS)
            ]
            await asyncio.wait(senders)

    async def _send(self, producer: Producer, session: str, key: str) -> None:
        """One message after another, without waiting for each."""
        around = self._around
        under_way: deque[tuple[Asking[Send], Sending]] = deque()
        for _ in around.turns(_SESSION_MESSAGES // _KEYS):
            self._numbers += 1
            value = f"{around.alias}-mapped-{self._numbers}"
            body = make_body(value, around.whole(8, around.body_bytes_max))
            asking = asking_to_send(around, value, body, session, key=key)
            try:
                under_way.append((asking, producer.send(Message(STATIC_TOPIC, body, key=key))))
            except PacelineError as error:
                asking.raised(error)
            while under_way and (under_way[0][1].done() or len(under_way) > _UNDER_WAY_MAX):
                await enter_outcome(*under_way.popleft())
            await pause(around.random.uniform(0, around.think_ms / 2))
        for asked in under_way:
            await enter_outcome(*asked)


async def _make_topic(admin: AdminClient) -> None:
    with suppress(TopicExistsError):  # made in an earlier life
        await admin.topics.create(STATIC_TOPIC, logical_queues=LOGICAL_QUEUES, message_type=FIFO)
