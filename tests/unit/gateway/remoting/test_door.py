"""The remoting door, by its sockets, before a broker on fakes."""

import asyncio
import struct
import zlib
from typing import Any

import orjson
import pytest
from tests.support.client.consumers import eventually
from tests.support.client.simple import send
from tests.support.gateway.remoting import RemotingClient, a_gateway

from paceline.errors import NotAuthorizedError
from paceline.net.group_links import GroupLinks
from paceline.wire.calls.groups import Heartbeat
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import BINARY
from paceline_gateway.remoting.codec.store_format import decode_messages


async def test_a_route_names_the_listener_of_the_broker_group() -> None:
    async with a_gateway() as gateway:
        client = await gateway.name_server()

        answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})

        route = orjson.loads(bytes(answer.body))
        [queues] = route["queueDatas"]
        assert (queues["brokerName"], queues["perm"]) == ("g1", 6)
        assert queues["readQueueNums"] == queues["writeQueueNums"] > 1
        missing = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "none"})
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST
        retries = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%g"})
        assert retries.code == ResponseCode.SUCCESS
        brokers = await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        assert list(orjson.loads(bytes(brokers.body))["brokerAddrTable"]) == ["g1"]


@pytest.mark.parametrize("serialization", [0, BINARY])
async def test_what_is_sent_is_pulled_as_it_was(serialization: int) -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        client.serialization = serialization
        properties = {
            "KEYS": "k1 k2",
            "TAGS": "t",
            "UNIQ_KEY": "7F0001",
            "mine": "1",
            "WAIT": "true",
        }

        sent = await client.send(b"body", properties=properties)

        assert (sent.code, sent.serialization) == (ResponseCode.SUCCESS, serialization)
        assert (sent.fields["queueId"], sent.fields["queueOffset"]) == ("0", "0")
        assert sent.fields["transactionId"] == "7F0001"
        answer, [message] = await client.pull(0)
        assert answer.fields["nextBeginOffset"] == "1"
        assert message.body == b"body"
        assert {name: message.properties[name] for name in properties} == properties
        viewed = await client.ask(
            RequestCode.VIEW_MESSAGE_BY_ID, {"offset": int(sent.fields["msgId"][16:], 16)}
        )
        assert (viewed.code, b"body" in bytes(viewed.body)) == (ResponseCode.SUCCESS, True)


async def test_pipelined_sends_of_a_connection_keep_their_order() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()

        answers = await asyncio.gather(
            *(client.begin_send(b"%d" % number) for number in range(300))
        )

        assert [answer.fields["queueOffset"] for answer in answers] == list(map(str, range(300)))
        offset, got = 0, []
        while offset < 300:
            answer, messages = await client.pull(offset)
            got += [message.body for message in messages]
            offset = int(answer.fields["nextBeginOffset"])
        assert got == [b"%d" % number for number in range(300)]


async def test_a_long_poll_is_answered_by_what_comes() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        polls = asyncio.gather(*(client.pull(0, queue_id=0, wait_ms=15_000) for _ in range(3)))
        nothing, _ = await client.pull(0, queue_id=1, wait_ms=1)

        send(gateway.broker, b"late")
        found = await polls

        assert nothing.code == ResponseCode.PULL_NOT_FOUND
        assert [[message.body for message in messages] for _, messages in found] == [[b"late"]] * 3


async def test_a_pull_gives_only_what_is_wanted() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        for tag in "abab":
            await client.send(tag.encode(), properties={"TAGS": tag})

        answer, messages = await client.pull(0, subscription="b || c")
        nothing, _ = await client.pull(0, subscription="none")
        wrong, _ = await client.pull(0, subscription="a >", expressionType="SQL92")

        assert [message.body for message in messages] == [b"b", b"b"]
        assert answer.fields["nextBeginOffset"] == "4"
        assert (nothing.code, nothing.fields["nextBeginOffset"]) == (
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            "4",
        )
        assert wrong.code == ResponseCode.INVALID_PARAMETER


async def test_a_pull_out_of_range_says_where_to_go_on() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        await client.send(b"one")

        answer, _ = await client.pull(9, wait_ms=10_000)

        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert (answer.fields["nextBeginOffset"], answer.fields["maxOffset"]) == ("1", "1")


async def test_a_compressed_body_is_stored_plain() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()

        await client.send(zlib.compress(b"x" * 10_000), sys_flag=1)
        bomb = await client.send(zlib.compress(bytes(5 * 1024 * 1024)), sys_flag=1)
        wrong = await client.send(b"no zlib", sys_flag=1)

        _, [message] = await client.pull(0)
        assert (message.body, message.sys_flag) == (b"x" * 10_000, 0)
        assert bomb.code == ResponseCode.MESSAGE_ILLEGAL
        assert wrong.code == ResponseCode.INVALID_PARAMETER


async def test_a_group_stands_where_it_has_committed() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        queue = {"consumerGroup": "g", "topic": "orders", "queueId": 0}
        await client.send(b"one")

        first = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue)
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": 1})
        second = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue)

        assert (first.fields["offset"], second.fields["offset"]) == ("0", "1")
        for code, offset in ((RequestCode.GET_MIN_OFFSET, "0"), (RequestCode.GET_MAX_OFFSET, "1")):
            assert (await client.ask(code, queue)).fields["offset"] == offset
        found = await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": 0})
        assert found.fields["offset"] == "0"


async def test_members_hear_of_each_other_at_once() -> None:
    async with a_gateway() as gateway:
        one, two = await gateway.client(), await gateway.client()
        await one.heartbeat("10.0.0.1@1", consumers=["g"])

        await two.heartbeat("10.0.0.2@2", consumers=["g"])
        both = await _members(one, 2)
        await two.close()
        left = await _members(one, 1)

        assert (both, left) == (["10.0.0.1@1", "10.0.0.2@2"], ["10.0.0.1@1"])


async def _members(client: RemotingClient, count: int) -> list[str]:
    """Who is in the group once there are so many; the client is told when that changes."""
    while True:
        answer = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
        ids: list[str] = orjson.loads(bytes(answer.body))["consumerIdList"]
        if len(ids) == count:
            return ids
        await client.told_of(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)


async def test_a_queue_is_locked_for_one_client() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        queue = {"topic": "orders", "brokerName": "g1", "queueId": 0}

        def body(client_id: str) -> bytes:
            return orjson.dumps({"consumerGroup": "g", "clientId": client_id, "mqSet": [queue]})

        first = await client.ask(RequestCode.LOCK_BATCH_MQ, {}, body("c1"))
        other = await client.ask(RequestCode.LOCK_BATCH_MQ, {}, body("c2"))
        again = await client.ask(RequestCode.LOCK_BATCH_MQ, {}, body("c1"))
        await client.ask(RequestCode.UNLOCK_BATCH_MQ, {}, body("c1"))
        free = await client.ask(RequestCode.LOCK_BATCH_MQ, {}, body("c2"))

        held = [
            len(orjson.loads(bytes(each.body))["lockOKMQSet"]) for each in (first, other, again)
        ]
        assert held == [1, 0, 1]
        assert orjson.loads(bytes(free.body))["lockOKMQSet"] == [queue]


async def test_a_transaction_is_seen_once_it_is_committed() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        half = {"UNIQ_KEY": "A1", "TRAN_MSG": "true", "PGROUP": "producers"}
        taken = await client.send(b"half", properties=half, sys_flag=4)
        before, _ = await client.pull(0)
        end = {
            "producerGroup": "producers",
            "commitLogOffset": int(taken.fields["msgId"][16:], 16),
            "tranStateTableOffset": 0,
            "commitOrRollback": 8,
        }

        ended = await client.ask(RequestCode.END_TRANSACTION, end)

        _, [message] = await client.pull(0, wait_ms=5_000)
        assert (before.code, ended.code) == (ResponseCode.PULL_NOT_FOUND, ResponseCode.SUCCESS)
        assert (message.body, message.properties["UNIQ_KEY"]) == (b"half", "A1")


async def test_messages_are_received_by_receipt() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        await client.send(b"one")
        pop = {
            "consumerGroup": "g",
            "topic": "orders",
            "queueId": -1,
            "maxMsgNums": 8,
            "invisibleTime": 60_000,
            "pollTime": 0,
            "initMode": 0,
            "exp": "*",
        }

        given = await client.ask(RequestCode.POP_MESSAGE, pop)
        none = await client.ask(RequestCode.POP_MESSAGE, pop)
        receipt = {
            "consumerGroup": "g",
            "topic": "orders",
            "queueId": 0,
            "offset": 0,
            "extraInfo": _popped(given.body),
        }
        later = await client.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {**receipt, "invisibleTime": 90_000}
        )
        old = await client.ask(RequestCode.ACK_MESSAGE, receipt)
        words = f"0 {later.fields['popTime']} 90000 {later.fields['reviveQid']} 0 g1 0 0"
        acked = await client.ask(RequestCode.ACK_MESSAGE, {**receipt, "extraInfo": words})

        assert none.code == ResponseCode.POLLING_TIMEOUT
        assert later.code == ResponseCode.SUCCESS
        assert (old.code, acked.code) == (ResponseCode.NO_MESSAGE, ResponseCode.SUCCESS)


def _popped(body: object) -> str:
    [(message, _)] = decode_messages(bytes(body))  # type: ignore[call-overload]
    return str(message.properties["POP_CK"])


async def test_a_message_is_sent_back_by_its_place() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        await client.send(b"one", properties={"UNIQ_KEY": "U1"})
        _, [message] = await client.pull(0)

        back = await client.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {"group": "g", "offset": message.physical_offset, "delayLevel": 0, "unitMode": "false"},
        )

        # Where the group is not made by itself it must be there: this broker makes none.
        assert back.remark == "GROUP_NOT_FOUND: no consumer group 'g'"


async def test_messages_are_found_by_their_keys() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        await client.send(b"one", properties={"KEYS": "k1", "UNIQ_KEY": "U1"})
        asked = {"topic": "orders", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}

        by_key = await client.ask(RequestCode.QUERY_MESSAGE, {**asked, "key": "k1"})
        by_id = await client.ask(
            RequestCode.QUERY_MESSAGE, {**asked, "key": "U1", "_UNIQUE_KEY_QUERY": "true"}
        )

        assert (by_key.code, by_id.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
        assert bytes(by_key.body) == bytes(by_id.body)


async def test_a_batch_of_a_client_is_stored_as_one_unit() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        members = b"".join(
            (22 + len(body)).to_bytes(4, "big")
            + bytes(12)
            + len(body).to_bytes(4, "big")
            + body
            + b"\0\0"
            for body in (b"a", b"bb")
        )
        fields = {"a": "p", "b": "orders", "e": 2, "f": 0, "i": "", "m": "true"}

        sent = await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, members)

        _, messages = await client.pull(0, queue_id=2)
        assert [message.body for message in messages] == [b"a", b"bb"]
        assert len(sent.fields["msgId"].split(",")) == 2


async def test_what_is_not_there_is_refused_with_a_sentence() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()

        unknown = await client.ask(4711, {})
        topic = await client.send(b"x", topic="none")
        queue = await client.send(b"x", queue_id=900)
        field, _ = await client.pull(0, queueOffset="x")

        assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert topic.code == ResponseCode.TOPIC_NOT_EXIST
        assert (queue.code, field.code) == (ResponseCode.INVALID_PARAMETER,) * 2
        assert field.remark == "BAD_REQUEST: queueOffset must be a whole number, not x"


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff\x00\x00\x00\x10",
        b"\x00\x00\x00\x08\x00\x00\x00\x20zzzz",
        b"\x00\x00\x00\x08\x00\x00\x00\x04{nono",
        b"\x00\x00\x00\x06\x05\x00\x00\x02{}",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_no_frame_ends_the_connection(content: bytes) -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()

        client.write(content + bytes(32))

        await client.ended()
        other = await gateway.client()
        assert (await other.send(b"x")).code == ResponseCode.SUCCESS


async def test_what_mqadmin_asks_is_answered() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        await client.send(b"one")
        await client.heartbeat("10.0.0.1@1", consumers=["g"])

        stats = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})
        who = await client.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "orders"})
        members = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        settings = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"a=b")

        first = b'{"offsetTable":{{"brokerName":"g1","queueId":0,"topic":"orders"}:'
        assert bytes(stats.body).startswith(first)
        assert orjson.loads(bytes(who.body)) == {"groupList": ["g"]}
        [connection] = orjson.loads(bytes(members.body))["connectionSet"]
        assert (connection["clientId"], connection["language"]) == ("10.0.0.1@1", "JAVA")
        assert settings.code == ResponseCode.NO_PERMISSION


async def test_who_has_a_heartbeat_is_shown_until_it_goes() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()

        await client.heartbeat("10.0.0.1@1", consumers=["g"], producers=["p"])

        shown = [row for each in gateway.connected for row in each.introductions()]
        assert [(row.kind, row.group, row.topics) for row in shown] == [
            ("producer", "p", []),
            ("consumer", "g", ["orders"]),
        ]
        assert {(row.client_id, row.language, row.version, row.door) for row in shown} == {
            ("10.0.0.1@1", "JAVA", "5.3.0", "remoting")
        }
        await client.ask(
            RequestCode.UNREGISTER_CLIENT, {"clientID": "10.0.0.1@1", "producerGroup": "p"}
        )
        assert [each.kind for each in gateway.connected] == ["consumer"]
        await client.close()
        await eventually(lambda: not len(gateway.connected))


async def test_a_group_that_was_refused_at_first_is_joined_by_a_later_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = {"late"}
    call = GroupLinks.call

    async def refusing(links: GroupLinks, group: Any, request: Any, **how: Any) -> Any:
        if isinstance(request, Heartbeat) and request.group in refused:
            raise NotAuthorizedError("no policy allows it")
        return await call(links, group, request, **how)

    monkeypatch.setattr(GroupLinks, "call", refusing)
    async with a_gateway() as gateway:
        client = await gateway.client()
        first = await client.heartbeat("10.0.0.1@1", consumers=["late", "g"])
        refused.clear()
        second = await client.heartbeat("10.0.0.1@1", consumers=["late", "g"])

        assert [first.code, second.code] == [ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS]
        for group in ("late", "g"):
            members = await client.ask(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}
            )
            assert members.code == ResponseCode.SUCCESS, members.remark
            assert orjson.loads(bytes(members.body)) == {"consumerIdList": ["10.0.0.1@1"]}
        [user] = gateway.door.dispatcher._users.values()
        assert all(group.task is not None for group in user.groups._groups.values())


async def test_a_batch_that_says_so_by_a_number_is_one() -> None:
    """As the C++ client does, which Python's is made of."""
    async with a_gateway() as gateway:
        client = await gateway.client()
        member = b"".join(
            (struct.pack(">iiiii", 29, 0, 0, 0, 3), b"one", struct.pack(">h", 4), b"k\x01v\x02")
        )
        fields = {"topic": "orders", "queueId": 0, "batch": 1, "properties": ""}

        sent = await client.ask(RequestCode.SEND_MESSAGE, fields, member * 2)

        _, messages = await client.pull(0)
        assert sent.code == ResponseCode.SUCCESS
        assert [(message.body, message.properties["k"]) for message in messages] == [
            (b"one", "v")
        ] * 2


async def test_a_pull_without_a_filter_gives_what_the_heartbeat_wants() -> None:
    """Go's client then names a type, but not the one of its subscription."""
    async with a_gateway() as gateway:
        client = await gateway.client()
        for color in ("red", "blue"):
            await client.send(color.encode(), properties={"color": color})
        await client.heartbeat("10.0.0.1@1", consumers=["g"], wanted=("SQL92", "color = 'red'"))

        _, messages = await client.pull(0, sysFlag=0, subscription="", expressionType="TAG")

        assert [message.body for message in messages] == [b"red"]


async def test_who_lets_the_server_assign_receives_any_queue() -> None:
    async with a_gateway() as gateway:
        client = await gateway.client()
        asked = {"topic": "orders", "consumerGroup": "g", "messageModel": "CLUSTERING"}

        answer = await client.ask(RequestCode.QUERY_ASSIGNMENT, {}, orjson.dumps(asked))
        nothing = await client.ask(
            RequestCode.QUERY_ASSIGNMENT, {}, orjson.dumps({**asked, "topic": "%RETRY%g"})
        )
        pull = await client.ask(
            RequestCode.SET_MESSAGE_REQUEST_MODE, {}, orjson.dumps({**asked, "mode": "PULL"})
        )

        [row] = orjson.loads(bytes(answer.body))["messageQueueAssignments"]
        assert row["mode"] == "POP"
        assert row["messageQueue"] == {"brokerName": "g1", "queueId": -1, "topic": "orders"}
        assert orjson.loads(bytes(nothing.body)) == {"messageQueueAssignments": []}
        assert pull.code == ResponseCode.INVALID_PARAMETER
