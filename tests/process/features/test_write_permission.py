"""Real processes: a broker group is emptied for maintenance under load, and nobody notices."""

from pathlib import Path

import pytest
from tests.support.process.harness import eventually, running_cluster

from paceline.admin.client import AdminClient
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.errors import NoPermissionError
from paceline.message import Message, ReceivedMessage
from paceline.platform.runtime import pause
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


async def test_producers_leave_a_wiped_group_and_consumers_drain_it(tmp_path: Path) -> None:
    seen: dict[int, str] = {}
    sent: dict[int, str] = {}

    async def listen(message: ReceivedMessage) -> None:
        seen[int(message.body)] = message.group

    arguments = ("--groups", "2", "--brokers", "1")
    with running_cluster(tmp_path / "data", *arguments) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("orders", queues=2)
            producer = Producer(cluster.bootstrap)
            consumer = PushConsumer(
                cluster.bootstrap,
                group="audit",
                topics=["orders"],
                listener=listen,
                settings=PushSettings(start="first"),
            )
            async with producer, consumer:

                async def send(count: int) -> list[str]:
                    first = len(sent)
                    for number in range(first, first + count):
                        result = await producer.send(Message("orders", b"%d" % number))
                        sent[number] = result.group
                        await pause(1)
                    return [sent[number] for number in range(first, first + count)]

                assert set(await send(40)) == {"g1", "g2"}
                await admin.broker_groups.set_write_permission("g1", writable=False)
                await send(5)  # the producer's view is newer with the first answer at the latest
                assert set(await send(40)) == {"g2"}

                async def drained() -> bool:
                    return seen == sent

                await eventually(drained, what="everything consumed, also what g1 had")
                async with Producer(
                    cluster.bootstrap, settings=ProducerSettings(delivery_timeout_ms=5_000)
                ) as other:
                    await admin.broker_groups.set_write_permission("g2", writable=False)
                    with pytest.raises(NoPermissionError, match="paceline cluster add-write-perm"):
                        await other.send(Message("orders", b"nowhere"))
                await admin.broker_groups.set_write_permission("g2", writable=True)
                await admin.broker_groups.set_write_permission("g1", writable=True)

                async def both() -> bool:
                    return set(await send(8)) == {"g1", "g2"}

                await eventually(both, what="both groups written to again")
                await eventually(drained, what="everything consumed")
