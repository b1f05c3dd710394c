"""Listener calls that take too long: their messages go back, and the queue goes on."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tests.support.client.consumers import committed, eventually
from tests.support.client.failure import SETTINGS, a_cluster, consumer, send_backs
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.process.consume_timeouts import TIMEOUT_LEVEL
from paceline.errors import NotYetAvailableError
from paceline.message import ReceivedMessage

QUICK = replace(SETTINGS, consume_timeout_ms=1_000, concurrency=4)


async def test_a_message_that_is_stuck_goes_back_and_does_not_hold_the_offset() -> None:
    calls: Counter[bytes] = Counter()
    go_on = asyncio.Event()

    async def listen(message: ReceivedMessage) -> None:
        calls[message.body] += 1
        if message.body == b"3" and calls[b"3"] == 1:
            await go_on.wait()

    async with FakeCluster() as cluster:
        await a_cluster(cluster, 10)
        async with consumer(cluster, listen, settings=QUICK):
            await eventually(lambda: committed(cluster) == 3)
            await eventually(lambda: committed(cluster) == 10)
            await eventually(lambda: calls[b"3"] == 2)
            go_on.set()  # the late end counts for nothing
            [sent_back] = [row for call in send_backs(cluster) for row in call["messages"]]

    assert (sent_back["offset"], sent_back["delay_level"]) == (3, TIMEOUT_LEVEL)
    assert all(calls[b"%d" % number] == 1 for number in range(10) if number != 3)


async def test_a_call_that_ends_before_its_message_could_be_sent_back_counts() -> None:
    go_on = asyncio.Event()

    async def listen(message: ReceivedMessage) -> None:
        if message.body == b"0":
            await go_on.wait()

    async with FakeCluster() as cluster:
        await a_cluster(cluster, 3)
        cluster.group_calls.send_back_code = NotYetAvailableError.code
        async with consumer(cluster, listen, settings=QUICK):
            await eventually(lambda: bool(send_backs(cluster)))
            assert committed(cluster) == 0
            go_on.set()
            await eventually(lambda: committed(cluster) == 3)


async def test_a_batch_goes_back_whole_and_its_late_failure_changes_nothing() -> None:
    calls: list[list[int]] = []
    go_on = asyncio.Event()

    async def listen(messages: Sequence[ReceivedMessage]) -> int:
        calls.append([int(message.body) for message in messages])
        if len(calls) == 1:
            await go_on.wait()
            raise ValueError
        return len(messages)

    async with FakeCluster() as cluster:
        await a_cluster(cluster, 6)
        settings = replace(QUICK, concurrency=1 + 1, consume_message_batch_max_size=4)
        async with consumer(cluster, None, batch_listener=listen, settings=settings) as member:
            await eventually(lambda: committed(cluster) == 6)
            await eventually(lambda: sorted(sum(calls[1:], [])) == list(range(6)))
            go_on.set()
            await member.close()

    assert calls[0] == [0, 1, 2, 3]
    assert sorted(sum(calls[1:], [])) == list(range(6))
