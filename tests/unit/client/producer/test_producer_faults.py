"""No loss, no duplicate, order kept: the producer through injected failures, from seeds; in virtual
time, as their time-outs are short."""

import asyncio
import re

import pytest
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.fake_log import NO_FAULT, Fault
from tests.support.client.virtual_time import in_virtual_time

from paceline.errors import (
    FlushReplicaTimeoutError,
    InSyncReplicasNotEnoughError,
    NotMasterError,
    NotYetAvailableError,
    OutcomeUnknownError,
    OverloadedError,
    PacelineError,
)
from paceline.message import Message
from paceline.platform.runtime import SeededRandom, pause
from paceline.producer.producer import Producer
from paceline.producer.settings import ProducerSettings
from paceline.records.header import BatchHeader
from paceline.types import GroupName

REFUSALS: tuple[PacelineError, ...] = (
    NotMasterError("not now"),
    NotYetAvailableError("epoch not open"),
    InSyncReplicasNotEnoughError("1 of 2"),
    OverloadedError("full", retry_after_ms=3),
)


def faults_of(seed: int, share: float) -> tuple[SeededRandom, "FaultPlan"]:
    random = SeededRandom(f"faults-{seed}")
    return random, FaultPlan(random, share)


class FaultPlan:
    """Chooses a fault for `share` of the produce requests."""

    def __init__(self, random: SeededRandom, share: float) -> None:
        self.random = random
        self.share = share
        self.injected = 0

    def __call__(self, broker: FakeBroker, header: BatchHeader) -> Fault:
        if self.random.uniform(0, 1) >= self.share:
            return NO_FAULT
        self.injected += 1
        kinds = (
            Fault(refuse=REFUSALS[int(self.random.uniform(0, len(REFUSALS)))]),
            Fault(drop_before=True),
            Fault(drop_after=True),
            Fault(late_ms=self.random.uniform(0, 30)),
            Fault(is_unknown=True),
            Fault(answer_after_ms=self.random.uniform(0, 10)),
            Fault(is_silent=True),
        )
        return kinds[int(self.random.uniform(0, len(kinds)))]


@pytest.mark.parametrize("seed", range(12))
@in_virtual_time
async def test_every_acknowledged_message_is_stored_once_and_in_order(seed: int) -> None:
    _, plan = faults_of(seed, 0.35)
    settings = ProducerSettings(request_timeout_ms=60, batch_bytes_max=2000)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 3)
        async with Producer(cluster.controller, settings=settings) as producer:
            cluster.fault = plan

            async def worker(name: int) -> None:
                for number in range(25):
                    await producer.send(Message("orders", b"%d:%d" % (name, number), key=str(name)))

            async with asyncio.TaskGroup() as group:
                for name in range(12):
                    group.create_task(worker(name))
        stored = [body for queue in range(3) for body in cluster.bodies(queue=queue)]

    assert plan.injected > 5
    assert len(stored) == len(set(stored)) == 12 * 25, f"seed {seed}"
    for name in range(12):
        own = [int(body.split(b":")[1]) for body in stored if body.startswith(b"%d:" % name)]
        assert own == sorted(own), f"seed {seed}: worker {name} out of order"


@pytest.mark.parametrize("seed", range(6))
@in_virtual_time
async def test_masters_that_come_and_go_lose_and_repeat_nothing(seed: int) -> None:
    random, plan = faults_of(100 + seed, 0.1)
    settings = ProducerSettings(request_timeout_ms=200, batch_bytes_max=3000)
    async with FakeCluster(groups=2, brokers=3) as cluster:
        cluster.add_topic("orders", 2)
        async with Producer(cluster.controller, settings=settings) as producer:
            cluster.fault = plan
            sendings = []
            for turn in range(40):
                sendings += [
                    producer.send(
                        Message("orders", b"%d" % number, key=None if number % 2 else f"k{number}")
                    )
                    for number in range(turn * 10, turn * 10 + 10)
                ]
                if turn % 6 == 5:
                    name = f"g{1 + int(random.uniform(0, 2))}"
                    old = cluster.view.groups[name].master  # type: ignore[index]
                    if old is not None:
                        cluster.brokers[(name, old)].kill()
                    cluster.elect(name, None)
                    await pause(random.uniform(0, 10))
                    if old is not None:
                        await cluster.brokers[(name, old)].start()
                    cluster.elect(name, 1 + int(random.uniform(0, 3)))
                await pause(1)
            results = [await sending for sending in sendings]
        stored = {
            (group, queue, offset): body
            for group in ("g1", "g2")
            for queue in range(2)
            for offset, body in enumerate(cluster.bodies(group, queue=queue))
        }

    assert sorted(map(int, stored.values())) == list(range(400)), f"seed {seed}"
    for number, result in enumerate(results):
        place = (result.group, result.queue_id, result.queue_offset)
        assert stored[place] == b"%d" % number, f"seed {seed}"


@in_virtual_time
async def test_a_dead_master_costs_little_more_than_the_news_of_the_next() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"before"))
            cluster.brokers[("g1", 1)].kill()
            sending = producer.send(Message("orders", b"after"))
            await pause(100)
            assert not sending.done()
            loop = asyncio.get_running_loop()
            began = loop.time()
            cluster.elect("g1", 2)
            result = await sending

    assert result.epoch == 2
    assert loop.time() - began < 0.2
    assert cluster.bodies() == [b"before", b"after"]


@in_virtual_time
async def test_what_a_master_refused_as_it_handed_over_makes_nobody_wait_for_the_next() -> None:
    """The waits between attempts had grown at the old master, which took nothing any more; the
    next one refuses some attempts as well, until its replicas are there."""
    attempts: list[float] = []

    def fault(broker: FakeBroker, header: BatchHeader) -> Fault:
        if broker.replica_id == 1:
            return Fault(refuse=NotYetAvailableError("the master is handing over"))
        attempts.append(asyncio.get_running_loop().time())
        few = InSyncReplicasNotEnoughError("no replica has joined yet")
        return Fault(refuse=few) if len(attempts) < 5 else NO_FAULT

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            cluster.fault = fault
            sending = producer.send(Message("orders", b"one"))
            await pause(300)
            cluster.elect("g1", 2)
            await sending

    # Four waits of 5 to 40 ms; had they gone on to grow, of 125 ms at least.
    assert attempts[-1] - attempts[0] < 0.3


@in_virtual_time
async def test_an_unknown_outcome_is_reported_and_the_next_message_starts_a_new_epoch() -> None:
    """R32: after the report the queue goes on under a higher producer epoch from sequence 0."""
    headers: list[BatchHeader] = []
    settings = ProducerSettings(delivery_timeout_ms=150, request_timeout_ms=50)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller, settings=settings) as producer:
            await producer.send(Message("orders", b"first"))

            def silent(broker: FakeBroker, header: BatchHeader) -> Fault:
                headers.append(header)
                return Fault(drop_after=True)

            cluster.fault = silent
            with pytest.raises(OutcomeUnknownError, match="may or may not be stored"):
                await producer.send(Message("orders", b"second"))

            def note(broker: FakeBroker, header: BatchHeader) -> Fault:
                headers.append(header)
                return NO_FAULT

            cluster.fault = note
            third = await producer.send(Message("orders", b"third"))

    assert third.queue_offset == 2
    assert cluster.bodies() == [b"first", b"second", b"third"]
    attempts, last = headers[:-1], headers[-1]
    assert len(attempts) > 1
    assert len({header.payload_crc32c for header in attempts}) == 1
    assert {(header.producer_epoch, header.base_sequence) for header in attempts} == {(0, 1)}
    assert (last.producer_epoch, last.base_sequence) == (1, 0)


@in_virtual_time
async def test_what_waited_behind_a_message_that_is_given_up_leaves_then() -> None:
    """The batch on the wire without an answer ends unknown; the one behind it was refused and
    waited for it. Nothing else happens to the queue afterwards."""
    settings = ProducerSettings(delivery_timeout_ms=20_000, request_timeout_ms=20_000)
    attempts: list[int] = []

    def fault(broker: FakeBroker, header: BatchHeader) -> Fault:
        attempts.append(header.base_sequence)
        if len(attempts) == 1:
            return Fault(is_silent=True)
        return Fault(refuse=NotYetAvailableError("soon")) if len(attempts) == 2 else NO_FAULT

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller, settings=settings) as producer:
            await producer.send(Message("orders", b"first"))
            cluster.fault = fault
            silent = producer.send(Message("orders", b"silent"))
            while not silent.place[0].is_in_flight:
                await pause(0)
            behind = producer.send(Message("orders", b"behind"))
            silent.place[0].deadline -= 19.8  # long before its connection counts as dead
            with pytest.raises(OutcomeUnknownError):
                await silent
            async with asyncio.timeout(5):
                assert (await behind).queue_offset == 2

    assert attempts == [1, 2, 0]


@in_virtual_time
async def test_only_refused_batches_are_reported_as_not_stored() -> None:
    settings = ProducerSettings(delivery_timeout_ms=500, request_timeout_ms=200)
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        refused = InSyncReplicasNotEnoughError("1 member of 2 acknowledges")
        async with Producer(cluster.controller, settings=settings) as producer:
            cluster.fault = lambda broker, header: Fault(refuse=refused)
            with pytest.raises(InSyncReplicasNotEnoughError):
                await producer.send(Message("orders", b"refused"))
            cluster.fault = lambda broker, header: Fault(is_unknown=True)
            with pytest.raises(FlushReplicaTimeoutError):
                await producer.send(Message("orders", b"unknown"))
            cluster.brokers[("g1", 1)].kill()
            link = producer._dispatch._lanes[GroupName("g1")].link
            while link.connection is not None:  # else the batch may still be written to it
                await pause(1)
            with pytest.raises(PacelineError, match="no master of broker group g1") as caught:
                await producer.send(Message("orders", b"nobody"))

    assert caught.value.is_definite
    assert cluster.bodies() == [b"unknown"]


@in_virtual_time
async def test_keyless_messages_avoid_a_group_that_refuses() -> None:
    async with FakeCluster(groups=2) as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            refused = InSyncReplicasNotEnoughError("1 member of 2 acknowledges")
            cluster.fault = lambda broker, header: (
                Fault(refuse=refused) if broker.group == "g1" else NO_FAULT
            )
            results = [await producer.send(Message("orders", b"%d" % n)) for n in range(20)]

    assert {result.group for result in results} == {"g2"}
    assert cluster.bodies("g1") == []


@in_virtual_time
async def test_an_answer_of_an_older_epoch_counts_for_nothing() -> None:
    answered: list[int] = []

    def old_epoch_once(broker: FakeBroker, header: BatchHeader) -> Fault:
        answered.append(header.base_sequence)
        return Fault(answer_epoch=1) if len(answered) == 1 else NO_FAULT

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        cluster.elect("g1", 1)
        async with Producer(cluster.controller) as producer:
            cluster.fault = old_epoch_once
            result = await producer.send(Message("orders", b"x"))

    assert (result.epoch, result.is_duplicate) == (2, True)
    assert answered == [0, 0]


@in_virtual_time
async def test_messages_of_a_deleted_topic_fail_definitely() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("orders", 1)
        async with Producer(cluster.controller) as producer:
            await producer.send(Message("orders", b"x"))
            cluster.elect("g1", None)
            await pause(20)
            sending = producer.send(Message("orders", b"y"))
            cluster.delete_topic("orders")
            with pytest.raises(PacelineError, match=re.escape("topic orders was deleted")):
                await sending
