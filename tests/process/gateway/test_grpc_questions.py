"""Questions to clients by the Admin service of a real gateway, and what it tells of itself."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway.grpc_client import (
    RawClient,
    a_door,
    consumer_settings,
    drained,
    signed_by,
    within,
)
from tests.support.gateway.remoting import RemotingClient
from tests.support.process.harness import RunningCluster, eventually, running_cluster

from paceline import AdminClient, PushConsumer, ReceivedMessage
from paceline.net.connect import ConnectSettings
from paceline.platform.runtime import spawn
from paceline.platform.version import VERSION
from paceline_gateway.grpc.stubs import admin_pb2
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code, FilterType, Resource
from paceline_gateway.remoting.codec.codes import RequestCode

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

GROUP = Resource(name="workers")
TABLE = b'{{"brokerName":"g1","queueId":3,"topic":"orders"}:{"cachedMsgCount":7,"droped":true}}'
TOLD = (
    b'{"jstack":"TID: 1 \\"main\\"\\n at {here}","mqTable":%s,"properties":{"PROP_CLIENT_VERSION":'
    b'"V5_3_0"},"statusTable":{"orders":{"consumeFailedMsgs":2,"consumeOKTPS":1.5}},'
    b'"subscriptionSet":[{"expressionType":"TAG","subString":"a || b","topic":"orders"}]}' % TABLE
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    folder = tmp_path_factory.mktemp("grpc-questions") / "data"
    few = ("--controllers", "1", "--brokers", "1")
    with running_cluster(folder, *few, "--doors", "grpc,remoting") as cluster:
        with asyncio.Runner() as runner:
            runner.run(_prepare(cluster))
        yield cluster


async def _prepare(cluster: RunningCluster) -> None:
    async with AdminClient(cluster.bootstrap) as admin:
        await admin.topics.create("orders", queues=4)


def port_of(cluster: RunningCluster, door: str) -> int:
    gateway = next(node for node in cluster.nodes() if node.get("doors"))
    return int(gateway["doors"][door].rpartition(":")[2])


@pytest.fixture
async def admin(cluster: RunningCluster) -> AsyncIterator[RawClient]:
    async with RawClient(port_of(cluster, "grpc"), "host@1@0@admin") as client:
        yield client


@pytest.fixture
async def elsewhere(cluster: RunningCluster) -> AsyncIterator[RawClient]:
    """A client of another gateway."""
    async with a_door(cluster.bootstrap) as port, RawClient(port) as client:
        yield client


async def stacks_of(client: RawClient, client_id: str) -> Any:
    request = admin_pb2.PrintThreadStackTraceRequest(client_id=client_id, group=GROUP)
    return await client.call("PrintThreadStackTrace", request)


async def info_of(client: RawClient, client_id: str) -> Any:
    request = admin_pb2.GetConsumerRunningInfoRequest(client_id=client_id, group=GROUP)
    return await client.call("GetConsumerRunningInfo", request)


async def listed(client: RawClient, client_id: str) -> None:
    """Wait until brokers list a consumer."""

    async def is_listed() -> bool:
        request = admin_pb2.ListConsumerConnectionRequest(group=GROUP)
        answer = await client.call("ListConsumerConnection", request)
        return client_id in [each.client_id for each in answer.client_info]

    await eventually(is_listed, within_ms=30_000)


def told(nonce: str, text: str) -> wire.TelemetryCommand:
    trace = wire.ThreadStackTrace(nonce=nonce, thread_stack_trace=text)
    return wire.TelemetryCommand(thread_stack_trace=trace)


async def test_a_client_tells_its_stacks_and_nobody_else_does(
    admin: RawClient, elsewhere: RawClient
) -> None:
    stream, forger = admin.telemetry("worker"), admin.telemetry("forger")
    for each in (stream, forger):
        await each.write(consumer_settings("workers", "orders"))
        assert (await within(each.read())).status.code == Code.OK
    await listed(admin, "worker")

    asking = spawn(stacks_of(admin, "worker"), name="asking")
    asked = (await within(stream.read())).print_thread_stack_trace_command
    await forger.write(told(asked.nonce, "forged"))
    await forger.write(consumer_settings("workers", "orders"))
    assert (await within(forger.read())).status.code == Code.OK  # what it told was read before
    await stream.write(told("another", "late"))
    await stream.write(told(asked.nonce, "main: at work"))
    answer = await within(asking)
    there = await stacks_of(elsewhere, "worker")
    nobody = await stacks_of(admin, "nobody")

    assert (answer.status.code, answer.thread_stack_trace) == (Code.OK, "main: at work")
    assert there.status.code == Code.NOT_FOUND
    assert "at 127.0.0.1, is connected by grpc to another gateway" in there.status.message
    assert nobody.status.code == Code.NOT_FOUND
    assert "no client nobody of group workers" in nobody.status.message
    asking = spawn(stacks_of(admin, "worker"), name="asking")
    await within(stream.read())
    stream.cancel()
    assert (await within(asking)).status.code == Code.PROXY_TIMEOUT
    forger.cancel()


async def test_a_grpc_consumer_is_described_by_what_it_has_told(
    admin: RawClient, elsewhere: RawClient
) -> None:
    stream = admin.telemetry("described")
    await stream.write(consumer_settings("workers", "orders"))
    await within(stream.read())
    await listed(admin, "described")

    for client in (admin, elsewhere):
        answer = await info_of(client, "described")

        assert answer.status.code == Code.OK, answer
        info = answer.consumer_running_info
        assert info.properties["PROP_CLIENT_VERSION"] == "5.2.0"
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"
        assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
        assert info.subscriptions["orders"].expression == "*"
    stream.cancel()


async def test_a_remoting_consumer_is_asked(
    cluster: RunningCluster, admin: RawClient, elsewhere: RawClient
) -> None:
    broker = f"127.0.0.1:{port_of(cluster, 'remoting') + 10}"
    consumer = await RemotingClient.connect(broker)
    await consumer.heartbeat("10.0.0.1@1", consumers=["workers"])
    await listed(admin, "10.0.0.1@1")

    asking = spawn(info_of(admin, "10.0.0.1@1"), name="asking")
    question = await consumer.told_of(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert question.fields["jstackEnable"] == "false"
    consumer.answer(question, TOLD)
    answer = await within(asking)
    asking = spawn(stacks_of(admin, "10.0.0.1@1"), name="asking")
    question = await consumer.told_of(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert question.fields["jstackEnable"] == "true"
    consumer.answer(question, TOLD)
    traced = await within(asking)
    refused = [await ask(elsewhere, "10.0.0.1@1") for ask in (info_of, stacks_of)]
    asking = spawn(info_of(admin, "10.0.0.1@1"), name="asking")
    consumer.answer(await consumer.told_of(RequestCode.GET_CONSUMER_RUNNING_INFO), b'{"jstack":1}')
    unreadable = await within(asking)

    assert answer.status.code == Code.OK, answer
    info = answer.consumer_running_info
    [row] = info.message_queue_table
    queue, state = row.message_queue, row.process_queue_info
    assert (queue.topic.name, queue.id, queue.broker.name) == ("orders", 3, "g1")
    assert (state.cached_msg_count, state.dropped, state.locked) == (7, True, False)
    assert info.consume_status_table["orders"].consume_failed_msgs == 2
    assert info.consume_status_table["orders"].consume_ok_tps == 1.5
    assert info.subscriptions["orders"].expression == "a || b"
    assert info.subscriptions["orders"].type == FilterType.TAG
    assert traced.thread_stack_trace == 'TID: 1 "main"\n at {here}'
    for each in refused:
        assert each.status.code == Code.NOT_FOUND
        assert "is connected by remoting to another gateway" in each.status.message
    assert unreadable.status.code == Code.PROXY_TIMEOUT
    assert "cannot be read" in unreadable.status.message
    await consumer.close()


async def test_a_client_of_our_own_library_is_named_and_not_asked(
    cluster: RunningCluster, admin: RawClient
) -> None:
    async def listen(message: ReceivedMessage) -> None: ...

    async with PushConsumer(
        cluster.bootstrap,
        group="workers",
        topics=["orders"],
        listener=listen,
        client_id="native",
    ):
        await listed(admin, "native")

        refused = await stacks_of(admin, "native")
        described = await info_of(admin, "native")

    assert refused.status.code == Code.UNSUPPORTED
    assert "is paceline's own, connected to g1/" in refused.status.message
    assert described.consumer_running_info.properties["PROP_CLIENT_VERSION"] == VERSION


async def test_a_gateway_tells_how_much_goes_through_it(
    cluster: RunningCluster, admin: RawClient
) -> None:
    stream = admin.telemetry()
    await stream.write(consumer_settings("counted", "orders"))
    await within(stream.read())
    await admin.send(*(admin.message("orders", b"%d" % n) for n in range(20)))
    [*_] = await drained(admin, "orders", "counted", 20)

    async def told_of_both() -> Any:
        request = admin_pb2.GetProxyRuntimeStatsRequest()
        answer = await admin.call("GetProxyRuntimeStats", request)
        assert answer.status.code == Code.OK, answer
        return answer if answer.in_tps and answer.out_tps else None

    stats = await eventually(told_of_both, within_ms=60_000)

    assert stats.proxy_name.startswith("gateway@127.0.0.1:")
    assert stats.version == VERSION
    assert stats.connections > 0
    assert stats.consumers > 0
    stream.cancel()


async def secured(cluster: RunningCluster) -> tuple[ConnectSettings, dict[str, RawClient]]:
    """Rights are on; `shop` may consume in the group, `viewer` may look at the cluster."""
    keys = {}
    async with AdminClient(cluster.bootstrap) as admin:
        await admin.topics.create("orders", queues=1)
        await admin.users.create("root", is_super=True)
        root = ConnectSettings(cluster.bootstrap, await admin.users.add_key("root"))
        for user in ("shop", "viewer"):
            await admin.users.create(user)
            keys[user] = await admin.users.add_key(user, signs=True)
        await admin.policies.set_entry("shop", "Topic:orders", ["Sub"])
        await admin.policies.set_entry("shop", "Group:workers", ["Sub"])
        await admin.policies.set_entry("viewer", "Cluster:*", ["Get"])
        await admin.security.set("on")
    port = port_of(cluster, "grpc")
    async with RawClient(port) as stranger:

        async def is_told() -> bool:
            """The gateway knows that rights are on."""
            answer = await stranger.call("Heartbeat", wire.HeartbeatRequest())
            return bool(answer.status.code == Code.UNAUTHORIZED)

        await eventually(is_told, within_ms=30_000)
    clients = {}
    for user, key in keys.items():
        authorization, date = signed_by(key)
        clients[user] = RawClient(
            port, f"host@{user}", authorization=authorization, x_mq_date_time=date
        )
    return root, clients


async def codes_of(client: RawClient) -> list[int]:
    """Of what a client is answered."""
    span = admin_pb2.QueryTimeSpanRequest(group=GROUP, topics=[Resource(name="orders")])
    answers = [
        await client.call("GetProxyRuntimeStats", admin_pb2.GetProxyRuntimeStatsRequest()),
        await client.call("QueryTimeSpan", span),
        await info_of(client, "host@shop"),
        await stacks_of(client, "host@shop"),
    ]
    return [answer.status.code for answer in answers]


async def test_who_may_not_see_the_cluster_or_the_group_is_refused(tmp_path: Path) -> None:
    few = ("--controllers", "1", "--brokers", "1")
    with running_cluster(tmp_path, *few, "--doors", "grpc") as cluster:
        root, clients = await secured(cluster)
        async with clients["shop"] as shop, clients["viewer"] as viewer:
            stream = shop.telemetry()
            await stream.write(consumer_settings("workers", "orders"))
            await within(stream.read())

            own, others = await codes_of(shop), await codes_of(viewer)
            async with AdminClient(root) as admin:
                await admin.policies.set_entry("viewer", "Group:workers", ["Get"])

            async def is_described() -> bool:
                answer = await info_of(viewer, "host@shop")
                return bool(answer.status.code == Code.OK)

            await eventually(is_described, within_ms=30_000)
            asking = spawn(stacks_of(viewer, "host@shop"), name="asking")
            asked = (await within(stream.read())).print_thread_stack_trace_command
            await stream.write(told(asked.nonce, "in the shop"))
            seen = await within(asking)
            stream.cancel()

    assert own == [Code.FORBIDDEN, Code.OK, Code.FORBIDDEN, Code.FORBIDDEN]
    assert others == [Code.OK, Code.FORBIDDEN, Code.FORBIDDEN, Code.FORBIDDEN]
    assert seen.thread_stack_trace == "in the shop"
