"""Brokers come back with another disk than they had, under load: old copies, holes, nothing at all.

Each comes back by itself, nothing acknowledged is lost (judged from the files, load.py), and none
is counted before it has what was acknowledged without it (R9, R10, R14, R16, R24).
"""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from tests.support.process.harness import (
    broker_status,
    eventually,
    http_session,
    running_cluster,
    the_master,
)
from tests.support.process.load import (
    SEGMENT_BYTES,
    Load,
    all_in_sync,
    check_epochs,
    check_stored,
    create_topic,
    reach,
    settled,
    under_load,
)
from tests.support.process.machines import Machines, taking_over
from tests.support.process.target import random_bytes

from paceline.admin.client import AdminClient
from paceline.errors import CommandRefusedError
from paceline.message import Message
from paceline.platform.runtime import SystemClock, pause
from paceline.producer.producer import Producer
from paceline.wire.cluster import ClusterView, GroupView

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

SMALL_SEGMENTS = ("--segment-size", str(SEGMENT_BYTES))
BALLAST_BYTES = 256 * 1024
BALLAST_COUNT = 32
"""So many messages of that size are acknowledged while a broker is away: catching up takes a while
in which it could be counted too early."""
RETURNED_WITHIN_MS = 30_000


@dataclass
class Returns:
    """One cluster under load, whose brokers go away and come back."""

    machines: Machines
    load: Load
    producer: Producer
    seen_behind: int = 0
    """Looks at a broker that ran and had not caught up: each time it was not in the set."""

    async def takes_a_turn(
        self,
        name: str,
        change: Callable[[Path], None],
        *,
        number: signal.Signals = signal.SIGKILL,
    ) -> dict[str, Any]:
        """End a broker, let the others go on, change its disk, and see it return; its status.

        It is started when it is out of the set: a set that has it again is a new one.
        """
        address = self.machines.cluster.node(name)["address"]
        await self.machines.end(name, number)
        await self._is_out(address)
        owed = await self.grows()
        change(self.machines.folder(name))
        self.machines.start(name)
        return await self.is_back(name, owed=owed)

    async def grows(self) -> int:
        """Send ballast; the position that is confirmed then."""
        body = random_bytes(BALLAST_BYTES)
        sent = [self.producer.send(Message("ballast", body)) for _ in range(BALLAST_COUNT)]
        for answer in sent:
            await answer
        await reach(self.load, self.load.count + 100)
        cluster = self.machines.cluster
        async with http_session() as session:
            address = cluster.node(await the_master(cluster))["address"]

            async def confirm() -> int | None:
                status = await broker_status(session, address)
                return None if status is None else int(status["confirm"])

            return await eventually(confirm, what="a confirmed position")

    async def is_back(self, name: str, *, owed: int) -> dict[str, Any]:
        """Wait until it is in the set; a set that has it before it has `owed` on its disk is R10
        broken: a position never falls, so what it says after the view says enough."""
        address = self.machines.cluster.node(name)["address"]
        clock = SystemClock()
        deadline_ms = clock.monotonic_ms() + RETURNED_WITHIN_MS
        async with http_session() as session:
            while True:
                is_member = _has_member(await self._group(session), address)
                status = await broker_status(session, address)
                if status is not None and is_member:
                    assert status["flushed"] >= owed, f"{name} counts before it caught up: {status}"
                    if status["is_healthy"] and status["is_connected"]:
                        await reach(self.load, self.load.count + 100)
                        return status
                if status is not None and status["flushed"] < owed:
                    self.seen_behind += 1
                assert self.machines.is_running(name), f"{name} ended"
                assert clock.monotonic_ms() < deadline_ms, f"{name} is not back: {status}"
                await pause(2)

    async def _is_out(self, address: str) -> None:
        async with http_session() as session:

            async def is_out() -> bool:
                group = await self._group(session)
                return group is not None and not _has_member(group, address)

            await eventually(is_out, what=f"a set without {address}")

    async def _group(self, session: aiohttp.ClientSession) -> GroupView | None:
        """As a controller publishes it."""
        try:
            url = f"http://{self.machines.cluster.bootstrap[0]}/v1/routes"
            async with session.get(url) as answer:
                view = ClusterView.from_json(orjson.loads(await answer.read()))
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        return next(iter(view.groups.values()))


def _has_member(group: GroupView | None, address: str) -> bool:
    return group is not None and any(
        replica.client_address == address and replica_id in group.sync_state_set
        for replica_id, replica in group.replicas.items()
    )


@asynccontextmanager
async def _returning(machines: Machines) -> AsyncIterator[Returns]:
    cluster = machines.cluster
    await create_topic(cluster, "ballast")
    async with Producer(cluster.bootstrap) as producer, under_load(cluster, "orders") as load:
        await reach(load, 500)
        await all_in_sync(cluster)
        yield Returns(machines, load, producer)


async def _replica(machines: Machines) -> str:
    """The name of a broker that is not master."""
    master = await the_master(machines.cluster)
    names: list[str] = [node["name"] for node in machines.cluster.brokers()]
    return next(name for name in names if name != master)


def _segments(folder: Path) -> list[Path]:
    return sorted((folder / "log").glob("*.log"))


def _lose_all_but_identity(folder: Path) -> None:
    kept = ("identity.json", "identity.json.copy", "epoch.json", "epoch.json.copy")
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        elif path.name not in kept:
            path.unlink()


def _lose_a_segment_in_between(folder: Path) -> None:
    segments = _segments(folder)
    segments[len(segments) // 2].unlink()


async def test_brokers_return_with_old_copies_of_their_disks(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path / "data", *SMALL_SEGMENTS) as cluster,
        taking_over(cluster) as machines,
    ):
        async with _returning(machines) as returns:
            replica, copy = await _replica(machines), tmp_path / "of-a-live-replica"
            machines.copy(replica, copy)
            await returns.grows()
            await returns.takes_a_turn(replica, lambda _: machines.restore(replica, copy))

            stopped, old = await _replica(machines), tmp_path / "of-a-stopped-replica"
            await returns.takes_a_turn(
                stopped, lambda folder: machines.copy(stopped, old), number=signal.SIGTERM
            )
            await returns.takes_a_turn(stopped, lambda _: machines.restore(stopped, old))

            master, held = await the_master(cluster), tmp_path / "of-the-master"
            machines.copy(master, held)
            await returns.grows()
            status = await returns.takes_a_turn(master, lambda _: machines.restore(master, held))
            assert status["role"] == "replica"
            assert returns.seen_behind > 0, "no look came before it had caught up: proves nothing"
        positions = await settled(cluster)

    check_epochs(returns.load)
    check_stored(cluster, positions, returns.load)


async def test_brokers_return_with_holes_and_with_nothing_and_are_replaced(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path / "data", *SMALL_SEGMENTS) as cluster,
        taking_over(cluster) as machines,
    ):
        async with _returning(machines) as returns:
            await returns.grows()
            master = await the_master(cluster)
            status = await returns.takes_a_turn(
                master, _lose_a_segment_in_between, number=signal.SIGTERM
            )
            assert status["role"] == "replica"
            assert status["care"]["repairs"] == 1

            number = status["replica_id"]
            status = await returns.takes_a_turn(master, _lose_all_but_identity)
            assert status["replica_id"] == number, "its identity was left to it"

            status = await returns.takes_a_turn(master, lambda _: machines.wipe(master))
            assert status["replica_id"] == 4, "a store with nothing on it is another replica"
            await _forget(machines, number)

            await _one_replaces_another(machines, returns)
            assert returns.seen_behind > 0, "no look came before it had caught up: proves nothing"
        await all_in_sync(cluster)
        positions = await settled(cluster)

    check_epochs(returns.load)
    check_stored(cluster, positions, returns.load)


async def _one_replaces_another(machines: Machines, returns: Returns) -> None:
    """A fourth broker on another machine, with an empty disk; then one of the others goes."""
    cluster = machines.cluster
    leaving = await _replica(machines)
    owed = await returns.grows()
    machines.add_broker("g1-b4", like=leaving)
    await returns.is_back("g1-b4", owed=owed)
    await all_in_sync(cluster, members=4)
    async with http_session() as session:
        status = await broker_status(session, cluster.node(leaving)["address"])
    assert status is not None
    await machines.end(leaving, signal.SIGTERM)
    await _forget(machines, status["replica_id"])
    cluster.forgotten.add(leaving)
    await reach(returns.load, returns.load.count + 100)


async def _forget(machines: Machines, replica_id: int) -> None:
    """As an operator does, who is refused until it is dead and no member any more."""
    async with AdminClient(machines.cluster.bootstrap) as admin:

        async def is_forgotten() -> bool:
            try:
                await admin.broker_groups.remove_replica("g1", replica_id)
            except CommandRefusedError:
                return False
            return True

        await eventually(is_forgotten, what=f"replica {replica_id} is forgotten")
