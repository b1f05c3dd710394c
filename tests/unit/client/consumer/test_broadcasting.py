"""Broadcasting: every member gets every message, from where its own file says."""

from typing import Any

import pytest
from tests.support.client.broadcasting import SETTINGS
from tests.support.client.consumers import eventually, fill
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.group.allocation import queues_for
from paceline.consumer.offsets.local_offsets import BACKUP, FILE, LocalOffsets
from paceline.consumer.offsets.start_positions import StartPosition
from paceline.consumer.push import PushConsumer
from paceline.consumer.queues.process_queue import ProcessQueue
from paceline.errors import BadNameError, ConfigError, CorruptLogError
from paceline.message import ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.ports import read_whole
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.platform.sealed import seal, unseal
from paceline.queues import QueueKey
from paceline.types import GroupName, QueueId, TopicId, TopicName
from paceline.wire.calls.groups import MemberRow
from paceline.wire.cluster import ClusterView, TopicView

FOLDER = "/home/offsets/default/audit"


class Member:
    """A consumer that notes what it gets; `disk` is its machine's."""

    def __init__(self, cluster: FakeCluster, disk: MemoryDisk, **more: Any) -> None:
        self.seen: list[int] = []
        fields = {"settings": SETTINGS, **more}
        self.consumer = PushConsumer(
            cluster.controller,
            group="audit",
            topics=["orders"],
            listener=self._listen,
            disk=disk,
            **fields,
        )

    async def _listen(self, message: ReceivedMessage) -> None:
        self.seen.append(int(message.body))


def content(disk: MemoryDisk, name: str) -> bytes:
    return read_whole(disk, f"{FOLDER}/{name}")


def offsets_in(disk: MemoryDisk, name: str = FILE) -> dict[tuple[int, str, int], int]:
    if not disk.exists(f"{FOLDER}/{name}"):
        return {}
    rows = unseal(content(disk, name))["offsets"]
    return {(topic_id, group, queue): offset for topic_id, group, queue, offset in rows}


def damage(disk: MemoryDisk, name: str) -> None:
    whole = content(disk, name)
    file = disk.open(f"{FOLDER}/{name}")
    disk.writev(file, [bytes([whole[10] ^ 1])], 10)
    file.close()


async def test_each_member_gets_all_messages_and_goes_on_where_its_own_file_says() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 3)
        await fill(cluster, 60)
        disk, other_disk = MemoryDisk(), MemoryDisk()
        first, other = Member(cluster, disk), Member(cluster, other_disk)
        async with first.consumer, other.consumer:
            await eventually(lambda: len(first.seen) == len(other.seen) == 60)
            assert len(first.consumer.queues) == len(other.consumer.queues) == 6
        await fill(cluster, 80, first=60)
        again = Member(cluster, disk)
        async with again.consumer:
            await eventually(lambda: len(again.seen) == 20)

    assert sorted(first.seen) == sorted(other.seen) == list(range(60))
    assert sorted(again.seen) == list(range(60, 80))
    assert cluster.logs["g1"].offsets == {}  # brokers keep nothing of it


async def test_the_file_is_written_while_the_member_runs() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        disk = MemoryDisk()
        member = Member(cluster, disk)
        async with member.consumer:
            await eventually(lambda: offsets_in(disk) == {(1, "g1", 0): 10})
            await fill(cluster, 15, first=10)
            await eventually(lambda: offsets_in(disk) == {(1, "g1", 0): 15})
            assert offsets_in(disk, BACKUP) == {(1, "g1", 0): 10}


async def test_what_a_cancelled_write_left_over_is_written_at_close() -> None:
    cluster, disk = Cluster("127.0.0.1:1"), MemoryDisk()
    offsets = LocalOffsets(
        cluster,
        GroupLinks(cluster),
        disk,
        folder="/home/offsets",
        client_id="default",
        group="audit",
        start=StartPosition("first"),
        timeout_ms=1_000,
        persist_interval_ms=0,
    )
    queue = ProcessQueue(QueueKey(TopicId(1), GroupName("g1"), QueueId(0)), 7, generation=0)
    try:
        await offsets.start()
        disk.sync_delay_ms = 60_000
        writing = spawn(offsets.commit([queue], lambda *_: None), name="commit")
        await eventually(lambda: disk.exists(f"{FOLDER}/.{FILE}.new"))
        await cancel_and_wait(writing)
        assert offsets_in(disk) == {}
        disk.sync_delay_ms = 0
        await offsets.close()
        assert offsets_in(disk) == {(1, "g1", 0): 7}
    finally:
        await cluster.close()


async def test_a_damaged_file_is_replaced_by_its_copy_which_repeats_but_skips_nothing() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        disk = MemoryDisk()
        member = Member(cluster, disk)
        async with member.consumer:
            await eventually(lambda: offsets_in(disk) == {(1, "g1", 0): 10})
            await fill(cluster, 15, first=10)
            await eventually(lambda: offsets_in(disk) == {(1, "g1", 0): 15})
        damage(disk, FILE)
        await fill(cluster, 16, first=15)

        again = Member(cluster, disk)
        async with again.consumer:
            await eventually(lambda: len(again.seen) == 6)

    assert sorted(again.seen) == list(range(10, 16))


async def test_a_file_and_a_copy_that_are_damaged_are_told_of_with_what_to_do() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 10)
        disk = MemoryDisk()
        member = Member(cluster, disk)
        async with member.consumer:
            await eventually(lambda: offsets_in(disk) == {(1, "g1", 0): 10})
            await fill(cluster, 15, first=10)
            await eventually(lambda: offsets_in(disk) == {(1, "g1", 0): 15})
        damage(disk, FILE)
        damage(disk, BACKUP)

        with pytest.raises(CorruptLogError, match=r"default/audit/offsets\.json .* delete both"):
            await Member(cluster, disk).consumer.__aenter__()


async def test_two_members_never_share_a_file() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        disk = MemoryDisk()
        async with Member(cluster, disk).consumer:
            with pytest.raises(ConfigError, match="a client_id of its own"):
                await Member(cluster, disk).consumer.__aenter__()
            async with Member(cluster, disk, client_id="another/one").consumer:
                pass
        assert disk.exists("/home/offsets/another%2Fone/audit/LOCK")


async def test_a_client_id_cannot_lead_out_of_the_folder() -> None:
    async with FakeCluster() as cluster:
        with pytest.raises(BadNameError, match="more than dots"):
            Member(cluster, MemoryDisk(), client_id="..")


async def test_offsets_of_another_cluster_are_refused() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        disk = MemoryDisk()
        disk.make_folder(FOLDER)
        file = disk.open(f"{FOLDER}/{FILE}", create=True)
        document = {"version": 1, "cluster_id": "elsewhere", "offsets": [[1, "g1", 0, 5]]}
        disk.writev(file, [seal(document)], 0)
        file.close()

        with pytest.raises(ConfigError, match="offsets of cluster elsewhere"):
            await Member(cluster, disk).consumer.__aenter__()


async def test_a_member_goes_on_through_a_failover_and_takes_new_queues() -> None:
    async with FakeCluster(groups=1) as cluster:
        cluster.add_topic("orders", 2)
        await fill(cluster, 10)
        member = Member(cluster, MemoryDisk())
        async with member.consumer:
            await eventually(lambda: len(member.seen) == 10)
            cluster.brokers[("g1", 1)].kill()
            cluster.elect("g1", 2)
            await fill(cluster, 20, first=10)
            await eventually(lambda: len(member.seen) == 20)

    assert sorted(member.seen) == list(range(20))


def test_broadcasting_members_take_no_share_of_a_group_that_shares() -> None:
    topic = TopicView(topic=TopicName("orders"), topic_id=TopicId(1), queues={GroupName("g1"): 2})
    view = ClusterView(cluster_id="c", version=1, topics={topic.topic: topic})
    members = [
        MemberRow(client_id="a", topics=["orders"], owned=[], message_model="broadcasting"),
        MemberRow(client_id="b", topics=["orders"], owned=[], message_model="clustering"),
    ]

    assert len(queues_for(view, members, "b")) == 2
