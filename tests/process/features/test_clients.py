"""Real processes: who is connected, also when the master they were connected to has been killed."""

import signal
from pathlib import Path

import pytest
from tests.support.process.harness import eventually, running_cluster, the_master
from tests.support.process.load import all_in_sync, create_topic

from paceline.admin.client import AdminClient
from paceline.consumer.push import PushConsumer
from paceline.message import Message, ReceivedMessage
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.wire.clients import Row

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


async def nothing(message: ReceivedMessage) -> None:
    """A listener."""


async def test_clients_are_listed_by_the_next_master_and_not_when_they_are_gone(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        await create_topic(cluster, "orders", queues=2)
        await all_in_sync(cluster)
        old = await the_master(cluster)
        settings = ProducerSettings(group="shop", client_id="till-7")
        consumer = PushConsumer(
            cluster.bootstrap,
            group="audit",
            topics=["orders"],
            listener=nothing,
            client_id="c1",
        )
        async with (
            AdminClient(cluster.bootstrap) as admin,
            Producer(cluster.bootstrap, settings=settings) as producer,
            consumer,
        ):
            await producer.send(Message("orders", b"before"))
            seen: list[Row] = []

            async def both() -> bool:
                seen[:] = (await admin.clients.all(topic="orders")).clients
                return len(seen) == 2

            await eventually(both, what="both are listed")
            [before] = {tuple(row["brokers"]) for row in seen}
            assert [(row["kind"], row["group"], row["client_id"]) for row in seen] == [
                ("consumer", "audit", "c1"),
                ("producer", "shop", "till-7"),
            ]
            assert all(row["address"].startswith("127.0.0.1:") for row in seen)

            cluster.send_signal(old, signal.SIGKILL)

            async def both_elsewhere() -> bool:
                return await both() and all(before != tuple(row["brokers"]) for row in seen)

            await eventually(both_elsewhere, what="both are listed by the next master")
            await producer.send(Message("orders", b"after"))

            await consumer.close()

            async def one_is_left() -> bool:
                rows = (await admin.clients.all()).clients
                return [row["client_id"] for row in rows] == ["till-7"]

            await eventually(one_is_left, what="the consumer has gone")
