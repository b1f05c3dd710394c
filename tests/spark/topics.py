"""Topics for tests of Spark: made, filled, and read back without Spark."""

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any

from tests.support.process.harness import RunningCluster, broker_statuses, http_session, the_master

from paceline import AdminClient, BlockingProducer, BlockingPullConsumer, Message, ReceivedMessage


class Topics:
    """What tests do with the cluster beside Spark."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster
        self.endpoints = ",".join(cluster.bootstrap)

    def make(self, topic: str, *, queues: int = 4) -> str:
        """A new topic; its name."""

        async def create() -> None:
            async with AdminClient(self.endpoints) as admin:
                await admin.topics.create(topic, queues=queues)

        asyncio.run(create())
        return topic

    def drop(self, topic: str) -> None:
        """Delete a topic."""

        async def delete() -> None:
            async with AdminClient(self.endpoints) as admin:
                await admin.topics.delete(topic)

        asyncio.run(delete())

    def fill(self, topic: str, count: int, *, first: int = 0, size: int = 0) -> list[str]:
        """Send `count` messages with distinct bodies; the bodies."""
        numbers = range(first, first + count)
        bodies = [f"{topic}-{number}".ljust(size, ".") for number in numbers]
        messages = [
            Message(
                topic,
                body.encode(),
                key=f"k{number % 50}" if number % 5 else None,
                tag=f"t{number % 3}" if number % 4 else None,
                properties={"n": str(number)} if number % 2 else None,
            )
            for number, body in zip(numbers, bodies, strict=True)
        ]
        with BlockingProducer(self.endpoints) as producer:
            producer.send_many(messages)
        return bodies

    def read(self, topic: str, count: int) -> list[ReceivedMessage]:
        """The first `count` messages, by the client library."""
        found: list[ReceivedMessage] = []
        with BlockingPullConsumer(self.endpoints) as consumer:
            consumer.subscribe(topic, start="first")
            while len(found) < count:
                found += consumer.poll()
        return found

    def kill(self, name: str) -> None:
        os.kill(self.cluster.node(name)["pid"], signal.SIGKILL)

    def master(self) -> str:
        return asyncio.run(the_master(self.cluster))

    def statuses(self) -> Sequence[tuple[dict[str, Any], dict[str, Any] | None]]:
        return asyncio.run(broker_statuses(self.cluster))

    def delivered(self, name: str, topic: str) -> int:
        """Messages of a topic that a broker has delivered since it started."""

        async def ask() -> str:
            url = f"http://{self.cluster.node(name)['address']}/metrics"
            async with http_session() as session, session.get(url) as answer:
                return await answer.text()

        for line in asyncio.run(ask()).splitlines():
            if line.startswith("rocketmq_messages_out_total{") and f'topic="{topic}"' in line:
                return int(float(line.rpartition(" ")[2]))
        return 0

    def pins(self) -> list[dict[str, Any]]:
        """Owners and positions of the pins at the master."""
        master = self.master()

        async def ask() -> Any:
            url = f"http://{self.cluster.node(master)['address']}/v1/pins"
            async with http_session(timeout_ms=5000) as session, session.get(url) as answer:
                return (await answer.json())["pins"]

        found: list[dict[str, Any]] = asyncio.run(ask())
        return found

    def unpin(self, owner: str) -> None:
        """Let go of what a reader that has died had pinned."""
        master = self.master()

        async def ask() -> int:
            url = f"http://{self.cluster.node(master)['address']}/v1/pins/{owner}"
            async with http_session(timeout_ms=5000) as session, session.delete(url) as answer:
                return answer.status

        assert asyncio.run(ask()) == 200

    def frame(self, spark: Any, topic: str, **options: str) -> Any:
        """A batch read of a topic."""
        return (
            spark.read.format("paceline")
            .options(endpoints=self.endpoints, topic=topic, **options)
            .load()
        )
