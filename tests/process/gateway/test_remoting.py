"""Clients of the remoting protocol at a real cluster: retries, and a master that is killed."""

import asyncio
import signal
from pathlib import Path

import orjson
from tests.support.gateway.real import a_client
from tests.support.process.harness import running_cluster

from paceline import AdminClient, Producer, PullConsumer, ReceivedMessage
from paceline.consumer.pull import FIRST
from paceline.types import GroupName
from paceline.wire.properties import CORRELATION_ID, REPLY_TO_CLIENT, TTL
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.properties import parse_properties


async def test_acknowledged_messages_outlive_their_master_and_retries_come(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        async with (
            AdminClient(cluster.bootstrap) as admin,
            a_client(cluster.bootstrap, admin) as client,
        ):
            acknowledged = [b"%d" % number for number in range(100)]
            for answer in await asyncio.gather(*map(client.begin_send, acknowledged)):
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            view = await admin.view()
            master = view.groups[GroupName("g1")].master_view()
            assert master is not None
            [name] = [
                node["name"]
                for node in cluster.brokers()
                if node["address"] == master.client_address
            ]
            cluster.send_signal(name, signal.SIGKILL)
            late = await client.send(b"late", properties={"UNIQ_KEY": "U1"})
            assert late.code == ResponseCode.SUCCESS, late.remark

            got: list[bytes] = []
            offset = 0
            while len(got) < 101:
                answer, messages = await client.pull(offset, wait_ms=5_000)
                got += [message.body for message in messages]
                offset = int(answer.fields["nextBeginOffset"])
            await client.heartbeat("10.0.0.1@1", consumers=["g"])
            back = await client.ask(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                {"group": "g", "offset": int(late.fields["msgId"][16:], 16), "delayLevel": 1},
            )
            assert back.code == ResponseCode.SUCCESS, back.remark
            retried: list[str] = []
            async with asyncio.timeout(30):
                while not retried:
                    _, messages = await client.pull(0, "%RETRY%g", wait_ms=5_000)
                    retried = [message.properties["UNIQ_KEY"] for message in messages]

        assert got == [*acknowledged, b"late"]
        assert retried == ["U1"]


async def test_a_native_program_replies_to_a_request_of_a_client(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        async with (
            AdminClient(cluster.bootstrap) as admin,
            a_client(cluster.bootstrap, admin) as client,
            Producer(cluster.bootstrap) as producer,
            PullConsumer(cluster.bootstrap) as consumer,
        ):
            await consumer.assign(dict.fromkeys(await consumer.queues("orders"), FIRST))
            await client.heartbeat("10.0.0.1@1", producers=["p"])
            wanted = {CORRELATION_ID: "c1", REPLY_TO_CLIENT: "10.0.0.1@1", TTL: "30"}  # as Go

            asked = await client.send(b"how much?", properties=wanted)

            assert asked.code == ResponseCode.SUCCESS, asked.remark
            requests: list[ReceivedMessage] = []
            while not requests:
                requests = await consumer.poll(timeout_ms=1_000)
            await producer.reply(requests[0], b"42")
            pushed = await client.told_of(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
            assert bytes(pushed.body) == b"42"
            properties = parse_properties(pushed.fields["properties"])
            assert {name: properties[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT)} == {
                CORRELATION_ID: "c1",
                REPLY_TO_CLIENT: "10.0.0.1@1",
            }


async def test_mqadmin_makes_a_group_that_broadcasts(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        async with (
            AdminClient(cluster.bootstrap) as admin,
            a_client(cluster.bootstrap, admin) as client,
        ):
            attributes = {"+message.model": "BROADCASTING", "+consume.from.where": "FIRST"}
            wanted = {"groupName": "everyone", "attributes": attributes}
            made = await client.ask(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, orjson.dumps(wanted)
            )
            told = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "everyone"})
            settings = (await admin.consumer_groups.get("everyone")).settings

    assert made.code == ResponseCode.SUCCESS, made.remark
    assert (settings.message_model, settings.consume_from_where) == ("broadcasting", "first")
    shown = orjson.loads(bytes(told.body))["attributes"]
    assert shown == {"message.model": "BROADCASTING", "consume.from.where": "FIRST"}
