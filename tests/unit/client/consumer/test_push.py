"""What an application may set of a push consumer, and do to it while it runs."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.client.consumers import PUSH, committed, eventually, fill
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.offsets.start_positions import TIMESTAMP_AGO_MS
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.errors import ConfigError
from paceline.message import ReceivedMessage
from paceline.platform.runtime import pause
from paceline.records.encode import encode_batch
from paceline.records.header import parse_header


async def ignore(message: ReceivedMessage) -> None:
    """A listener that is done at once."""


def bodies(messages: Sequence[ReceivedMessage]) -> list[int]:
    return [int(message.body) for message in messages]


async def test_a_batch_listener_gets_several_messages_of_one_queue_in_order() -> None:
    calls: list[Sequence[ReceivedMessage]] = []

    async def listen(messages: Sequence[ReceivedMessage]) -> None:
        calls.append(messages)

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        await fill(cluster, 100)
        settings = PushSettings(
            start="first", consume_message_batch_max_size=16, commit_interval_ms=20
        )
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], batch_listener=listen,
            settings=settings,
        ):  # fmt: skip
            await eventually(lambda: sum(map(len, calls)) == 100)

    assert sorted(number for call in calls for number in bodies(call)) == list(range(100))
    assert max(map(len, calls)) == 16
    for call in calls:
        offsets = [message.queue_offset for message in call]
        assert len({message.queue_id for message in call}) == 1
        assert offsets == list(range(offsets[0], offsets[0] + len(call)))


async def test_what_a_batch_listener_did_not_reach_comes_again_and_the_rest_does_not() -> None:
    calls: list[list[int]] = []

    async def listen(messages: Sequence[ReceivedMessage]) -> int | None:
        calls.append(bodies(messages))
        if len(calls) == 1:
            return 2
        if len(calls) == 2:
            raise ValueError
        return None

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 5)
        settings = PushSettings(
            start="first",
            concurrency=1,
            commit_interval_ms=20,
            send_back=False,
            retry_first_ms=1,
        )
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], batch_listener=listen,
            settings=settings,
        ):  # fmt: skip
            await eventually(lambda: committed(cluster) == 5)

    assert calls[0] == [0, 1, 2, 3, 4]
    assert set(calls[1]) <= {number for call in calls[2:] for number in call}
    assert {0, 1}.isdisjoint(number for call in calls[1:] for number in call)
    assert {2, 3, 4} == {number for call in calls[1:] for number in call}


async def test_nothing_is_handed_out_while_the_consumer_pauses() -> None:
    seen: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 3)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listen, settings=PUSH
        ) as consumer:
            await eventually(lambda: len(seen) == 3)
            consumer.pause()
            await fill(cluster, 6, first=3)
            await pause(50)
            while_paused = list(seen)
            consumer.resume()
            await eventually(lambda: len(seen) == 6)
            consumer.pause(consumer.queues)
            await fill(cluster, 9, first=6)
            await pause(50)
            while_one_paused = list(seen)
            consumer.resume(consumer.queues)
            await eventually(lambda: len(seen) == 9)

    assert sorted(while_paused) == [0, 1, 2]
    assert sorted(while_one_paused) == [0, 1, 2, 3, 4, 5]


async def test_queues_of_a_member_are_those_of_its_topics_and_not_of_its_retries() -> None:
    retried: list[str] = []

    async def listen(message: ReceivedMessage) -> None:
        retried.append(message.topic)

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 4)
        cluster.add_topic("%RETRY%audit", 1)
        batch = encode_batch([b"0"], born_unix_ms=1, topic_id=2, queue_id=0)
        cluster.logs["g1"].put(batch, parse_header(batch), 2)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listen, settings=PUSH
        ) as consumer:
            await eventually(lambda: len(retried) == 1 and len(consumer.queues) >= 4)

            assert [(key.topic_id, key.queue_id) for key in consumer.queues] == [
                (1, 0), (1, 1), (1, 2), (1, 3),
            ]  # fmt: skip


async def test_a_queue_that_comes_while_all_pauses_waits_as_well() -> None:
    seen: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 3)
        consumer = PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listen, settings=PUSH
        )
        consumer.pause()
        async with consumer:
            await eventually(lambda: len(consumer.queues) == 1)
            await pause(50)
            assert seen == []
            consumer.resume()
            await eventually(lambda: len(seen) == 3)


@pytest.mark.parametrize("asked", [None, 1_700_000_000_000])
async def test_a_group_may_begin_at_a_time(asked: int | None) -> None:
    seen: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        cluster.group_calls.told_at_time = 7
        settings = PushSettings(start="timestamp", consume_timestamp=asked, commit_interval_ms=20)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listen,
            settings=settings,
        ) as consumer:  # fmt: skip
            await eventually(lambda: len(seen) == 3)
            now_ms = consumer._cluster.clock.unix_ms()
        [unix_ms] = cluster.group_calls.times_asked

    assert sorted(seen) == [7, 8, 9]
    if asked is None:
        assert now_ms - TIMESTAMP_AGO_MS - 60_000 < unix_ms <= now_ms - TIMESTAMP_AGO_MS
    else:
        assert unix_ms == asked


async def test_a_reset_is_heard_of_while_nothing_is_there_to_commit() -> None:
    """R33: the member stands at the end and commits nothing; it must not wait for a message."""
    seen: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listen, settings=PUSH
        ):
            await eventually(lambda: committed(cluster) == 10)
            cluster.group_calls.reset(cluster.brokers[("g1", 1)], "audit", (1, 0), 7)
            await eventually(lambda: len(seen) == 13)
            await eventually(lambda: committed(cluster) == 10)

    assert sorted(seen[10:]) == [7, 8, 9]


async def test_a_member_goes_on_when_its_group_was_deleted_and_hears_of_resets_of_the_new_one() -> (
    None
):
    """Reset generations begin anew with the group: one below ours is not one that has passed."""
    seen: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        offsets = cluster.logs["g1"].offsets
        offsets[("audit", 1, 0)] = (0, 5)  # it was reset five times
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listen, settings=PUSH
        ):
            await eventually(lambda: committed(cluster) == 10)
            del offsets[("audit", 1, 0)]
            await fill(cluster, 20, first=10)
            await eventually(lambda: committed(cluster) == 20)
            await fill(cluster, 30, first=20)
            await eventually(lambda: committed(cluster) == 30)
            offsets[("audit", 1, 0)] = (27, 3)
            await eventually(lambda: len(seen) == 33)
            await eventually(lambda: committed(cluster) == 30)

    assert sorted(seen[30:]) == [27, 28, 29]


async def test_thresholds_of_a_topic_are_shared_by_its_queues() -> None:
    begun = asyncio.Event()

    async def never(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 4)
        for number in range(40):  # a batch each, so that the limits bind closely
            await fill(cluster, number + 1, first=number)
        settings = PushSettings(
            start="first", messages_per_topic_max=8, queue_bytes_max=1, close_timeout_ms=20
        )
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=never, settings=settings
        ) as consumer:
            await begun.wait()
            helds = consumer._owner.held
            await eventually(
                lambda: (
                    len(helds) == 4
                    and not any(held.fetch.has_room for held in helds.values() if held.queue)
                )
            )
            counts = {key.queue_id: len(held.queue) for key, held in helds.items()}

    # The first queues to come may have taken the share of fewer queues.
    assert all(2 <= count <= 8 for count in counts.values()), counts
    assert min(counts.values()) <= 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "middle"},
        {"consume_timestamp": -1},
        {"concurrency": 0},
        {"concurrency": 1001},
        {"consume_message_batch_max_size": 1025},
        {"messages_per_queue_max": 65_536},
        {"span_max": 0},
        {"bytes_per_queue_max": 1 << 31},
        {"messages_per_topic_max": 0},
        {"bytes_per_topic_max": -2},
    ],
)
async def test_settings_out_of_their_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    name = next(iter(wrong))
    with pytest.raises(ConfigError, match=name):
        PushConsumer(
            "127.0.0.1:1", group="g", topics=["t"], listener=ignore, settings=PushSettings(**wrong)
        )


async def test_exactly_one_listener_is_given() -> None:
    async def several(messages: Sequence[ReceivedMessage]) -> None:
        """Does nothing."""

    for listeners in ({}, {"listener": ignore, "batch_listener": several}):
        with pytest.raises(ConfigError, match="either listener or batch_listener"):
            PushConsumer("127.0.0.1:1", group="g", topics=["t"], **listeners)  # type: ignore[arg-type]
