"""The producer against the fake cluster."""

import asyncio
import gc
from typing import Any

import pytest
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.fake_log import Fault
from tests.support.http.turns import turn

from paceline.errors import (
    BadNameError,
    BadRequestError,
    OutcomeUnknownError,
    PacelineError,
    PayloadLimitError,
    ShuttingDownError,
    TooLargeError,
    TopicNotFoundError,
)
from paceline.message import Message
from paceline.platform.runtime import pause
from paceline.producer.producer import Producer
from paceline.producer.results import SendResult
from paceline.producer.settings import ProducerSettings
from paceline.records.header import Codec
from paceline.wire.message_ids import UniqueKey, parse_unique_key
from paceline.wire.stream import PRODUCE_FLAG_UNCONFIRMED


async def test_a_message_is_acknowledged_with_its_place() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            first = await producer.send(Message("orders", b"one"))
            second = await producer.send(Message("orders", b"two", key="k", tag="t"))

    assert (first.topic, first.group, first.queue_id, first.queue_offset) == ("orders", "g1", 0, 0)
    assert second.queue_offset == 1
    assert cluster.bodies() == [b"one", b"two"]


async def test_what_send_gives_is_taken_for_a_coroutine() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            loop = asyncio.get_running_loop()
            task = loop.create_task(producer.send(Message("orders", b"one")))
            async with asyncio.TaskGroup() as group:
                in_group = group.create_task(producer.send(Message("orders", b"two")))
            gathered = await asyncio.gather(producer.send(Message("orders", b"three")), task)
            many = await asyncio.wait_for(producer.send_many([Message("orders", b"4")] * 2), 10)
            done, _ = await asyncio.wait({loop.create_task(producer.send(Message("orders", b"")))})
            from_thread = await asyncio.to_thread(
                lambda: asyncio.run_coroutine_threadsafe(
                    _sent(producer, Message("orders", b"six")), loop
                ).result(10)
            )

    results = [
        task.result(),
        in_group.result(),
        gathered[0],
        *many,
        done.pop().result(),
        from_thread,
    ]
    assert sorted(result.queue_offset for result in results) == list(range(7))


async def _sent(producer: Producer, message: Message) -> SendResult:
    return await producer.send(message)


async def test_a_wait_that_was_cancelled_takes_no_message_back() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            sending = producer.send(Message("orders", b"one"))
            task = asyncio.get_running_loop().create_task(sending)
            await pause(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await sending).queue_offset == 0


async def test_results_name_their_messages() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            one, two = await producer.send_many(
                [Message("orders", b"one"), Message("orders", b"2")]
            )

    first, second = parse_unique_key(str(one.unique_key)), parse_unique_key(str(two.unique_key))
    assert isinstance(second, UniqueKey)
    assert first == second._replace(sequence=0)
    assert one.message_id is None, "the fake broker does not say where it is"


@pytest.mark.parametrize("has_streams", [True, False])
async def test_an_answer_before_confirm_says_so(has_streams: bool) -> None:
    """R37, over streams and over POST."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.brokers[("g1", 1)].serves_streams = has_streams
        log = cluster.logs["g1"]
        async with Producer(cluster.controller) as producer:
            log.new_flags = PRODUCE_FLAG_UNCONFIRMED
            early = await producer.send(Message("orders", b"one"))
            log.new_flags = 0
            confirmed = await producer.send(Message("orders", b"two"))

    assert (early.is_confirmed, confirmed.is_confirmed) == (False, True)
    assert (early.queue_offset, confirmed.queue_offset) == (0, 1)


async def test_producer_goes_on_after_a_failover_lost_what_was_answered_early() -> None:
    """R37: the broker's numbering falls back behind the producer's (R31), and nobody is stuck."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        log = cluster.logs["g1"]
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"kept"))
            log.new_flags = PRODUCE_FLAG_UNCONFIRMED
            for body in (b"lost 1", b"lost 2"):
                assert not (await producer.send(Message("orders", body))).is_confirmed
            (queue,) = log.queues
            log.lose_newest(queue, 2)
            log.new_flags = 0
            later = [await producer.send(Message("orders", b"%d" % n)) for n in range(3)]

    assert cluster.bodies() == [b"kept", b"0", b"1", b"2"]
    assert [result.queue_offset for result in later] == [1, 2, 3]


async def test_concurrent_sends_of_one_turn_ride_in_one_batch() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 4)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"warm"))
            before = cluster.brokers[("g1", 1)].produced
            sendings = [producer.send(Message("orders", b"%d" % number)) for number in range(100)]
            results = [await sending for sending in sendings]

    assert cluster.brokers[("g1", 1)].produced == before + 1
    assert len({result.queue_id for result in results}) == 1
    offsets = [result.queue_offset for result in results]
    assert offsets == list(range(offsets[0], offsets[0] + 100))


async def test_keyless_batches_go_round_robin_and_keys_stay_on_their_queue() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 2)
        async with Producer(cluster.controller) as producer:
            keyless = [await producer.send(Message("orders", b"x")) for _ in range(8)]
            keyed = [await producer.send(Message("orders", b"x", key="k7")) for _ in range(5)]

    queues = [(result.group, result.queue_id) for result in keyless]
    assert len(set(queues[:4])) == 4
    assert queues[:4] == queues[4:]
    assert len({(result.group, result.queue_id) for result in keyed}) == 1


async def test_send_many_and_bodies_and_callbacks_agree_with_the_log() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        settings = ProducerSettings(batch_bytes_max=4096)
        outcomes: list[int] = []
        async with Producer(cluster.controller, settings=settings) as producer:
            many = await producer.send_many([Message("orders", b"m%d" % n) for n in range(50)])
            bulk = await producer.send_bodies("orders", [bytes(1000) for _ in range(50)])
            producer.send_nowait(
                Message("orders", b"last"),
                lambda result, error: outcomes.append(result.queue_offset if result else -9),
            )

    assert [result.queue_offset for result in many] == list(range(50))
    assert [result.queue_offset for result in bulk] == list(range(50, 100))
    assert outcomes == [100]


@pytest.mark.parametrize("key", ["k" * 20_000, "\u00fc" * 10_000])
async def test_bodies_with_a_long_key_are_batches_that_brokers_take(key: str) -> None:
    """Each message has the key in the batch: 1,000 small bodies made one of 20 MB."""
    bodies = [b"%d" % number for number in range(1_000)]
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        settings = ProducerSettings(codec=Codec.NONE)
        async with Producer(cluster.controller, settings=settings) as producer:
            await producer.send_bodies("orders", bodies, key=key)

    assert cluster.bodies() == bodies
    sizes = [len(batch.data) for batch in cluster.logs["g1"].queues[1, 0]]
    assert max(sizes) <= settings.batch_bytes_max


async def test_an_unknown_topic_and_bad_messages_are_refused_clearly() -> None:
    async with FakeCluster() as cluster:
        settings = ProducerSettings(topic_wait_ms=50)
        async with Producer(cluster.controller, settings=settings) as producer:
            with pytest.raises(TopicNotFoundError, match="topic nosuch does not exist"):
                await producer.send(Message("nosuch", b""))
            for nothing in ("", None):
                with pytest.raises(BadNameError, match="topic must be 1 to 127 of"):
                    producer.send(Message(nothing, b"x"))  # type: ignore[arg-type]
            with pytest.raises(BadNameError):
                await producer.send_bodies("", [b"x"])
            with pytest.raises(BadRequestError, match="a property needs a name"):
                producer.send(Message("nosuch", b"", properties={"a": "b", "": "c"}))
            with pytest.raises(BadRequestError, match="bytes, not str"):
                producer.send(Message("nosuch", "text"))  # type: ignore[arg-type]
            with pytest.raises(TooLargeError):
                producer.send(Message("nosuch", bytes(4 * 1024 * 1024 + 1)))
            with pytest.raises(TooLargeError):
                producer.send(Message("nosuch", b"", properties={"a": "x" * 40_000}))
        with pytest.raises(ShuttingDownError):
            producer.send(Message("nosuch", b""))


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("key", "error"),
    [("k" * 32_768, TooLargeError), ("\ud800", BadRequestError), (7, BadRequestError)],
)
async def test_a_bad_key_of_many_bodies_spoils_nothing_but_its_own_call(
    key: Any, error: type[PacelineError], is_known: bool
) -> None:
    async with FakeCluster() as cluster, Producer(cluster.controller) as producer:
        if is_known:
            cluster.add_topic("orders", 1)
            await producer.send(Message("orders", b"warm"))
        good = producer.send(Message("orders", b"good", key="k"))
        with pytest.raises(error, match="key"):
            producer.send_bodies("orders", [b"a", b"b"], key=key)
        if not is_known:
            cluster.add_topic("orders", 1)
        await good

    assert cluster.bodies()[-1] == b"good"


async def test_a_topic_that_appears_in_time_takes_the_waiting_messages_in_order() -> None:
    async with FakeCluster() as cluster, Producer(cluster.controller) as producer:
        sendings = [producer.send(Message("late", b"%d" % number)) for number in range(10)]
        cluster.add_topic("late", 1)
        results = [await sending for sending in sendings]

    assert [result.queue_offset for result in results] == list(range(10))
    assert cluster.bodies() == [b"%d" % number for number in range(10)]


async def test_a_full_buffer_makes_send_wait_and_send_nowait_fail() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        size = 1024 * 1024
        settings = ProducerSettings(buffer_bytes_max=5 * size, batch_bytes_max=size)
        async with Producer(cluster.controller, settings=settings) as producer:
            sendings = [producer.send(Message("orders", bytes(size - 100))) for _ in range(9)]
            with pytest.raises(PayloadLimitError, match="buffer holds"):
                producer.send_nowait(Message("orders", bytes(size)))
            with pytest.raises(PayloadLimitError):
                producer.send_many([Message("orders", bytes(size))] * 9)
            results = [await sending for sending in sendings]

    assert [result.queue_offset for result in results] == list(range(9))


async def test_cancelling_one_waiter_leaves_the_others_of_its_batch_waiting() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.fault = lambda broker, header: Fault(answer_after_ms=30)
        async with Producer(cluster.controller) as producer:

            async def send(body: bytes) -> int:
                return (await producer.send(Message("orders", body))).queue_offset

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(send(b"%d" % number)) for number in range(3)]
                while cluster.brokers[("g1", 1)].produced == 0:
                    await asyncio.wait([tasks[0]], timeout=0.005)
                tasks[1].cancel()

    assert tasks[0].result() == 0
    assert tasks[1].cancelled()
    assert tasks[2].result() == 2


async def test_an_error_reaches_all_who_wait_and_nobody_who_waits_no_more() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    failed: list[PacelineError | None] = []
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"first"))
            sending = producer.send(Message("orders", b"second"))
            sending.on_sent(lambda result, error: failed.append(error))

            async def wait() -> SendResult:
                return await sending

            waiting = asyncio.gather(wait(), wait(), return_exceptions=True)
            await turn()
            given_up = sending.__await__()
            next(given_up)
            given_up.close()
            (outbox,) = producer._dispatch._active
            outbox.fail_all(ShuttingDownError("given up"))
            producer._dispatch._on_progress(outbox)
            outcomes = await waiting
    del given_up
    gc.collect()

    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknownError] * 2
    assert outcomes[0] is not outcomes[1]
    assert [type(error) for error in failed] == [OutcomeUnknownError]
    assert told == []


async def test_posts_carry_batches_when_streams_are_refused() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.brokers[("g1", 1)].serves_streams = False
        async with Producer(cluster.controller) as producer:
            sendings = [producer.send(Message("orders", b"%d" % number)) for number in range(20)]
            results = [await sending for sending in sendings]
            again = await producer.send(Message("orders", b"more"))

    assert [result.queue_offset for result in results] == list(range(20))
    assert again.queue_offset == 20
