"""Pull and push consumers against the fake cluster."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.support.client.consumers import PUSH, QUEUE, committed, eventually, fill
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.pull import PullConsumer, PullSettings
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.errors import (
    NotYetAvailableError,
    OffsetMovedBackError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.message import ReceivedMessage
from paceline.platform.runtime import SeededRandom, pause


async def test_poll_returns_every_message_of_all_queues_in_order() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 3)
        await fill(cluster, 300)
        async with PullConsumer(cluster.controller) as consumer:
            await consumer.subscribe("orders")
            found: list[ReceivedMessage] = []
            while len(found) < 300:
                found += await consumer.poll(max_messages=7)

    assert sorted(int(message.body) for message in found) == list(range(300))
    for name in {(message.group, message.queue_id) for message in found}:
        offsets = [m.queue_offset for m in found if (m.group, m.queue_id) == name]
        assert offsets == list(range(len(offsets)))


async def test_more_queues_than_fit_one_fetch_are_read_and_waited_for() -> None:
    """A broker takes 1024 in one: a consumer that asked for all at once was never answered."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2500)
        await fill(cluster, 300)
        async with PullConsumer(cluster.controller) as consumer:
            await consumer.subscribe("orders")
            found: list[ReceivedMessage] = []
            while len(found) < 300:
                found += await consumer.poll()
            await fill(cluster, 400, first=300)
            while len(found) < 400:
                found += await consumer.poll()

    assert sorted(int(message.body) for message in found) == list(range(400))
    assert max(message.queue_id for message in found) >= 1024


async def test_poll_waits_for_new_messages_and_gives_nothing_after_its_time() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with PullConsumer(cluster.controller) as consumer:
            await consumer.assign({QUEUE: "first"})
            nothing = await consumer.poll(timeout_ms=20)
            polling = asyncio.ensure_future(consumer.poll(timeout_ms=5_000))  # noqa: TID251
            await pause(20)
            await fill(cluster, 1)
            found = await polling

    assert nothing == []
    assert [message.body for message in found] == [b"0"]


async def test_seek_throws_away_what_was_fetched_ahead() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 50)
        async with PullConsumer(cluster.controller) as consumer:
            await consumer.assign({QUEUE: 10})
            first = await consumer.poll(max_messages=3)
            assert consumer.position(QUEUE) == 13
            await consumer.seek(QUEUE, "first")
            again = await consumer.poll(max_messages=2)
            await consumer.seek(QUEUE, 49)
            last = await consumer.poll()
            await consumer.seek(QUEUE, "last")
            nothing = await consumer.poll(timeout_ms=20)

    assert [message.queue_offset for message in first] == [10, 11, 12]
    assert [message.queue_offset for message in again] == [0, 1]
    assert [message.queue_offset for message in last] == [49]
    assert nothing == []


async def test_seek_of_a_queue_that_is_dropped_meanwhile_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with PullConsumer(cluster.controller) as consumer:
            await consumer.assign({QUEUE: 0})
            ranges = consumer.ranges

            async def answer_late(names: Any) -> Any:
                await consumer.assign({})
                return await ranges(names)

            monkeypatch.setattr(consumer, "ranges", answer_late)

            with pytest.raises(QueueNotFoundError, match="is not assigned"):
                await consumer.seek(QUEUE, "first")


async def test_a_position_out_of_range_is_reported_with_the_range() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 5)
        async with PullConsumer(cluster.controller) as consumer:
            await consumer.assign({QUEUE: 99})
            with pytest.raises(OffsetOutOfRangeError, match=r"99 .* not in \[0, 5\)") as caught:
                await consumer.poll()
            await consumer.seek(QUEUE, caught.value.details["end"] - 1)  # type: ignore[operator]
            found = await consumer.poll()
            with pytest.raises(TopicNotFoundError):
                await consumer.queues("nosuch")

    assert [message.queue_offset for message in found] == [4]


async def test_polling_goes_on_through_a_failover() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        settings = PullSettings(buffer_bytes_max=1)
        async with PullConsumer(cluster.controller, settings=settings) as consumer:
            await consumer.assign({QUEUE: 0})
            found = [message.body for message in await consumer.poll()]
            cluster.brokers[("g1", 1)].kill()
            cluster.elect("g1", 2)
            await fill(cluster, 20, first=10)
            while len(found) < 20:
                found += [message.body for message in await consumer.poll()]

    assert found == [b"%d" % number for number in range(20)]


async def test_group_offsets_are_committed_read_and_reset() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        async with PullConsumer(cluster.controller) as consumer:
            before = await consumer.committed("audit", [QUEUE])
            await consumer.assign({QUEUE: 0})
            await consumer.poll(max_messages=4)
            cluster.group_calls.failures.append(NotYetAvailableError("opening"))
            cluster.group_calls.failures.append(OutcomeUnknownError("lost"))
            await consumer.commit("audit")
            after = await consumer.committed("audit", [QUEUE])
            with pytest.raises(OffsetMovedBackError):
                await consumer.commit("audit", {QUEUE: 2})

    assert before == {QUEUE: None}
    assert after == {QUEUE: 4}


async def test_a_member_processes_everything_and_commits_on_close() -> None:
    seen: list[int] = []

    async def listener(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 4)
        await fill(cluster, 500)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listener, settings=PUSH
        ):
            await eventually(lambda: len(seen) == 500)
        stood = {
            (name, queue): log.offsets[("audit", 1, queue)][0]
            for name, log in cluster.logs.items()
            for queue in range(4)
        }
        ends = {
            (name, queue): log.end((1, queue))
            for name, log in cluster.logs.items()
            for queue in range(4)
        }

    assert sorted(seen) == list(range(500))
    assert stood == ends
    assert cluster.group_calls.members["audit"] == {}


@pytest.mark.parametrize("seed", range(4))
async def test_members_that_come_and_go_share_the_queues_without_repeats(seed: int) -> None:
    random = SeededRandom(f"members-{seed}")
    seen: Counter[int] = Counter()

    async def listener(message: ReceivedMessage) -> None:
        await pause(random.uniform(0, 2))
        seen[int(message.body)] += 1

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 8)
        members: list[PushConsumer] = []

        async def join() -> None:
            member = PushConsumer(
                cluster.controller, group="audit", topics=["orders"], listener=listener,
                settings=PUSH,
            )  # fmt: skip
            await member.start()
            members.append(member)

        await join()
        await join()
        for turn in range(6):
            await fill(cluster, (turn + 1) * 100, first=turn * 100)
            await pause(random.uniform(0, 30))
            if turn % 3 == 1:
                await join()
            elif len(members) > 1:
                await members.pop(int(random.uniform(0, len(members)))).close()
        await eventually(lambda: len(seen) == 600)
        await eventually(lambda: sum(len(member.queues) for member in members) == 8)
        owned = [key for member in members for key in member.queues]
        for member in members:
            await member.close()

    assert len(set(owned)) == 8
    assert set(seen.values()) == {1}, f"seed {seed}: {seen.most_common(3)}"


async def test_a_failing_message_is_tried_again_and_then_given_up() -> None:
    calls: Counter[bytes] = Counter()
    given_up: list[bytes] = []

    async def listener(message: ReceivedMessage) -> None:
        calls[message.body] += 1
        if message.body == b"3" or (message.body == b"5" and calls[b"5"] < 3):
            raise ValueError(message.body)

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        settings = PushSettings(
            start="first",
            send_back=False,
            attempts_max=4,
            retry_first_ms=2,
            commit_interval_ms=10,
        )
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listener,
            settings=settings, on_given_up=lambda message, error: given_up.append(message.body),
        ):  # fmt: skip
            await eventually(lambda: given_up == [b"3"])
            await eventually(lambda: calls[b"5"] == 3)
            await eventually(lambda: committed(cluster) == 10)

    assert calls[b"3"] == 4
    assert sum(calls.values()) == 10 + 3 + 2


async def test_an_unprocessed_message_holds_the_commit_and_is_delivered_again() -> None:
    started = asyncio.Event()
    seen: list[int] = []

    async def stuck(message: ReceivedMessage) -> None:
        if message.body == b"4":
            started.set()
            await asyncio.Event().wait()

    async def quick(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        settings = PushSettings(start="first", commit_interval_ms=10, close_timeout_ms=50)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=stuck, settings=settings
        ):
            await started.wait()
            await eventually(lambda: committed(cluster) == 4)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=quick, settings=PUSH
        ):
            await eventually(lambda: len(seen) == 6)

    assert sorted(seen) == [4, 5, 6, 7, 8, 9]


async def test_a_new_group_starts_last_and_stays_there_over_a_restart() -> None:
    seen: list[int] = []

    async def listener(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listener
        ) as consumer:
            await eventually(lambda: len(consumer.queues) == 1)
        await fill(cluster, 12, first=10)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listener
        ):
            await eventually(lambda: len(seen) == 2)

    assert seen == [10, 11]


async def test_a_reset_of_the_group_moves_a_running_member_back() -> None:
    seen: Counter[int] = Counter()

    async def listener(message: ReceivedMessage) -> None:
        seen[int(message.body)] += 1

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listener, settings=PUSH
        ):
            await eventually(lambda: committed(cluster) == 10)
            broker: FakeBroker = cluster.brokers[("g1", 1)]
            cluster.group_calls.reset(broker, "audit", (1, 0), 7)
            await fill(cluster, 11, first=10)
            await eventually(lambda: seen[9] == 2 and seen[10] >= 1)

    assert seen[6] == 1
    assert seen[7] == 2


async def test_consuming_goes_on_through_a_failover_of_the_coordinator() -> None:
    seen: Counter[int] = Counter()

    async def listener(message: ReceivedMessage) -> None:
        seen[int(message.body)] += 1

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 4)
        await fill(cluster, 100)
        async with PushConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listener, settings=PUSH
        ):
            await eventually(lambda: len(seen) == 100)
            cluster.brokers[("g1", 1)].kill()
            cluster.elect("g1", 2)
            await fill(cluster, 200, first=100)
            await eventually(lambda: len(seen) == 200)

    assert set(seen.values()) == {1}
