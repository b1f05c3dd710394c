"""What mqadmin asks of a real cluster, as bytes: controllers, consumers."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from tests.support.gateway.real import a_client
from tests.support.gateway.remoting import RemotingClient
from tests.support.process.harness import eventually, running_cluster

from paceline import AdminClient
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.store_format import decode_messages

pytestmark = pytest.mark.asyncio(loop_scope="module")

@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AdminClient]:
    with running_cluster(tmp_path_factory.mktemp("mqadmin") / "data") as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            yield admin


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(admin: AdminClient) -> AsyncIterator[RemotingClient]:
    async with a_client(list((await admin.view()).controllers), admin) as client:
        yield client


async def asked(client: RemotingClient, code: int, document: Any = None, **fields: Any) -> Command:
    """What it answers, which is no error."""
    body = b"" if document is None else orjson.dumps(document)
    answer = await client.ask(code, fields, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


async def test_a_door_answers_as_the_controller(admin: AdminClient, client: RemotingClient) -> None:
    meta = await asked(client, RequestCode.CONTROLLER_GET_METADATA_INFO)
    status = await admin.cluster_status()
    assert meta.fields["controllerLeaderId"] == status["leader"]
    assert meta.fields["peers"].count(";") == len(status["controllers"]) - 1

    async def replicas() -> Any:
        told = await asked(client, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, ["g1", "none"])
        table = orjson.loads(bytes(told.body))["replicasInfoTable"]
        assert list(table) == ["g1"]
        return table["g1"]

    async def all_in_sync() -> bool:
        return len((await replicas())["inSyncReplicas"]) == 3

    assert await eventually(all_in_sync)
    before = await replicas()
    other = next(
        each["brokerId"]
        for each in before["inSyncReplicas"]
        if each["brokerId"] != before["masterBrokerId"]
    )

    elected = await asked(
        client, RequestCode.CONTROLLER_ELECT_MASTER, brokerName="g1", brokerId=other
    )

    assert int(elected.fields["masterBrokerId"]) == other
    assert int(elected.fields["masterEpoch"]) > before["masterEpoch"]
    assert len(orjson.loads(bytes(elected.body))["brokerAddrs"]) == 3


async def test_consumers_are_asked_what_they_do(client: RemotingClient) -> None:
    silent = await RemotingClient.connect(client.address)
    await silent.heartbeat("10.0.0.2@1", consumers=["watched"])
    await client.heartbeat("10.0.0.1@1", consumers=["watched"])
    sent = await client.send(b"look at it", properties={"UNIQ_KEY": "LOOK"})
    assert sent.code == ResponseCode.SUCCESS, sent.remark

    waiting = client.begin(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"group": "watched", "topic": "orders"}
    )
    status = await client.told_of(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
    assert status.fields == {"group": "watched", "topic": "orders"}
    table = b'{{"brokerName":"g1","queueId":0,"topic":"orders"}:1}'
    client.answer(status, b'{"consumerTable":{},"messageQueueTable":%s}' % table)
    answer = await waiting
    assert bytes(answer.body) == b'{"consumerTable":{"10.0.0.1@1":%s}}' % table
    await silent.close()

    asking = {
        "consumerGroup": "watched",
        "clientId": "10.0.0.1@1",
        "msgId": sent.fields["msgId"],
        "topic": "orders",
    }
    waiting = client.begin(RequestCode.CONSUME_MESSAGE_DIRECTLY, asking)
    told = await client.told_of(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    [(message, _)] = decode_messages(bytes(told.body))
    assert (message.body, told.fields["brokerName"]) == (b"look at it", "g1")
    client.answer(told, b'{"consumeResult":"CR_SUCCESS"}')
    assert bytes((await waiting).body) == b'{"consumeResult":"CR_SUCCESS"}'
    nobody = await client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, {**asking, "clientId": "x"})
    assert nobody.code != ResponseCode.SUCCESS
