"""Real processes: ordered consumption over a frozen member, and over the death of the master."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.process.consuming import committed_of
from tests.support.process.harness import (
    RunningCluster,
    end_with_parent,
    eventually,
    running_cluster,
    the_master,
)
from tests.support.process.members import steady_messages
from tests.support.process.ordered import LEASE_MS, NUMBERS, SETTINGS, several_producers

from paceline.admin.client import AdminClient
from paceline.consumer.ordered import OrderedConsumer
from paceline.message import ReceivedMessage
from paceline.platform.runtime import SystemClock, pause

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

PROGRAM = f"""
import asyncio, sys, time
from paceline import OrderedConsumer, OrderedSettings

def told(what, message):
    at_us = time.monotonic_ns() // 1000
    print(what, message.queue_id, message.queue_offset, *message.lock_token, at_us, flush=True)

async def main():
    async def listen(message):
        told("began", message)
        await asyncio.sleep(0.1)
        told("ended", message)

    consumer = OrderedConsumer(
        sys.argv[1], group="audit", topics=["orders"], listener=listen, client_id="frozen",
        settings=OrderedSettings(
            start="first", commit_interval_ms=200,
            rebalance_lock_max_live_time_ms={LEASE_MS}, rebalance_lock_interval_ms=500,
        ),
        on_late=lambda message: told("late", message),
    )
    async with consumer:
        await asyncio.Event().wait()

asyncio.run(main())
"""


class Told(NamedTuple):
    """What a listener noted; times are of the machine's monotonic clock."""

    what: str
    queue: int
    number: int
    """Offset in the queue, or what the body says."""
    token: tuple[int, int]
    at_us: int


class Frozen:
    """A member in a process of its own, that can be stopped and continued."""

    def __init__(self, process: "subprocess.Popen[bytes]", path: Path) -> None:
        self._process = process
        self._path = path

    def told(self) -> list[Told]:
        found = []
        for line in self._path.read_text().splitlines(keepends=True):
            what, *rest = line.split()
            if line.endswith("\n") and what in ("began", "ended", "late"):
                queue, number, epoch, position, at_us = map(int, rest)
                found.append(Told(what, queue, number, (epoch, position), at_us))
        return found

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)


@contextlib.contextmanager
def frozen_member(cluster: RunningCluster, folder: Path) -> Iterator[Frozen]:
    path = folder / "frozen.txt"
    with path.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, ",".join(cluster.bootstrap)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        )
    try:
        yield Frozen(process, path)
    finally:
        process.kill()
        process.wait()


class Watched:
    """A listener in this process: when it was called, with what, under which token."""

    def __init__(self, number_of: Callable[[ReceivedMessage], int]) -> None:
        self.told: list[Told] = []
        self._number_of = number_of
        self._clock = SystemClock()

    async def listen(self, message: ReceivedMessage) -> None:
        self._note("began", message)
        await pause(0)
        self._note("ended", message)

    def _note(self, what: str, message: ReceivedMessage) -> None:
        assert message.lock_token is not None
        number = self._number_of(message)
        at_us = self._clock.monotonic_ms() * 1000
        self.told.append(Told(what, message.queue_id, number, message.lock_token, at_us))


async def test_a_member_frozen_past_its_lease_is_late_and_fenced(tmp_path: Path) -> None:
    """R33, INV-11: another member goes on; the frozen one begins nothing under its old token, and
    what it ends counts for nothing."""
    watched = Watched(lambda message: message.queue_offset)
    with running_cluster(tmp_path / "data") as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("orders", queues=2)
        async with steady_messages(cluster, "orders", every_ms=100):
            with frozen_member(cluster, tmp_path) as frozen:

                async def both_queues() -> bool:
                    return {told.queue for told in frozen.told()} == {0, 1}

                await eventually(both_queues, what="a member with both queues")
                consumer = OrderedConsumer(
                    cluster.bootstrap,
                    group="audit",
                    topics=["orders"],
                    listener=watched.listen,
                    settings=SETTINGS,
                )
                frozen.signal(signal.SIGSTOP)
                async with consumer:

                    async def taken_over() -> bool:
                        return len(consumer.queues) == 2 and len(watched.told) > 20

                    await eventually(
                        taken_over, within_ms=30_000, what="the queues of the frozen member"
                    )
                    resumed_us = SystemClock().monotonic_ms() * 1000
                    frozen.signal(signal.SIGCONT)

                    async def shared_again() -> bool:
                        new = [told for told in frozen.told() if told.at_us > resumed_us]
                        return any(told.what == "ended" for told in new[4:])

                    await eventually(
                        shared_again, within_ms=30_000, what="the frozen member's return"
                    )
    told = frozen.told()

    first_of_taker = {
        queue: next(one for one in watched.told if one.queue == queue) for queue in (0, 1)
    }
    late = [one for one in told if one.what == "late"]
    assert late, "nothing was under way when the member was frozen"
    for one in late:
        assert one.token < first_of_taker[one.queue].token
        # Whoever had the lock did it again.
        assert one.number in {other.number for other in watched.told if other.queue == one.queue}
    for one in told:
        if one.what == "began" and one.at_us > first_of_taker[one.queue].at_us:
            assert one.token > first_of_taker[one.queue].token, f"{one}: begun under an old token"
    for queue in (0, 1):
        by_taker = [one.number for one in watched.told if (one.what, one.queue) == ("began", queue)]
        assert by_taker == list(range(by_taker[0], by_taker[0] + len(by_taker)))
        done = {one.number for one in [*told, *watched.told] if one.queue == queue}
        assert done == set(range(len(done)))  # nothing was passed over


async def test_order_and_locks_outlive_the_master_and_several_producers(tmp_path: Path) -> None:
    """Each key's messages are processed in the order its producer sent them; the locks are the same
    grants at the next master, so nobody else had them."""
    first, second = [Watched(lambda message: int(message.body)) for _ in range(2)]
    with running_cluster(tmp_path / "data", restart=True) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("orders", queues=8)
        members = [
            OrderedConsumer(
                cluster.bootstrap,
                group="audit",
                topics=["orders"],
                listener=watched.listen,
                settings=SETTINGS,
            )
            for watched in (first, second)
        ]
        async with members[0], members[1], several_producers(cluster) as sent:

            async def shared() -> bool:
                halves = all(len(member.queues) == 4 for member in members)
                return halves and len(first.told) > 100 and len(second.told) > 100

            await eventually(shared, what="two members that share the queues")
            tokens = {one.queue: one.token for one in first.told + second.told}
            cluster.send_signal(await the_master(cluster), signal.SIGKILL)
            before = sum(sent.values())

            async def goes_on() -> bool:
                return sum(sent.values()) > before + 300

            await eventually(goes_on, what="a new master that takes messages")
            sent.over.set()

            async def all_done() -> bool:
                done = {one.number for one in first.told + second.told if one.what == "ended"}
                return len(done) >= sum(sent.values())

            await eventually(all_done, what="every message")
        committed = await committed_of(cluster.bootstrap, "orders", "audit")

    assert {one.queue: one.token for one in first.told + second.told} == tokens
    assert committed == sum(sent.values())
    began: defaultdict[int, list[int]] = defaultdict(list)
    for one in first.told + second.told:
        if one.what == "began":
            began[one.number // NUMBERS].append(one.number % NUMBERS)
    assert {key: len(numbers) for key, numbers in began.items()} == dict(sent)
    for numbers in began.values():
        assert numbers == list(range(len(numbers)))
    for watched in (first, second):
        for queue in range(8):
            of_queue = [one for one in watched.told if one.queue == queue]
            assert all(
                (before.what, after.what) != ("began", "began")
                for before, after in pairwise(of_queue)
            )
