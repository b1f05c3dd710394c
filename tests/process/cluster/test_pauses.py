"""Processes that stand still and come back: a zombie master acknowledges nothing (R1, R2, R7, R12).

SIGSTOP is the honest test of fencing: no connection closes, the kernel goes on taking bytes for the
stopped process, and when it runs again it does not know that time has passed.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.process.harness import RunningCluster, eventually, running_cluster, the_master
from tests.support.process.load import (
    Load,
    all_in_sync,
    check_epochs,
    check_stored,
    create_topic,
    pulled_everything,
    reach,
    settled,
    under_load,
)
from tests.support.process.target import Wire, connected

from paceline.platform.runtime import SystemClock
from paceline.records.encode import encode_batch
from paceline.wire.stream import STATUS_OK, Operation, ProduceAnswer, encode_frame

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

PAUSE_MS = 3_000
REPLICA_LAG_MS_MAX = 2_000
"""The broker's default: a silent member leaves the set after so long (R12)."""
LETTERS = 20
IN_FLIGHT_MS = 300
"""What the replicas had said before they stopped is answered within this."""
SILENCE_MS = 800


async def test_master_resumed_after_three_seconds_acknowledges_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        topic_id = await create_topic(cluster, "letters")
        async with under_load(cluster, "orders") as load:
            await reach(load, 1_000)
            zombie = await the_master(cluster)
            async with letters_to(cluster, zombie, topic_id) as letters:
                resume_ms = SystemClock().monotonic_ms() + PAUSE_MS
                with cluster.paused(zombie):
                    for letter in letters[: LETTERS // 2]:
                        letter.post()
                    await a_later_epoch(load)
                    for letter in letters[LETTERS // 2 :]:
                        letter.post()
                    await until(resume_ms)
                answers = [await letter.answer() for letter in letters]
            taken = [answer for answer in answers if answer is not None and answer[0] < 400]
            assert not taken, f"the zombie acknowledged: {taken[:3]}"
            await reach(load, load.count + 500)
            await all_in_sync(cluster)
        positions = await settled(cluster)
        stored = set((await pulled_everything(cluster, "letters")).values())

    for letter, answer in zip(letters, answers, strict=True):
        if answer is not None and answer[1]["definite"]:
            assert letter.body not in stored, "refused for certain, and stored"
    check_epochs(load)
    check_stored(cluster, positions, load)


@pytest.mark.alone
async def test_paused_replica_leaves_the_set_and_comes_back(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 1_000)
            master = await the_master(cluster)
            replica = next(node["name"] for node in cluster.brokers() if node["name"] != master)
            clock = SystemClock()
            began_ms = clock.monotonic_ms()
            with cluster.paused(replica):
                await all_in_sync(cluster, members=2)
                await reach(load, load.count + 500)
                resumed_ms = clock.monotonic_ms()
            await all_in_sync(cluster)
            await reach(load, load.count + 500)
        positions = await settled(cluster)

    times = [entry.at_ms for entry in load.acknowledged if began_ms < entry.at_ms <= resumed_ms]
    assert load.gap_ms_max() < REPLICA_LAG_MS_MAX + 1_000
    assert len(times) >= 500
    assert {entry.epoch for entry in load.acknowledged} == {1}, "the master was fit throughout"
    check_stored(cluster, positions, load)


@pytest.mark.alone
async def test_nothing_is_acknowledged_without_the_replicas(tmp_path: Path) -> None:
    """R8, R11: nor lost, when the master then dies with a tail that only it has."""
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with under_load(cluster, "orders") as load:
            await reach(load, 1_000)
            master = await the_master(cluster)
            replicas = [node["name"] for node in cluster.brokers() if node["name"] != master]
            clock = SystemClock()
            with cluster.paused(replicas[0]), cluster.paused(replicas[1]):
                await until(clock.monotonic_ms() + IN_FLIGHT_MS)
                before = load.count
                await until(clock.monotonic_ms() + SILENCE_MS)
                assert load.count == before, "acknowledged by the master alone"
                cluster.send_signal(master, signal.SIGKILL)
            await reach(load, load.count + 1_000)
            await all_in_sync(cluster)
        positions = await settled(cluster)

    check_epochs(load)
    check_stored(cluster, positions, load)


class Letter:
    """One send over a connection of its own, made while the broker still ran.

    The even ones are streams: their frames are taken in the turn of the loop in which they are
    read, before a resumed broker has heard of anything else. The odd ones go as JSON.
    """

    def __init__(self, number: int, topic_id: int, wire: Wire) -> None:
        self.body = f"letter-{number}".encode()
        self._is_stream = number % 2 == 0
        self._topic_id = topic_id
        self._wire = wire

    async def open(self) -> None:
        """Have the broker accept the connection."""
        if self._is_stream:
            await self._wire.upgrade()
        else:
            self._wire.say(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await self.answer()
            assert answer is not None
            assert answer[0] == 200, answer

    def post(self) -> None:
        """The kernel takes it, whether the broker runs or not."""
        if self._is_stream:
            batch = encode_batch([self.body], born_unix_ms=1, topic_id=self._topic_id, queue_id=0)
            self._wire.say(encode_frame(1, Operation.PRODUCE, batch))
            return
        content = orjson.dumps({"messages": [{"body": self.body.decode()}]})
        head = (
            "POST /v1/topics/letters/messages HTTP/1.1\r\nHost: x\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._wire.say(head.encode() + content)

    async def answer(self) -> tuple[int, dict[str, Any]] | None:
        """Status and document; None if the broker closed the connection instead."""
        try:
            return await self._read()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _read(self) -> tuple[int, dict[str, Any]]:
        if self._is_stream:
            _, status, body = await self._wire.frame()
            if status == STATUS_OK:
                return 200, {"epoch": ProduceAnswer.unpack(body).master_epoch}
            problem = orjson.loads(body)
            return problem["status"], problem
        async with asyncio.timeout(10):
            head = await self._wire.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split()[0])
        return int(head.split()[1]), orjson.loads(await self._wire.hear(length))


@asynccontextmanager
async def letters_to(
    cluster: RunningCluster, name: str, topic_id: int
) -> AsyncIterator[list[Letter]]:
    """Opened letters to one broker."""
    address = cluster.node(name)["address"]
    async with AsyncExitStack() as stack:
        letters = [
            Letter(number, topic_id, await stack.enter_async_context(connected(address)))
            for number in range(LETTERS)
        ]
        for letter in letters:
            await letter.open()
        yield letters


async def a_later_epoch(load: Load) -> None:
    """Wait for the successor's first acknowledgement."""
    before = load.acknowledged[-1].epoch

    async def is_there() -> bool:
        return load.acknowledged[-1].epoch > before

    await eventually(is_there, what="an acknowledgement of the successor")


async def until(deadline_ms: int) -> None:
    """Wait for a point of the monotonic clock."""
    clock = SystemClock()

    async def is_reached() -> bool:
        return clock.monotonic_ms() >= deadline_ms

    await eventually(is_reached, what="the end of the pause")
