"""The Admin service of the gRPC door, before a real cluster."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest
from tests.support.gateway.grpc_client import (
    RawClient,
    a_door,
    consumer_settings,
    drained,
    within,
)
from tests.support.process.harness import RunningCluster, eventually, running_cluster

from paceline import AdminClient
from paceline_gateway.grpc.stubs import admin_pb2
from paceline_gateway.grpc.stubs.resources_pb2 import Code, MessageType, Resource

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("grpc-admin") / "data") as cluster:
        with asyncio.Runner() as runner:
            runner.run(_prepare(cluster))
        yield cluster


async def _prepare(cluster: RunningCluster) -> None:
    async with AdminClient(cluster.bootstrap) as admin:
        for topic in ("watched", "sought"):
            await admin.topics.create(topic, queues=4)
        await admin.topics.create("timed", queues=1)
        await admin.topics.create("money", queues=2, message_type="TRANSACTION")


@pytest.fixture
async def client(cluster: RunningCluster) -> AsyncIterator[RawClient]:
    async with a_door(cluster.bootstrap) as port, RawClient(port) as client:
        yield client


async def test_what_the_admin_service_tells(client: RawClient) -> None:
    await client.send(client.message("watched", b"one"), client.message("watched", b"two"))
    [*_] = await drained(client, "watched", "watchers", 2)
    await client.send(client.message("watched", b"three"))
    stream = client.telemetry()
    await stream.write(consumer_settings("watchers", "watched"))
    await within(stream.read())
    group, money = Resource(name="watchers"), Resource(name="money")

    async def listed() -> list[Any]:
        request = admin_pb2.ListConsumerConnectionRequest(group=group)
        return list((await client.call("ListConsumerConnection", request)).client_info)

    [consumer] = await eventually(listed, within_ms=30_000)
    status = await client.call(
        "DescribeTopicStatus", admin_pb2.DescribeTopicStatusRequest(topic=money)
    )
    left = await client.call(
        "DescribeGroupAccumulation", admin_pb2.DescribeGroupAccumulationRequest(group=group)
    )
    watched = Resource(name="watched")
    listed_too = await client.call(
        "ListSubscription", admin_pb2.ListSubscriptionRequest(group=group)
    )
    described = await client.call(
        "DescribeSubscription", admin_pb2.DescribeSubscriptionRequest(topic=watched)
    )
    route = await client.call("GetTopicRoute", admin_pb2.GetTopicRouteRequest(topic=watched))
    refused = await client.call("ResetGroupOffset", admin_pb2.ResetGroupOffsetRequest(group=group))

    assert (consumer.client_id, consumer.language) == ("host@1@0@a", "JAVA")
    assert (status.status.code, status.topic_message_type) == (Code.OK, MessageType.TRANSACTION)
    assert left.status.code == Code.OK
    assert left.topic_accumulation["watched"].accumulation == left.accumulation.accumulation == 1
    [subscription] = listed_too.subscription_info
    assert (subscription.topic.name, subscription.online) == ("watched", True)
    assert subscription.expression.expression == "*"
    [described_one] = described.client_subscription_info
    assert described_one.client_info.client_id == "host@1@0@a"
    told = described_one.subscription_info
    assert (told.group, told.topic, told.expression) == (group, watched, subscription.expression)
    assert orjson.loads(route.topic_route_data)["queueDatas"][0]["writeQueueNums"] > 0
    assert refused.status.code == Code.NOT_IMPLEMENTED
    stream.cancel()


async def test_the_times_of_queues_are_told(client: RawClient) -> None:
    timed, readers = Resource(name="timed"), Resource(name="readers")

    async def spans(group: Resource, *topics: Resource) -> list[Any]:
        request = admin_pb2.QueryTimeSpanRequest(group=group, topics=topics)
        answer = await client.call("QueryTimeSpan", request)
        assert answer.status.code == Code.OK, answer
        return list(answer.queue_time_span_list)

    [empty] = await spans(readers, timed)
    for body in (b"one", b"two"):
        await client.send(client.message("timed", body))
        [*_] = await drained(client, "timed", "readers", 1)
    await client.send(client.message("timed", b"three"))

    async def is_behind() -> Any:
        [span] = await spans(readers, timed)
        return span if span.delay_time_ms else None

    behind = await eventually(is_behind, within_ms=60_000)
    [[committed], [of_others]] = [
        await spans(readers),
        await spans(Resource(name="others"), timed),
    ]
    nowhere = await client.call(
        "QueryTimeSpan",
        admin_pb2.QueryTimeSpanRequest(group=readers, topics=[Resource(name="nowhere")]),
    )

    assert (empty.min_timestamp, empty.max_timestamp, empty.consume_timestamp) == (-1, -1, -1)
    assert empty.delay_time_ms == 0
    assert (behind.message_queue.topic, behind.message_queue.id) == (timed, 0)
    assert 0 < behind.min_timestamp < behind.consume_timestamp < behind.max_timestamp
    assert committed.message_queue == behind.message_queue
    assert committed.consume_timestamp == behind.consume_timestamp
    assert of_others.consume_timestamp == of_others.min_timestamp == behind.min_timestamp
    assert of_others.delay_time_ms > behind.delay_time_ms
    assert nowhere.status.code == Code.TOPIC_NOT_FOUND


async def test_messages_are_found_by_the_admin_service(
    cluster: RunningCluster, client: RawClient
) -> None:
    sent = [
        client.message("sought", b"%d" % n, keys=["even", "odd"][n % 2 : n % 2 + 1])
        for n in range(6)
    ]
    await client.send(*sent)

    async with AdminClient(cluster.bootstrap) as admin:
        offset_id, *_ = [
            row["message_id"] async for row in admin.messages.find("sought", key="even")
        ]

    async def found(topic: str = "sought", **search: Any) -> list[tuple[bytes, str]]:
        request = admin_pb2.ListMessageRequest(topic=Resource(name=topic), **search)
        answer = await client.call("QueryMessage", request)
        assert answer.status.code == Code.OK, answer
        return [(each.body, each.system_properties.message_id) for each in answer.messages]

    by_key = await found(message_key="odd")
    [(body, message_id)] = await found(message_id=sent[4].system_properties.message_id)
    [by_offset_id] = await found(message_id=offset_id)
    elsewhere = await found("watched", message_id=offset_id)
    everything = await found()
    pages = [await found(page_size=4, page_num=number) for number in (1, 2, 3)]
    too_large = await client.call(
        "QueryMessage", admin_pb2.ListMessageRequest(topic=Resource(name="sought"), page_size=65)
    )

    assert by_offset_id in [(b"%d" % n, sent[n].system_properties.message_id) for n in (0, 2, 4)]
    assert elsewhere == []
    assert sorted(body for body, _ in by_key) == [b"1", b"3", b"5"]
    assert (body, message_id) == (b"4", sent[4].system_properties.message_id)
    assert sorted(body for body, _ in everything) == [b"%d" % n for n in range(6)]
    assert [len(page) for page in pages] == [4, 2, 0]
    assert pages[0] + pages[1] == everything
    assert too_large.status.code == Code.BAD_REQUEST
