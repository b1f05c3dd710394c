"""Histories made by hand for the tests of the report: a cluster, its faults, its clients."""

import random
from collections.abc import Mapping
from itertools import count
from typing import Any

from paceline_chaos.history.model import (
    Decision,
    Entry,
    FaultEvent,
    History,
    Outcome,
    Phase,
    Probe,
    Pull,
    Queue,
    Seen,
    Send,
)

WORLD: Mapping[str, Any] = {
    "bed": "world",
    "seed": 4711,
    "topology": {"controllers": 3, "groups": {"g1": 3, "g2": 3}},
    "settings": {"durability": "fsync", "min_in_sync_replicas": 2},
}


class Maker:
    """Entries with rising numbers, in whatever order they are made."""

    def __init__(self, seed: int = 1, *, controllers: int = 3, groups: int = 2) -> None:
        self.random = random.Random(seed)
        self.entries: list[Entry] = []
        self.controllers = [f"c{index}" for index in range(1, controllers + 1)]
        self.groups = [f"g{index}" for index in range(1, groups + 1)]
        self._numbers = count()

    def history(self) -> History:
        return History(world=WORLD, entries=self.entries)

    def add(self, entry_type: type[Any], /, **members: Any) -> Any:
        entry = entry_type(number=next(self._numbers), **members)
        self.entries.append(entry)
        return entry

    def send(self, client: str, at_ms: float, **changes: Any) -> Send:
        latency_ms = changes.pop("latency_ms", 2.0)
        number = next(self._numbers)
        members: dict[str, Any] = {
            "client": client,
            "asked_us": int((at_ms - latency_ms) * 1000),
            "answered_us": int(at_ms * 1000),
            "outcome": Outcome.OK,
            "topic": "orders",
            "key": None,
            "value": f"{client}-{number}",
            "crc": 1,
            "queue": Queue("orders", "g1", 0),
            "offset": number,
            "epoch": 1,
            "node": "g1-b1",
        }
        if changes.get("outcome", Outcome.OK) is not Outcome.OK:
            members.update(queue=None, offset=None, epoch=None, node=None)
        entry = Send(number=number, **{**members, **changes})
        self.entries.append(entry)
        return entry

    def fault(self, kind: str, target: str, start_ms: float, end_ms: float | None) -> None:
        at = int(start_ms * 1000)
        self.add(FaultEvent, at_us=at, kind=kind, target=target, is_begin=True)
        if end_ms is not None:
            at = int(end_ms * 1000)
            self.add(FaultEvent, at_us=at, kind=kind, target=target, is_begin=False)

    def decide(self, at_ms: float, kind: str, index: int, **members: Any) -> None:
        """Applied by each controller, a little later by each."""
        for later, node in enumerate(self.controllers):
            at = int((at_ms + 3 * later) * 1000)
            self.add(Decision, at_us=at, node=node, index=index, kind=kind, members=members)


def eventful(length_s: int = 60, *, sends_per_second: int = 500, seed: int = 1) -> History:
    """Two groups of three, a master killed every ten seconds, other faults between."""
    maker = Maker(seed)
    state = {group: _Group(group) for group in maker.groups}
    outages: list[tuple[str, float, float]] = []
    index = 1
    for name in maker.groups:
        index = _elect(maker, state[name], 0.0, index, (1, 2, 3))
    for turn in range(1, length_s // 10):
        group = state[maker.groups[turn % len(maker.groups)]]
        at = turn * 10_000.0
        dead = group.master
        rest = tuple(sorted({1, 2, 3} - {dead}))
        maker.fault("kill", f"{group.name}-b{dead}", at, at + 2_500)
        outages.append((f"{group.name}-b{dead}", at, at + 2_500))
        group.master = rest[turn % 2]
        index = _elect(maker, group, at + 180, index, rest)
        index = _change_set(maker, group, at + 3_300, index, (1, 2, 3))
    maker.fault("pause", "c1", 14_000, 17_000)
    maker.fault("slow_link", "g1-b2>g1-b1", 23_000, 27_000)
    maker.fault("clock_step", "g2-b3", 25_000, None)
    maker.fault("disk_full", "g2-b2", 33_500, 36_500)
    _phases(maker, length_s)
    _probes(maker, state, outages, length_s)
    _sends(maker, state, outages, length_s, sends_per_second)
    maker.entries.sort(key=lambda entry: entry.number)
    return maker.history()


class _Group:
    def __init__(self, name: str) -> None:
        self.name = name
        self.master = 1
        self.epoch = 0
        self.set_epoch = 0
        self.epochs: list[tuple[float, int, int]] = []

    def at(self, ms: float) -> tuple[int, int]:
        """(epoch, master) at a moment."""
        found = [(epoch, master) for start, epoch, master in self.epochs if start <= ms]
        return found[-1] if found else (0, 0)


def _elect(maker: Maker, group: _Group, at_ms: float, index: int, members: tuple[int, ...]) -> int:
    group.epoch += 1
    group.set_epoch += 1
    group.epochs.append((at_ms, group.epoch, group.master))
    maker.decide(
        at_ms,
        "master_elected",
        index,
        group=group.name,
        master=group.master,
        master_epoch=group.epoch,
        set_epoch=group.set_epoch,
        sync_state_set=list(members),
        reason="master is gone" if group.epoch > 1 else "first",
    )
    return index + 1


def _change_set(
    maker: Maker, group: _Group, at_ms: float, index: int, members: tuple[int, ...]
) -> int:
    group.set_epoch += 1
    maker.decide(
        at_ms,
        "set_changed",
        index,
        group=group.name,
        master_epoch=group.epoch,
        set_epoch=group.set_epoch,
        sync_state_set=list(members),
    )
    return index + 1


def _phases(maker: Maker, length_s: int) -> None:
    maker.add(Phase, at_us=0, name="load")
    maker.add(Phase, at_us=int(length_s * 0.85 * 1e6), name="heal", broken=("g2-b3",))
    maker.add(Phase, at_us=int(length_s * 0.95 * 1e6), name="drain")


def _probes(
    maker: Maker, state: dict[str, _Group], outages: list[tuple[str, float, float]], length_s: int
) -> None:
    starts: dict[str, int] = {}
    for at in range(0, length_s * 1000, 200):
        for group in state.values():
            epoch, master = group.at(at)
            for replica in (1, 2, 3):
                node = f"{group.name}-b{replica}"
                if any(name == node and start <= at < end for name, start, end in outages):
                    starts[node] = at
                    continue
                confirm = at * 300 if starts.get(node, -9000) < at - 800 else starts[node] * 300
                maker.add(
                    Probe,
                    at_us=at * 1000,
                    node=node,
                    group=group.name,
                    replica=replica,
                    incarnation=1 + sum(1 for n, _, end in outages if n == node and end <= at),
                    role="master" if replica == master else "replica",
                    epoch=epoch,
                    is_open=group.at(at - 120) == (epoch, master),
                    start=0,
                    end=confirm + 4096,
                    flushed=confirm,
                    confirm=confirm,
                )


def _sends(
    maker: Maker,
    state: dict[str, _Group],
    outages: list[tuple[str, float, float]],
    length_s: int,
    per_second: int,
) -> None:
    kills = [(start, node.partition("-")[0]) for node, start, _ in outages]
    for number in range(int(length_s * 0.95) * per_second):
        at = number * 1000 / per_second + maker.random.random() * 2
        group = maker.groups[number % len(maker.groups)]
        client = f"client-{number % 8 + 1}"
        epoch, master = state[group].at(at)
        latency = maker.random.lognormvariate(0.6, 0.5)
        if any(start <= at < start + 320 for start, name in kills if name == group):
            kind = maker.random.random()
            if kind < 0.2:
                maker.send(client, at, outcome=Outcome.FAIL, error="NOT_MASTER")
            elif kind < 0.25:
                maker.send(client, at, outcome=Outcome.UNKNOWN, error="PEER")
            continue
        if any(start + 320 <= at < start + 520 for start, name in kills if name == group):
            latency += 150
        queue = Queue("orders", group, number % 4)
        node = f"{group}-b{master}"
        maker.send(client, at, latency_ms=latency, queue=queue, epoch=epoch, node=node)
        if number % 5 == 0:
            seen = (Seen(number, f"{client}-{number}", 1),)
            maker.add(
                Pull,
                client="client-9",
                asked_us=int(at * 1000),
                answered_us=int(at * 1000) + 900,
                outcome=Outcome.OK,
                queue=queue,
                offset=number,
                messages=seen,
            )
