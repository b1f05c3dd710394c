"""What others' clients, or broken ones, send to the remoting door: refused, and nothing else."""

import lz4.frame
import orjson
import pytest
import zstandard
from tests.support.client.consumers import eventually
from tests.support.gateway.remoting import a_gateway

from paceline.server.byte_budget import ByteBudget
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode

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
