"""Broadcasting by the gRPC door: each client of a group whose record says so gets everything."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.support.gateway.grpc_client import RawClient, a_door, bodies, drained, within
from tests.support.process.harness import (
    RunningCluster,
    eventually,
    running_cluster,
    the_master,
)

from paceline import AdminClient, Message, Producer, SimpleConsumer
from paceline_gateway.grpc.codec.values import duration_of
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code, Resource

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

TOPICS = ("news", "moving", "killed", "leaving", "native", "passing")
GROUP = "everyone"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("grpc") / "data", restart=True) as cluster:
        with asyncio.Runner() as runner:
            runner.run(_prepare(cluster))
        yield cluster


async def _prepare(cluster: RunningCluster) -> None:
    async with AdminClient(cluster.bootstrap) as admin:
        for topic in TOPICS:
            await admin.topics.create(topic, queues=4, message_type="MIXED")
        await admin.consumer_groups.create(GROUP, message_model="broadcasting", retry_max_times=1)


class Audience:
    """Two clients at a door of their own each."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Audience":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def client(self, client_id: str, port: int | None = None) -> RawClient:
        if port is None:
            port = await self._stack.enter_async_context(a_door(self.cluster.bootstrap))
        return await self._stack.enter_async_context(RawClient(port, client_id))


@pytest.fixture
async def audience(cluster: RunningCluster) -> AsyncIterator[Audience]:
    async with Audience(cluster) as audience:
        yield audience


async def join(topic: str, *clients: RawClient) -> None:
    """They have asked once, so all that is sent from now on is for them."""
    await asyncio.gather(*(client.receive(topic, GROUP, timeout_s=6) for client in clients))


async def leave(client: RawClient) -> None:
    answer = await client.call(
        "NotifyClientTermination",
        wire.NotifyClientTerminationRequest(group=Resource(name=GROUP)),
    )
    assert answer.status.code == Code.OK


async def send(client: RawClient, topic: str, *bodies: bytes, **more: Any) -> None:
    for body in bodies:
        assert (await client.send(client.message(topic, body, **more))).status.code == Code.OK


async def stands(cluster: RunningCluster, topic: str) -> list[int | None]:
    """The offsets that the group has of the topic's queues."""
    async with AdminClient(cluster.bootstrap) as admin:
        rows = await admin.consumer_groups.lag(GROUP)
    return [row["offset"] for row in rows if row["topic"] == topic]


async def test_each_client_gets_all_and_has_retries_and_dead_letters_of_its_own(
    audience: Audience,
) -> None:
    first, second = await audience.client("a"), await audience.client("b")
    await join("news", first, second)
    await send(first, "news", *(b"%d" % n for n in range(9)))
    await send(first, "news", b"poison", tag="poison")

    mine = await drained(first, "news", GROUP, 10)
    theirs = [each for each in await drained_but(second, b"poison", 9) if each != b"poison"]
    again = await failed(second, b"poison")

    assert sorted(bodies(mine)) == sorted({*(b"%d" % n for n in range(9)), b"poison"})
    assert sorted(theirs) == sorted(b"%d" % n for n in range(9))
    assert again == [2]
    async with AdminClient(audience.cluster.bootstrap) as admin:

        async def is_dead() -> bool:
            await second.receive("news", GROUP, timeout_s=6)
            return [each.body for each in await admin.dead_letters.all(GROUP)] == [b"poison"]

        await eventually(is_dead, within_ms=60_000)
    assert await first.receive("news", GROUP, timeout_s=6) == []
    await leave(first)
    await leave(second)


async def drained_but(client: RawClient, left: bytes, count: int) -> list[bytes]:
    """So many messages, acknowledged; that one is given back."""
    found: list[bytes] = []
    while len(found) < count:
        for each in await client.receive("news", GROUP):
            if each.body != left:
                found.append(each.body)
                await client.ack("news", GROUP, each)
            else:
                await give_back(client, each.system_properties.receipt_handle)
    return found


async def give_back(client: RawClient, handle: str) -> None:
    answer = await client.call(
        "ChangeInvisibleDuration",
        wire.ChangeInvisibleDurationRequest(
            group=Resource(name=GROUP),
            topic=Resource(name="news"),
            receipt_handle=handle,
            invisible_duration=duration_of(0),
        ),
    )
    assert answer.status.code == Code.OK


async def failed(client: RawClient, body: bytes) -> list[int]:
    """The attempts by which a message comes until it comes no more."""
    attempts = []
    while found := await client.receive("news", GROUP, tags="poison", timeout_s=6):
        for each in found:
            assert each.body == body
            attempts.append(each.system_properties.delivery_attempt)
            await give_back(client, each.system_properties.receipt_handle)
    return attempts


async def test_a_client_goes_on_at_another_gateway_when_its_own_has_died(
    audience: Audience, cluster: RunningCluster
) -> None:
    other = await audience.client("b")
    async with a_door(cluster.bootstrap) as port:
        client = await audience.client("a", port)
        await join("moving", client, other)
        await send(client, "moving", *(b"%d" % n for n in range(20)))
        held = await client.receive(
            "moving", GROUP, batch_size=3, invisible_duration=duration_of(10_000)
        )
    client = await audience.client("a")
    await send(client, "moving", b"later")

    received: set[bytes] = set()
    while len(received) < 21:
        found = await client.receive("moving", GROUP)
        received |= set(bodies(found))
        await client.ack("moving", GROUP, *found) if found else None

    assert held
    assert set(bodies(held)) < received
    assert len(await drained(other, "moving", GROUP, 21)) == 21
    await leave(client)
    await leave(other)


async def test_nothing_is_lost_to_any_client_when_the_master_is_killed(
    audience: Audience, cluster: RunningCluster
) -> None:
    clients = [await audience.client("a"), await audience.client("b")]
    sender = await audience.client("sender")
    await join("killed", *clients)
    acknowledged: set[bytes] = set()

    async def send_all(start: int) -> None:
        for n in range(start, start + 100):
            body = b"survivor-%d" % n
            if (await sender.send(sender.message("killed", body))).status.code == Code.OK:
                acknowledged.add(body)

    async def begun() -> bool:
        return len(acknowledged) > 40

    async def receive_all(client: RawClient) -> None:
        received: set[bytes] = set()
        while not (all(task.done() for task in sending) and acknowledged <= received):
            found = await client.receive("killed", GROUP)
            received |= set(bodies(found))
            await client.ack("killed", GROUP, *found) if found else None

    sending = [asyncio.get_running_loop().create_task(send_all(n * 100)) for n in range(3)]
    receiving = [asyncio.get_running_loop().create_task(receive_all(one)) for one in clients]
    await eventually(begun)
    cluster.send_signal(await the_master(cluster), signal.SIGKILL)
    await asyncio.gather(*sending)
    await within(asyncio.gather(*receiving), 120)

    assert len(acknowledged) == 300


async def test_a_client_that_has_gone_leaves_nothing(
    audience: Audience, cluster: RunningCluster
) -> None:
    first, second = await audience.client("a"), await audience.client("b")
    await join("leaving", first, second)
    await send(first, "leaving", b"x")
    assert len(await drained(second, "leaving", GROUP, 1)) == 1
    there = await stands(cluster, "leaving")

    async def is_that_of_the_other() -> bool:
        return sum(offset or 0 for offset in await stands(cluster, "leaving")) == 1

    async def are_gone() -> bool:
        return await stands(cluster, "leaving") == []

    await leave(first)
    await eventually(is_that_of_the_other)
    await leave(second)
    await eventually(are_gone)

    assert len(there) == 4
    assert sum(offset or 0 for offset in there) == 0


async def test_native_simple_consumers_are_given_everything_too(cluster: RunningCluster) -> None:
    consumers = [
        SimpleConsumer(cluster.bootstrap, group=GROUP, topics=["native"], client_id=client_id)
        for client_id in (None, "kept")
    ]
    async with consumers[0] as first, consumers[1] as second, Producer(cluster.bootstrap) as sender:
        for consumer in (first, second):
            assert await consumer.receive(wait_ms=0) == []
        await sender.send(Message("native", b"x"))
        for consumer in (first, second):
            [message] = await consumer.receive()
            await consumer.ack(message)
    async with Producer(cluster.bootstrap) as sender:
        await sender.send(Message("native", b"y"))
    again = SimpleConsumer(cluster.bootstrap, group=GROUP, topics=["native"], client_id="kept")
    async with again as consumer:
        [message] = await consumer.receive()

    assert message.body == b"y"


async def test_a_native_consumer_without_an_id_leaves_nothing(cluster: RunningCluster) -> None:
    async with SimpleConsumer(cluster.bootstrap, group=GROUP, topics=["passing"]) as consumer:
        await consumer.receive(wait_ms=0)
        there = await stands(cluster, "passing")

    assert len(there) == 4
    assert await stands(cluster, "passing") == []
