"""The gRPC door to a real cluster, by a client that speaks the protocol itself."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.support.gateway.grpc_client import (
    TRANSACTION,
    RawClient,
    a_door,
    bodies,
    consumer_settings,
    drained,
    first_of,
    producer_settings,
    within,
)
from tests.support.process.harness import (
    RunningCluster,
    eventually,
    running_cluster,
    the_master,
)

from paceline import AdminClient, Message, Producer
from paceline.platform.runtime import SystemClock
from paceline.server.byte_budget import ByteBudget
from paceline_gateway.grpc.codec.values import duration_of, milliseconds, timestamp_of
from paceline_gateway.grpc.stubs import messages_pb2 as messages
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import (
    Address,
    AddressScheme,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Resource,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

TOPICS = (
    *(
        "orders",
        "greetings",
        "several",
        "retried",
        "repeated",
        "native",
        "delayed",
        "failing",
        "roomy",
        "forged",
    ),
    *("poisoned", "ordered", "renewed", "killed"),
)
"""Of one test each, as they run in any order."""
ASKED = Endpoints(scheme=AddressScheme.DOMAIN_NAME, addresses=[Address(host="behind.nat", port=1)])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("grpc") / "data", restart=True) as cluster:
        with asyncio.Runner() as runner:
            runner.run(_prepare(cluster))
        yield cluster


async def _prepare(cluster: RunningCluster) -> None:
    async with AdminClient(cluster.bootstrap) as admin:
        for topic in TOPICS:
            await admin.topics.create(topic, queues=4, message_type="MIXED")
        await admin.topics.create("money", queues=2, message_type="TRANSACTION")
        await admin.topics.create("urgent", queues=4, message_type="PRIORITY")
        await admin.consumer_groups.create(
            "strict", consume_message_orderly=True, retry_max_times=2
        )


@pytest.fixture
async def port(cluster: RunningCluster) -> AsyncIterator[int]:
    async with a_door(cluster.bootstrap) as port:
        yield port


@pytest.fixture
async def client(port: int) -> AsyncIterator[RawClient]:
    async with RawClient(port) as client:
        yield client


async def test_a_message_is_sent_received_and_acknowledged(client: RawClient) -> None:
    sent = client.message(
        "greetings", b"hello", user={"n": "1"}, tag="t", keys=["k1", "k2"], message_group="g"
    )

    answer = await client.send(sent)
    [received] = await drained(client, "greetings", "work", 1)

    assert answer.status.code == Code.OK
    assert [entry.message_id for entry in answer.entries] == [sent.system_properties.message_id]
    told = received.system_properties
    assert (received.body, dict(received.user_properties)) == (b"hello", {"n": "1"})
    assert (told.tag, list(told.keys), told.message_group) == ("t", ["k1", "k2"], "g")
    assert told.message_id == sent.system_properties.message_id
    assert told.delivery_attempt == 1
    assert await client.receive("greetings", "work", timeout_s=6) == []


async def test_a_route_has_one_broker_by_the_name_that_the_client_gave(
    client: RawClient, port: int
) -> None:
    request = wire.QueryRouteRequest(topic=Resource(name="orders"), endpoints=ASKED)
    route = await client.call("QueryRoute", request)
    plain = await client.call("QueryRoute", wire.QueryRouteRequest(topic=Resource(name="orders")))

    assert {queue.id for queue in route.message_queues} == set(range(4))
    assert {queue.broker.id for queue in route.message_queues} == {0}
    assert all(queue.broker.endpoints == ASKED for queue in route.message_queues)
    assert plain.message_queues[0].broker.endpoints.addresses[0].port == port
    assert MessageType.FIFO in route.message_queues[0].accept_message_types


async def test_what_is_not_there_has_its_code(client: RawClient) -> None:
    missing = Resource(name="no such")
    route = await client.call("QueryRoute", wire.QueryRouteRequest(topic=missing))
    lite = await client.call(
        "SyncLiteSubscription", wire.SyncLiteSubscriptionRequest(topic=Resource(name="orders"))
    )
    [pulled] = await client.call("PullMessage", wire.PullMessageRequest())

    assert route.status.code == Code.ILLEGAL_TOPIC
    assert lite.status.code == pulled.status.code == Code.NOT_IMPLEMENTED


async def test_several_messages_have_a_result_each(client: RawClient) -> None:
    good = [client.message("several", b"%d" % n) for n in range(3)]
    bad = client.message("several", b"")

    answer = await client.send(good[0], bad, *good[1:])
    received = await drained(client, "several", "work", 3)

    assert answer.status.code == Code.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in answer.entries]
    assert codes == [Code.OK, Code.MESSAGE_BODY_EMPTY, Code.OK, Code.OK]
    assert sorted(bodies(received)) == [b"0", b"1", b"2"]


async def test_a_repeated_send_is_stored_once(client: RawClient) -> None:
    sent = client.message("retried", b"once")

    answers = await asyncio.gather(*(client.send(sent) for _ in range(5)))
    answers.append(await client.send(sent))
    received = await drained(client, "retried", "once", 1)
    more = await client.receive("retried", "once", timeout_s=6)

    assert {answer.entries[0].offset for answer in answers} == {answers[0].entries[0].offset}
    assert b"once" in bodies(received + more)
    assert bodies(received + more).count(b"once") == 1


async def test_messages_of_a_group_keep_their_order(client: RawClient) -> None:
    for n in range(20):
        for group in ("a", "b", "c"):
            sent = client.message("ordered", f"{group}{n}".encode(), message_group=group)
            assert (await client.send(sent)).status.code == Code.OK

    received = await drained(client, "ordered", "strict", 60)

    for group in ("a", "b", "c"):
        found = [each.body.decode() for each in received if each.body.decode()[0] == group]
        assert found == [f"{group}{n}" for n in range(20)]


async def test_a_delayed_message_comes_when_it_is_due_and_can_be_recalled(
    client: RawClient,
) -> None:
    topic = Resource(name="delayed")
    now_ms = SystemClock().unix_ms()
    later = timestamp_of(milliseconds(timestamp_of(now_ms + 60_000)))
    soon = timestamp_of(now_ms + 500)
    first = await client.send(client.message("delayed", b"never", delivery_timestamp=later))
    await client.send(client.message("delayed", b"soon", delivery_timestamp=soon))

    handle = first.entries[0].recall_handle
    recalled = await client.call(
        "RecallMessage", wire.RecallMessageRequest(topic=topic, recall_handle=handle)
    )
    forged = await client.call(
        "RecallMessage", wire.RecallMessageRequest(topic=topic, recall_handle=handle[:-1])
    )
    [received] = await drained(client, "delayed", "work", 1)

    assert recalled.status.code == Code.OK
    assert recalled.message_id == first.entries[0].message_id
    assert 40000 <= forged.status.code < 50000
    assert received.body == b"soon"
    assert received.system_properties.HasField("delivery_timestamp")


async def test_priorities_are_given_first(client: RawClient) -> None:
    for priority in (0, 1, 3):
        sent = client.message("urgent", b"%d" % priority, priority=priority)
        assert (await client.send(sent)).status.code == Code.OK

    received = await drained(client, "urgent", "work", 3)

    assert bodies(received) == [b"3", b"1", b"0"]
    assert [each.system_properties.priority for each in received] == [3, 1, 0]


async def test_a_message_that_is_given_back_comes_again_and_its_old_receipt_is_stale(
    client: RawClient,
) -> None:
    group, topic = Resource(name="again"), Resource(name="failing")
    await client.send(client.message("failing", b"x"))
    [first] = await client.receive("failing", "again")
    handle = first.system_properties.receipt_handle

    changed = await client.call(
        "ChangeInvisibleDuration",
        wire.ChangeInvisibleDurationRequest(
            group=group, topic=topic, receipt_handle=handle, invisible_duration=duration_of(0)
        ),
    )
    [second] = await client.receive("failing", "again")
    stale = await client.ack("failing", "again", first)
    both = await client.ack("failing", "again", first, second)

    assert changed.status.code == Code.OK
    assert changed.receipt_handle != handle
    assert second.system_properties.delivery_attempt == 2
    assert stale.status.code == Code.INVALID_RECEIPT_HANDLE
    assert both.status.code == Code.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in both.entries]
    assert codes == [Code.INVALID_RECEIPT_HANDLE, Code.OK]


async def test_a_message_becomes_a_dead_letter(client: RawClient, cluster: RunningCluster) -> None:
    await client.send(client.message("poisoned", b"poison", tag="poison"))
    [received] = await client.receive("poisoned", "deadly", tags="poison")
    request = wire.ForwardMessageToDeadLetterQueueRequest(
        group=Resource(name="deadly"),
        topic=Resource(name="poisoned"),
        receipt_handle=received.system_properties.receipt_handle,
        message_id=received.system_properties.message_id,
    )

    first = await client.call("ForwardMessageToDeadLetterQueue", request)
    again = await client.call("ForwardMessageToDeadLetterQueue", request)

    assert (first.status.code, again.status.code) == (Code.OK, Code.INVALID_RECEIPT_HANDLE)
    async with AdminClient(cluster.bootstrap) as admin:
        letters = await admin.dead_letters.all("deadly")
    assert [letter.body for letter in letters] == [b"poison"]


async def test_an_attempt_that_is_repeated_is_given_the_same(client: RawClient) -> None:
    await client.send(client.message("repeated", b"same"))
    first = await client.receive("repeated", "repeating", attempt_id="a1")
    again = await client.receive("repeated", "repeating", attempt_id="a1")

    assert [each.system_properties.receipt_handle for each in first] == [
        each.system_properties.receipt_handle for each in again
    ]
    await client.ack("repeated", "repeating", *first)
    after = await client.receive("repeated", "repeating", attempt_id="a1", timeout_s=6)
    assert not {b"same"} & set(bodies(after))


async def test_settings_are_answered_and_the_groups_record_follows(client: RawClient) -> None:
    stream = client.telemetry()
    await stream.write(consumer_settings("strict", "orders"))
    first = await within(stream.read())
    answer = first
    while not answer.settings.subscription.fifo:
        answer = await within(stream.read())

    assert first.status.code == Code.OK
    assert first.settings.subscription.long_polling_timeout.seconds == 20
    assert first.settings.backoff_policy.WhichOneof("strategy") == "customized_backoff"
    assert answer.settings.backoff_policy.max_attempts == 3
    stream.cancel()


async def test_assignments_are_the_topic_or_the_queues_of_an_ordered_group(
    client: RawClient,
) -> None:
    def request(group: str) -> wire.QueryAssignmentRequest:
        return wire.QueryAssignmentRequest(
            topic=Resource(name="orders"), group=Resource(name=group), endpoints=ASKED
        )

    whole = await client.call("QueryAssignment", request("work"))
    ordered = await client.call("QueryAssignment", request("strict"))

    assert [one.message_queue.id for one in whole.assignments] == [-1]
    assert [one.message_queue.id for one in ordered.assignments] == [0, 1, 2, 3]


async def test_a_probe_without_any_header_is_answered(port: int) -> None:
    async with RawClient(port) as client:
        client.metadata = []
        answer = await client.call("Heartbeat", wire.HeartbeatRequest())
        telling = await client.call(
            "NotifyClientTermination", wire.NotifyClientTerminationRequest()
        )

    assert answer.status.code == Code.OK
    assert telling.status.code == Code.CLIENT_ID_REQUIRED


async def test_transactions_end_as_the_client_says(client: RawClient) -> None:
    async def ended(body: bytes, how: "messages.TransactionResolution") -> Any:
        sent = await client.send(client.message("money", body, message_type=TRANSACTION))
        assert sent.status.code == Code.OK, sent
        return await client.call(
            "EndTransaction",
            wire.EndTransactionRequest(
                topic=Resource(name="money"),
                transaction_id=sent.entries[0].transaction_id,
                resolution=how,
            ),
        )

    rolled = await ended(b"no", messages.TransactionResolution.ROLLBACK)
    committed = await ended(b"yes", messages.TransactionResolution.COMMIT)
    forged = await client.call(
        "EndTransaction",
        wire.EndTransactionRequest(
            topic=Resource(name="money"),
            transaction_id="tx.g1:0:0.00000000",
            resolution=messages.TransactionResolution.COMMIT,
        ),
    )
    received = await drained(client, "money", "work", 1)

    assert rolled.status.code == committed.status.code == Code.OK
    assert forged.status.code == Code.INVALID_TRANSACTION_ID
    assert bodies(received) == [b"yes"]
    assert received[0].system_properties.message_type == MessageType.TRANSACTION


async def test_clients_are_listed_with_door_language_and_version(
    client: RawClient, cluster: RunningCluster
) -> None:
    stream = client.telemetry()
    await stream.write(producer_settings("orders"))
    await within(stream.read())

    async def listed() -> list[dict[str, Any]]:
        async with AdminClient(cluster.bootstrap) as admin:
            found = await admin.clients.all(topic="orders", kind="producer")
        return [row for row in found.clients if row.get("door") == "grpc"]

    [row] = await eventually(listed, within_ms=30_000)

    assert (row["language"], row["version"]) == ("GOLANG", "5.1.4")
    assert row["address"] == "127.0.0.1"
    assert row["client_id"] == "host@1@0@a"
    stream.cancel()


async def test_nothing_acknowledged_is_lost_when_the_master_dies(
    client: RawClient, cluster: RunningCluster
) -> None:
    acknowledged: set[bytes] = set()

    async def send(start: int) -> None:
        for n in range(start, start + 100):
            body = b"survivor-%d" % n
            answer = await client.send(client.message("killed", body))
            if answer.status.code == Code.OK:
                acknowledged.add(body)

    async def begun() -> bool:
        return len(acknowledged) > 40

    sending = [asyncio.get_running_loop().create_task(send(n * 100)) for n in range(4)]
    await eventually(begun)
    cluster.send_signal(await the_master(cluster), signal.SIGKILL)
    await asyncio.gather(*sending)
    received: set[bytes] = set()
    while not acknowledged <= received:
        found = await client.receive("killed", "audit")
        received |= set(bodies(found))
        await client.ack("killed", "audit", *found) if found else None

    assert len(acknowledged) == 400


async def test_messages_of_other_programs_are_received_too(
    client: RawClient, cluster: RunningCluster
) -> None:
    async with Producer(cluster.bootstrap) as producer:
        await producer.send(Message("native", b"native", key="k", tag="native"))

    received = await client.receive("native", "natives", tags="native")

    assert (bodies(received), list(received[0].system_properties.keys)) == ([b"native"], ["k"])


async def test_what_finds_no_room_in_memory_is_refused_and_given_back(
    client: RawClient, cluster: RunningCluster
) -> None:
    large = client.message("roomy", bytes(400_000))
    async with (
        a_door(cluster.bootstrap, budget=ByteBudget(200_000)) as port,
        RawClient(port) as narrow,
    ):
        refused = await narrow.send(large)
        small = await narrow.send(client.message("roomy", b"small"))
        assert (await client.send(large)).status.code == Code.OK
        request = wire.ReceiveMessageRequest(
            group=Resource(name="narrow"),
            message_queue=MessageQueue(topic=Resource(name="roomy"), id=0),
            batch_size=32,
        )
        [nothing] = await narrow.call("ReceiveMessage", request)
    received = await drained(client, "roomy", "narrow", 2)

    assert refused.status.code == nothing.status.code == Code.TOO_MANY_REQUESTS
    assert small.status.code == Code.OK
    assert {each.system_properties.delivery_attempt for each in received} == {1}


async def test_receipts_that_are_not_the_clients_are_its_own_fault(client: RawClient) -> None:
    await client.send(client.message("forged", b"x"))
    [mine] = await first_of(client, "forged", "owner")
    handle = mine.system_properties.receipt_handle
    asked = [("other", handle)]
    asked += [
        ("owner", each) for each in ("", "x", handle[:-1], handle + "0", "\u00e9", "a" * 5000)
    ]
    topic = Resource(name="forged")

    for name, shown in asked:
        group = Resource(name=name)
        mine.system_properties.receipt_handle = shown
        codes = [
            (await client.ack("forged", name, mine)).status.code,
            (
                await client.call(
                    "ChangeInvisibleDuration",
                    wire.ChangeInvisibleDurationRequest(
                        group=group,
                        topic=topic,
                        receipt_handle=shown,
                        invisible_duration=duration_of(20_000),
                    ),
                )
            ).status.code,
            (
                await client.call(
                    "ForwardMessageToDeadLetterQueue",
                    wire.ForwardMessageToDeadLetterQueueRequest(
                        group=group, topic=topic, receipt_handle=shown
                    ),
                )
            ).status.code,
        ]
        assert all(40000 <= code < 50000 for code in codes), (shown, codes)

    mine.system_properties.receipt_handle = handle
    assert (await client.ack("forged", "owner", mine)).status.code == Code.OK
