"""Real processes: where groups stand when they are reset, deleted, or meet new queues; each across
a failover (R28, R33, R35)."""

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support.process.harness import RunningCluster, eventually, running_cluster, the_master

from paceline.admin.client import AdminClient
from paceline.consumer.push import PushConsumer, PushSettings
from paceline.errors import GroupNotFoundError
from paceline.message import Message, ReceivedMessage
from paceline.producer.producer import Producer

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

COUNT = 40
FAILOVER_MS = 20_000
"""Generous: these are about what is there afterwards."""


class Reader:
    """A member of group "audit" in this process, and what it was handed."""

    def __init__(self, cluster: RunningCluster, **settings: Any) -> None:
        self.seen: list[int] = []
        self.consumer = PushConsumer(
            cluster.bootstrap,
            group="audit",
            topics=["orders"],
            listener=self._listen,
            settings=PushSettings(commit_interval_ms=100, **settings),
        )

    async def _listen(self, message: ReceivedMessage) -> None:
        self.seen.append(int(message.body))

    async def has(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.seen) >= count

        await eventually(enough, within_ms=FAILOVER_MS, what=f"{count} messages")


async def store(cluster: RunningCluster, first: int, count: int) -> None:
    async with Producer(cluster.bootstrap) as producer:
        numbers = range(first, first + count)
        await producer.send_many([Message("orders", b"%d" % number) for number in numbers])


async def fail_over(cluster: RunningCluster) -> None:
    """The master dies, and there is another one."""
    before = await the_master(cluster)
    cluster.send_signal(before, signal.SIGKILL)

    async def other() -> bool:
        return await the_master(cluster) != before

    await eventually(other, within_ms=FAILOVER_MS, what="another master")


async def committed(admin: AdminClient) -> int:
    try:
        rows = await admin.consumer_groups.lag("audit")
    except GroupNotFoundError:
        return 0  # its member has only begun to join
    return sum(row["offset"] for row in rows if row["topic"] == "orders")


async def test_a_running_member_obeys_every_reset_before_and_after_failovers(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap, timeout_ms=FAILOVER_MS) as admin:
            await admin.topics.create("orders", queues=2)
            await store(cluster, 0, COUNT)
            reader = Reader(cluster, start="first")
            async with reader.consumer:
                await reader.has(COUNT)
                await admin.consumer_groups.reset_offsets("audit", "orders", to="first")
                await reader.has(2 * COUNT)
                await fail_over(cluster)
                await admin.consumer_groups.reset_offsets("audit", "orders", to="first")
                await reader.has(3 * COUNT)

                async def all_committed() -> bool:
                    return await committed(admin) == COUNT

                await eventually(all_committed, what="commits of the third time")

    assert sorted(reader.seen[:COUNT]) == list(range(COUNT))
    assert set(reader.seen[-COUNT:]) == set(range(COUNT))


async def test_a_group_that_was_deleted_begins_anew_also_at_the_next_master(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap, timeout_ms=FAILOVER_MS) as admin:
            await admin.topics.create("orders", queues=2)
            await admin.consumer_groups.create("audit")
            await store(cluster, 0, COUNT)
            before = Reader(cluster, start="first")
            async with before.consumer:
                await before.has(COUNT)
            assert await committed(admin) == COUNT
            await admin.consumer_groups.delete("audit")
            await admin.consumer_groups.create("audit")
            await fail_over(cluster)
            gone = await admin.consumer_groups.lag("audit")
            again = Reader(cluster, start="first")
            async with again.consumer:
                await again.has(COUNT)

    assert gone == []
    assert sorted(again.seen) == list(range(COUNT))


async def test_queues_that_come_while_a_group_is_stopped_are_read_whole_at_the_next_master(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap, timeout_ms=FAILOVER_MS) as admin:
            await admin.topics.create("orders", queues=1)
            await store(cluster, 0, COUNT)
            before = Reader(cluster, start="last")
            async with before.consumer:

                async def stands() -> bool:
                    return await committed(admin) == COUNT

                await eventually(stands, what="a group at the end of its queue")
            await admin.topics.alter("orders", read_queues=4, write_queues=4)
            await store(cluster, COUNT, COUNT)
            await fail_over(cluster)
            again = Reader(cluster, start="last")
            async with again.consumer:
                await again.has(COUNT)

    assert before.seen == []
    assert sorted(again.seen) == list(range(COUNT, 2 * COUNT))
