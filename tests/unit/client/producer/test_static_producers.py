"""Producers of static topics: keys mean logical queues, and batches move together, in order."""

import asyncio
from collections.abc import Callable

import pytest
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.fake_log import NO_FAULT, Fault
from tests.support.client.outbox import ANSWER, an_outbox, put

from paceline.errors import NoPermissionError, OutcomeUnknownError, QueueNotFoundError
from paceline.errors import QueueSealedError as Sealed
from paceline.message import Message
from paceline.producer.producer import Producer
from paceline.producer.remapping import hand_on, lead_on
from paceline.producer.settings import ProducerSettings
from paceline.queues import LOGICAL, QueueName, index_of_key
from paceline.records.header import BatchHeader
from paceline.types import GroupName, QueueId, TopicName

G1, G2 = GroupName("g1"), GroupName("g2")
SEALED = Sealed("it goes on elsewhere", topic_id=1, queue=0)


def logical(number: int) -> QueueName:
    return QueueName(TopicName("orders"), LOGICAL, QueueId(number))


# -- pure -----------------------------------------------------------------------------------------


def test_a_sealed_queue_answers_for_attempts_that_were_unknown() -> None:
    """R32: it judges behind duplicates, so what it refuses is not there and never will be."""
    outbox = an_outbox()
    batch = put(outbox, b"a")
    outbox.take(2)
    outbox.lost()
    outbox.take(2)

    outbox.refused(batch, SEALED)

    assert not batch.is_unknown
    assert outbox.take_unsent() == [batch]


def test_a_sealed_queue_that_has_forgotten_its_producers_leaves_unknown_what_is_unknown() -> None:
    """R21, R32: a batch that may be at the old place is never sent to the next one."""
    old, new = an_outbox(), an_outbox()
    first, second = put(old, b"a"), put(old, b"b")
    old.take(2)
    old.lost()
    old.take(2)
    old.take(2)
    lead_on(old, new)
    forgotten = Sealed("it goes on elsewhere", topic_id=1, queue=0, is_earlier_unknown=True)

    old.refused(second, forgotten)
    old.refused(first, forgotten)

    assert old.drain_settled() == [first]
    assert isinstance(first.error, OutcomeUnknownError)
    assert "may or may not be stored" in first.error.message
    assert hand_on(old) is new
    assert new.take(2) is second, "its only attempt was refused"


def test_nothing_goes_on_while_an_earlier_batch_is_unknown_at_the_old_place() -> None:
    old, new = an_outbox(), an_outbox()
    first, second = put(old, b"a"), put(old, b"b")
    old.take(2)
    old.take(2)
    lead_on(old, new)
    later = put(new, b"c")

    old.lost()
    assert hand_on(old) is None
    assert not new.can_take(2)
    assert old.take(2) is first, "asked again where it may be"
    assert old.take(2) is second

    old.refused(first, SEALED)
    assert hand_on(old) is None
    old.refused(second, SEALED)

    assert hand_on(old) is new
    assert [new.take(9) for _ in range(3)] == [first, second, later]
    assert old.is_idle


def test_what_was_stored_before_the_seal_stays_and_the_rest_follows() -> None:
    old, new = an_outbox(), an_outbox()
    first, second, third = put(old, b"a"), put(old, b"b"), put(old, b"c")
    old.take(2)
    old.take(2)
    lead_on(old, new)
    old.refused(second, SEALED)

    assert hand_on(old) is None
    old.acknowledged(first, ANSWER)

    assert hand_on(old) is new
    assert [new.take(9), new.take(9)] == [second, third]
    assert old.drain_settled() == [first]


def test_a_closed_outbox_sends_nothing_new() -> None:
    old, new = an_outbox(), an_outbox()
    put(old, b"a")
    old.take(2)
    waiting = put(old, b"b")
    lead_on(old, new)

    assert not old.can_take(2)
    assert list(old.unsent) == [waiting]


def test_segments_that_follow_faster_than_answers_form_a_line() -> None:
    first, second, third = an_outbox(), an_outbox(), an_outbox()
    batch = put(first, b"a")
    first.take(2)
    lead_on(first, second)
    middle = put(second, b"b")
    lead_on(second, third)
    last = put(third, b"c")

    assert hand_on(second) is None, "the first has not answered"
    first.refused(batch, SEALED)

    assert hand_on(first) is third
    assert [third.take(9) for _ in range(3)] == [batch, middle, last]


# -- with brokers ---------------------------------------------------------------------------------


async def test_a_key_means_the_same_logical_queue_wherever_that_is() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1", "g2", "g1", "g2"])
        keys = [f"k{n}" for n in range(20)]
        async with Producer(cluster.controller) as producer:
            for turn in range(3):
                for key in keys:
                    await producer.send(Message("orders", f"{key}:{turn}".encode(), key=key))
                cluster.remap("orders", 0, "g2" if turn == 0 else "g1")

        for number in range(4):
            of_queue = [key for key in keys if index_of_key(key.encode(), 4) == number]
            wanted = [f"{key}:{turn}".encode() for turn in range(3) for key in of_queue]
            assert cluster.logical_bodies("orders", number) == wanted


async def test_a_logical_queue_may_be_named_and_selected() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1", "g2"])
        async with Producer(cluster.controller) as producer:
            named = await producer.send(Message("orders", b"x", queue=logical(1)))
            chosen = await producer.send(
                Message("orders", b"y"), selector=lambda queues, message, arg: queues[arg], arg=0
            )
            cluster.remap("orders", 1, "g1")
            moved = await producer.send(Message("orders", b"z", queue=logical(1)))
            physical = QueueName(TopicName("orders"), G1, QueueId(0))
            with pytest.raises(QueueNotFoundError, match="__syslo__/0"):
                await producer.send(Message("orders", b"x", queue=physical))

        assert [(r.group, r.queue_id) for r in (named, chosen, moved)] == [
            ("g2", 0),
            ("g1", 0),
            ("g1", 1),
        ]


async def test_a_result_says_where_in_its_logical_queue_a_message_is() -> None:
    """That goes on over remaps, and is told of a duplicate as well."""
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g2", "g1"])
        cluster.add_topic("plain", 1)
        lost: list[int] = []

        def lose_once(broker: FakeBroker, header: BatchHeader) -> Fault:
            lost.append(header.queue_id)
            return Fault(drop_after=True) if len(lost) == 2 else NO_FAULT

        async with Producer(cluster.controller) as producer:
            plain = await producer.send(Message("plain", b"x"))
            cluster.fault = lose_once
            found = []
            for number in range(6):
                found.append(await producer.send(Message("orders", b"x", queue=logical(1))))
                if number % 2:
                    cluster.remap("orders", 1, "g2" if number == 1 else "g1")
            many = await producer.send_batch([Message("orders", b"x", queue=logical(1))] * 2)

    assert (plain.logical_queue, plain.logical_offset) == (None, None)
    assert [(r.logical_queue, r.logical_offset) for r in found] == [(1, n) for n in range(6)]
    assert [(r.group, r.queue_id, r.queue_offset) for r in found] == [
        ("g1", 0, 0), ("g1", 0, 1), ("g2", 1, 0), ("g2", 1, 1), ("g1", 1, 0), ("g1", 1, 1),
    ]  # fmt: skip
    assert [r.is_duplicate for r in found[:3]] == [False, True, False]
    assert [r.logical_offset for r in many] == [6, 7]


class Attempts:
    """Every batch that reaches a broker."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._seen = asyncio.Event()
        self.fault: Callable[[FakeBroker, BatchHeader], Fault] = lambda broker, header: NO_FAULT
        cluster.fault = self._judge

    def _judge(self, broker: FakeBroker, header: BatchHeader) -> Fault:
        self._seen.set()
        return self.fault(broker, header)

    async def next(self) -> None:
        self._seen.clear()
        await self._seen.wait()


@pytest.mark.parametrize("knows_first", ["view", "refusal"])
async def test_all_that_is_on_its_way_moves_in_order(knows_first: str) -> None:
    """While nobody knows where the queue goes on, its messages wait; then they go together."""
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        attempts = Attempts(cluster)
        async with Producer(cluster.controller) as producer:
            bodies = [b"%03d" % n for n in range(60)]
            sendings = []
            for number, body in enumerate(bodies):
                sendings.append(producer.send(Message("orders", body, key="k")))
                if number == 20 and knows_first == "refusal":
                    cluster.seal("orders", 0)
                if number == 40:
                    cluster.remap("orders", 0, "g2")
                if number % 5 == 0:
                    await attempts.next()
            for sending in sendings:
                await sending

        assert cluster.logical_bodies("orders", 0) == bodies
        assert len(cluster.bodies("g2")) > 0


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_batch_lost_on_the_way_is_asked_for_at_the_old_place_first(is_stored: bool) -> None:
    """R32: nothing overtakes it at the new place, whether it was stored or not."""
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1"])
        attempts = Attempts(cluster)
        lost: list[int] = []

        def fault(broker: FakeBroker, header: BatchHeader) -> Fault:
            if header.base_sequence != 1 or lost:
                return NO_FAULT
            lost.append(1)
            asyncio.get_running_loop().call_soon(lambda: cluster.remap("orders", 0, "g2"))
            return Fault(drop_after=True) if is_stored else Fault(drop_before=True)

        attempts.fault = fault
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"0", key="k"))
            sendings = []
            for number in range(1, 6):
                sendings.append(producer.send(Message("orders", b"%d" % number, key="k")))
                await attempts.next()
            results = [await sending for sending in sendings]

        assert lost
        assert cluster.logical_bodies("orders", 0) == [b"%d" % n for n in range(6)]
        assert results[0].group == ("g1" if is_stored else "g2")
        assert {result.group for result in results[1:]} == {"g2"}


async def test_an_unknown_batch_is_never_stored_at_the_new_place() -> None:
    """The old group never answers: the outcome stays unknown, and later messages go on."""
    cluster = FakeCluster(groups=2)
    async with cluster:
        cluster.add_static_topic("orders", ["g1"])
        settings = ProducerSettings(delivery_timeout_ms=700, request_timeout_ms=300)
        attempts = Attempts(cluster)
        attempts.fault = lambda broker, header: Fault(drop_before=broker.group == "g1")
        async with Producer(cluster.controller, settings=settings) as producer:
            sending = producer.send(Message("orders", b"unknown", key="k"))
            await attempts.next()
            cluster.remap("orders", 0, "g2")
            with pytest.raises(OutcomeUnknownError):
                await sending
            result = await producer.send(Message("orders", b"later", key="k"))

        assert result.group == "g2"
        assert cluster.logical_bodies("orders", 0) == [b"later"]


async def test_keyless_messages_avoid_a_broker_group_that_takes_none() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_static_topic("orders", ["g1", "g2"])
        cluster.alter_topic("orders", write_queues={G2: 1})
        cluster.fault = lambda broker, header: (
            Fault(refuse=NoPermissionError("wiped")) if broker.group == "g1" else NO_FAULT
        )
        async with Producer(cluster.controller) as producer:
            results = [await producer.send(Message("orders", b"x")) for _ in range(6)]
            of_g1 = next(f"k{n}" for n in range(99) if index_of_key(f"k{n}".encode(), 2) == 0)
            with pytest.raises(NoPermissionError):
                await producer.send(Message("orders", b"x", key=of_g1))

        assert {result.group for result in results} == {"g2"}
