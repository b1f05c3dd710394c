"""Clients tell the brokers that they are connected to who they are."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.client.consumers import eventually
from tests.support.client.fake_broker import CLUSTER_ID
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.pins import a_master
from tests.support.http.door import Door

from paceline import __version__
from paceline.consumer.lite_pull import LitePullConsumer
from paceline.consumer.ordered import OrderedConsumer
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.consumer.simple import SimpleConsumer
from paceline.errors import BadNameError
from paceline.filters import Subscription, make_filter
from paceline.message import Message, ReceivedMessage
from paceline.net import introduction
from paceline.platform.runtime import pause
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.producer.transaction import TransactionProducer, TransactionState

Condition = Callable[[], Awaitable[bool]]
COMMON = {"version": __version__, "language": "PYTHON", "has_gone": False}


async def nothing(message: ReceivedMessage) -> None:
    """A listener."""


async def becomes(condition: Condition, within_ms: int = 5_000) -> None:
    async with asyncio.timeout(within_ms / 1000):
        while not await condition():
            await pause(5)


def told(cluster: FakeCluster, broker_group: str = "g1") -> list[dict[str, Any]]:
    return [row for group, row in cluster.group_calls.introduced if group == broker_group]


async def test_a_producer_tells_each_broker_once_and_again_when_its_topics_change() -> None:
    settings = ProducerSettings(group="shop", client_id="till-7")
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 1)
        cluster.add_topic("refunds", 1)
        async with Producer(cluster.controller, settings=settings) as producer:
            for _ in range(20):
                await producer.send(Message("orders", b"x"))
            await eventually(lambda: told(cluster) != [] and told(cluster, "g2") != [])
            first = told(cluster)
            for _ in range(20):
                await producer.send(Message("refunds", b"x"))
            await eventually(lambda: len(told(cluster)) == 2)

    expected = {"call": "client", "kind": "producer", "group": "shop", "client_id": "till-7"}
    assert first == [{**expected, **COMMON, "topics": ["orders"]}]
    assert told(cluster)[1]["topics"] == ["orders", "refunds"]
    assert len(told(cluster)) == len(told(cluster, "g2")) == 2


async def test_a_new_master_is_told_at_once() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"x"))
            await eventually(lambda: len(told(cluster)) == 1)
            cluster.brokers["g1", 1].kill()
            cluster.elect("g1", 2)
            await eventually(lambda: len(told(cluster)) == 2)
    assert told(cluster)[0] == told(cluster)[1]


async def test_it_is_said_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that brokers may forget whom they have not heard of."""
    monkeypatch.setattr(introduction, "HEARTBEAT_BROKER_INTERVAL_MS", 5)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"x"))
            await eventually(lambda: len(told(cluster)) >= 3)


async def test_a_broker_that_refuses_it_is_used_all_the_same() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.group_calls.refuses_clients = True
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"x"))
            await eventually(lambda: len(told(cluster)) == 1)
            await producer.send(Message("orders", b"y"))
    assert cluster.bodies() == [b"x", b"y"]


def test_a_client_id_that_no_broker_would_take_is_refused() -> None:
    with pytest.raises(BadNameError, match="client_id"):
        ProducerSettings(client_id="my till").validate()


def be_of_its_cluster(door: Door) -> None:
    """Clients take no streams of another cluster's brokers."""
    door.role.identity = replace(door.role.identity, cluster_id=CLUSTER_ID)


def consumers() -> dict[str, Callable[[str], Any]]:
    wanted = [Subscription("orders", make_filter("TAG", "a || b"))]
    fields: dict[str, Any] = {"group": "audit", "topics": wanted, "client_id": "c1"}
    everywhere = PushSettings(message_model="broadcasting")
    return {
        "clustering/concurrent": lambda at: PushConsumer(at, listener=nothing, **fields),
        "clustering/ordered": lambda at: OrderedConsumer(at, listener=nothing, **fields),
        "clustering/pull": lambda at: LitePullConsumer(at, **fields),
        "clustering/simple": lambda at: SimpleConsumer(at, **fields),
        "broadcasting/concurrent": lambda at: PushConsumer(
            at, listener=nothing, settings=everywhere, **fields
        ),
    }


@pytest.mark.parametrize("how", consumers())
async def test_every_kind_of_consumer_is_listed_with_its_subscriptions(
    how: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where a broadcasting member keeps its offsets
    async with a_master() as (cluster, door, admin):
        be_of_its_cluster(door)
        async with consumers()[how](cluster.controller) as consumer:
            if isinstance(consumer, SimpleConsumer):
                await consumer.receive(wait_ms=0)

            async def listed() -> bool:
                return (await admin.clients.all(topic="orders")).clients != []

            await becomes(listed)
            [row] = (await admin.clients.all(group="audit", kind="consumer")).clients
        gone = await admin.clients.all()

    assert (row["kind"], row["group"], row["client_id"]) == ("consumer", "audit", "c1")
    assert f"{row['message_model']}/{row['mode']}" == how
    assert "orders" in row["topics"]
    assert row["filters"] == {"orders": "a || b"}
    assert row["address"].startswith("127.0.0.1:")
    assert row["brokers"] == ["g1/1"]
    assert gone == ([], {}, [])


async def test_a_transaction_producer_is_one_client_of_its_group() -> None:
    def commit(_: Any) -> TransactionState:
        return TransactionState.COMMIT

    async with a_master() as (cluster, door, admin):
        be_of_its_cluster(door)
        producer = TransactionProducer(cluster.controller, group="payers", execute=commit)
        async with producer:
            await producer.send_in_transaction(Message("orders", b"x"))

            async def listed() -> bool:
                rows = (await admin.clients.all()).clients
                return [row["topics"] for row in rows] == [["orders"]]

            await becomes(listed)
            [row] = (await admin.clients.all()).clients
    assert (row["kind"], row["group"]) == ("producer", "payers")
    assert row["client_id"] == producer.client_id


async def test_broker_groups_of_which_nobody_answers_are_named() -> None:
    async with a_master(groups=2) as (cluster, _, admin):
        cluster.elect("g2", None)

        async def seen() -> bool:
            return (await admin.clients.all()).unreachable == ["g2"]

        await becomes(seen)
