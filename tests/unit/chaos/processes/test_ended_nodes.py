"""Nodes that end by themselves on real processes: who is to blame."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from paceline.platform.runtime import SeededRandom, pause
from paceline_chaos.faults.plan import Fault
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.processes.cluster import Cluster, Node
from paceline_chaos.processes.node.control import Control
from paceline_chaos.processes.node.fork_server import NodeProcess
from paceline_chaos.processes.run import unexcused
from paceline_chaos.processes.scenario.nemesis import Nemesis
from paceline_chaos.processes.watch import Watch


class Dead:
    """A process that ends when told to, with a code of the test's choice."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class OneNode:
    """A cluster of one node, whose processes do as the test wants."""

    def __init__(self, folder: Path, *, stops_with: int | None = 0) -> None:
        self.tls = None
        self.stops_with = stops_with
        self.stops_later_with: int | None = None
        """The code with which it ends a while after it was told to."""
        log_path = folder / "node.log"
        log_path.write_text("broker: the port is taken\n")
        self.node = Node(
            name="g1-b1",
            role="broker",
            group="g1",
            host="127.0.1.1",
            address="127.0.1.1:1",
            replication_address="",
            folder=folder / "data",
            config_path=folder,
            log_path=log_path,
            control=Control(folder / "control"),
            control_path=folder,
            shadow=None,
        )
        self.node.folder.mkdir()
        self.nodes, self.brokers = {self.node.name: self.node}, [self.node]
        self.controllers = list[Node]()
        self.start(self.node)

    @property
    def process(self) -> Dead:
        return cast(Dead, self.node.process)

    def start(self, node: Node) -> None:
        node.process = cast(NodeProcess, Dead())

    def signal(self, node: Node, number: signal.Signals) -> None:
        if node.is_running and number in (signal.SIGTERM, signal.SIGKILL):
            code = self.stops_with if number is signal.SIGTERM else -number
            self.process.code = code
            if number is signal.SIGTERM and self.stops_later_with is not None:
                later = self.stops_later_with
                asyncio.get_running_loop().call_later(0.01, setattr, self.process, "code", later)

    def kill(self, node: Node) -> None:
        self.signal(node, signal.SIGKILL)
        self.reap(node)

    def reap(self, node: Node) -> int | None:
        code = None if node.process is None else node.process.poll()
        if code is not None:
            node.process = None
        return code

    def empty(self, node: Node) -> None: ...


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneNode]:
    cluster = OneNode(tmp_path)
    yield cluster
    cluster.node.control.close()


def nemesis_of(one: OneNode) -> Nemesis:
    recorder = Recorder(lambda: 0, {})
    cluster = cast(Cluster, one)
    watch = Watch(cluster, recorder)
    watch.statuses[one.node.name] = {"confirm": 0}
    return Nemesis(cluster, watch, recorder, SeededRandom("1"), network=None, clients={})


async def kept(nemesis: Nemesis) -> list[str]:
    """What the keeper has to say of nodes that nothing excuses."""
    nemesis.start()
    await pause(150)
    await nemesis.stop()
    return [found.sentence for found in unexcused(nemesis.ended)]


async def test_node_that_somebody_else_has_stopped_makes_the_run_bad(one: OneNode) -> None:
    nemesis = nemesis_of(one)
    one.process.code = 0

    assert await kept(nemesis) == [
        "g1-b1 ended by itself with exit code 0; it said last: broker: the port is taken"
    ]


async def test_node_that_ends_at_the_moment_of_a_kill_is_told(one: OneNode) -> None:
    nemesis = nemesis_of(one)
    one.process.code = 2

    await nemesis.carry_out([Fault(at_ms=0, kind="kill", target="g1-b1", for_ms=1)])

    assert [ended.code for ended in nemesis.ended] == [2]


async def test_graceful_stop_is_not_an_end_that_the_keeper_finds(one: OneNode) -> None:
    nemesis = nemesis_of(one)
    nemesis.start()

    await nemesis.carry_out([Fault(at_ms=0, kind="stop", target="g1-b1", for_ms=200)])
    await nemesis.stop()

    assert not nemesis.ended


@pytest.mark.parametrize(("code", "is_told"), [(0, False), (1, True)])
async def test_kill_that_finds_a_node_stopped_as_it_was_told_to_tells_nothing(
    one: OneNode, code: int, is_told: bool
) -> None:
    # It needs a while, and has ended when the kill comes.
    one.stops_with, one.stops_later_with = None, code
    nemesis = nemesis_of(one)
    stop = Fault(at_ms=0, kind="stop", target="g1-b1", for_ms=500)
    kill = Fault(at_ms=300, kind="kill", target="g1-b1", for_ms=1)

    await nemesis.carry_out([stop, kill])

    assert [ended.code for ended in nemesis.ended] == ([code] if is_told else [])


async def test_node_that_does_not_stop_in_time_is_killed_and_told(
    one: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline_chaos.processes.scenario.nemesis.STOP_TIMEOUT_MS", 1)
    one.stops_with = None
    nemesis = nemesis_of(one)

    await nemesis.carry_out([Fault(at_ms=0, kind="stop", target="g1-b1", for_ms=1)])

    assert [ended.code for ended in nemesis.ended] == [-signal.SIGKILL]


async def test_failed_disk_excuses_a_node_that_says_so_and_not_one_that_was_stopped(
    one: OneNode,
) -> None:
    nemesis = nemesis_of(one)
    nemesis.start()
    await nemesis.carry_out([Fault(at_ms=0, kind="disk_fail", target="g1-b1", for_ms=1)])
    one.process.code = 2
    assert await kept(nemesis) == []
    assert [ended.excuse for ended in nemesis.ended] == ["its disk had failed"]

    one.start(one.node)  # another process, on a disk that works again
    one.process.code = 2
    assert len(await kept(nemesis)) == 1


async def test_failed_disk_does_not_excuse_an_end_without_a_complaint(one: OneNode) -> None:
    nemesis = nemesis_of(one)
    await nemesis.carry_out([Fault(at_ms=0, kind="disk_full", target="g1-b1", for_ms=1)])
    one.process.code = 0

    assert len(await kept(nemesis)) == 1


@pytest.mark.parametrize(("flips", "refusals_max", "count"), [(1, 1, 0), (0, 1, 1), (1, 0, 1)])
async def test_refusal_for_damage_needs_a_flip_and_a_scenario_that_allows_it(
    one: OneNode, flips: int, refusals_max: int, count: int
) -> None:
    nemesis = nemesis_of(one)
    nemesis.may_empty = refusals_max
    (one.node.folder / f"{0:020}.log").write_bytes(bytes(100))
    flip = Fault(at_ms=0, kind="disk_flip", target="g1-b1", details={"region": 0})
    await nemesis.carry_out([flip] * flips)
    one.node.log_path.write_text("broker: the log is damaged at 7\n")
    one.process.code = 2

    assert len(await kept(nemesis)) == count
    assert len(nemesis.emptied) == 1 - count


async def test_flip_that_finds_no_byte_has_missed(one: OneNode) -> None:
    nemesis = nemesis_of(one)

    await nemesis.carry_out([Fault(at_ms=0, kind="disk_flip", target="g1-b1")])

    assert nemesis.missed == ["g1-b1: no byte to flip"]
    assert not nemesis.flipped
