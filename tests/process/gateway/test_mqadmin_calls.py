"""What mqadmin asks of a real cluster, as bytes: users, ACLs, controllers, consumers."""

import re
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from tests.support.gateway.real import a_client, asked
from tests.support.gateway.remoting import RemotingClient
from tests.support.process.harness import eventually, running_cluster

from paceline import AdminClient
from paceline.net.connect import Credentials
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.store_format import decode_messages

pytestmark = pytest.mark.asyncio(loop_scope="module")

PASSWORD = "kT3-0123456789abcdef"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AdminClient]:
    with running_cluster(tmp_path_factory.mktemp("mqadmin") / "data") as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            yield admin


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(admin: AdminClient) -> AsyncIterator[RemotingClient]:
    async with a_client(list((await admin.view()).controllers), admin) as client:
        yield client


async def user_of(client: RemotingClient, name: str) -> Any:
    body = bytes((await asked(client, RequestCode.AUTH_GET_USER, username=name)).body)
    return orjson.loads(body) if body else None


async def test_a_user_of_mqadmin_has_a_key_that_signs(
    admin: AdminClient, client: RemotingClient
) -> None:
    told = {"username": "shop", "password": PASSWORD, "userType": "Normal"}
    for _ in range(2):  # mqadmin asks each broker
        await asked(client, RequestCode.AUTH_CREATE_USER, told, username="shop")

    made = await admin.users.get("shop")
    assert [(key["access_key"], key["name"]) for key in made["keys"]] == [("shop", "mqadmin")]
    shown = await user_of(client, "shop")
    assert shown == {"username": "shop", "userType": "Normal", "userStatus": "enable"}
    listed = await asked(client, RequestCode.AUTH_LIST_USER, filter="sho")
    assert orjson.loads(bytes(listed.body)) == [shown]

    other = {**told, "password": PASSWORD[::-1]}
    again = await client.ask(
        RequestCode.AUTH_CREATE_USER, {"username": "shop"}, orjson.dumps(other)
    )
    assert again.code != ResponseCode.SUCCESS
    assert "there is an access key shop" in (again.remark or "")
    for _ in range(2):
        await asked(client, RequestCode.AUTH_UPDATE_USER, other, username="shop")
    await asked(client, RequestCode.AUTH_UPDATE_USER, {"userStatus": "disable"}, username="shop")
    assert (await user_of(client, "shop"))["userStatus"] == "disable"
    assert len((await admin.users.get("shop"))["keys"]) == 1

    for _ in range(2):
        await asked(client, RequestCode.AUTH_DELETE_USER, username="shop")
    assert await user_of(client, "shop") is None


async def test_a_user_whose_key_is_taken_is_not_made(
    admin: AdminClient, client: RemotingClient
) -> None:
    taken = Credentials(access_key="buyer", secret_key=PASSWORD)
    await admin.users.create("first")
    await admin.users.add_key("first", name="other", signs=True, chosen=taken)
    told = orjson.dumps({"password": PASSWORD, "userType": "Normal"})

    for _ in range(2):
        answer = await client.ask(RequestCode.AUTH_CREATE_USER, {"username": "buyer"}, told)

        assert "there is an access key buyer" in (answer.remark or "")
        assert "buyer" not in [user["user"] for user in await admin.users.all()]
    await admin.users.delete("first")
    again = await client.ask(RequestCode.AUTH_CREATE_USER, {"username": "buyer"}, told)
    assert again.code == ResponseCode.SUCCESS, again.remark


async def test_a_user_that_is_copied_disabled_is_disabled(
    admin: AdminClient, client: RemotingClient
) -> None:
    told = {"password": PASSWORD, "userType": "Normal", "userStatus": "disable"}

    for _ in range(2):
        await asked(client, RequestCode.AUTH_CREATE_USER, told, username="left")

    made = await admin.users.get("left")
    assert (made["is_enabled"], len(made["keys"])) == (False, 1)


async def test_a_password_that_is_no_secret_key_is_refused(
    admin: AdminClient, client: RemotingClient
) -> None:
    told = orjson.dumps({"password": "rocketmq", "userType": "Normal"})

    answer = await client.ask(RequestCode.AUTH_CREATE_USER, {"username": "weak"}, told)

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "16 to 128" in (answer.remark or "")
    assert "rocketmq" not in (answer.remark or "").lower().replace("rocketmq's", "")
    assert "weak" not in [user["user"] for user in await admin.users.all()]


async def test_consumer_progress_tells_when_the_last_consumed_message_was_stored(
    admin: AdminClient, client: RemotingClient
) -> None:
    await admin.topics.create("progress", queues=1)

    async def last_told(offset: int) -> int:
        queue = {"consumerGroup": "watchers", "topic": "progress", "queueId": 0}
        await asked(client, RequestCode.UPDATE_CONSUMER_OFFSET, **queue, commitOffset=offset)
        answer = await asked(client, RequestCode.GET_CONSUME_STATS, consumerGroup="watchers")
        [found] = re.findall(rb'"lastTimestamp":(\d+)', bytes(answer.body))
        return int(found)

    assert await last_told(0) == 0
    assert (await client.send(b"one", topic="progress")).code == ResponseCode.SUCCESS
    _, [message] = await client.pull(0, "progress")
    assert await last_told(1) == message.store_unix_ms


async def test_acls_are_policies(admin: AdminClient, client: RemotingClient) -> None:
    await admin.users.create("reader")
    subject = "User:reader"

    def told(resource: str, action: str, decision: str = "Allow") -> dict[str, Any]:
        entry = {"resource": resource, "actions": [action], "decision": decision}
        return {"policies": [{"entries": [{**entry, "sourceIps": ["10.1.0.0/16"]}]}]}

    for each in (told("Topic:orders*", "sub"), told("group:g", "ALL", "deny")):
        await asked(client, RequestCode.AUTH_CREATE_ACL, each, subject=subject)
    await asked(client, RequestCode.AUTH_UPDATE_ACL, told("Group:g", "Sub"), subject=subject)

    acl = orjson.loads(bytes((await asked(client, 3009, subject=subject)).body))
    [policy] = acl["policies"]
    assert (acl["subject"], policy["policyType"]) == (subject, "Custom")
    assert {(row["resource"], *row["actions"], row["decision"]) for row in policy["entries"]} == {
        ("Topic:orders*", "Sub", "Allow"),
        ("Group:g", "Sub", "Allow"),
    }
    listed = await asked(client, RequestCode.AUTH_LIST_ACL, resourceFilter="orders")
    [[row]] = [each["policies"] for each in orjson.loads(bytes(listed.body))]
    assert [entry["resource"] for entry in row["entries"]] == ["Topic:orders*"]
    wrong = await client.ask(
        RequestCode.AUTH_CREATE_ACL, {"subject": subject}, orjson.dumps(told("Topic:x", "Any"))
    )
    assert wrong.code == ResponseCode.INVALID_PARAMETER
    await asked(client, RequestCode.AUTH_DELETE_ACL, subject=subject, resource="group:g")
    assert len((await admin.policies.get("reader"))["custom"]) == 1
    await asked(client, RequestCode.AUTH_DELETE_ACL, subject=subject)
    assert (await admin.policies.get("reader"))["custom"] == []
    assert bytes((await asked(client, RequestCode.AUTH_GET_ACL, subject=subject)).body) == b""


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
