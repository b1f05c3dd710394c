"""Clients of the remoting door that go."""

import asyncio

from tests.support.client.consumers import eventually
from tests.support.gateway.remoting import a_gateway
from tests.support.process.harness import eventually as eventually_true

from paceline.server.byte_budget import ByteBudget
from paceline_gateway.remoting.codec.codes import FLAG_ONEWAY, RequestCode, ResponseCode


async def test_what_is_made_ready_for_a_client_that_goes_is_released() -> None:
    async with a_gateway() as gateway:
        client = await gateway.name_server()
        dispatcher = gateway.door.dispatcher
        asked = client.begin(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        await eventually(lambda: dispatcher.users_count == 1)

        await client.close()

        await eventually(lambda: dispatcher.users_count == 0)
        assert isinstance(asked.exception(), ConnectionError)


async def test_what_a_client_sent_before_it_went_is_carried_out() -> None:
    async with a_gateway() as gateway:
        reader = await gateway.client()
        client = await gateway.client()
        for number in range(3):
            client.begin_send(b"%d" % number, is_oneway=True)
        commit = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "commitOffset": 2}
        client.begin(RequestCode.UPDATE_CONSUMER_OFFSET, commit, flag=FLAG_ONEWAY)

        await client.close()

        async def is_stored() -> bool:
            bodies = [message.body for message in (await reader.pull(0))[1]]
            return bodies == [b"0", b"1", b"2"]

        async def is_committed() -> bool:
            asked = {"consumerGroup": "g", "topic": "orders", "queueId": 0}
            answer = await reader.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked)
            return answer.fields.get("offset") == "2"

        await eventually_true(is_stored, within_ms=5_000, what="they are stored")
        await eventually_true(is_committed, within_ms=5_000, what="it is committed")
        await gateway.close()
        await eventually(lambda: gateway.door.dispatcher.users_count == 0)


async def test_what_no_request_waits_for_is_carried_out_for_a_user_who_went() -> None:
    may_end, ended = asyncio.Event(), []

    async def work() -> None:
        await may_end.wait()
        ended.append("carried out")

    async with a_gateway() as gateway:
        client = await gateway.client()
        await client.send(b"one")
        dispatcher = gateway.door.dispatcher
        [user] = dispatcher._users.values()
        user.spawn(work(), name="send-first")

        await gateway.close()
        await eventually(lambda: dispatcher.users_count == 0)
        may_end.set()

        await eventually(lambda: ended == ["carried out"])


async def test_a_user_is_released_with_the_last_connection() -> None:
    async with a_gateway() as gateway:
        first, second = await gateway.client(), await gateway.client()
        await first.send(b"one")
        await second.send(b"two")
        await first.close()

        sent = await second.send(b"three")
        await gateway.close()

        assert sent.code == ResponseCode.SUCCESS
        await eventually(lambda: gateway.door.dispatcher.users_count == 0)


async def test_what_is_carried_out_for_a_client_that_went_counts_until_it_is_done() -> None:
    budget = ByteBudget()
    async with a_gateway(budget=budget) as gateway:
        silent, client = await gateway.client(), await gateway.client()
        await silent.heartbeat("silent", consumers=["g"])
        question = {"consumerGroup": "g", "clientId": "silent"}
        body = bytes(1024 * 1024)
        waiting = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, question, body)
        asked = await silent.told_of(RequestCode.GET_CONSUMER_RUNNING_INFO)
        await eventually(lambda: len(gateway.door._connections) == 4)

        await client.close()
        await eventually(lambda: gateway.door._lingering == 1)

        assert budget.used_bytes > 1024 * 1024
        silent.answer(asked)
        await eventually(lambda: budget.used_bytes == 0)
        assert isinstance(waiting.exception(), ConnectionError)
