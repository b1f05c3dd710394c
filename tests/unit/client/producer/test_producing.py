"""What a producer offers beside `send`: chosen queues, units, one-way messages, compression."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.fake_log import NO_FAULT, Fault

from paceline.errors import (
    BadRequestError,
    ConfigError,
    NotYetAvailableError,
    PacelineError,
    PayloadLimitError,
    QueueNotFoundError,
    TooLargeError,
    TopicNotFoundError,
)
from paceline.message import Message
from paceline.net.cluster import Cluster
from paceline.producer.latency import LatencyTable
from paceline.producer.producer import Producer, send_library
from paceline.producer.selectors import select_by_hash
from paceline.producer.settings import ProducerSettings
from paceline.queues import QueueKey, QueueName, next_index
from paceline.records.decode import BatchView
from paceline.records.header import Codec
from paceline.types import GroupName, QueueId, TopicId, TopicName
from paceline.wire import properties as names

G1, G2 = GroupName("g1"), GroupName("g2")
MIB = 1024 * 1024


def orders(group: str, queue: int) -> QueueName:
    return QueueName(TopicName("orders"), GroupName(group), QueueId(queue))


def second_of(queues: Sequence[QueueName], message: Message, arg: Any) -> QueueName:
    return queues[1]


# -- chosen queues ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_selector_chooses_the_queue_also_before_the_route_is_known(is_known: bool) -> None:
    seen: list[tuple[int, bytes, Any]] = []

    def choose(queues: Sequence[QueueName], message: Message, arg: Any) -> QueueName:
        seen.append((len(queues), message.body, arg))
        return queues[int(arg)]

    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 2)
        async with Producer(cluster.controller) as producer:
            if is_known:
                await producer.send(Message("orders", b"warm"))
            sendings = [
                producer.send(Message("orders", b"%d" % n, key="k"), selector=choose, arg=n)
                for n in range(4)
            ]
            results = [await sending for sending in sendings]

    assert [(r.group, r.queue_id) for r in results] == [("g1", 0), ("g1", 1), ("g2", 0), ("g2", 1)]
    assert seen == [(4, b"%d" % n, n) for n in range(4)]


async def test_equal_arguments_of_select_by_hash_and_sharding_keys_share_a_queue() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 4)
        async with Producer(cluster.controller) as producer:
            hashed = [
                await producer.send(Message("orders", b"x"), selector=select_by_hash, arg=7)
                for _ in range(4)
            ]
            sharded = await producer.send(Message("orders", b"x", key="other", sharding="7"))
            keyed = await producer.send(Message("orders", b"x", key="7"))

    places = {(r.group, r.queue_id) for r in (*hashed, sharded, keyed)}
    assert len(places) == 1


async def test_a_sharding_key_is_stored_as_rocketmqs_property() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            message = Message("orders", b"x", properties={"a": "b"}, sharding="tail-7")
            await producer.send(message)
        (stored,) = cluster.logs["g1"].queues[(1, 0)]

    assert BatchView(stored.data).properties() == [{"a": "b", "__SHARDINGKEY": "tail-7"}]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("way", ["send", "selected", "unit", "oneway"])
async def test_properties_are_stored_as_they_were_when_send_was_called(
    way: str, is_known: bool
) -> None:
    """An application may use one dict, or one message, for all that it sends."""
    async with FakeCluster() as cluster:
        async with Producer(cluster.controller) as producer:
            if is_known:
                cluster.add_topic("orders", 2)
                await producer.send(Message("orders", b"warm"))
            properties: dict[str, str] = {}
            message = Message("orders", b"x", properties=properties)
            for n in range(3):
                properties["n"] = str(n)
                if way == "send":
                    producer.send(message)
                elif way == "selected":
                    producer.send(message, selector=second_of)
                elif way == "unit":
                    producer.send_batch([message])
                else:
                    producer.send_oneway(message)
            properties["n"] = "later"
            if not is_known:  # all have waited for the topic
                cluster.add_topic("orders", 2)
            await producer.flush()
        queues = cluster.logs["g1"].queues.values()
        views = [BatchView(batch.data) for queue in queues for batch in queue]

    stored = [found["n"] for view in views for found in view.properties() if found]
    assert stored == ["0", "1", "2"]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_queue_that_is_none_and_a_selector_that_fails_are_refused(is_known: bool) -> None:
    def broken(queues: Sequence[QueueName], message: Message, arg: Any) -> QueueName:
        raise LookupError("no such tail")

    def elsewhere(queues: Sequence[QueueName], message: Message, arg: Any) -> QueueName:
        return orders("g7", 0)

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        async with Producer(cluster.controller) as producer:
            if is_known:
                await producer.send(Message("orders", b"warm"))
            with pytest.raises(QueueNotFoundError, match="no queue g1/2"):
                await producer.send(Message("orders", b"x", queue=orders("g1", 2)))
            with pytest.raises(BadRequestError, match="selector failed: LookupError"):
                await producer.send(Message("orders", b"x"), selector=broken)
            with pytest.raises(BadRequestError, match="no queue of topic orders"):
                await producer.send(Message("orders", b"x"), selector=elsewhere)
            with pytest.raises(BadRequestError, match="queue of topic orders is chosen"):
                producer.send(Message("other", b"x", queue=orders("g1", 0)))


async def test_an_explicit_queue_waits_for_its_master_and_never_goes_elsewhere() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 1)
        shared = Cluster(cluster.controller)
        async with Producer(shared) as producer:
            await producer.send(Message("orders", b"warm", queue=orders("g1", 0)))
            cluster.elect("g1", None)
            cluster.brokers[("g1", 1)].kill()
            await shared.watch.wait_for(
                lambda view: view.groups[G1].master is None, timeout_ms=5_000
            )
            pinned = producer.send(Message("orders", b"pinned", queue=orders("g1", 0)))
            free = [await producer.send(Message("orders", b"free")) for _ in range(4)]
            assert not pinned.done()
            cluster.elect("g1", 2)
            result = await pinned
        await shared.close()

    assert {r.group for r in free} == {"g2"}
    assert (result.group, result.queue_offset) == ("g1", 1)


# -- retries ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("moves", "visited"), [(2, {"g1", "g2", "g3"}), (0, {"g1"})])
async def test_refused_keyless_messages_go_to_other_groups_a_limited_number_of_times(
    moves: int, visited: set[str]
) -> None:
    """R32: every attempt was definitely refused; each move avoids the group that refused."""
    seen: list[str] = []
    settings = ProducerSettings(retry_times_when_send_failed=moves, delivery_timeout_ms=5_000)
    async with FakeCluster(groups=3) as cluster:
        cluster.add_topic("orders", 1)

        def fault(broker: Any, header: Any) -> Fault:
            seen.append(broker.group)
            if len(seen) > 6:
                return NO_FAULT
            return Fault(refuse=NotYetAvailableError("epoch not open"))

        async with Producer(cluster.controller, settings=settings) as producer:
            for group in ("g1", "g2", "g3"):
                await producer.send(Message("orders", b"warm", queue=orders(group, 0)))
            cluster.fault = fault
            result = await producer.send(Message("orders", b"x"))

    assert len(set(seen)) == len(visited)
    assert len([1 for before, after in zip(seen, seen[1:], strict=False) if before != after]) == (
        moves
    )
    assert result.group == seen[-1]


# -- latency ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("latency_ms", "pause_ms"),
    [
        (0, 0), (49, 0), (100, 0), (549, 0), (550, 2_000), (1_799, 2_000), (1_800, 5_000),
        (3_000, 6_000), (5_000, 10_000), (10_000, 10_000), (15_000, 30_000), (60_000, 30_000),
    ],
)  # fmt: skip
def test_latency_table_is_rocketmqs(latency_ms: int, pause_ms: int) -> None:
    table = LatencyTable()
    table.answered("g1", latency_ms, now_ms=1_000)

    assert table.is_available("g1", now_ms=1_000) is (pause_ms == 0)
    assert table.is_available("g1", now_ms=1_000 + pause_ms)
    if pause_ms:
        assert not table.is_available("g1", now_ms=999 + pause_ms)


def test_a_failure_counts_as_ten_seconds_and_a_quick_answer_ends_the_pause() -> None:
    table = LatencyTable()
    table.failed("g1", now_ms=0)
    assert not table.is_available("g1", now_ms=9_999)
    assert table.is_available("g2", now_ms=0)

    table.answered("g1", 3, now_ms=50)

    assert table.is_available("g1", now_ms=50)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8), st.integers(0, 7))
def test_next_queue_is_quick_if_any_is_else_up_if_any_is_else_in_turn(
    groups: list[tuple[bool, bool]], after: int
) -> None:
    queues = [QueueKey(TopicId(1), GroupName(str(n)), QueueId(0)) for n in range(len(groups))]
    index = next_index(
        after, queues, lambda group: groups[int(group)][0], lambda group: groups[int(group)][1]
    )

    is_up, is_quick = groups[index]
    if any(up and quick for up, quick in groups):
        assert is_up
        assert is_quick
    elif any(up for up, _ in groups):
        assert is_up
    else:
        assert index == (after + 1) % len(groups)


async def test_slow_groups_are_avoided_while_another_is_quick() -> None:
    settings = ProducerSettings(
        send_latency_enable=True, latency_max_ms=(0, 40), not_available_duration_ms=(0, 60_000)
    )
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 1)
        cluster.fault = lambda broker, header: Fault(
            answer_after_ms=60 if broker.group == "g1" else 0
        )
        async with Producer(cluster.controller, settings=settings) as producer:
            await producer.send(Message("orders", b"slow", queue=orders("g1", 0)))
            avoiding = [await producer.send(Message("orders", b"x")) for _ in range(6)]
            explicit = await producer.send(Message("orders", b"y", queue=orders("g1", 0)))

    assert {result.group for result in avoiding} == {"g2"}
    assert explicit.group == "g1"


# -- units --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_batch_is_one_unit_in_one_queue(is_known: bool) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 4)
        async with Producer(cluster.controller) as producer:
            if is_known:
                await producer.send(Message("orders", b"warm", queue=orders("g1", 3)))
            unit = [Message("orders", bytes([n]) * (MIB - 100), tag=f"t{n}") for n in range(4)]
            results = await producer.send_batch(unit, selector=second_of)
            keyed = await producer.send_batch([Message("orders", b"%d" % n, "k") for n in range(9)])
        stored = cluster.logs["g1"].queues[(1, 1)]

    assert {(r.group, r.queue_id) for r in results} == {("g1", 1)}
    assert [r.queue_offset for r in results] == [0, 1, 2, 3]
    assert [batch.count for batch in stored][:1] == [4]
    assert BatchView(stored[0].data).tags() == ["t0", "t1", "t2", "t3"]
    assert len({r.queue_id for r in keyed}) == 1


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "at least one"),
        ([Message("a", b""), Message("b", b"")], "for one topic, not for 2"),
        ([Message("a", b"", delivery_unix_ms=1)], "cannot be delayed"),
        ([Message("%RETRY%g", b"")], "retry topic"),
        ([Message("a", b"", "k1"), Message("a", b"", "k2")], "choose a queue"),
        ([Message("a", bytes(2 * MIB)), Message("a", bytes(2 * MIB + 1))], "split it"),
    ],
)
async def test_what_cannot_be_one_unit_is_refused(messages: list[Message], says: str) -> None:
    async with FakeCluster() as cluster, Producer(cluster.controller) as producer:
        with pytest.raises(PacelineError, match=says):
            producer.send_batch(messages)


# -- one-way ------------------------------------------------------------------------------------


async def test_oneway_messages_arrive_without_producer_id_and_are_waited_for_at_close() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        async with Producer(cluster.controller) as producer:
            for number in range(10):
                producer.send_oneway(Message("orders", b"%d" % number, key="k"))
            await producer.flush()
            for number in range(10, 20):
                producer.send_oneway(Message("orders", b"%d" % number, key="k"))
        log = cluster.logs["g1"]
        ((queue, stored),) = log.queues.items()

    assert cluster.bodies(queue=queue[1]) == [b"%d" % number for number in range(20)]
    assert {BatchView(batch.data).header.producer_id for batch in stored} == {0}
    assert (producer.oneway.confirmed, producer.oneway.dropped, producer.oneway.unknown) == (
        20, 0, 0,
    )  # fmt: skip


async def test_oneway_messages_are_not_sent_again() -> None:
    attempts: list[int] = []
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        faults = [
            Fault(refuse=NotYetAvailableError("epoch not open")),
            Fault(drop_before=True),
            Fault(drop_after=True),
        ]

        def fault(broker: Any, header: Any) -> Fault:
            attempts.append(header.record_count)
            return faults.pop(0) if faults else NO_FAULT

        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"warm"))
            cluster.fault = fault
            for body in (b"refused", b"lost", b"stored", b"last"):
                producer.send_oneway(Message("orders", body))
                await producer.flush()

    assert attempts == [1, 1, 1, 1]
    assert cluster.bodies() == [b"warm", b"stored", b"last"]
    counts = producer.oneway
    assert (counts.confirmed, counts.dropped, counts.unknown) == (1, 1, 2)


async def test_oneway_messages_without_a_master_or_topic_are_dropped_in_time() -> None:
    settings = ProducerSettings(request_timeout_ms=80, topic_wait_ms=50)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.elect("g1", None)
        async with Producer(cluster.controller, settings=settings) as producer:
            producer.send_oneway(Message("orders", b"x"))
            producer.send_oneway(Message("nosuch", b"x"))
            async with asyncio.timeout(5):
                await producer.flush()

    assert producer.oneway.dropped == 2
    assert cluster.bodies() == []


async def test_a_silent_broker_is_given_up_for_oneway_messages_too() -> None:
    settings = ProducerSettings(request_timeout_ms=80)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller, settings=settings) as producer:
            await producer.send(Message("orders", b"warm"))
            cluster.fault = lambda broker, header: Fault(is_silent=True)
            producer.send_oneway(Message("orders", b"x"))
            async with asyncio.timeout(5):
                await producer.flush()

    assert producer.oneway.unknown == 1


async def test_oneway_messages_are_bounded_by_the_buffer() -> None:
    settings = ProducerSettings(buffer_bytes_max=5 * MIB)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.elect("g1", None)
        async with Producer(cluster.controller, settings=settings) as producer:
            producer.send_oneway(Message("orders", bytes(4 * MIB)))
            with pytest.raises(PayloadLimitError, match="buffer holds"):
                producer.send_oneway(Message("orders", bytes(4 * MIB)))
            await producer.close(timeout_ms=0)

    assert producer.oneway.dropped == 1


# -- compression and limits -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "size", "codec"),
    [
        (ProducerSettings(), 4096, Codec.NONE),
        (ProducerSettings(), 4097, Codec.ZSTD),
        (ProducerSettings(codec=Codec.LZ4, compress_level=9), 5000, Codec.LZ4),
        (ProducerSettings(codec=Codec.NONE), 500_000, Codec.NONE),
        (ProducerSettings(compress_msg_body_over_howmuch=0), 400, Codec.ZSTD),
        (ProducerSettings(compress_msg_body_over_howmuch=10**6), 500_000, Codec.NONE),
    ],
)
async def test_batches_with_a_body_over_the_limit_are_compressed(
    settings: ProducerSettings, size: int, codec: Codec
) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller, settings=settings) as producer:
            await producer.send_many([Message("orders", b"s"), Message("orders", b"a" * size)])
        (stored,) = cluster.logs["g1"].queues[(1, 0)]

    assert BatchView(stored.data).header.codec == codec
    assert cluster.bodies() == [b"s", b"a" * size]


async def test_the_producers_own_limit_and_reserved_properties_are_kept() -> None:
    settings = ProducerSettings(max_message_size=10)
    async with FakeCluster() as cluster, Producer(cluster.controller, settings=settings) as one:
        with pytest.raises(TooLargeError, match="11 bytes is over 10"):
            one.send(Message("orders", bytes(11)))
        with pytest.raises(TooLargeError, match="over 10"):
            one.send_bodies("orders", [bytes(11)])
        for name in ("UNIQ_KEY", "__SHARDINGKEY", "DELAY"):
            with pytest.raises(BadRequestError, match="belongs to the system"):
                one.send(Message("orders", b"", properties={name: "1"}))
        with pytest.raises(TooLargeError):
            one.send(Message("orders", b"", sharding="x" * 40_000))


async def test_the_library_may_set_what_describes_a_message_and_not_what_brokers_say() -> None:
    async with FakeCluster() as cluster, Producer(cluster.controller) as one:
        cluster.add_topic("orders", 1)
        named = {"UNIQ_KEY": "01AB", "KEYS": "a b"}
        await send_library(one, Message("orders", b"x", properties=named))

        (stored,) = next(iter(cluster.logs["g1"].queues.values()))

    assert BatchView(stored.data).properties() == [named]
    assert {"RECONSUME_TIME", "ORIGIN_MESSAGE_ID", "ESCAPED_FROM"} <= names.BROKERS


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": "a b"},
        {"retry_times_when_send_failed": -1},
        {"max_message_size": 5 * MIB},
        {"compress_msg_body_over_howmuch": -1},
        {"compress_level": 23},
        {"compress_level": 13, "codec": Codec.LZ4},
        {"latency_max_ms": (5, 3), "not_available_duration_ms": (0, 0)},
        {"latency_max_ms": (1,)},
        {"latency_max_ms": (1,), "not_available_duration_ms": (-1,)},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PacelineError) as caught:
        ProducerSettings(**wrong).validate()

    assert isinstance(caught.value, ConfigError | BadRequestError)
    assert str(next(iter(wrong))) in str(caught.value)


async def test_a_topic_that_does_not_exist_fails_selected_messages_clearly() -> None:
    settings = ProducerSettings(topic_wait_ms=50)
    async with FakeCluster() as cluster, Producer(cluster.controller, settings=settings) as one:
        with pytest.raises(TopicNotFoundError):
            await one.send(Message("nosuch", b""), selector=second_of)
        with pytest.raises(TopicNotFoundError):
            await one.send_batch([Message("nosuch", b"")])
