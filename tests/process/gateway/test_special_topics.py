"""Sends to topics that are special to old clients, as bytes at a real cluster."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from tests.support.gateway.real import a_client, asked
from tests.support.gateway.remoting import RemotingClient
from tests.support.process.harness import eventually, running_cluster

from paceline import AdminClient
from paceline_gateway.remoting.codec.codes import RequestCode, ResponseCode
from paceline_gateway.remoting.codec.frames import Command

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


async def test_the_first_send_makes_a_topic(admin: AdminClient, client: RemotingClient) -> None:
    missing = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "made"})
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST
    route = await asked(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
    queues = orjson.loads(bytes(route.body))["queueDatas"]
    assert [(row["brokerName"], row["writeQueueNums"]) for row in queues] == [("g1", 1)]

    answers = await asyncio.gather(
        *(client.begin_send(b"%d" % number, topic="made") for number in range(200))
    )

    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert sum((await admin.topics.get("made")).queues.values()) > 1


async def test_a_send_to_a_retry_topic_gives_the_message_back_once(
    admin: AdminClient, client: RemotingClient
) -> None:
    sent = await client.send(b"failed", properties={"UNIQ_KEY": "U1"})
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    meant = {"UNIQ_KEY": "U1", "RETRY_TOPIC": "orders", "DELAY": "1"}

    async def given_back(times: int, **more: str) -> Command:
        return await client.send(
            b"failed", topic="%RETRY%again", properties={**meant, **more}, j=times, l=2
        )

    for _ in range(2):
        answer = await given_back(1)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    messages: list[Any] = []
    while not messages:
        _, messages = await client.pull(0, "%RETRY%again", group="again", wait_ms=5_000)
    assert [(each.body, each.reconsume_times) for each in messages] == [(b"failed", 1)]

    dead = await given_back(3)

    assert dead.code == ResponseCode.SUCCESS, dead.remark

    async def is_dead() -> bool:
        return len(await admin.dead_letters.all("again")) == 1

    assert await eventually(is_dead)
    _, messages = await client.pull(0, "%RETRY%again", group="again")
    assert len(messages) == 1
    other = await client.send(b"without a key")
    _, [*_, message] = await client.pull(int(other.fields["queueOffset"]))
    again = await given_back(1, UNIQ_KEY=message.properties["UNIQ_KEY"])
    assert again.code == ResponseCode.SUCCESS, again.remark
    unknown = await given_back(1, UNIQ_KEY="U2")
    assert unknown.code == ResponseCode.QUERY_NOT_FOUND, unknown.remark
