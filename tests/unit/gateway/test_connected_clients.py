"""Clients of doors: heard, told, forgotten."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from tests.support.process.harness import eventually

from paceline.errors import OverloadedError
from paceline.filters import Subscription
from paceline.platform.runtime import ManualClock, cancel_and_wait, spawn
from paceline.types import ConsumerGroupName
from paceline.wire.calls.groups import Client
from paceline.wire.clients import Kind
from paceline.wire.consumer_groups import ConsumerGroupSettings, ConsumerGroupView
from paceline.wire.names import check_client_id
from paceline.wire.namespaces import Namespace
from paceline_gateway.clusters import UserCluster
from paceline_gateway.connected_clients import (
    GROUPS_MAX,
    ClientKey,
    ConnectedClient,
    ConnectedClients,
    broker_id,
)
from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.popping import _client_id
from paceline_gateway.remoting.state.peers import Peer, Place

ME = ClientKey("anna", "host@1#2")
PLACE = Place(None, "localhost", 1)


def test_a_client_is_there_until_120_s_after_its_last_word() -> None:
    clock = ManualClock()
    clients = ConnectedClients(clock)
    gone: list[ConnectedClient] = []
    clients.on_gone(gone.append)
    first = clients.hear(ME, "grpc")

    clock.advance(119_999)
    clients.expire()
    assert clients.hear(ME, "grpc") is first
    clock.advance(119_999)
    clients.expire()
    assert list(clients) == [first]
    clock.advance(1)
    clients.expire()

    assert (list(clients), gone) == ([], [first])


def test_ids_of_other_users_are_other_clients() -> None:
    clients = ConnectedClients(ManualClock())

    mine = clients.hear(ME, "grpc")
    others = clients.hear(ClientKey("ben", ME.client_id), "remoting")

    assert mine is not others
    clients.gone(ME)
    assert list(clients) == [others]


def test_there_is_room_for_so_many() -> None:
    clock = ManualClock()
    clients = ConnectedClients(clock, clients_max=1)
    clients.hear(ME, "grpc")

    with pytest.raises(OverloadedError):
        clients.hear(ClientKey("", "b"), "grpc")
    clock.advance(120_000)
    clients.hear(ClientKey("", "b"), "grpc")

    assert len(clients) == 1


def test_one_user_or_address_leaves_room_for_others() -> None:
    clients = ConnectedClients(ManualClock(), clients_max=8)
    for number in range(4):
        clients.hear(ClientKey("anonymous", f"a{number}"), "grpc", "10.0.0.1")

    with pytest.raises(OverloadedError, match="4 of them for you"):
        clients.hear(ClientKey("anonymous", "a4"), "grpc", "10.0.0.1")
    clients.hear(ClientKey("anonymous", "b"), "grpc", "10.0.0.2")
    clients.hear(ClientKey("ana", "c"), "grpc", "10.0.0.1")
    for name in ("a0", "a1"):
        clients.gone(ClientKey("anonymous", name))

    clients.hear(ClientKey("anonymous", "a5"), "grpc", "10.0.0.1")


def test_a_door_is_told_of_its_client_that_has_fallen_silent_not_of_one_that_goes() -> None:
    clock = ManualClock()
    clients = ConnectedClients(clock)
    told: list[str] = []
    for name in ("a", "b", "c"):
        clients.hear(ClientKey("", name), "remoting").on_silent = partial(told.append, name)
    clients.gone(ClientKey("", "a"))
    clock.advance(60_000)
    clients.hear(ClientKey("", "b"), "remoting")
    clock.advance(60_000)
    clients.expire()

    assert told == ["c"]
    assert [client.key.client_id for client in clients] == ["b"]


def test_brokers_are_told_what_they_take() -> None:
    client = ConnectedClient(ME, "remoting", kind="consumer", groups={"b", "a"})
    client.topics = {"orders": Subscription.by_tags("orders", "x").filter, "all": None}
    client.language, client.version = "JAVA\n", ""

    told = list(client.introductions())

    assert [row.group for row in told] == ["a", "b"]
    assert (told[0].client_id, told[0].language, told[0].version) == ("host@1#2", "JAVA?", "-")
    assert (told[0].door, told[0].filters) == ("remoting", {"orders": "x"})
    assert [row.kind for row in ConnectedClient(ME, "grpc").introductions()] == ["producer"]


def test_clients_of_different_ids_are_different_clients_at_brokers() -> None:
    """A broadcasting group gives each of them every message."""
    ids = [
        "a b",
        "a_b",
        "a?b",
        "x" * 255,
        "x" * 256,
        "x" * 255 + "y",
        "...",
        "\ud800",
        "\ud801",
        "",
    ]

    taken = [broker_id(client_id) for client_id in ids]

    assert len(set(taken)) == len(ids)
    assert [check_client_id(one) for one in taken] == taken
    assert [broker_id(one) for one in taken] == taken


def test_a_remoting_client_without_heartbeats_receives_as_its_connection() -> None:
    peers = [Peer(PLACE, "10.0.0.1", lambda command: None, lambda: None) for _ in range(3)]
    peers[0].address, peers[1].address = "[::1]:1", "[::1]:2"
    peers[2].client_id = "10.0.0.1@7#8"

    ids = [_client_id(cast(Call, SimpleNamespace(peer=peer))) for peer in peers]

    assert len(set(ids)) == 3
    assert ids[2] == "10.0.0.1@7#8"
    assert [check_client_id(one) for one in ids] == ids


def test_brokers_are_told_who_broadcasts() -> None:
    settings = ConsumerGroupSettings(message_model="broadcasting")
    groups = {"news": ConsumerGroupView(group=ConsumerGroupName("news"), settings=settings)}
    cluster = SimpleNamespace(cluster=SimpleNamespace(view=SimpleNamespace(consumer_groups=groups)))
    client = ConnectedClient(ME, "grpc", kind="consumer", groups={"news", "work"})
    client.cluster = cast(UserCluster, cluster)

    assert [(row.group, row.message_model) for row in client.introductions()] == [
        ("news", "broadcasting"),
        ("work", "clustering"),
    ]


def test_a_client_is_listed_with_so_many_groups() -> None:
    client = ConnectedClient(ME, "grpc", kind="consumer")
    for number in range(GROUPS_MAX + 1):
        client.works_for(f"g{number}")

    assert len(list(client.introductions())) == GROUPS_MAX


def of_namespace(name: str) -> UserCluster:
    cluster = SimpleNamespace(view=None, namespace=Namespace(name))
    return cast(UserCluster, SimpleNamespace(cluster=cluster))


def test_a_client_is_found_as_brokers_know_it() -> None:
    clients = ConnectedClients(ManualClock())
    strange = ClientKey("anna", "a b")
    consumer, producer = clients.hear(strange, "grpc"), clients.hear(ME, "grpc")
    others = clients.hear(ClientKey("ben", "a b"), "remoting")
    consumer.kind = others.kind = "consumer"
    for client in (consumer, producer, others):
        client.cluster = of_namespace("shop")
    consumer.groups = others.groups = {"g"}
    unknown = clients.hear(ClientKey("carl", "a b"), "grpc")  # brokers were not told of it
    unknown.kind, unknown.groups = "consumer", {"g"}
    id_ = broker_id("a b")

    assert clients.find(id_, "consumer", "shop%g", user="anna") is consumer
    assert clients.find(id_, "consumer", "shop%g", user="ben") is others
    assert clients.find(id_, "consumer", "shop%g", user=None) is consumer
    assert clients.find("host@1#2", "producer", "shop%DEFAULT_PRODUCER", user=None) is producer
    assert clients.find("a b", "consumer", "shop%g", user="anna") is None
    assert clients.find(id_, "producer", "shop%g", user="anna") is None
    assert clients.find(id_, "consumer", "g", user="anna") is None
    assert clients.find(id_, "consumer", "shop%g", user="carl") is None


def test_a_client_that_has_told_several_groups_counts_once() -> None:
    clients = ConnectedClients(ManualClock())
    for role in ("consumer a", "consumer b", "producer p"):
        client = clients.hear(ClientKey("anna", "one", role), "remoting")
        client.kind = cast(Kind, role.split()[0])
    clients.hear(ClientKey("ben", "one"), "grpc").kind = "consumer"

    assert clients.counts() == {"consumer": 2, "producer": 1}


class ToldBroker:
    """A cluster of one broker group, and what its broker was told."""

    def __init__(self) -> None:
        self.told: list[Client] = []
        self.cluster = SimpleNamespace(view=SimpleNamespace(groups={"g1": None}))
        self.links = self

    def link(self, group: str) -> "ToldBroker":
        return self

    async def wait_up(self, *, timeout_ms: int) -> "ToldBroker":
        return self

    async def call(self, told: Client, *, timeout_ms: int) -> None:
        self.told.append(told)


async def test_brokers_are_told_at_once_of_a_client_that_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline_gateway.connected_clients._SWEEP_MS", 1)
    clock, broker = ManualClock(), ToldBroker()
    clients = ConnectedClients(clock)
    running = spawn(clients.run(), name="clients")
    for key in (ME, ClientKey("ben", "silent")):
        client = clients.hear(key, "grpc")
        client.cluster = cast(UserCluster, broker)

    async def told(count: int) -> bool:
        return len(broker.told) == count

    await eventually(lambda: told(2))
    clients.gone(ME)
    clients.gone(ME)
    await eventually(lambda: told(3))
    clock.advance(120_000)
    clients.expire()  # whoever is silent may be at another gateway

    assert [row.has_gone for row in broker.told] == [False, False, True]
    assert broker.told[-1].client_id == "host@1#2"
    assert len(clients) == 0
    await cancel_and_wait(running)


async def test_nobody_waits_for_the_nodes_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline_gateway.connected_clients._SWEEP_MS", 1)

    class Silent(ToldBroker):
        async def wait_up(self, *, timeout_ms: int) -> "ToldBroker":
            await asyncio.get_running_loop().create_future()
            return self

    clock, broker = ManualClock(), ToldBroker()
    clients = ConnectedClients(clock)
    running = spawn(clients.run(), name="clients")
    for name, cluster in (("ann", Silent()), ("ben", broker)):
        client = clients.hear(ClientKey(name, "c"), "grpc")
        client.cluster = cast(UserCluster, cluster)

    async def holds(condition: bool) -> bool:
        return condition

    await eventually(lambda: holds(len(broker.told) == 1))
    clock.advance(120_000)
    await eventually(lambda: holds(len(clients) == 0))
    await cancel_and_wait(running)
