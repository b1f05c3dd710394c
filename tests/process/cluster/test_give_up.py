"""A broker alone with a damaged log: it stands still, and an operator gives the damage up (R24)."""

import signal
from pathlib import Path

import pytest
from tests.support.process.harness import (
    RunningCluster,
    broker_status,
    eventually,
    http_session,
    running_cluster,
    the_master,
)
from tests.support.process.load import SEGMENT_BYTES, all_in_sync

from paceline.admin.client import AdminClient
from paceline.consumer.pull import PullConsumer
from paceline.errors import CommandRefusedError, PacelineError
from paceline.message import Message
from paceline.platform.disk_real import RealDisk
from paceline.platform.runtime import SystemRandom
from paceline.producer.producer import Producer
from paceline.queues import QueueName
from paceline_broker.integrity.salvage import StoppedStore

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

COUNT, EARLY = 400, 50
BODIES = [b"%d" % number for number in range(COUNT)]


async def _stop(cluster: RunningCluster, name: str) -> Path:
    """Its data folder, which nobody holds for two seconds; its log's checkpoint is at the end."""
    pid = cluster.node(name)["pid"]
    cluster.send_signal(name, signal.SIGTERM)

    async def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    await eventually(is_gone, what=f"the end of {name}")
    return cluster.data_dir / name


def _flip_half_way(folder: Path) -> None:
    (segment,) = sorted((folder / "log").glob("*.log"))
    content = segment.read_bytes()
    at = len(content.rstrip(b"\0")) // 2
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(bytes([content[at] ^ 1]))


async def _fill(cluster: RunningCluster, admin: AdminClient) -> QueueName:
    """The one queue of a topic with `BODIES`, and a group that has committed twice."""
    await admin.topics.create("orders", queues=1)
    async with (
        Producer(cluster.bootstrap) as producer,
        PullConsumer(cluster.bootstrap) as consumer,
    ):
        (queue,) = await consumer.queues("orders")
        for number, body in enumerate(BODIES):
            await producer.send(Message("orders", body))
            if number in (EARLY, COUNT - 1):
                await consumer.commit("audit", {queue: number + 1})
    return queue


async def _is_ill(admin: AdminClient, address: str) -> None:
    """The broker stands still, and the leader elects it in no way."""

    async def is_damaged() -> bool:
        async with http_session() as session:
            status = await broker_status(session, address)
        return status is not None and status["care"]["damage"] is not None

    async def is_refused() -> bool:
        with pytest.raises(CommandRefusedError) as refused:
            await admin.broker_groups.elect("g1", preferred=1, unclean=True)
        return "replica 1 is unhealthy" in str(refused.value)

    await eventually(is_damaged, within_ms=30_000, what="the damage is found")
    await eventually(is_refused, what="the leader hears that it is ill, and elects nobody")


async def _elect(cluster: RunningCluster, admin: AdminClient) -> None:
    async def is_elected() -> bool:
        try:
            await admin.broker_groups.elect("g1", preferred=1, unclean=True)
        except PacelineError:
            return False
        return True

    await eventually(is_elected, within_ms=30_000, what="an unclean election")
    await all_in_sync(cluster, members=1)


async def test_a_lone_damaged_broker_leads_again_without_what_was_given_up(tmp_path: Path) -> None:
    with running_cluster(
        tmp_path / "data", "--brokers", "1", "--segment-size", str(SEGMENT_BYTES), restart=True
    ) as cluster:
        name = await the_master(cluster)
        async with AdminClient(cluster.bootstrap) as admin:
            queue = await _fill(cluster, admin)
            _flip_half_way(await _stop(cluster, name))
            await _is_ill(admin, cluster.node(name)["address"])

            store = StoppedStore(RealDisk(), str(await _stop(cluster, name)))
            store.give_up(SystemRandom())
            store.close()

            await _elect(cluster, admin)
            history = await admin.broker_groups.history("g1")
        async with (
            Producer(cluster.bootstrap) as producer,
            PullConsumer(cluster.bootstrap) as consumer,
        ):
            result = await producer.send(Message("orders", b"after"))
            stood = await consumer.committed("audit", [queue])
            await consumer.subscribe("orders")
            found: list[bytes] = []
            while len(found) <= result.queue_offset:
                found += [message.body for message in await consumer.poll()]

    kept = result.queue_offset
    assert EARLY < kept < COUNT
    assert found == [*BODIES[:kept], b"after"]
    assert stood[queue] == EARLY + 1, "the later commit was given up as well"
    lost = [entry for entry in history if entry["kind"] == "last_member_lost"]
    assert lost[-1]["reason"] == "other_store"  # R9; before, perhaps, its end below the floor (R16)
    elected = [entry for entry in history if entry["kind"] == "master_elected"]
    assert elected[-1]["is_unclean"]  # R21
