"""The operator who takes permissions away and gives them back, and who sends meanwhile.

A topic of its own loses the right to be written, or read; broker groups lose theirs to be written,
one at a time and for less time than senders wait. What is refused must never show (S4), and once
all is given back everything goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from paceline.admin.client import AdminClient
from paceline.errors import PacelineError, TopicExistsError
from paceline.message import Message
from paceline.net.cluster import Cluster
from paceline.platform.runtime import pause
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.types import GroupName
from paceline_chaos.cluster_sim.bodies import make_body
from paceline_chaos.cluster_sim.jobs.around import CALL_TIMEOUT_MS, Around
from paceline_chaos.cluster_sim.jobs.sending import asking_to_send, enter_sent

PERMIT_TOPIC = "permits"
QUEUES = 1
_BOTH, _READ, _WRITE = 6, 4, 2
_SETTINGS = ProducerSettings(delivery_timeout_ms=2_000, request_timeout_ms=1_000, topic_wait_ms=300)
_AWAY_MS_MIN, _AWAY_MS_MAX = 100, 500
_REST_MS_MIN, _REST_MS_MAX = 300, 900
_SESSION_SENDS = 60
_TRIES = 40


class Permitter:
    """See the module."""

    def __init__(self, around: Around) -> None:
        self._around = replace(around.apart("permit"), topic=PERMIT_TOPIC)
        self._numbers = 0
        self._sessions = 0

    async def run(self) -> None:
        """Until it is over; then all is given back, as far as anybody answers."""
        cluster = self._around.cluster()
        cluster.start()
        try:
            async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
                await self._around.try_again(lambda: _make(admin))
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._alter_all(admin), name="alter-perm")
                    group.create_task(self._wipe_all(cluster, admin), name="wipe")
                    group.create_task(self._send_all(), name="send-permitted")
        finally:
            await cluster.close()

    async def _alter_all(self, admin: AdminClient) -> None:
        around = self._around
        while not around.is_over():
            await self._rest()
            for perm in (around.choice((_READ, _WRITE, 0)), _BOTH):
                await _insist(partial(admin.alter_topic, PERMIT_TOPIC, perm=perm))
                await self._away()

    async def _wipe_all(self, cluster: Cluster, admin: AdminClient) -> None:
        around = self._around
        while not around.is_over():
            await self._rest()
            if cluster.view is not None:
                await self._wipe(admin, around.choice(sorted(cluster.view.groups)))

    async def _wipe(self, admin: AdminClient, group: GroupName) -> None:
        with suppress(PacelineError):
            await admin.broker_groups.set_write_permission(str(group), writable=False)
            await self._away()
        # Also if nobody knows whether it was taken away.
        await _insist(partial(admin.set_write_permission, str(group), writable=True))

    async def _away(self) -> None:
        await pause(self._around.random.uniform(_AWAY_MS_MIN, _AWAY_MS_MAX))

    async def _rest(self) -> None:
        await pause(self._around.random.uniform(_REST_MS_MIN, _REST_MS_MAX))

    # -- the sender --------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        around = self._around
        while not around.is_over():
            self._sessions += 1
            cluster = around.cluster()
            producer = Producer(cluster, settings=_SETTINGS)
            async with around.session(partial(producer.close, timeout_ms=0), cluster.close):
                await producer.start()
                for _ in around.turns(_SESSION_SENDS):
                    await self._send(producer)
                    await around.think()

    async def _send(self, producer: Producer) -> None:
        around = self._around
        self._numbers += 1
        value = f"{around.alias}-permit-{self._numbers}"
        body = make_body(value, around.whole(8, around.body_bytes_max))
        asking = asking_to_send(around, value, body, f"{around.alias}/permit-{self._sessions}")
        try:
            enter_sent(asking, await producer.send(Message(PERMIT_TOPIC, body)))
        except PacelineError as error:
            asking.raised(error)


async def _make(admin: AdminClient) -> None:
    with suppress(TopicExistsError):  # made in an earlier life
        await admin.topics.create(PERMIT_TOPIC, queues=QUEUES)


async def _insist(order: Callable[[], Awaitable[object]]) -> None:
    """Give an order until it is heard, or nobody has answered for long."""
    for _ in range(_TRIES):
        with suppress(PacelineError):
            await order()
            return
        await pause(_AWAY_MS_MIN)


async def permit(cluster: Cluster, around: Around) -> None:
    """All permissions again, for who reads everything in the end."""
    async with AdminClient(cluster, timeout_ms=CALL_TIMEOUT_MS) as admin:
        await _insist(partial(admin.alter_topic, PERMIT_TOPIC, perm=_BOTH))
