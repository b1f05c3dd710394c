"""Retention on a real store: decided by the master, carried out once confirmed (R14, R26, R29)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.broker.brokers import CLUSTER, DATA, GROUP, Broker, a_group, eventually
from tests.support.broker.cleaner import HOUR_MS, Bench
from tests.support.broker.mastership import a_master_alone
from tests.support.projections.logs import a_header

from paceline.errors import DiskFullError
from paceline.platform.runtime import SeededRandom
from paceline.platform.telemetry import Metrics
from paceline.records.header import Kind
from paceline.server.byte_budget import ByteBudget
from paceline.types import PhysicalOffset
from paceline.wire.cluster import ClusterView
from paceline_broker.metrics.disk import register_disk
from paceline_broker.ports import RoleState
from paceline_broker.projections.offsets import CommitEntry, CommitRequest
from paceline_broker.projections.pins import PinRequest
from paceline_broker.projections.projections import TopicRecord
from paceline_broker.service.long_work import LongWork
from paceline_broker.service.queries.queries import Finder, Range
from paceline_broker.service.queries.queries import everything as all_messages


@asynccontextmanager
async def a_bench(**settings: Any) -> AsyncIterator[Bench]:
    broker = Broker()
    async with broker.running():
        await a_master_alone(broker)
        yield Bench(broker, **settings)


def _records(bench: Bench, kind: Kind) -> int:
    return sum(header.kind == kind for header, _ in bench.log.batches(bench.log.start))


async def test_old_segments_go_and_queues_begin_above_them() -> None:
    async with a_bench(file_reserved_time_ms=1000) as bench:
        await bench.fill()
        assert len(bench.files) > 4
        await bench.checkpoint()

        await bench.clean()

        assert len(bench.files) <= 2
        assert bench.log.start > 0
        queue = bench.role.projections.consume_queues.get(1 << 16)
        assert queue is not None
        span = queue.span(queue.start, confirm=bench.log.confirm, max_bytes=1, is_first=True)
        assert span is not None
        assert bench.log.start <= span.runs[0].position
        assert 0 < queue.start < queue.end == 40
        assert bench.store.positions()["log_start"] == bench.role.projections.log_start


async def test_a_search_goes_on_above_what_retention_has_taken() -> None:
    """Also from a place below: who follows the audit may be slower than retention."""
    async with a_bench(file_reserved_time_ms=1000) as bench:
        await bench.fill()
        await bench.checkpoint()
        finder = Finder(bench.role, LongWork(ByteBudget()))
        everything = Range(0, 1 << 60, range(1), 0)
        before, _ = await finder.search(1, everything, all_messages(), count_max=100)

        await bench.clean()

        left, _ = await finder.search(1, everything, all_messages(), count_max=100)
        below, _ = await finder.search(
            1, everything._replace(first_offset=3), all_messages(), count_max=100
        )
        queue = bench.role.projections.consume_queues.get(1 << 16)
    assert queue is not None
    assert [row["offset"] for row in before] == list(range(40))
    assert 3 < queue.start < 40
    assert [row["offset"] for row in left] == list(range(queue.start, 40))
    assert below == left


async def test_a_restart_folds_from_a_checkpoint_above_the_start() -> None:
    """R14, INV-9."""
    async with a_bench(file_reserved_time_ms=1000) as bench:
        await bench.fill()
        await bench.checkpoint()
        await bench.clean()
        await bench.checkpoint()
        state, start = bench.role.projections.snapshot(), bench.log.start
        position = bench.role.projections.position
    bench.store.close(clean=True)

    again = Broker(disk=bench.broker.disk)
    assert again.store.log.start == start
    again.store.fold_to(position)
    assert again.store.projections.snapshot() == state


async def test_a_killed_broker_starts_from_a_checkpoint_above_the_confirm_it_wrote_down() -> None:
    """R13: a checkpoint is of what was confirmed then, however late the log's own mark is."""
    async with a_bench(file_reserved_time_ms=1000) as bench:
        await bench.fill()
        await bench.checkpoint()
        await bench.clean()
        for _ in range(2):
            await bench.fill(3)
            await bench.checkpoint()
        position = bench.store.checkpointed
        assert bench.log.checkpointed.confirm < bench.store.checkpointed
    bench.broker.disk.crash(SeededRandom("kill"), keep_page_cache=True)

    again = Broker(disk=bench.broker.disk).store

    assert again.log.start > 0
    assert again.log.confirm >= again.checkpointed == position


async def test_nothing_goes_before_a_durable_checkpoint_or_the_record_is_confirmed() -> None:
    """R14, R26."""
    async with a_bench(file_reserved_time_ms=1000) as bench:
        await bench.fill()
        bench.cleaner.clean()
        assert _records(bench, Kind.RETENTION) == 0, "no checkpoint: nothing may be given up"
        await bench.checkpoint()
        files = bench.files

        bench.cleaner.clean()
        queue = bench.role.projections.consume_queues.get(1 << 16)
        assert queue is not None
        assert bench.role.projections.log_start > 0
        assert queue.start == 0, "the record is not confirmed: nobody is shown its start (INV-8)"
        bench.store.let_segments_go()
        assert bench.log.drop_wanted is None
        await eventually(lambda: bench.log.confirm == bench.log.end == bench.log.flushed)
        assert queue.start > 0
        bench.store.let_segments_go()
        assert bench.log.drop_wanted is None, "the state that knows the record is not durable yet"
        assert bench.files == files


@pytest.mark.parametrize("skew_ms", [-6000, 6000, 100 * HOUR_MS])
async def test_a_master_whose_clock_differs_gives_up_nothing(skew_ms: int) -> None:
    """R29: neither messages nor producers."""
    async with a_bench(file_reserved_time_ms=1000, log_size_bytes_max=1) as bench:
        await bench.fill()
        await bench.checkpoint()
        bench.agree(skew_ms=skew_ms)

        bench.cleaner.clean()

        assert bench.role.projections.log_start == 0
        bench.agree()
        bench.cleaner.clean()
        assert bench.role.projections.log_start > 0


async def test_log_time_that_is_ahead_is_not_the_present() -> None:
    """R29: a master with a clock ahead left log time a week ahead; its successor is not misled."""
    async with a_bench() as bench:
        await bench.fill()
        await bench.checkpoint()
        bench.role.projections.log_time_ms += 7 * 24 * HOUR_MS

        bench.cleaner.clean()

        assert bench.role.projections.log_start == 0


async def test_a_pin_holds_what_is_old() -> None:
    async with a_bench(file_reserved_time_ms=1000) as bench:
        await bench.fill()
        await bench.checkpoint()
        pin = PinRequest(owner="export", position=int(bench.log.start), lease_ms=2 * HOUR_MS)
        projections = bench.role.projections
        bench.broker.mastership.appender.record(
            Kind.PIN,
            pin.to_json(),
            store_unix_ms=projections.log_time_ms,
        )

        bench.cleaner.clean()
        assert projections.log_start == 0
        bench.clock.advance(3 * HOUR_MS)
        bench.agree()
        bench.cleaner.clean()

        assert projections.log_start > 0
        assert projections.pins.get("export") is None


async def test_a_full_disk_refuses_sends_and_takes_what_frees_it() -> None:
    """R26: one segment of room is kept for the records that make more."""
    async with a_bench(clean_resource_interval_ms=100) as bench:
        await bench.fill()
        await bench.checkpoint()
        metrics = Metrics(cluster="c", node_type="broker", node_id="b1")
        register_disk(metrics, bench.cleaner, bench.store)
        used = bench.broker.disk.space(DATA)
        bench.broker.disk.capacity_bytes = used.total_bytes - used.free_bytes + 64 * 1024
        bench.cleaner.look_at_disk()

        told = metrics.exposition()[0].decode()
        assert "paceline_disk_is_full 1.0" in told
        assert f"paceline_disk_free_bytes {float(64 * 1024)}" in told
        with pytest.raises(DiskFullError, match="nothing was stored") as refused:
            bench.broker.mastership.ensure_can_append()
        assert refused.value.is_definite
        assert not bench.role.is_healthy(), "a member with room takes over"
        files = len(bench.files)
        await bench.clean()

        assert len(bench.files) < files
        for _ in range(4):
            await bench.clean()
        bench.broker.disk.capacity_bytes = None
        bench.cleaner.look_at_disk()
        bench.broker.mastership.ensure_can_append()
        assert bench.role.is_healthy()
        assert "paceline_disk_is_full 0.0" in metrics.exposition()[0].decode()


async def test_a_deleted_topic_takes_all_that_hangs_on_it_by_one_record() -> None:
    """R35: logged once; what is newer than the view, or still there, stays."""
    async with a_bench() as bench:
        projections, writer = bench.role.projections, bench.broker.mastership
        for topic_id in (1, 2, 3):
            record = TopicRecord(topic=f"t{topic_id}", topic_id=topic_id, queues=1)
            now_ms = projections.log_time_ms
            writer.appender.record(Kind.TOPIC, record.to_json(), store_unix_ms=now_ms)
        await bench.fill(3)
        commit = CommitRequest(
            group="g", is_reset=True, entries=(CommitEntry(key=1 << 16, offset=2),)
        )
        writer.appender.record(
            Kind.OFFSET_COMMIT,
            commit.to_json(),
            store_unix_ms=projections.log_time_ms,
        )
        bench.know({"t1": 1, "t2": 2})
        bench.cleaner.forget_deleted_topics()
        assert sorted(projections.topics) == [1, 2, 3], "3 is newer than the view"

        bench.know({"t2": 2})
        for _ in range(2):
            bench.cleaner.forget_deleted_topics()
        bench.know({"t2": 2, "t4": 4})
        bench.cleaner.forget_deleted_topics()

        assert sorted(projections.topics) == [2]
        assert projections.consume_queues.get(1 << 16) is None
        assert projections.offsets.get("g", 1 << 16) is None
        await eventually(lambda: bench.log.confirm == bench.log.end)
        assert _records(bench, Kind.TOPIC) == 3 + 2
        state, position = projections.snapshot(), projections.position
    bench.store.close(clean=True)

    again = Broker(disk=bench.broker.disk).store
    again.fold_to(position)
    assert again.projections.snapshot() == state, "every replica folds the same (INV-9)"


async def test_many_deleted_topics_go_in_several_turns() -> None:
    """R35: each costs time, and while the loop is held nobody is served."""
    async with a_bench() as bench:
        projections, writer = bench.role.projections, bench.broker.mastership
        for topic_id in range(1, 21):
            record = TopicRecord(topic=f"t{topic_id}", topic_id=topic_id, queues=1)
            now_ms = projections.log_time_ms
            writer.appender.record(Kind.TOPIC, record.to_json(), store_unix_ms=now_ms)
        await bench.fill(1)
        bench.know({"t20": 20})
        for left in (12, 4, 1):
            assert bench.cleaner.forget_deleted_topics() is (left > 1)
            assert len(projections.topics) == left
        assert sorted(projections.topics) == [20]
    bench.store.close(clean=True)


async def test_a_view_of_another_epoch_forgets_no_topic() -> None:
    """R35: the next master could be told of it later than this one, and take messages meanwhile."""
    async with a_bench() as bench:
        await bench.fill(1)
        projections, writer = bench.role.projections, bench.broker.mastership
        record = TopicRecord(topic="t1", topic_id=1, queues=1).to_json()
        now_ms = projections.log_time_ms
        writer.appender.record(Kind.TOPIC, record, store_unix_ms=now_ms)
        bench.know({"t1": 1})
        group = a_group(bench.broker, epoch=5)
        view = ClusterView(cluster_id=CLUSTER, version=9, groups={GROUP: group})
        bench.role.view_arrived(view)
        bench.routes.apply(view)

        bench.cleaner.forget_deleted_topics()

        assert list(projections.topics) == [1]


async def test_a_replica_decides_nothing() -> None:
    """R26: the master's record, and nothing else, moves the start."""
    async with a_bench(file_reserved_time_ms=1000) as bench:
        await bench.fill()
        await bench.checkpoint()
        bench.broker.mastership.term.fail("the test ends it")
        assert bench.role.state is RoleState.FENCED

        bench.cleaner.clean()

        assert bench.role.projections.log_start == 0
        assert bench.log.drop_wanted is None
        assert bench.log.start == PhysicalOffset(0)


@pytest.mark.parametrize(("count", "left"), [(2, 2), (3, 0)])
async def test_where_there_are_many_producers_silent_ones_are_forgotten_sooner(
    count: int, left: int
) -> None:
    """R31: half of what may be remembered is 2 here; they have been silent for an hour less 1 s."""
    async with a_bench() as bench:
        producers = bench.role.projections.producers
        last_ms = bench.clock.unix_ms() - HOUR_MS + 1000
        for name in range(count):
            producers.add(1 << 16, a_header(sequence=0, producer_id=name), 0, last_ms)

        bench.cleaner.forget_silent_producers()

        assert len(producers) == left
