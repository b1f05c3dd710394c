"""R36: provisional offsets go to the next master as ordinary commits, over a real connection."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
from tests.support.askers import PROOFS
from tests.support.http.door import a_batch
from tests.support.service.fakes import GROUP, Bench, a_view
from tests.support.service.send import Answers

from paceline.platform.disk_memory import MemoryDisk
from paceline.platform.runtime import ManualClock
from paceline.platform.telemetry import Metrics
from paceline.security.node_tls import Dial
from paceline.types import ReplicaId
from paceline.wire.cluster import ClusterView, GroupView
from paceline_broker.acting.offsets_file import OffsetsFile
from paceline_broker.ports import Acting
from paceline_broker.projections.locks import Token
from paceline_broker.projections.offsets import CommitEntry
from paceline_broker.role.acting_handover import ActingHandover
from paceline_broker.server.http import BrokerHttp

KEY = 1 << 16
QUEUE = {"topic": "orders", "queue": 0}


class Successor:
    """The role of the broker that acted: now a replica of the master at `port`."""

    def __init__(self, port: int) -> None:
        view = a_view()
        group = view.groups[GROUP]
        master = replace(group.replicas[ReplicaId(1)], client_address=f"127.0.0.1:{port}")
        group = replace(group, replicas={**group.replicas, ReplicaId(1): master})
        self.view: ClusterView | None = replace(view, groups={GROUP: group})
        self.acting: Acting | None = None

    @property
    def group_view(self) -> GroupView | None:
        return None if self.view is None else self.view.groups[GROUP]


class Scene:
    """A master with ten messages, and the broker that acted before it."""

    def __init__(self, bench: Bench, port: int, http: aiohttp.ClientSession) -> None:
        self.bench = bench
        self.disk = MemoryDisk()
        self.disk.make_folder("/data")
        self.kept = OffsetsFile(self.disk, "/data")
        self.role = Successor(port)
        self.hand_over = ActingHandover(
            self.role, self.kept, http, ManualClock(), proofs=PROOFS, dial=Dial()
        )

    def keep(
        self, offset: int, *, generation: int = 0, token: Token | None = None, group_id: int = 0
    ) -> None:
        entry = CommitEntry(KEY, offset, token, generation)
        self.kept.offsets.commit("g", entry, None, now_unix_ms=1_700_000_000_000, group_id=group_id)

    def know(self, topics: list[str]) -> None:
        """The broker that acted has a newer view, with topics of these names by id, from 1 on."""
        assert self.role.view is not None
        topics_by_name = a_view(topics=dict.fromkeys(topics, 4)).topics
        self.role.view = replace(self.role.view, topics=topics_by_name)

    def committed(self) -> int | None:
        found = self.bench.role.projections.offsets.get("g", KEY)
        return None if found is None else found.offset

    async def commit(self, offset: int, *, reset: bool = False) -> None:
        rows = [{**QUEUE, "offset": offset}]
        await self.bench.call("commit", group="g", reset=reset, offsets=rows)

    async def lock(self, client_id: str) -> None:
        await self.bench.call("lock", group="g", client_id=client_id, queues=[QUEUE])


@asynccontextmanager
async def a_scene() -> AsyncIterator[Scene]:
    bench = Bench()
    bench.service.sender.send(a_batch(*[b"x"] * 10), Answers(), 0)
    bench.writer.confirm_all()
    metrics = Metrics(cluster="c", node_type="b", node_id="1")
    door = BrokerHttp(bench.service, metrics=metrics, proofs=PROOFS)
    http = aiohttp.ClientSession()
    port = await door.start("127.0.0.1", 0)
    try:
        yield Scene(bench, port, http)
    finally:
        await http.close()
        await door.close()
        await bench.service.close()


async def test_what_was_committed_meanwhile_is_there_and_kept_no_longer() -> None:
    async with a_scene() as scene:
        scene.keep(7)

        await scene.hand_over.hand_over()

        assert scene.committed() == 7
        assert len(scene.kept.offsets) == 0
        assert len(OffsetsFile(scene.disk, "/data").offsets) == 0


async def test_it_never_lowers_and_may_come_twice() -> None:
    async with a_scene() as scene:
        await scene.commit(9)

        for _ in range(2):
            scene.keep(7)
            await scene.hand_over.hand_over()

        assert scene.committed() == 9
        assert len(scene.kept.offsets) == 0


async def test_a_reset_since_then_wins() -> None:
    """R33: its generation is above the one that the consumer knew."""
    async with a_scene() as scene:
        await scene.commit(8)
        await scene.commit(2, reset=True)
        scene.keep(9)

        await scene.hand_over.hand_over()

        assert scene.committed() == 2
        assert len(scene.kept.offsets) == 0


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (["orders", "%RETRY%g"], 7),
        (["orders", "%RETRY%other", "%RETRY%g"], None),
        (["orders"], None),
    ],
    ids=["same", "made again", "deleted"],
)
async def test_what_a_group_committed_is_no_offset_of_the_next_one_of_its_name(
    topics: list[str], expected: int | None
) -> None:
    """R35: also days later, by a broker that was away when the group was deleted."""
    async with a_scene() as scene:
        scene.know(["orders", "%RETRY%g"])
        scene.keep(7, group_id=2)
        await scene.kept.save()
        scene.kept.offsets = OffsetsFile(scene.disk, "/data").offsets  # after a restart
        scene.know(topics)

        await scene.hand_over.hand_over()

        assert scene.committed() == expected
        assert len(scene.kept.offsets) == 0


async def test_an_offset_beyond_the_queue_is_decided_by_the_master() -> None:
    async with a_scene() as scene:
        scene.keep(1000)

        await scene.hand_over.hand_over()

        assert scene.committed() is None
        assert len(scene.kept.offsets) == 0


async def test_a_token_that_was_fenced_with_all_others_does_not_cost_the_offset() -> None:
    """An acting master took it (S34); another one granted locks, so no older token counts."""
    async with a_scene() as scene:
        scene.keep(7, token=Token.from_json([1, 1]))

        await scene.hand_over.hand_over()

        assert scene.committed() == 7


async def test_whoever_lost_the_lock_to_another_member_commits_nothing() -> None:
    """INV-11."""
    async with a_scene() as scene:
        await scene.lock("another")
        scene.keep(7, token=Token.from_json([1, 1]))

        await scene.hand_over.hand_over()

        assert scene.committed() is None
        assert len(scene.kept.offsets) == 0


async def test_without_a_master_or_its_answer_everything_is_kept() -> None:
    async with a_scene() as scene:
        scene.keep(7)
        scene.bench.role.become_replica()
        await scene.hand_over.hand_over()
        assert len(scene.kept.offsets) == 1

        scene.bench.role.become_acting(5)  # its provisional word would settle nothing
        await scene.hand_over.hand_over()
        assert len(scene.kept.offsets) == 1

        scene.bench.role.begin_epoch(6)
        await scene.hand_over.hand_over()
        assert scene.committed() == 7


async def test_an_acting_master_hands_nothing_over() -> None:
    async with a_scene() as scene:
        scene.keep(7)
        scene.role.acting = scene.bench.role.become_acting(5)

        await scene.hand_over.hand_over()

        assert len(scene.kept.offsets) == 1


async def test_a_topic_that_was_deleted_takes_its_offsets_along() -> None:
    async with a_scene() as scene:
        scene.keep(7)
        assert scene.role.view is not None
        scene.role.view = replace(scene.role.view, topics={})

        await scene.hand_over.hand_over()

        assert len(scene.kept.offsets) == 0
