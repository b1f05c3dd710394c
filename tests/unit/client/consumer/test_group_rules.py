"""Members obey the settings of their consumer group."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.client.consumers import eventually, fill
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.group_rules import GROUP, Seen, publish

from paceline.consumer.group_settings import consume_timeout_s
from paceline.consumer.lite_pull import LitePullConsumer, LitePullSettings
from paceline.consumer.ordered import OrderedConsumer, OrderedSettings
from paceline.consumer.process.consume_timeouts import ConsumeTimeouts, Worker
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.errors import NoPermissionError
from paceline.message import ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.queues import QueueName
from paceline.types import GroupName, QueueId, TopicName
from paceline.wire.consumer_groups import ConsumerGroupSettings

OFF = ConsumerGroupSettings(consume_enable=False)
Listener = Callable[[ReceivedMessage], Any]


class Puller:
    """A lite pull consumer that polls for a listener."""

    def __init__(self, at: str, listener: Listener, *, assigns: bool) -> None:
        topics = [] if assigns else ["orders"]
        settings = LitePullSettings(start="first")
        self.consumer = LitePullConsumer(at, group=GROUP, topics=topics, settings=settings)
        self._listener = listener
        self._assigns = assigns

    async def __aenter__(self) -> "Puller":
        await self.consumer.__aenter__()
        if self._assigns:
            names = [
                QueueName(TopicName("orders"), GroupName("g1"), QueueId(number))
                for number in range(2)
            ]
            self.consumer.assign(names)
        self._task = spawn(self._run(), name="puller")
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(self._task)
        await self.consumer.close()

    async def _run(self) -> None:
        while True:
            for message in await self.consumer.poll(timeout_ms=50):
                await self._listener(message)


def members() -> dict[str, Callable[[str, Listener], Any]]:
    fields: dict[str, Any] = {"group": GROUP, "topics": ["orders"]}
    push = PushSettings(start="first", commit_interval_ms=10)
    broadcasting = replace(push, message_model="broadcasting", offsets_folder="/offsets")
    return {
        "push": lambda at, do: PushConsumer(at, listener=do, settings=push, **fields),
        "broadcasting": lambda at, do: PushConsumer(
            at, listener=do, settings=broadcasting, disk=MemoryDisk(), **fields
        ),
        "ordered": lambda at, do: OrderedConsumer(
            at, listener=do, settings=OrderedSettings(start="first"), **fields
        ),
        "lite pull": lambda at, do: Puller(at, do, assigns=False),
        "assigned": lambda at, do: Puller(at, do, assigns=True),
    }


def held(member: Any) -> Any:
    """The queues that a member reads."""
    consumer = member.consumer if isinstance(member, Puller) else member
    return consumer._owner.held


@pytest.mark.parametrize("kind", members())
async def test_a_switched_off_group_reads_nothing_and_goes_on_when_it_may_again(kind: str) -> None:
    seen = Seen()
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        await fill(cluster, 10)
        async with members()[kind](cluster.controller, seen.listen) as member:
            await eventually(lambda: seen.has(10))
            publish(cluster, OFF)
            await eventually(lambda: not held(member), within_ms=2_000)
            await fill(cluster, 20, first=10)
            assert seen.has(10)
            publish(cluster, ConsumerGroupSettings())
            await eventually(lambda: seen.has(20))


@pytest.mark.parametrize("kind", [kind for kind in members() if kind != "assigned"])
async def test_a_member_that_hears_nothing_of_the_controllers_obeys_its_coordinator(
    kind: str,
) -> None:
    """Its own view says that it may go on; RocketMQ's brokers would refuse its next pull."""
    seen = Seen()
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        await fill(cluster, 10)
        async with members()[kind](cluster.controller, seen.listen) as member:
            await eventually(lambda: seen.has(10))
            cluster.group_calls.heartbeat_refusal = NoPermissionError("off", group=GROUP)
            await eventually(lambda: not held(member), within_ms=4_000)
            await fill(cluster, 20, first=10)
            assert seen.has(10)
            cluster.group_calls.heartbeat_refusal = None
            await eventually(lambda: seen.has(20))


@pytest.mark.parametrize("kind", ["push", "broadcasting"])
async def test_a_group_that_may_not_broadcast_may_share(kind: str) -> None:
    seen = Seen()
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        publish(cluster, ConsumerGroupSettings(consume_broadcast_enable=False))
        await fill(cluster, 10)
        async with members()[kind](cluster.controller, seen.listen) as member:
            if kind == "push":
                await eventually(lambda: seen.has(10))
                return
            await eventually(lambda: bool(cluster.group_calls.introduced))
            assert not held(member)
            assert not seen.bodies
            publish(cluster, ConsumerGroupSettings())
            await eventually(lambda: seen.has(10))


async def test_the_group_says_how_long_listeners_may_take_unless_the_member_does() -> None:
    async with FakeCluster() as fake:
        cluster = Cluster(fake.controller)
        assert consume_timeout_s(cluster, GROUP, None) == 900
        publish(fake, ConsumerGroupSettings(consume_timeout_minute=2))
        cluster.start()
        await cluster.watch.wait_for(lambda view: GROUP in view.consumer_groups, timeout_ms=5_000)
        assert consume_timeout_s(cluster, GROUP, None) == 120
        assert consume_timeout_s(cluster, GROUP, 1_500) == 1.5
        await cluster.close()


async def test_a_limit_that_becomes_shorter_counts_for_calls_that_run() -> None:
    limit_s = [0.1]
    late: list[ReceivedMessage] = []
    message = ReceivedMessage(
        topic="orders",
        group="g1",
        queue_id=0,
        queue_offset=5,
        body=b"x",
        key=None,
        tag="",
        properties={},
        born_unix_ms=1,
        store_unix_ms=2,
    )
    worker = Worker()
    worker.begin(object(), [message])  # type: ignore[arg-type]
    timeouts = ConsumeTimeouts([worker], lambda: limit_s[0], lambda *what: late.append(what[2]))
    timeouts.start()
    limit_s[0] = 0.02
    await eventually(lambda: bool(late))
    timeouts.close()
    assert late == [message]
