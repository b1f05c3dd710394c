"""Queue locks of a member: many in one call, topics that go, askers that go (R33)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from tests.support.client.consumers import eventually
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.locks import queue_locks
from paceline.consumer.locks.queue_locks import QueueLocks
from paceline.errors import DeadlineError, LockHeldError
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.queues import QueueKey
from paceline.types import GroupName, QueueId, TopicId

G1 = GroupName("g1")


def key(queue: int, topic_id: int = 1) -> QueueKey:
    return QueueKey(TopicId(topic_id), G1, QueueId(queue))


@asynccontextmanager
async def locks_at(
    cluster: FakeCluster,
    *,
    lease_ms: int = 1_000,
    renew_ms: int = 100,
    on_lost: Callable[[QueueKey], None] = lambda key: None,
) -> AsyncIterator[QueueLocks]:
    view = Cluster(cluster.controller)
    view.start()
    links = GroupLinks(view)
    locks = QueueLocks(
        links,
        view.clock,
        view.random,
        group="audit",
        client_id="a",
        lease_ms=lease_ms,
        renew_ms=renew_ms,
        on_lost=on_lost,
        on_regained=lambda keys: None,
    )
    try:
        yield locks
    finally:
        await locks.close()
        await links.close()
        await view.close()


def calls_of(cluster: FakeCluster) -> list[dict[str, Any]]:
    return cluster.group_calls.locks.calls


async def test_what_is_wanted_at_one_time_is_one_call_and_so_are_renewals_and_the_end() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 64)
        async with locks_at(cluster) as locks:
            tokens = await asyncio.gather(*(locks.acquire(key(queue)) for queue in range(64)))
            await eventually(lambda: len(calls_of(cluster)) >= 3)
        sizes = {len(call["queues"]) for call in calls_of(cluster)}

    assert sizes == {64}
    assert calls_of(cluster)[-1]["call"] == "unlock"
    assert len(set(tokens)) == 1  # of one record
    assert cluster.group_calls.locks.of("g1").to_json() == []


async def test_a_lease_that_a_broker_cuts_short_is_relied_on_and_renewed_accordingly() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.group_calls.locks.lease_ms_max = 1_000
        async with locks_at(cluster, lease_ms=30_000, renew_ms=3_000) as locks:
            asked_ms = locks._clock.monotonic_ms()
            token = await locks.acquire(key(0))
            assert locks.is_valid(key(0), token, now_ms=asked_ms + 900)
            assert not locks.is_valid(key(0), token, now_ms=locks._clock.monotonic_ms() + 991)
            await eventually(lambda: len(calls_of(cluster)) >= 3)
            assert locks.token_of(key(0)) == token


async def test_a_lease_counts_from_the_question_however_long_the_answer_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A grant, and a renewal, of which the answer is under way for most of the lease."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with locks_at(cluster, lease_ms=1_000, renew_ms=999) as locks:
            asked_ms, took_ms = locks._clock.monotonic_ms(), 0
            monkeypatch.setattr(locks, "_clock", Mock(monotonic_ms=lambda: asked_ms + took_ms))
            fake = cluster.group_calls.locks
            change = fake.change

            def late(*of: Any) -> dict[str, Any]:
                nonlocal took_ms
                took_ms = 800
                return change(*of)

            monkeypatch.setattr(fake, "change", late)
            token = await locks.acquire(key(0))
            assert locks.is_valid(key(0), token, now_ms=asked_ms + 980)
            assert not locks.is_valid(key(0), token, now_ms=asked_ms + 1_000)

            asked_ms, took_ms = asked_ms + 5_000, 0
            await locks._renew(G1)
            assert locks.is_valid(key(0), token, now_ms=asked_ms + 980)
            assert not locks.is_valid(key(0), token, now_ms=asked_ms + 1_000)


async def test_more_queues_than_fit_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_locks, "_ROWS_MAX", 10)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 25)
        async with locks_at(cluster) as locks:
            tokens = await asyncio.gather(*(locks.acquire(key(queue)) for queue in range(25)))

    assert len(set(tokens)) == 3
    assert max(len(call["queues"]) for call in calls_of(cluster)) == 10
    assert cluster.group_calls.locks.of("g1").to_json() == []


async def test_a_topic_that_is_gone_costs_the_others_nothing() -> None:
    lost: list[QueueKey] = []
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.add_topic("flights", 1)
        async with locks_at(cluster, on_lost=lost.append) as locks:
            token = await locks.acquire(key(0))
            await locks.acquire(key(0, 2))
            cluster.group_calls.locks.gone = {2}
            await eventually(lambda: bool(lost))
            renewals = len(calls_of(cluster))
            await eventually(lambda: len(calls_of(cluster)) > renewals + 2)

            assert lost == [key(0, 2)]
            assert locks.token_of(key(0)) == token
            with pytest.raises(DeadlineError, match="a topic is gone"):
                await locks.acquire(key(0, 2))


async def test_a_lock_that_nobody_waits_for_any_more_is_given_back() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)

        async def want() -> None:
            await locks.acquire(key(0))

        async with locks_at(cluster) as locks:
            await locks.acquire(key(1))
            await eventually(lambda: not locks._calls)
            task = spawn(want(), name="want")
            while not locks._calls:  # turn by turn: the answer is there within a few
                await pause(0)
            await cancel_and_wait(task)
            await eventually(lambda: any(call["call"] == "unlock" for call in calls_of(cluster)))

            assert locks.token_of(key(0)) is None
            assert cluster.group_calls.locks.holder("g1", "audit", 1 << 16) is None
            assert locks.token_of(key(1)) is not None


async def test_who_has_the_lock_is_named_when_it_is_held_for_long() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.group_calls.locks.take("g1", "audit", 1 << 16, "b")
        async with locks_at(cluster) as locks:
            with pytest.raises(LockHeldError, match="b has it"):
                await locks.acquire(key(0))

    assert 3 <= len(calls_of(cluster)) <= 10  # it waits between its tries
