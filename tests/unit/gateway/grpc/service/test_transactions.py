"""Questions about transactions that nobody has ended."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from paceline.errors import PeerError
from paceline.message import Message
from paceline.net.cluster import Cluster
from paceline.platform.runtime import ManualClock
from paceline.producer.transaction import HalfMessage, TransactionProducer, TransactionState
from paceline.security.identity import Principal
from paceline.wire.namespaces import Namespace
from paceline.wire.topics import MIXED
from paceline_gateway.clusters import UserCluster
from paceline_gateway.connected_clients import ClientKey, ConnectedClient, ConnectedClients
from paceline_gateway.grpc.service import transactions
from paceline_gateway.grpc.service.transactions import Transactions
from paceline_gateway.grpc.stubs.messaging_pb2 import TelemetryCommand

HALF = HalfMessage("tx.1", "k", "money", b"x", None, None, {"UNIQ_KEY": "01AB"}, checks=2)


def _cluster(namespace: str = "") -> UserCluster:
    cluster = SimpleNamespace(namespace=Namespace(namespace))
    return cast(UserCluster, SimpleNamespace(cluster=cluster))


class Scene:
    """Producers, some of which have a stream."""

    def __init__(self) -> None:
        self.clients = ConnectedClients(ManualClock())
        self.transactions = Transactions(self.clients)
        self.transactions.ask = self._ask
        self.mine, self.others = _cluster(), _cluster()
        self.silent: set[str] = set()
        self.asked: list[tuple[str, TelemetryCommand]] = []

    def add(self, name: str, cluster: UserCluster, *topics: str) -> None:
        client = self.clients.hear(ClientKey("", name), "grpc")
        client.cluster, client.topics = cluster, dict.fromkeys(topics)

    def _ask(self, client: ConnectedClient, command: TelemetryCommand) -> bool:
        if client.key.client_id in self.silent:
            return False
        self.asked.append((client.key.client_id, command))
        return True

    def check(self, checks: int = 1) -> Any:
        return self.transactions._check(self.mine, HALF._replace(checks=checks))


def test_any_producer_of_the_topic_is_asked_one_after_the_other() -> None:
    scene = Scene()
    for name in ("a", "b"):
        scene.add(name, scene.mine, "money")
    scene.add("c", scene.mine, "orders")
    scene.add("d", scene.others, "money")

    scene.add("e", scene.mine, "money")
    consumer = scene.clients.get(ClientKey("", "e"))
    assert consumer is not None
    consumer.kind = "consumer"

    states = []
    for checks in range(1, 5):
        states.append(scene.check(checks))
        scene.add("ab"[checks % 2], scene.mine, "money")  # whoever was heard last is last

    assert states == [TransactionState.UNKNOWN] * 4
    asked = [name for name, _ in scene.asked]
    assert asked in (["a", "b", "a", "b"], ["b", "a", "b", "a"])
    command = scene.asked[0][1].recover_orphaned_transaction_command
    assert command.transaction_id == "tx.1"
    assert command.message.system_properties.message_id == "01AB"


def test_a_producer_without_a_stream_is_passed_over() -> None:
    scene = Scene()
    for name in ("a", "b"):
        scene.add(name, scene.mine, "money")
    scene.silent = {"a"}

    for checks in (1, 2):
        scene.check(checks)
    scene.silent = {"a", "b"}
    scene.check(3)

    assert [name for name, _ in scene.asked] == ["b", "b"]


def test_a_producer_may_name_its_topic_with_or_without_its_namespace() -> None:
    scene = Scene()
    scene.mine = _cluster("shop")
    for name, topic in (("a", "money"), ("b", "shop%money"), ("c", "other%money")):
        scene.add(name, scene.mine, topic)

    for checks in (1, 2):
        scene.check(checks)

    assert sorted(name for name, _ in scene.asked) == ["a", "b"]


async def test_nobody_waits_for_questions_about_a_topic_whose_producers_have_no_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its producers have gone to other gateways: these are to be asked."""

    class OfTopic:
        """Waits for questions from its start to its end."""

        def __init__(self, cluster: Any, topic: str, check: Any) -> None:
            self.topic = topic

        def start(self) -> None:
            waiting.add(self.topic)

        async def close(self) -> None:
            waiting.discard(self.topic)

    monkeypatch.setattr(transactions, "_OfTopic", OfTopic)
    waiting: set[str] = set()
    scene, served = Scene(), []
    topic = SimpleNamespace(message_type=MIXED)
    scene.mine = cast(UserCluster, Mock(cluster=Mock(topic=lambda _: topic)))
    scene.transactions.has_stream = lambda client: client.key.client_id not in scene.silent
    for name in ("a", "b", "c"):
        scene.add(name, scene.mine, "money" if name != "c" else "orders")
    scene.silent = {"c"}

    for client in scene.clients:
        scene.transactions.serve(client)
    for name in ("a", "b"):
        served.append(set(waiting))
        scene.silent.add(name)
        left = scene.clients.get(ClientKey("", name))
        assert left is not None
        scene.transactions.left(left)
        await asyncio.gather(*scene.transactions._closing)

    assert served == [{"money"}, {"money"}]
    assert waiting == set()


async def test_what_stores_a_half_ends_with_it_unless_questions_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored: list[TransactionProducer] = []

    async def begin(producer: TransactionProducer, *_: object, **__: object) -> None:
        stored.append(producer)
        raise PeerError("no node of the cluster answers")

    monkeypatch.setattr(TransactionProducer, "begin", begin)
    scene = Scene()
    cluster = UserCluster(Cluster("127.0.0.1:1"), Principal("ana", "10.0.0.1"))
    sent: Any = SimpleNamespace(message=Message("money", b"x"), recovery_ms=0)

    for topic in ("money", "orders", "money"):
        sent.message.topic = topic
        with pytest.raises(PeerError):
            await scene.transactions.begin(sent, cluster)
    await asyncio.gather(*scene.transactions._closing)

    assert (len(stored), cluster.holders) == (3, 0)
    assert not any(producer._pollers for producer in stored)
    assert not scene.transactions._producers
    await cluster.close()
