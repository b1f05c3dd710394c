"""Delayed messages from the client's side: what leaves, what is refused, what the result says."""

import asyncio

import pytest
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.fake_log import NO_FAULT, Fault

from paceline.errors import BadRequestError, OverloadedError
from paceline.message import Message
from paceline.platform.runtime import SystemClock, pause
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.queues import QueueName
from paceline.records.decode import BatchView
from paceline.records.header import BatchHeader, Kind
from paceline.types import GroupName, QueueId, TopicName
from paceline.wire.message_ids import parse_handle

DAY_MS = 24 * 3600 * 1000


def stored(cluster: FakeCluster) -> list[BatchView]:
    return [
        BatchView(batch.data) for queue in cluster.logs["g1"].queues.values() for batch in queue
    ]


async def test_delayed_messages_of_a_queue_are_one_batch_beside_the_others() -> None:
    """Kinds do not split one another's batches; each has a numbering of its own (R31)."""
    at = SystemClock().unix_ms() + 5000
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"warm"))
            sendings = [
                producer.send(Message("orders", b"0")),
                producer.send(Message("orders", b"1", delay_ms=700)),
                producer.send(Message("orders", b"2", delay_level=3, delay_ms=1)),
                producer.send(Message("orders", b"3", key="k")),
                producer.send(Message("orders", b"4", delivery_unix_ms=at)),
                producer.send(Message("orders", b"5", delay_ms=0, delay_level=0)),
            ]
            results = [await sending for sending in sendings]
        batches = [view for view in stored(cluster) if view.bodies() != [b"warm"]]

    normal, delayed = sorted(batches, key=lambda view: view.header.kind)
    assert (normal.header.kind, delayed.header.kind) == (Kind.NORMAL, Kind.DELAY)
    assert (normal.bodies(), delayed.bodies()) == ([b"0", b"3", b"5"], [b"1", b"2", b"4"])
    assert delayed.due() == [-700, -(2**62) - 3, at]
    assert (normal.header.base_sequence, delayed.header.base_sequence) == (1, 0)
    assert normal.header.producer_id != delayed.header.producer_id
    assert [result.recall_handle is None for result in results] == [1, 0, 0, 1, 0, 1]
    assert [result.queue_offset < 0 for result in results] == [0, 1, 1, 0, 1, 0]
    places = [parse_handle("recall", result.recall_handle or "") for result in results[1:3]]
    assert [(place.group, place.number) for place in places] == [("g1", 0), ("g1", 1)]


async def test_messages_behind_a_delayed_one_that_is_refused_are_stored() -> None:
    """Full timers are no gap in the sequences of what needs no timer (R31)."""
    full = OverloadedError("timer_pending_max", retry_after_ms=20)
    refused = 0

    def fault(broker: FakeBroker, header: BatchHeader) -> Fault:
        nonlocal refused
        if header.kind != Kind.DELAY:
            return NO_FAULT
        refused += 1
        return Fault(refuse=full)

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"warm"))
            cluster.fault = fault
            delayed = producer.send(Message("orders", b"delayed", delay_ms=700))
            later = [producer.send(Message("orders", b"%d" % number)) for number in range(3)]
            assert [(await sending).queue_offset for sending in later] == [1, 2, 3]
            assert not delayed.done()
            while refused < 2:  # what follows it meets a gap of its own kind only
                await pause(0.001)
            assert (await producer.send(Message("orders", b"more"))).queue_offset == 4
            assert not delayed.done()
            delayed.place[0].deadline = 0
            with pytest.raises(OverloadedError):
                await delayed

    assert cluster.bodies() == [b"warm", b"0", b"1", b"2", b"more"]


@pytest.mark.parametrize("groups", [1, 2])
async def test_only_delayed_messages_wait_for_room_in_the_timers(groups: int) -> None:
    """The others go on, to the same master; a keyless delayed one goes to another group."""
    full = OverloadedError("timer_pending_max", retry_after_ms=60_000)

    def fault(broker: FakeBroker, header: BatchHeader) -> Fault:
        is_full = header.kind == Kind.DELAY and broker.group == "g1"
        return Fault(refuse=full) if is_full else NO_FAULT

    first = QueueName(TopicName("orders"), GroupName("g1"), QueueId(0))
    async with FakeCluster(groups=groups) as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"warm", queue=first))
            cluster.fault = fault
            delayed = producer.send(Message("orders", b"delayed", delay_ms=700, queue=first))
            while delayed.place[0].last_refusal is None:
                await pause(0.001)
            async with asyncio.timeout(20):
                for number in range(1, 4):
                    sent = await producer.send(Message("orders", b"x", queue=first))
                    assert sent.queue_offset == number
                if groups == 2:
                    free = [producer.send(Message("orders", b"y", delay_ms=9)) for _ in range(3)]
                    assert {(await sending).group for sending in free} == {"g2"}
            assert not delayed.done()
            delayed.place[0].deadline = 0
            with pytest.raises(OverloadedError):
                await delayed


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", b"x", delay_ms=-1),
        Message("orders", b"x", delay_level=-1),
        Message("orders", b"x", delay_level=2.0),  # type: ignore[arg-type]
        Message("orders", b"x", delivery_unix_ms=-1),
        Message("orders", b"x", delay_ms=3 * DAY_MS + 1),
        Message("orders", b"x", delivery_unix_ms=SystemClock().unix_ms() + 4 * DAY_MS),
        Message("orders", b"x", delivery_unix_ms=10**18),
    ],
)
async def test_bad_delay_is_refused_before_it_spoils_a_batch(message: Message) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            with pytest.raises(BadRequestError) as caught:
                producer.send(message)
    assert "delay" in str(caught.value) or "delivery" in str(caught.value)


async def test_longest_delay_is_the_settings() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        settings = ProducerSettings(timer_max_delay_sec=1)
        async with Producer(cluster.controller, settings=settings) as producer:
            assert (await producer.send(Message("orders", b"x", delay_ms=1000))).recall_handle
            with pytest.raises(BadRequestError, match="timer_max_delay_sec"):
                producer.send(Message("orders", b"x", delay_ms=1001))


async def test_one_way_messages_may_be_delayed_and_units_may_not() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"warm"))
            producer.send_oneway(Message("orders", b"0"))
            producer.send_oneway(Message("orders", b"1", delay_ms=70))
            await producer.flush()
            with pytest.raises(BadRequestError):
                producer.send_batch([Message("orders", b"x", delay_level=1)])
        oneway = [view for view in stored(cluster) if not view.header.producer_id]
    assert sorted((view.header.kind, view.bodies()) for view in oneway) == [
        (Kind.NORMAL, [b"0"]),
        (Kind.DELAY, [b"1"]),
    ]


async def test_recall_refuses_what_is_no_handle_without_asking_anybody() -> None:
    async with FakeCluster() as cluster, Producer(cluster.controller) as producer:
        with pytest.raises(BadRequestError):
            await producer.recall("orders", "recall.g1:0:0.00000000")
