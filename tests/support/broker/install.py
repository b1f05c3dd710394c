"""What tests of install share with others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.support.broker.brokers import Broker, a_group, eventually, tell
from tests.support.broker.cleaner import Bench

from paceline.wire.cluster import GroupView
from paceline_broker.ports import RoleState

ALONE = frozenset({1})


@asynccontextmanager
async def a_master_above_0(*others: Broker) -> AsyncIterator[Bench]:
    """Broker 1, master of a set of its own, whose log begins above 0."""
    master = Broker(1)
    async with master.running():
        tell(a_group(master, *others, minimum=1, sync_state_set=ALONE), 1, master)
        await eventually(
            lambda: master.role.state is RoleState.MASTER and master.mastership.is_open
        )
        bench = Bench(master, file_reserved_time_ms=1000)
        await bench.fill()
        await bench.checkpoint()
        await bench.clean()
        await bench.fill(5)
        assert master.store.log.start > 0
        yield bench


def _content(broker: Broker) -> bytes:
    log = broker.store.log
    return b"".join(bytes(batch) for _, batch in log.batches(log.start))


async def _follow(bench: Bench, replica: Broker, version: int = 2) -> None:
    tell(_with_learner(bench.broker, replica), version, bench.broker, replica)


def _with_learner(master: Broker, replica: Broker) -> GroupView:
    """One that is never proposed as a member, which nobody here could commit."""
    group = a_group(master, replica, minimum=1, sync_state_set=ALONE)
    learner = replace(group.replicas[replica.number], is_learner=True)
    return replace(group, replicas={**group.replicas, replica.number: learner})


async def _is_caught_up(bench: Bench, replica: Broker) -> None:
    log = bench.store.log
    await eventually(
        lambda: (
            replica.store.log.confirm == log.confirm == log.end
            and replica.store.projections.position == log.end
        )
    )
