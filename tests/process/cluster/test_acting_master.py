"""R36 on real processes, with what a user of RocketMQ expects of a slave acting as master.

Members are frozen, not killed: the set shrinks to two, both freeze, the third is alone and lives.
"""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from tests.support.process.harness import (
    RunningCluster,
    broker_statuses,
    eventually,
    http_session,
    paceline_command,
    running_cluster,
    the_master,
)

from paceline.admin.client import AdminClient
from paceline.consumer.pull import PullConsumer
from paceline.message import Message
from paceline.net.cluster import Cluster
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.queues import QueueName

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

TOPIC, GROUP = "orders", "billing"
LEASE_MS = 1_000


async def sent(producer: Producer, first: int, count: int) -> None:
    for number in range(first, first + count):
        await producer.send(Message(TOPIC, b"%d" % number))


async def set_of(cluster: RunningCluster) -> set[int]:
    """The sync state set, as the controllers have it."""
    async with http_session() as http, http.get(f"http://{cluster.bootstrap[0]}/v1/groups/g1") as a:
        found: dict[str, Any] = orjson.loads(await a.read())
    return set(found["sync_state_set"])


async def acting_of(cluster: RunningCluster) -> dict[str, Any] | None:
    for node, status in await broker_statuses(cluster):
        if status is not None and status["role"] == "acting_master":
            return {**node, **status}
    return None


@contextlib.asynccontextmanager
async def only_one_left(cluster: RunningCluster, producer: Producer) -> AsyncIterator[str]:
    """The third broker, out of the set when the last messages came, alone; and its name."""
    master = await the_master(cluster)
    third = next(node["name"] for node in reversed(cluster.brokers()) if node["name"] != master)
    with contextlib.ExitStack() as others:
        with cluster.paused(third):

            async def has_left() -> bool:
                return len(await set_of(cluster)) == 2

            await eventually(has_left, what="a set of two")
            await sent(producer, 20, 5)
            for node in cluster.brokers():
                if node["name"] != third:
                    others.enter_context(cluster.paused(node["name"]))
        yield third


async def posted(http: aiohttp.ClientSession, url: str, document: Any) -> tuple[int, Any]:
    async with http.post(url, json=document) as answer:
        return answer.status, orjson.loads(await answer.read())


async def test_reads_offsets_and_locks_go_on_and_sends_wait_for_a_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_BROKER_LOCK_LEASE_MS", str(LEASE_MS))
    with running_cluster(tmp_path / "data") as up:
        bootstrap = ",".join(up.bootstrap)
        patient = ProducerSettings(delivery_timeout_ms=60_000)
        async with AdminClient(bootstrap) as admin:
            await admin.topics.create(TOPIC, queues=1)
        cluster = Cluster(bootstrap)
        producer = Producer(cluster, settings=patient)
        consumer = PullConsumer(cluster)
        try:
            await producer.start()
            await consumer.start()
            await sent(producer, 0, 20)
            [queue] = await consumer.queues(TOPIC)
            await consumer.commit(GROUP, {queue: 5})
            async with only_one_left(up, producer) as third:
                acting = await eventually(lambda: acting_of(up), what="an acting master")
                assert acting["name"] == third
                await reads_go_on(acting, consumer, queue)
                await sends_are_refused(acting)
                await locks_can_be_had(acting)
                status_tells(bootstrap, acting)
                waiting = asyncio.gather(sent(producer, 25, 1))
            await the_master(up)
            await waiting  # within its delivery timeout
            await nothing_was_lost(consumer, queue)
        finally:
            await producer.close()
            await consumer.close()
            await cluster.close()


async def reads_go_on(acting: dict[str, Any], consumer: PullConsumer, queue: QueueName) -> None:
    await consumer.assign({queue: 5})
    read: list[bytes] = []

    async def has_all() -> bool:
        read.extend(message.body for message in await consumer.poll())
        return len(read) >= 15

    await eventually(has_all, what="what the acting master has")
    assert read == [b"%d" % number for number in range(5, 5 + len(read))]
    assert await consumer.commit(GROUP, {queue: 12}) == {"g1"}
    committed = await consumer.committed(GROUP, [queue])
    assert committed[queue] == 12
    assert committed.stale_groups == {"g1"}
    ranges = await consumer.ranges([queue])
    # What the old master pushed into the pipe of the stopped one is there when it wakes, or not.
    end = ranges[queue].end
    assert 20 <= end <= 25
    assert ranges[queue].maybe_stale
    async with (
        http_session() as http,
        http.get(
            f"http://{acting['address']}/v1/topics/{TOPIC}/queues/0/messages?offset=18"
        ) as answer,
    ):
        document = orjson.loads(await answer.read())
    assert (document["acting"], document["maybe_stale"]) == (True, True)
    assert len(document["messages"]) == end - 18


async def sends_are_refused(acting: dict[str, Any]) -> None:
    async with http_session() as http:
        status, problem = await posted(
            http,
            f"http://{acting['address']}/v1/topics/{TOPIC}/messages",
            {"messages": [{"body": "x"}]},
        )
    assert (status, problem["code"], problem["definite"]) == (503, "NO_MASTER", True)


async def locks_can_be_had(acting: dict[str, Any]) -> None:
    asked = {"client_id": "c", "queues": [{"topic": TOPIC, "queue": 0}], "lease_ms": LEASE_MS}
    async with http_session() as http:

        async def granted() -> Any:
            url = f"http://{acting['address']}/v1/groups/{GROUP}/locks"
            status, answer = await posted(http, url, asked)
            if status != 200:
                assert answer["code"] == "NOT_YET_AVAILABLE"
                return None
            return answer["queues"][0]["token"]

        token = await eventually(granted, what="a lock of the acting master")
    assert token[0] == acting["epoch"]


def status_tells(bootstrap: str, acting: dict[str, Any]) -> None:
    finished = subprocess.run(
        paceline_command("cluster", "status", "--bootstrap", bootstrap, "--json"),
        capture_output=True,
        check=False,
        timeout=30,
    )
    [group] = orjson.loads(finished.stdout)["groups"]
    assert (group["master"], group["acting"]) == (None, acting["replica_id"])
    assert finished.returncode == 1  # no master takes messages


async def nothing_was_lost(consumer: PullConsumer, queue: QueueName) -> None:
    async def is_handed_over() -> bool:
        committed = await consumer.committed(GROUP, [queue])
        return committed[queue] == 12 and not committed.stale_groups

    await eventually(is_handed_over, what="the offset that was committed meanwhile")
    ranges = await consumer.ranges([queue])
    assert (ranges[queue].end, ranges[queue].maybe_stale) == (26, False)
