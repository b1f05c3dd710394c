"""Units, chosen queues and one-way messages, while the masters of two groups are killed."""

import asyncio
import signal
from itertools import count
from pathlib import Path

import pytest
from tests.support.process.harness import running_cluster, the_master
from tests.support.process.load import Place, all_in_sync, create_topic, pulled_everything

from paceline.message import Message
from paceline.producer.producer import Producer
from paceline.producer.results import SendResult
from paceline.producer.selectors import select_by_hash
from paceline.producer.settings import ProducerSettings
from paceline.queues import QueueName
from paceline.types import GroupName, QueueId, TopicName

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

ORDERS = TopicName("orders")
UNIT = 5


class Sent:
    """What was sent in which way, and where the answers said that it lies."""

    def __init__(self, producer: Producer) -> None:
        self.placed: dict[Place, bytes] = {}
        self.oneway: list[bytes] = []
        self.is_over = False
        self._producer = producer

    def note(self, result: SendResult, body: bytes) -> None:
        place = Place(result.group, result.queue_id, result.queue_offset)
        assert self.placed.setdefault(place, body) == body, place

    async def units(self) -> None:
        """Messages of one unit lie side by side."""
        for number in count():
            bodies = [b"unit %d %d " % (number, index) * 20 for index in range(UNIT)]
            results = await self._producer.send_batch([Message("orders", body) for body in bodies])
            for index, result in enumerate(results):
                assert result.queue_offset == results[0].queue_offset + index
                self.note(result, bodies[index])
            if self.is_over:
                return

    async def chosen(self, group: str) -> None:
        """To one queue, and never elsewhere."""
        queue = QueueName(ORDERS, GroupName(group), QueueId(0))
        for number in count():
            body = b"chosen %d %s" % (number, group.encode())
            result = await self._producer.send(Message("orders", body, queue=queue))
            assert (result.group, result.queue_id) == (group, 0)
            self.note(result, body)
            if self.is_over:
                return

    async def selected(self) -> None:
        """Equal arguments share a queue; now and then a one-way message."""
        queues: dict[int, tuple[str, int]] = {}
        for number in count():
            body = b"selected %d" % number
            message = Message("orders", body)
            result = await self._producer.send(message, selector=select_by_hash, arg=number % 9)
            place = (result.group, result.queue_id)
            assert queues.setdefault(number % 9, place) == place
            self.note(result, body)
            if not number % 10:
                self.oneway.append(b"oneway %d" % number)
                self._producer.send_oneway(Message("orders", self.oneway[-1]))
            if self.is_over:
                return


async def test_every_way_to_send_survives_kills_of_masters(tmp_path: Path) -> None:
    """What was acknowledged lies where the answer said, once; one-way messages once at most."""
    settings = ProducerSettings(send_latency_enable=True, compress_msg_body_over_howmuch=500)
    with running_cluster(tmp_path / "data", "--groups", "2", restart=True) as cluster:
        await create_topic(cluster, "orders")

        async with Producer(cluster.bootstrap, settings=settings) as producer:
            sent = Sent(producer)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(sent.units())
                tasks.create_task(sent.selected())
                for group in ("g1", "g2"):
                    tasks.create_task(sent.chosen(group))
                for group in ("g1", "g2"):
                    cluster.send_signal(await the_master(cluster, group), signal.SIGKILL)
                    await the_master(cluster, group)  # another one: who is dead says nothing
                    await all_in_sync(cluster)
                sent.is_over = True
        stored = await pulled_everything(cluster, "orders")

    assert len(sent.placed) > 200
    assert {place: stored[place] for place in sent.placed} == sent.placed
    found = [body for body in stored.values() if body.startswith(b"oneway ")]
    assert len(found) == len(set(found))
    assert set(found) <= set(sent.oneway)
    assert len(stored) == len(sent.placed) + len(found)
