"""Real processes: receipts over the death of the master, and receivers of two broker groups."""

import asyncio
import signal
from pathlib import Path

import pytest
from tests.support.process.harness import eventually, running_cluster, the_master

from paceline import AdminClient, Message, Producer, SimpleConsumer, SimpleSettings
from paceline.consumer.pop.popped_message import PoppedMessage
from paceline.errors import ReceiptExpiredError
from paceline.platform.runtime import SystemClock
from paceline.queues import QueueName
from paceline.types import QueueId
from paceline.wire.topics import PRIORITY

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

COUNT = 400
INVISIBLE_MS = 10_000
EARLY_MS = 50
LATE_MS = 3_000
"""Generous for two busy cores; healthy it is some milliseconds."""


class Worker:
    """Receives and acknowledges until told; says what it got, and when each acknowledgement
    returned."""

    def __init__(self, consumer: SimpleConsumer, clock: SystemClock) -> None:
        self.acked_at: dict[int, int] = {}
        self.received: list[tuple[int, int]] = []
        """(number, when its receive was asked for)."""
        self.is_over = False
        self._consumer = consumer
        self._clock = clock

    async def run(self) -> None:
        while not self.is_over:
            asked_at = self._clock.monotonic_ms()
            messages = await self._consumer.receive(8, wait_ms=500)
            self.received += [(int(message.body), asked_at) for message in messages]
            for message in messages:
                await self._consumer.ack(message)
                self.acked_at[int(message.body)] = self._clock.monotonic_ms()


async def test_acknowledged_is_never_given_again_and_receipts_outlive_the_master(
    tmp_path: Path,
) -> None:
    clock = SystemClock()
    settings = SimpleSettings(invisible_ms=INVISIBLE_MS)
    with running_cluster(tmp_path / "data") as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("orders", queues=2)
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_many([Message("orders", b"%d" % n) for n in range(COUNT)])
        options = {"group": "work", "topics": ["orders"], "settings": settings}
        async with (
            SimpleConsumer(cluster.bootstrap, **options) as holder,  # type: ignore[arg-type]
            SimpleConsumer(cluster.bootstrap, **options) as first,  # type: ignore[arg-type]
            SimpleConsumer(cluster.bootstrap, **options) as second,  # type: ignore[arg-type]
        ):
            asked_at = clock.monotonic_ms()
            held = await holder.receive(10, wait_ms=5_000)
            workers = [Worker(first, clock), Worker(second, clock)]
            running = asyncio.gather(*(worker.run() for worker in workers))

            async def is_halfway() -> bool:
                return sum(len(worker.acked_at) for worker in workers) > COUNT // 4

            await eventually(is_halfway, what="a quarter of the messages acknowledged")
            master = await the_master(cluster)
            cluster.send_signal(master, signal.SIGKILL)
            await holder.ack(held[:5])  # at the next master, by the receipts of the one before

            async def is_done() -> bool:
                return len({n for worker in workers for n in worker.acked_at}) == COUNT - 5

            await eventually(is_done, within_ms=40_000, what="all others acknowledged")
            for worker in workers:
                worker.is_over = True
            await running
            with pytest.raises(ReceiptExpiredError):
                await holder.ack(held[5:])

    acked_at = {n: at for worker in workers for n, at in worker.acked_at.items()}
    received = [row for worker in workers for row in worker.received]
    forgotten = {int(message.body) for message in held[5:]}
    assert not [n for n, asked in received if asked > acked_at[n]], "given after its ack returned"
    again = [asked for n, asked in received if n in forgotten]
    assert len(again) == len(forgotten), "what was not acknowledged came again, once"
    assert min(again) + 500 >= asked_at + INVISIBLE_MS - EARLY_MS
    assert max(again) <= asked_at + INVISIBLE_MS + LATE_MS
    assert not {int(message.body) for message in held[:5]} & {n for n, _ in received}


async def test_one_receive_waits_for_all_broker_groups(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", "--groups", "2", "--brokers", "1") as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            topic = await admin.topics.create("orders", queues=1)
        options = {"group": "work", "topics": ["orders"]}
        async with (
            Producer(cluster.bootstrap) as producer,
            SimpleConsumer(cluster.bootstrap, **options) as consumer,  # type: ignore[arg-type]
        ):
            got: list[PoppedMessage] = []
            for group in sorted(topic.queues) * 2:
                waiting = asyncio.gather(consumer.receive(wait_ms=20_000))
                queue = QueueName(topic.topic, group, QueueId(0))
                await producer.send(Message("orders", group.encode(), queue=queue))
                [messages] = await waiting
                await consumer.ack(messages)
                got += messages

    assert [message.group for message in got] == ["g1", "g2"] * 2
    assert [message.attempt for message in got] == [1] * 4


async def test_what_has_a_higher_priority_is_given_first(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", "--brokers", "1") as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("jobs", queues=3, message_type=PRIORITY)
        async with Producer(cluster.bootstrap) as producer:
            for priority in (0, 2, 1, 2, 0, 7, 1):
                await producer.send(Message("jobs", b"%d" % priority, priority=priority))
            later = Message("jobs", b"later", priority=2, delay_ms=10)
            await producer.send(later)
        async with SimpleConsumer(cluster.bootstrap, group="work", topics=["jobs"]) as consumer:
            given: list[PoppedMessage] = []
            while len(given) < 8:
                given += await consumer.receive(2, wait_ms=5_000)

    assert [int(message.body) for message in given if message.body != b"later"] == [
        *(2, 2, 7),  # of one queue: there are three
        *(1, 1),
        *(0, 0),
    ]
    assert {message.priority for message in given} == {0, 1, 2, 7}
