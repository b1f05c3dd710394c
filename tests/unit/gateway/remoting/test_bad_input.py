"""What others' clients, or broken ones, send to the remoting door: refused, and nothing else."""

import asyncio

import lz4.frame
import orjson
import pytest
import zstandard
from tests.support.client.consumers import eventually
from tests.support.gateway.remoting import WITHIN_S, a_gateway

from paceline.platform.runtime import ManualClock
from paceline.server.byte_budget import ByteBudget
from paceline_gateway import slow_readers
from paceline_gateway.connected_clients import SILENT_MS, ConnectedClients
from paceline_gateway.remoting import dispatch, sending
from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.state import queue_reader

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("kind", "bomb"),
    [
        (1, lz4.frame.compress(bytes(64 * MIB))),
        (2, zstandard.compress(bytes(64 * MIB))),
    ],
    ids=["lz4", "zstd"],
)
async def test_a_compression_bomb_is_refused(kind: int, bomb: bytes) -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()

        answer = await client.send(bomb, sys_flag=1 | kind << 8)

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        nothing, _ = await client.pull(0)
        assert nothing.code == ResponseCode.PULL_NOT_FOUND


async def test_frames_that_never_end_hold_no_more_than_the_budget() -> None:
    async with a_gateway(budget=ByteBudget(8 * MIB)) as gateway:
        clients = [await gateway.client() for _ in range(8)]
        head = (3 * MIB).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"{}"

        for client in clients:
            client.write(head + bytes(2 * MIB))

        await eventually(lambda: gateway.door.budget.refused > 0)
        assert gateway.door.budget.used_bytes <= 8 * MIB


async def test_a_client_does_not_end_what_another_one_has() -> None:
    async with a_gateway() as gateway:
        client, other = await gateway.client(), await gateway.client()
        await client.heartbeat("10.0.0.1@1", consumers=["g"], producers=["p"])
        await other.heartbeat("10.0.0.2@2", consumers=["g"])

        await other.ask(
            RequestCode.UNREGISTER_CLIENT,
            {"clientID": "10.0.0.1@1", "consumerGroup": "g", "producerGroup": "p"},
        )

        told = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        ids = {row["clientId"] for row in orjson.loads(bytes(told.body))["connectionSet"]}
        assert ids == {"10.0.0.1@1", "10.0.0.2@2"}
        answer = await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
        assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"clientID": 7}', b'{"clientID": "a", "consumerDataSet": [1]}']
)
async def test_a_broken_heartbeat_is_refused(body: bytes) -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()

        answer = await client.ask(RequestCode.HEART_BEAT, {}, body)

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert len(gateway.connected) == 0


LARGE = bytes(range(256)) * 1024
"""256 KiB: as much as a pull gives."""


async def test_a_client_that_does_not_read_is_cut_and_holds_no_more_than_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slow_readers, "TAKING_S", 0.5)
    budget = ByteBudget(32 * MIB)
    async with a_gateway(budget=budget) as gateway:
        well = await gateway.client()
        for _ in range(2):
            assert (await well.send(LARGE)).code == ResponseCode.SUCCESS
        slow = await gateway.client()
        slow.stop_reading()
        answers = [slow.begin_pull(0) for _ in range(2_000)]

        await eventually(lambda: budget.refused > 0)
        assert budget.used_bytes <= budget.limit_bytes // 2
        assert (await well.pull(0))[0].code == ResponseCode.SUCCESS
        await eventually(lambda: len(gateway.door._connections) == 3)  # it is cut
        await eventually(lambda: budget.used_bytes == 0)
        slow.read_on()
        await slow.ended()
        codes = {each.result().code for each in answers if each.done() and not each.exception()}
        assert codes <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}


async def test_requests_under_way_count_until_they_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = ByteBudget(8 * MIB)
    async with a_gateway(budget=budget) as gateway:
        client = await gateway.client()
        assert (await client.send(b"first")).code == ResponseCode.SUCCESS
        held: list[Call] = []
        carry_out = sending.send
        monkeypatch.setattr(sending, "send", held.append)
        sent = [client.begin_send(LARGE) for _ in range(64)]
        await eventually(lambda: sum(each.done() for each in sent) + len(held) == 64)
        assert {each.result().code for each in sent if each.done()} == {ResponseCode.SYSTEM_BUSY}
        assert MIB < budget.used_bytes <= budget.limit_bytes // 2

        for call in held:
            carry_out(call)
        async with asyncio.timeout(WITHIN_S):
            codes = [(await each).code for each in sent]
        assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        await eventually(lambda: budget.used_bytes == 0)


async def test_an_address_has_a_share_of_the_groups_and_who_is_silent_is_no_member() -> None:
    clock = ManualClock()
    clients = ConnectedClients(clock, clients_max=8)
    async with a_gateway(clients=clients) as gateway:
        client = await gateway.client()
        many = [f"g{number}" for number in range(100)]
        refused = await client.heartbeat("10.0.0.1@1", consumers=many)
        groups = next(iter(gateway.door.dispatcher._users.values())).groups

        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert len(groups._groups) == len(clients) == 4

        clock.advance(SILENT_MS)
        clients.expire()
        assert (len(groups._groups), len(clients)) == (0, 0)
        assert (await client.heartbeat("10.0.0.1@1", consumers=["g"])).code == 0


async def test_a_connection_whose_client_has_another_id_now_is_the_former_one_no_more() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        for number in range(5):
            await client.heartbeat(f"10.0.0.1@{number}", consumers=["g"], producers=["p"])

        told = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        ids = [row["clientId"] for row in orjson.loads(bytes(told.body))["connectionSet"]]
        assert ids == ["10.0.0.1@4"]
        assert len(gateway.connected) == 2


async def test_an_address_has_a_share_of_the_requests_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "POLLS_MAX", 8)
    async with a_gateway() as gateway:
        client = await gateway.client()
        waiting = [client.begin_pull(0, wait_ms=60_000) for _ in range(4)]

        refused, _ = await client.pull(0, wait_ms=60_000)
        at_once, _ = await client.pull(0)
        assert (await client.send(b"one")).code == ResponseCode.SUCCESS

        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert at_once.code == ResponseCode.PULL_NOT_FOUND
        async with asyncio.timeout(WITHIN_S):
            assert {(await each).code for each in waiting} == {ResponseCode.SUCCESS}
        assert (await client.pull(0, wait_ms=60_000))[0].code == ResponseCode.SUCCESS


async def test_an_address_beyond_its_connections_finds_no_place_at_a_listener() -> None:
    async with a_gateway(connections_max=8) as gateway:
        busy = [await gateway.name_server() for _ in range(4)]
        asked = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}
        for client in busy:
            assert (await client.ask(*asked)).code == ResponseCode.SUCCESS

        await (await gateway.name_server()).ended()

        for client in busy:
            assert (await client.ask(*asked)).code == ResponseCode.SUCCESS


async def test_messages_that_were_read_are_not_kept_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_reader, "KEPT_S", 0.05)
    async with a_gateway() as gateway:
        client = await gateway.client()
        assert (await client.send(LARGE)).code == ResponseCode.SUCCESS
        assert (await client.pull(0))[0].code == ResponseCode.SUCCESS
        [user] = gateway.door.dispatcher._users.values()

        await eventually(lambda: not user.reader._kept_bytes)
        assert user.reader._timer is None
        assert (await client.pull(0))[0].code == ResponseCode.SUCCESS
