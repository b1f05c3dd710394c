"""Ordered consumers against the fake cluster: locks, order, failures, late listeners (R33)."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.client.consumers import committed, eventually, fill
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.fake_cluster import FakeCluster

from paceline.consumer.not_started import OnError
from paceline.consumer.ordered import OrderedConsumer, OrderedSettings, SuspendQueueError
from paceline.consumer.settings.push import ConsumeLater
from paceline.errors import BadRequestError, ConfigError, DeadlineError
from paceline.message import LockToken, ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.platform.runtime import SystemClock, pause
from paceline.queues import QueueKey

KEY = 1 << 16
FAST = OrderedSettings(start="first", commit_interval_ms=20, suspend_current_queue_time_ms=10)
SHORT = OrderedSettings(
    start="first",
    commit_interval_ms=20,
    suspend_current_queue_time_ms=10,
    rebalance_lock_max_live_time_ms=1_000,
    rebalance_lock_interval_ms=100,
    unlock_delay_ms=300,
)


class LateClock(SystemClock):
    """A clock of which a test says that time has passed: as after a SIGSTOP."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


class Listener:
    """Notes what it is handed, and by whom; works as long as it is told."""

    def __init__(self, work: Callable[[ReceivedMessage], object] = lambda message: None) -> None:
        self.bodies: list[int] = []
        self.tokens: list[LockToken | None] = []
        self.running: Counter[int] = Counter()
        self.overlaps = 0
        self.work = work
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.running[message.queue_id] += 1
        self.overlaps += self.running[message.queue_id] > 1
        try:
            self.bodies.append(int(message.body))
            self.tokens.append(message.lock_token)
            await pause(0)
            await self.gate.wait()
            self.work(message)
        finally:
            self.running[message.queue_id] -= 1


def consumer_of(
    cluster: FakeCluster,
    listener: Listener,
    *,
    settings: OrderedSettings = FAST,
    name: str = "a",
    on_error: OnError | None = None,
) -> OrderedConsumer:
    return OrderedConsumer(
        cluster.controller,
        group="audit",
        topics=["orders"],
        listener=listener,
        settings=settings,
        client_id=name,
        on_error=on_error,
    )


async def test_each_queue_is_processed_in_order_under_one_token() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 3)
        await fill(cluster, 300)
        seen: defaultdict[tuple[str, int], list[ReceivedMessage]] = defaultdict(list)
        running: Counter[tuple[str, int]] = Counter()

        async def listen(message: ReceivedMessage) -> None:
            queue = (message.group, message.queue_id)
            running[queue] += 1
            assert running[queue] == 1
            await pause(0)
            seen[queue].append(message)
            running[queue] -= 1

        async with OrderedConsumer(
            cluster.controller, group="audit", topics=["orders"], listener=listen, settings=FAST
        ) as consumer:
            await eventually(lambda: sum(map(len, seen.values())) == 300)
            assert len(consumer.queues) == 6
        locks = cluster.group_calls.locks
        first = [call for call in locks.calls if call["call"] == "lock"]

    for messages in seen.values():
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        assert len({message.lock_token for message in messages}) == 1
        assert messages[0].lock_token is not None
    # All queues of a broker group in one call.
    assert sorted(len(call["queues"]) for call in first[:2]) == [3, 3]


async def test_what_brokers_refuse_for_good_is_told_once_and_tried_again_seldom(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[QueueKey | None, str]] = []
    asked: list[float] = []
    is_refused = True

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 1)
        locks = cluster.group_calls.locks
        change = locks.change

        def refuse(broker: FakeBroker, document: dict[str, Any]) -> dict[str, Any]:
            if not is_refused:
                return change(broker, document)
            asked.append(asyncio.get_running_loop().time())
            raise BadRequestError("lease_ms must be an integer from 1000 to 5000")

        monkeypatch.setattr(locks, "change", refuse)
        listener = Listener()
        consumer = consumer_of(
            cluster, listener, on_error=lambda key, error: told.append((key, error.message))
        )
        async with consumer:
            await eventually(lambda: len(asked) >= 5)
            is_refused = False
            await eventually(lambda: listener.bodies == [0])

    assert [message for _, message in told] == ["lease_ms must be an integer from 1000 to 5000"]
    assert asked[4] - asked[0] >= 0.3  # 50, 100, 200 and 400 ms, or half of it
    assert len([each for each in caplog.records if each.msg == "queue_not_started"]) == 1


async def test_a_failed_message_holds_its_queue_and_no_other() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 2)
        await fill(cluster, 60)
        failures = 0
        done: defaultdict[int, list[int]] = defaultdict(list)

        def work(message: ReceivedMessage) -> None:
            nonlocal failures
            if message.queue_id == 0 and message.queue_offset == 3 and failures < 5:
                failures += 1
                raise SuspendQueueError(10) if failures % 2 else ValueError("not yet")
            done[message.queue_id].append(message.queue_offset)

        async with consumer_of(cluster, Listener(work)):
            await eventually(lambda: sum(map(len, done.values())) == 60)
            await eventually(lambda: committed(cluster) == len(done[0]))

    assert failures == 5
    for offsets in done.values():
        assert offsets == list(range(len(offsets)))


async def test_a_batch_listener_may_stop_in_the_middle() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 40)
        done: list[int] = []
        sizes: set[int] = set()

        async def listen(messages: Sequence[ReceivedMessage]) -> int | None:
            sizes.add(len(messages))
            if len(sizes) == 1 and len(messages) > 2:
                done.extend(int(message.body) for message in messages[:2])
                sizes.add(0)
                return 2
            done.extend(int(message.body) for message in messages)
            return None

        async with OrderedConsumer(
            cluster.controller,
            group="audit",
            topics=["orders"],
            batch_listener=listen,
            settings=OrderedSettings(
                start="first", consume_message_batch_max_size=8, suspend_current_queue_time_ms=10
            ),
        ):
            await eventually(lambda: len(done) == 40)

    assert done == list(range(40))
    assert max(sizes) == 8


async def test_a_message_that_always_fails_is_a_dead_letter_in_the_end_and_its_queue_goes_on() -> (
    None
):
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.add_topic("%RETRY%audit", 1)
        await fill(cluster, 4)
        calls: list[tuple[int, int]] = []
        given_up: list[int] = []

        async def listen(message: ReceivedMessage) -> ConsumeLater | None:
            number = int(message.body)
            calls.append((number, message.reconsume_times))
            if number == 1:
                raise ValueError("never")
            return ConsumeLater(-1) if number == 2 else None

        def give_up(message: ReceivedMessage, error: Exception) -> None:
            given_up.append(message.queue_offset)
            raise KeyError("lost")  # the application's own trouble: the queue goes on

        async with OrderedConsumer(
            cluster.controller,
            group="audit",
            topics=["orders"],
            listener=listen,
            settings=replace(FAST, max_reconsume_times=2),
            on_given_up=give_up,
        ):
            await eventually(lambda: committed(cluster) == 4)
        [buried, _] = [call for call in cluster.calls if call["call"] == "send_back"]

    assert calls == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0)]
    assert cluster.group_calls.dead == [b"1", b"2"]
    assert given_up == [1, 2]
    assert buried["messages"][0]["token"][0] >= 1  # only who has the lock may (R33)


async def test_a_queue_changes_hands_after_its_listener_and_commit() -> None:
    """Order and at-once hold across a rebalance; nothing is processed twice after it."""
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 4)
        await fill(cluster, 400)
        first, second = Listener(), Listener()
        async with consumer_of(cluster, first) as one:
            await eventually(lambda: len(one.queues) == 4)
            async with consumer_of(cluster, second, name="b") as two:
                await eventually(lambda: len(one.queues) == len(two.queues) == 2)
                await fill(cluster, 800, first=400)
                await eventually(lambda: len(first.bodies) + len(second.bodies) == 800)
            await eventually(lambda: len(one.queues) == 4)
        assert cluster.group_calls.locks.of("g1").to_json() == []  # all given back

    assert sorted(first.bodies + second.bodies) == list(range(800))
    assert first.overlaps == second.overlaps == 0


async def test_a_listener_that_ends_past_its_lease_counts_for_nothing() -> None:
    """As after a SIGSTOP: another member has had the lock meanwhile, and went on to offset 1."""
    clock = LateClock()
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 3)
        late: list[ReceivedMessage] = []
        listener = Listener()
        listener.gate.clear()
        frozen = Cluster(cluster.controller, clock=clock)
        consumer = OrderedConsumer(
            frozen,
            group="audit",
            topics=["orders"],
            listener=listener,
            settings=SHORT,
            client_id="a",
            on_late=late.append,
        )
        async with consumer:
            await eventually(lambda: listener.bodies == [0])
            locks = cluster.group_calls.locks
            clock.ahead_ms = locks.ahead_ms = 2_000
            taken = locks.take("g1", "audit", KEY, "b")
            await eventually(lambda: consumer.queues == [])  # its renewal is refused
            cluster.logs["g1"].offsets["audit", 1, 0] = (1, 0)  # what b has committed
            locks.give_back("g1", "audit", KEY, "b")
            await eventually(lambda: len(consumer.queues) == 1)
            calls = len(locks.calls)
            await eventually(lambda: len(locks.calls) > calls + 1)  # renewed twice
            assert listener.bodies == [0]  # the call of before still runs: none beside it
            listener.gate.set()
            await eventually(lambda: committed(cluster) == 3)
        await frozen.close()

    assert listener.bodies == [0, 1, 2]
    assert listener.overlaps == 0
    assert consumer.late_count == 1
    assert [message.queue_offset for message in late] == [0]
    before, after = listener.tokens[0], listener.tokens[1]
    assert before is not None
    assert after is not None
    assert before < taken < after


async def test_no_listener_is_called_while_the_lease_cannot_be_renewed() -> None:
    """The master does not answer: the member stops by its own clock, and goes on with it."""
    clock = LateClock()
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 2)
        listener = Listener()
        held = Cluster(cluster.controller, clock=clock)
        consumer = OrderedConsumer(
            held,
            group="audit",
            topics=["orders"],
            listener=listener,
            settings=SHORT,
            client_id="a",
        )
        async with consumer:
            await eventually(lambda: committed(cluster) == 2)
            await fill(cluster, 4, first=2)
            await eventually(lambda: len(listener.bodies) == 4)
            cluster.group_calls.failures.extend(DeadlineError("nobody answers") for _ in range(9))
            clock.ahead_ms = 5_000  # every lease has run out, and nobody has renewed one
            await fill(cluster, 6, first=4)
            assert listener.bodies == [0, 1, 2, 3]
            await eventually(lambda: len(listener.bodies) == 6)
            assert not cluster.group_calls.failures
        await held.close()

    assert listener.bodies == list(range(6))
    assert len(set(listener.tokens)) == 1  # nobody else had the lock: the same grant
    assert consumer.late_count == 0


async def test_a_fenced_lock_is_taken_anew_from_the_committed_offset() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 5)
        listener = Listener()
        async with consumer_of(cluster, listener, settings=SHORT):
            await eventually(lambda: committed(cluster) == 5)
            locks = cluster.group_calls.locks.of("g1")
            locks.void_all()  # as an unclean epoch does (R21)
            await eventually(lambda: locks.token_of("audit", KEY) is not None)
            await fill(cluster, 10, first=5)
            await eventually(lambda: committed(cluster) == 10)

    assert listener.bodies == list(range(10))
    assert len(set(listener.tokens)) == 2


async def test_a_paused_queue_keeps_its_lock() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        await fill(cluster, 3)
        listener = Listener()
        async with consumer_of(cluster, listener, settings=SHORT) as consumer:
            await eventually(lambda: committed(cluster) == 3)
            consumer.pause()
            await fill(cluster, 6, first=3)
            calls = len(cluster.group_calls.locks.calls)
            await eventually(lambda: len(cluster.group_calls.locks.calls) > calls + 2)
            assert len(listener.bodies) == 3
            consumer.resume()
            await eventually(lambda: committed(cluster) == 6)

    assert len(set(listener.tokens)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"rebalance_lock_interval_ms": 30_000},
        {"rebalance_lock_max_live_time_ms": 60_000},
        {"suspend_current_queue_time_ms": 9},
        {"start": "middle"},
        {"concurrency": 0},
    ],
)
async def test_settings_that_cannot_work_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        OrderedSettings(**changes).validate()  # type: ignore[arg-type]
