"""Which clients are connected to a broker: told, listed, forgotten."""

import asyncio
from typing import Any

import pytest
from tests.support.askers import ANYBODY
from tests.support.http.turns import turn
from tests.support.service.clients import CONSUMER, PRODUCER
from tests.support.service.fakes import Bench

from paceline.errors import BadNameError, BadRequestError, OverloadedError
from paceline.wire.clients import conflicts, inconsistent_topics, merged
from paceline_broker.service.groups import clients


class Stream:
    """A connection that a call came over."""

    def __init__(self, peer: str, *, source: str = "") -> None:
        self.peer = peer
        self.source = source or peer.partition(":")[0]


async def tell(bench: Bench, document: dict[str, Any], via: Any = None) -> None:
    await bench.service.calls.call({"call": "client", **document}, asker=ANYBODY, caller=via)


async def listed(bench: Bench, **narrowed: str) -> list[str]:
    answer = await bench.call("clients", **narrowed)
    return [f"{row['kind']} {row['group']}/{row['client_id']}" for row in answer["clients"]]


async def test_a_client_is_listed_with_what_it_told_until_its_connection_closes() -> None:
    bench = Bench()
    stream = Stream("10.0.0.7:4711")
    bench.clock.advance(5_000)
    began = bench.clock.unix_ms()
    await tell(bench, CONSUMER, stream)
    bench.clock.advance(1_000)
    await tell(bench, {**CONSUMER, "topics": ["orders", "refunds"]}, stream)

    [row] = (await bench.call("clients"))["clients"]

    assert row == {
        **CONSUMER,
        "topics": ["orders", "refunds"],
        "user": None,
        "address": "10.0.0.7:4711",
        "since_unix_ms": began,
        "heard_unix_ms": began + 1_000,
        "brokers": ["g1/1"],
    }
    bench.service.connection_lost(stream)
    assert await listed(bench) == []


async def test_a_gateway_tells_of_many_clients_over_one_connection() -> None:
    bench = Bench()
    gateway = Stream("10.0.0.9:1")
    await tell(bench, {**CONSUMER, "door": "grpc"}, gateway)
    await tell(bench, {**CONSUMER, "client_id": "c2", "door": "remoting"}, gateway)
    await tell(bench, PRODUCER, gateway)

    rows = (await bench.call("clients"))["clients"]

    assert sorted(str(row.get("door")) for row in rows) == ["None", "grpc", "remoting"]
    bench.service.connection_lost(gateway)
    assert len(await listed(bench)) == 2
    bench.clock.advance(120_000)
    assert await listed(bench) == []


async def test_a_gateway_tells_the_address_of_its_client_and_that_it_has_gone() -> None:
    bench = Bench()
    first = Stream("10.0.0.9:1", source="192.0.2.7")
    second = Stream("10.0.0.8:1", source="192.0.2.7")
    mine = {**CONSUMER, "door": "grpc"}
    await tell(bench, mine, first)
    [row] = (await bench.call("clients"))["clients"]
    assert row["address"] == "192.0.2.7"

    await tell(bench, {**mine, "client_id": "another", "has_gone": True}, first)
    await tell(bench, mine, second)
    await tell(bench, {**mine, "has_gone": True}, first)
    assert len(await listed(bench)) == 1  # it has only left the first gateway
    await tell(bench, {**mine, "has_gone": True}, second)
    await tell(bench, {**mine, "has_gone": True}, second)

    assert await listed(bench) == []


async def test_the_list_is_narrowed_by_group_topic_and_kind() -> None:
    bench = Bench()
    await tell(bench, PRODUCER, Stream("a:1"))
    await tell(bench, {**PRODUCER, "client_id": "p2", "topics": ["refunds"]}, Stream("a:2"))
    await tell(bench, CONSUMER, Stream("a:3"))

    assert await listed(bench) == ["consumer audit/c1", "producer shop/p1", "producer shop/p2"]
    assert await listed(bench, group="audit") == ["consumer audit/c1"]
    assert await listed(bench, topic="orders") == ["consumer audit/c1", "producer shop/p1"]
    assert await listed(bench, kind="producer", topic="refunds") == ["producer shop/p2"]


async def test_a_client_of_two_connections_is_one_until_both_are_closed() -> None:
    bench = Bench()
    one, two = Stream("a:1"), Stream("a:2")
    await tell(bench, PRODUCER, one)
    await tell(bench, {**PRODUCER, "topics": []}, two)

    [row] = (await bench.call("clients"))["clients"]
    assert row["topics"] == ["orders"]
    bench.service.connection_lost(one)
    assert await listed(bench) == ["producer shop/p1"]
    bench.service.connection_lost(two)
    assert await listed(bench) == []


async def test_who_says_nothing_for_long_is_forgotten_and_single_requests_are_listed() -> None:
    bench = Bench(channel_expired_timeout_ms=120_000)
    await tell(bench, PRODUCER)  # over HTTP: no connection whose end tells
    await tell(bench, CONSUMER, Stream("a:1"))
    bench.clock.advance(119_999)
    await tell(bench, CONSUMER, Stream("a:2"))

    assert len(await listed(bench)) == 2
    bench.clock.advance(1)

    assert await listed(bench) == ["consumer audit/c1"]


async def test_a_full_list_refuses_newcomers_and_hears_those_that_are_on_it() -> None:
    bench = Bench(clients_max=2, channel_expired_timeout_ms=1_000)
    first = Stream("a:1")
    await tell(bench, PRODUCER, first)
    await tell(bench, CONSUMER, Stream("a:2"))
    with pytest.raises(OverloadedError, match="2 clients"):
        await tell(bench, {**PRODUCER, "client_id": "p2"}, Stream("a:3"))
    await tell(bench, PRODUCER, first)

    bench.clock.advance(1_000)  # the others have expired meanwhile
    await tell(bench, {**PRODUCER, "client_id": "p2"}, Stream("a:3"))
    assert await listed(bench) == ["producer shop/p2"]


async def test_clients_that_tell_very_much_do_not_fill_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Single requests that make up names cost no connection."""
    monkeypatch.setattr(clients, "TEXT_MAX", 110)
    bench = Bench()
    much = {**CONSUMER, "topics": ["orders"], "filters": {"orders": "x" * 40}}
    for number in range(2):
        await tell(bench, {**much, "client_id": f"c{number}"})
    with pytest.raises(OverloadedError, match="2 clients"):
        await tell(bench, {**much, "client_id": "c3"})
    with pytest.raises(OverloadedError):  # nor may one that is listed grow
        await tell(bench, {**much, "client_id": "c1", "filters": {"orders": "x" * 60}})
    await tell(bench, {**much, "client_id": "c1", "filters": {}})
    await tell(bench, {**much, "client_id": "c3"})
    assert await listed(bench) == ["consumer audit/c0", "consumer audit/c1", "consumer audit/c3"]


async def test_a_long_list_is_made_in_many_turns_and_is_that_of_its_beginning() -> None:
    bench = Bench()
    streams = [Stream(f"a:{number}") for number in range(3_000)]
    for number, stream in enumerate(streams):
        await tell(bench, {**CONSUMER, "client_id": f"c{number:04d}"}, stream)
    asking = asyncio.gather(bench.call("clients", kind="consumer"))
    turns = 0
    while not asking.done():
        await turn()
        turns += 1
        if turns == 2:
            bench.service.connection_lost(streams[-1])

    [answer] = await asking
    rows = answer["clients"]
    assert [row["client_id"] for row in rows] == [f"c{number:04d}" for number in range(3_000)]
    assert turns >= 5


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"kind": "broker"}, BadRequestError, "kind"),
        ({"group": "a/b"}, BadNameError, "group"),
        ({"client_id": "a b"}, BadRequestError, "client_id"),
        ({"version": "x" * 65}, BadRequestError, "version"),
        ({"language": "\u001b[31m"}, BadRequestError, "language"),
        ({"topics": ["a b"]}, BadNameError, "topics"),
        ({"topics": "orders"}, BadRequestError, "topics"),
        ({"mode": "pull"}, BadRequestError, "mode"),  # a producer has none
        ({"secret": 1}, BadRequestError, "secret"),
    ],
)
async def test_what_is_no_client_is_refused_and_not_listed(
    change: dict[str, Any], error: type[Exception], field: str
) -> None:
    bench = Bench()
    with pytest.raises(error) as caught:
        await tell(bench, {**PRODUCER, **change}, Stream("a:1"))
    assert caught.value.details["field"] in (field, "topic")  # type: ignore[attr-defined]
    assert await listed(bench) == []


async def test_subscriptions_of_a_group_that_do_not_agree_are_shown() -> None:
    """RocketMQ's classic pitfall (appendix D.7)."""
    bench = Bench()
    await tell(bench, CONSUMER, Stream("a:1"))
    await tell(bench, {**CONSUMER, "client_id": "c2"}, Stream("a:2"))
    assert (await bench.call("clients"))["conflicts"] == {}
    await tell(bench, {**CONSUMER, "client_id": "c3", "filters": {}}, Stream("a:3"))

    answer = await bench.call("clients", kind="producer", topic="nothing-yet")

    assert answer["clients"] == []
    assert answer["conflicts"] == {"audit": ["orders"]}


def test_topics_of_some_members_only_and_filters_that_differ_are_inconsistent() -> None:
    assert inconsistent_topics([]) == []
    assert inconsistent_topics([(["a", "b"], {"a": "x"}), (["b", "a"], {"a": "x"})]) == []
    assert inconsistent_topics([(["a", "b"], {}), (["a"], {})]) == ["b"]
    assert inconsistent_topics([(["a"], {"a": "x"}), (["a"], {})]) == ["a"]


def a_row(client_id: str = "c1", **changes: Any) -> dict[str, Any]:
    times = {"since_unix_ms": 5, "heard_unix_ms": 9, "address": "a:1", "brokers": ["g1/1"]}
    return {**CONSUMER, "client_id": client_id, **times, **changes}


def test_members_that_read_no_retries_or_choose_their_queues_conflict_with_nobody() -> None:
    rows = [a_row(), a_row("c2", topics=["orders", "%RETRY%audit"]), a_row("c3", topics=[])]
    assert conflicts(rows) == {}


def test_rows_of_several_brokers_are_one_client_as_it_last_spoke() -> None:
    older = a_row(topics=["a"], since_unix_ms=2, heard_unix_ms=3, address="a:2", brokers=["g2/1"])
    [row] = merged([a_row(topics=["b"]), older])
    assert (row["topics"], row["since_unix_ms"]) == (["a", "b"], 2)
    assert (row["heard_unix_ms"], row["address"]) == (9, "a:1")
    assert row["brokers"] == ["g1/1", "g2/1"]
