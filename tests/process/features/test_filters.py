"""Real processes: a filtered group gets exactly what it wants, and its offsets pass the rest."""

import signal
from pathlib import Path

import pytest
from tests.support.process.harness import eventually, running_cluster, the_master

from paceline.admin.client import AdminClient
from paceline.consumer.pull import PullConsumer
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.filters import Subscription
from paceline.message import Message, ReceivedMessage
from paceline.producer.producer import Producer

pytestmark = [pytest.mark.process, pytest.mark.timeout(90)]

COUNT = 400


async def test_a_filtered_group_goes_on_over_a_failover(tmp_path: Path) -> None:
    """The new master knows no filter: it is told again."""
    seen: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    with running_cluster(tmp_path / "data") as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("parcels", queues=2)
        consumer = PushConsumer(
            cluster.bootstrap,
            group="porters",
            topics=[Subscription.by_sql("parcels", "grams >= 90 and TAGS = 'box'")],
            listener=listen,
            settings=PushSettings(start="first", commit_interval_ms=100),
        )
        async with consumer, Producer(cluster.bootstrap) as producer:

            async def send(numbers: range) -> None:
                for number in numbers:
                    properties = {"grams": str(number % 100)}
                    tag = "box" if number % 2 else "letter"
                    body = b"%d" % number
                    await producer.send(Message("parcels", body, tag=tag, properties=properties))

            await send(range(COUNT // 2))
            cluster.send_signal(await the_master(cluster), signal.SIGKILL)
            await send(range(COUNT // 2, COUNT))
            wanted = [number for number in range(COUNT) if number % 100 >= 90 and number % 2]

            async def all_seen() -> bool:
                return len(seen) >= len(wanted)

            await eventually(all_seen, what="the wanted messages")

            async def all_passed() -> bool:
                async with PullConsumer(cluster.bootstrap) as reader:
                    queues = await reader.queues("parcels")
                    committed = await reader.committed("porters", queues)
                return sum(offset or 0 for offset in committed.values()) == COUNT

            await eventually(all_passed, what="commits up to the end of both queues")

    assert sorted(set(seen)) == wanted
