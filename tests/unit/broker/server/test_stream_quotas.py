"""Streams of a user that takes too much: together they take what its quota allows, by turns, and no
client of it holds the broker for dead; in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import orjson
from tests.support.client.virtual_time import LoopClock, in_virtual_time
from tests.support.http.door import Door, a_batch, a_door
from tests.support.http.stream_client import RawStream
from tests.support.rights import a_security, bearer, entry

from paceline.platform.runtime import pause
from paceline.wire.rights import PUB, SUB
from paceline.wire.stream import FETCH_HEADER, FETCH_QUEUE, FetchQueue, Operation
from paceline.wire.users import Quota

STREAMS = 200


@asynccontextmanager
async def a_door_for_ana() -> AsyncIterator[Door]:
    async with a_door(clock=LoopClock()) as door:
        ana = (entry("Topic:*", PUB, SUB), entry("Group:*", PUB, SUB))
        door.service.access.apply(a_security(ana=ana))
        yield door


def limit(door: Door, **limits: int) -> None:
    """After streams are opened: over HTTP one request a second is served."""
    access = door.service.access
    access.apply(access.security.changed(quotas={"User:ana": Quota(**limits)} if limits else {}))


async def some_streams(door: Door, count: int) -> list[RawStream]:
    return [await RawStream.open(door.port, bearer("ana")) for _ in range(count)]


class Flood:
    """Streams of one user that ask one thing after the other, as fast as they are answered."""

    def __init__(self, streams: list[RawStream], operation: Operation, body: bytes) -> None:
        self.by_stream = [0] * len(streams)
        self.answered_bytes = 0
        self.refused = 0
        self._streams, self._operation, self._body = streams, operation, body

    @property
    def asked_bytes(self) -> int:
        """Of requests that were answered."""
        return sum(self.by_stream) * len(self._body)

    async def go_on_for(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for number in range(len(self._streams)):
                    group.create_task(self._ask(number))
        for stream in self._streams:
            stream.close()

    async def _ask(self, number: int) -> None:
        stream, asked = self._streams[number], 0
        while True:
            asked += 1
            stream.ask(asked, self._operation, self._body)
            answer = await stream.answer(timeout_s=1000)
            if answer[2] != 0:
                assert orjson.loads(answer[3])["code"] == "QUOTA_EXCEEDED"
                self.refused += 1
                await pause(1_000)
                continue
            self.answered_bytes += len(answer[3])
            self.by_stream[number] += 1


def a_fetch(wait_ms: int = 0, max_bytes: int = 4_000_000) -> bytes:
    head = FETCH_HEADER.pack(wait_ms, max_bytes, 0, 1)
    return head + FETCH_QUEUE.pack(*FetchQueue(1, 0, 0, max_bytes))


@in_virtual_time
async def test_many_streams_of_a_user_together_send_what_its_quota_allows() -> None:
    rate, seconds, batch = 2_000_000, 60, a_batch(b"x" * 100_000)
    async with a_door_for_ana() as door:
        flood = Flood(await some_streams(door, STREAMS), Operation.PRODUCE, batch)
        limit(door, bytes_in_per_s=rate)
        await flood.go_on_for(seconds)

    assert flood.asked_bytes <= rate * seconds * 1.01 + rate + len(batch)
    assert flood.asked_bytes >= rate * seconds * 0.95, "and no less"
    assert not flood.refused
    assert max(flood.by_stream) - min(flood.by_stream) <= 1, "by turns"


@in_virtual_time
async def test_small_requests_of_many_streams_are_bound_too() -> None:
    rate, seconds, batch = 2_000_000, 30, a_batch(b"x" * 10_000)
    async with a_door_for_ana() as door:
        flood = Flood(await some_streams(door, STREAMS), Operation.PRODUCE, batch)
        limit(door, bytes_in_per_s=rate)
        await flood.go_on_for(seconds)

    assert flood.asked_bytes <= rate * seconds * 1.01 + rate + len(batch)
    assert flood.asked_bytes >= rate * seconds * 0.95, "and no less"
    assert not flood.refused


@in_virtual_time
async def test_many_streams_of_a_user_together_read_what_its_quota_allows() -> None:
    rate, seconds = 5_000_000, 60
    async with a_door_for_ana() as door:
        await a_full_queue(door)
        flood = Flood(await some_streams(door, STREAMS), Operation.FETCH, a_fetch())
        limit(door, bytes_out_per_s=rate)
        await flood.go_on_for(seconds)

    assert flood.answered_bytes <= rate * seconds * 1.01 + 2 * rate
    assert flood.answered_bytes >= rate * seconds * 0.9


@in_virtual_time
async def test_new_streams_get_nothing_that_the_user_may_not_have() -> None:
    """Who takes a new stream for each request takes no more than who keeps one."""
    rate, seconds, batch, answered = 100_000, 10, a_batch(b"x" * 100_000), 0
    async with a_door_for_ana() as door:
        streams = await some_streams(door, seconds * 10)
        limit(door, bytes_in_per_s=rate)
        for stream in streams:
            stream.ask(1, Operation.PRODUCE, batch)
            with suppress(TimeoutError):
                await stream.answer(timeout_s=0.1)
                answered += 1
            stream.close()

    assert answered * len(batch) <= rate * (seconds + 1) + len(batch)


@in_virtual_time
async def test_a_member_of_a_group_stays_one_while_other_streams_flood() -> None:
    rate, seconds, batch, longest_s = 1_000_000, 180, a_batch(b"x" * 1_000_000), 0.0
    async with a_door_for_ana() as door:
        await a_full_queue(door)
        flood = Flood(await some_streams(door, STREAMS), Operation.PRODUCE, batch)
        [stream] = await some_streams(door, 1)
        limit(door, bytes_in_per_s=rate)
        beat = {"group": "g", "client_id": "m", "topics": ["orders"], "owned": [], "generation": 0}

        async def be_a_member() -> None:
            nonlocal longest_s
            loop = asyncio.get_running_loop()
            while True:
                asked_at = loop.time()
                status, told = await stream.call("heartbeat", **beat)
                assert status == 0, told
                stream.ask(5, Operation.FETCH, a_fetch())
                assert (await stream.answer())[2] == 0
                longest_s = max(longest_s, loop.time() - asked_at)
                await pause(5_000)

        async with asyncio.TaskGroup() as group:
            member = group.create_task(be_a_member())
            await flood.go_on_for(seconds)
            told = await door.call("members", group="g")
            member.cancel()
        stream.close()

    assert [row["client_id"] for row in told["members"]] == ["m"]
    assert longest_s <= 2.5, "and its client hears something before it gives up"
    assert rate * seconds * 0.9 <= flood.asked_bytes <= rate * (seconds + 1) + len(batch)


@in_virtual_time
async def test_whatever_was_taken_a_stream_is_heard_before_its_client_gives_up() -> None:
    """Far more streams than the quota can serve: each has its turn, and no more."""
    body = orjson.dumps({"call": "members", "group": "g" * 100})
    async with a_door_for_ana() as door:
        flood = Flood(await some_streams(door, 50), Operation.CALL, body)
        limit(door, bytes_in_per_s=100, requests_per_s=1)
        await flood.go_on_for(20)

    assert min(flood.by_stream) >= 9, "a turn in 2 s"
    assert max(flood.by_stream) <= 8 * 11, "of eight requests"


@in_virtual_time
async def test_who_waits_goes_on_at_once_when_the_quota_is_taken_away() -> None:
    async with a_door_for_ana() as door:
        [stream] = await some_streams(door, 1)
        limit(door, bytes_in_per_s=1000)
        for number in range(3):
            stream.ask(number, Operation.PRODUCE, a_batch(b"x" * 1_000_000))
        assert (await stream.answer())[0] == 0
        await pause(2_000)
        [connection] = door.http._streams._connections
        assert connection._quota.is_waiting
        assert not connection._is_idle(), "it is not closed for being still"
        limit(door)
        assert [(await stream.answer(timeout_s=1))[0] for _ in range(2)] == [1, 2]
        stream.close()
        await pause(100)
        assert not door.http._streams.lines._lines, "nobody stands in line"


async def a_full_queue(door: Door) -> None:
    """4 MB in queue 0 of "orders"."""
    stream = await RawStream.open(door.port, bearer("root"))
    for number in range(40):
        stream.ask(number, Operation.PRODUCE, a_batch(b"x" * 100_000))
        await stream.answer()
    stream.close()
