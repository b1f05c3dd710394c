"""Processes that stand still and come back: a zombie master acknowledges nothing (R1, R2, R7, R12).

SIGSTOP is the honest test of fencing: no connection closes, the kernel goes on taking bytes for the
stopped process, and when it runs again it does not know that time has passed.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.process.harness import RunningCluster, eventually, running_cluster, the_master
from tests.process.load import (
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

from paceline.runtime import SystemClock

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

PAUSE_MS = 3_000
REPLICA_LAG_MS_MAX = 2_000
"""The broker's default: a silent member leaves the set after so long (R12)."""
LETTERS = 20


async def test_master_resumed_after_three_seconds_acknowledges_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data") as cluster:
        await create_topic(cluster, "letters")
        async with under_load(cluster, "orders") as load:
            await reach(load, 1_000)
            zombie = await the_master(cluster)
            letters = [await Letter.to(cluster, zombie, number) for number in range(LETTERS)]
            clock = SystemClock()
            resume_ms = clock.monotonic_ms() + PAUSE_MS
            with cluster.paused(zombie):
                for letter in letters[::2]:
                    letter.post()
                await a_later_epoch(load)
                for letter in letters[1::2]:
                    letter.post()
                await until(resume_ms)
            answers = [await letter.answer() for letter in letters]
            for letter in letters:
                await letter.close()
            await reach(load, load.count + 500)
            await all_in_sync(cluster)
        positions = await settled(cluster)
        stored = set((await pulled_everything(cluster, "letters")).values())

    acknowledged = [answer for answer in answers if answer is not None and answer[0] < 400]
    assert not acknowledged, f"the zombie acknowledged: {acknowledged[:3]}"
    for letter, answer in zip(letters, answers, strict=True):
        if answer is not None and answer[1]["definite"]:
            assert letter.body not in stored, "refused for certain, and stored"
    check_epochs(load)
    check_stored(cluster, positions, load)


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


class Letter:
    """One send over a connection of its own, made while the broker still ran."""

    def __init__(
        self, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.body = body
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, cluster: RunningCluster, name: str, number: int) -> "Letter":
        """Connected to the broker `name`, which has answered once."""
        host, _, port = cluster.node(name)["address"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        letter = cls(f"letter-{number}".encode(), reader, writer)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await letter.answer()
        assert answer is not None
        assert answer[0] == 200, answer
        return letter

    def post(self) -> None:
        """The kernel takes it, whether the broker runs or not."""
        content = orjson.dumps({"messages": [{"body": self.body.decode()}]})
        head = (
            "POST /v1/topics/letters/messages HTTP/1.1\r\nHost: x\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)

    async def answer(self) -> tuple[int, dict[str, Any]] | None:
        """Status and document; None if the broker closed the connection instead."""
        try:
            async with asyncio.timeout(15):
                head = await self._reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split()[0])
                document = orjson.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return int(head.split()[1]), document

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


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
