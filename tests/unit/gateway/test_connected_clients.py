"""Clients of doors: heard, told, forgotten."""

import pytest

from paceline.errors import OverloadedError
from paceline.filters import Subscription
from paceline.platform.runtime import ManualClock
from paceline_gateway.connected_clients import ClientKey, ConnectedClient, ConnectedClients

ME = ClientKey("anna", "host@1#2")


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


def test_brokers_are_told_what_they_take() -> None:
    client = ConnectedClient(ME, "remoting", kind="consumer", groups={"b", "a"})
    client.topics = {"orders": Subscription.by_tags("orders", "x").filter, "all": None}
    client.language, client.version = "JAVA\n", ""

    told = list(client.introductions())

    assert [row.group for row in told] == ["a", "b"]
    assert (told[0].client_id, told[0].language, told[0].version) == ("host@1_2", "JAVA?", "-")
    assert (told[0].door, told[0].filters) == ("remoting", {"orders": "x"})
    assert [row.kind for row in ConnectedClient(ME, "grpc").introductions()] == ["producer"]
