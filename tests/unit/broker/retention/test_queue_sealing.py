"""Sealing on a real store: a queue that moves is sealed, then reported, never the other way."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.broker.brokers import CLUSTER, GROUP, Broker, a_group, eventually, tell
from tests.support.broker.mastership import a_master_alone

from paceline.errors import PeerError
from paceline.platform.runtime import ManualClock, SeededRandom, SystemClock, cancel_and_wait, spawn
from paceline.records.header import Kind
from paceline.types import GroupName, QueueId, TopicId, TopicName
from paceline.wire import session as wire
from paceline.wire.cluster import ClusterView, TopicView
from paceline.wire.static_topics import LogicalQueue, Segment
from paceline_broker.ports import RoleState
from paceline_broker.projections.seals import Seal
from paceline_broker.retention.queue_sealing import Sealing, is_to_report
from paceline_broker.service.routes import Routes

OTHER = GroupName("g2")
KEY = 1 << 16


def segment(generation: int = 0, **changes: Any) -> Segment:
    arguments = {"group": GROUP, "queue_id": QueueId(0), "start": 0, **changes}
    return Segment(generation=generation, **arguments)


OPEN = LogicalQueue(segments=(segment(),))
MOVING = LogicalQueue(segments=(segment(),), moving_to=OTHER)


def moved(end: int) -> LogicalQueue:
    following = segment(1, group=OTHER, start=end)
    return LogicalQueue(segments=(segment(end=end), following))


class Bench:
    """An open master alone with its set, and what seals its queues."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.role = broker.role
        self.routes = Routes(GROUP)
        self.failures: list[Exception] = []
        self.sealing = Sealing(
            role=broker.role,
            routes=self.routes,
            clock=ManualClock(unix_ms=SystemClock().unix_ms()),
            group=GROUP,
            request=self._request,
        )

    async def _request(self, command: wire.BrokerCommand) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop()
        return await self.broker.controllers.request(command)

    def know(self, *queues: LogicalQueue) -> None:
        """A newer view, with one static topic."""
        topic = TopicView(
            topic=TopicName("t"), topic_id=TopicId(1), queues={GROUP: 3}, logical_queues=queues
        )
        topics = {topic.topic: topic} if queues else {}
        version = self.routes.version + 1
        self.routes.apply(ClusterView(cluster_id=CLUSTER, version=version, topics=topics))

    @property
    def seals(self) -> dict[int, Seal]:
        return self.role.projections.seals.by_key

    @property
    def reports(self) -> list[wire.QueueSealed]:
        return [
            command
            for command in self.broker.controllers.requests
            if isinstance(command, wire.QueueSealed)
        ]

    async def confirmed(self) -> None:
        await eventually(lambda: self.broker.store.log.confirm == self.broker.store.log.end)


@asynccontextmanager
async def a_bench() -> AsyncIterator[Bench]:
    broker = Broker()
    async with broker.running():
        await a_master_alone(broker)
        yield Bench(broker)


async def test_a_queue_that_moves_is_sealed_once_at_its_end() -> None:
    async with a_bench() as bench:
        for _ in range(3):
            bench.broker.send()
        bench.know(OPEN)
        bench.sealing.seal()
        assert not bench.seals

        bench.know(MOVING)
        bench.sealing.seal()
        end = bench.broker.mastership.end
        bench.sealing.seal()

        assert bench.seals == {KEY: Seal(3, end)}
        assert bench.broker.mastership.end == end


async def test_the_seal_is_told_only_once_it_is_confirmed() -> None:
    """R28: a seal that a failover loses would let the queue grow beyond the next one's start."""
    async with a_bench() as bench:
        bench.broker.send()
        await bench.confirmed()
        bench.know(MOVING)

        bench.sealing.seal()
        await bench.sealing.report()  # nothing of this turn is on the disk yet
        assert not bench.reports

        await bench.confirmed()
        await bench.sealing.report()
        term = bench.broker.mastership.term
        assert bench.reports == [
            wire.QueueSealed(
                group=GROUP,
                master=term.replica_id,
                master_incarnation=term.incarnation,
                master_epoch=bench.broker.mastership.epoch,
                confirm=bench.broker.store.log.confirm,
                topic_id=1,
                logical_queue=0,
                generation=0,
                end=1,
            )
        ]


async def test_it_is_told_until_the_view_shows_it() -> None:
    async with a_bench() as bench:
        bench.broker.send()
        bench.know(MOVING)
        bench.sealing.seal()
        await bench.confirmed()

        bench.failures.append(PeerError("the session broke"))
        await bench.sealing.report()
        assert not bench.reports
        bench.broker.controllers.result = {"ok": False, "reason": "STALE_MASTER_EPOCH"}
        await bench.sealing.report()
        await bench.sealing.report()
        assert len(bench.reports) == 2

        bench.know(moved(1))
        await bench.sealing.report()
        assert len(bench.reports) == 2


async def test_a_later_master_reports_what_an_earlier_one_sealed() -> None:
    async with a_bench() as bench:
        bench.broker.send()
        bench.know(MOVING)
        bench.sealing.seal()
        await bench.confirmed()
        disk = bench.broker.disk
    disk.crash(SeededRandom("power"), keep_page_cache=False)
    later = Broker(disk=disk)
    async with later.running():
        alone = a_group(later, minimum=1, sync_state_set=frozenset({1}), epoch=9)
        tell(alone, 9, later)
        await eventually(lambda: later.role.state is RoleState.MASTER and later.mastership.is_open)
        bench = Bench(later)
        end = later.mastership.end
        bench.know(MOVING)
        bench.sealing.seal()
        await bench.sealing.report()

        assert later.mastership.end == end
        assert [report.end for report in bench.reports] == [1]


async def test_what_an_unclean_election_lost_is_sealed_and_told_again() -> None:
    """R21: the view shows a longer queue than there is; who reads it would wait for ever."""
    async with a_bench() as bench:
        bench.broker.send()
        bench.know(moved(9))
        bench.sealing.seal()
        await bench.confirmed()

        await bench.sealing.report()

        assert [report.end for report in bench.reports] == [1]


async def test_nobody_but_an_open_master_with_a_view_of_its_epoch_seals() -> None:
    async with a_bench() as bench:
        bench.know(MOVING)
        bench.broker.mastership.drain()
        bench.sealing.seal()
        assert not bench.seals
        bench.broker.mastership.resume()

        other = a_group(bench.broker, master=2, sync_state_set=frozenset({1, 2}), epoch=9)
        bench.broker.role.view_arrived(
            ClusterView(cluster_id=CLUSTER, version=9, groups={GROUP: other})
        )
        await eventually(lambda: bench.role.state is not RoleState.MASTER)
        bench.sealing.seal()
        await bench.sealing.report()
        assert not bench.seals
        assert not bench.reports


async def test_a_deleted_topic_is_neither_sealed_nor_told_of() -> None:
    async with a_bench() as bench:
        bench.know(MOVING)
        bench.sealing.seal()
        await bench.confirmed()
        bench.know()

        bench.sealing.seal()
        await bench.sealing.report()

        assert not bench.reports


async def test_many_queues_are_sealed_by_few_records(monkeypatch: Any) -> None:
    monkeypatch.setattr("paceline_broker.retention.queue_sealing.SEALS_PER_RECORD_MAX", 2)
    async with a_bench() as bench:
        queues = [
            LogicalQueue(segments=(segment(queue_id=QueueId(number)),), moving_to=OTHER)
            for number in range(3)
        ]
        bench.know(*queues)
        running = spawn(bench.sealing.run(), name="sealing")

        await eventually(lambda: len({report.logical_queue for report in bench.reports}) == 3)
        await cancel_and_wait(running)

        log = bench.broker.store.log
        records = sum(header.kind == Kind.OPERATION for header, _ in log.batches(log.start))
        assert records == 2


def test_a_report_needs_the_records_confirm_and_something_new() -> None:
    seal = Seal(7, 100)

    assert not is_to_report(segment(), seal, 99)
    assert is_to_report(segment(), seal, 100)
    assert not is_to_report(segment(start=10, end=17), seal, 100)
    assert is_to_report(segment(start=10, end=18), seal, 100)
