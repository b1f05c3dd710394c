"""Small tools of the harness for real processes: clocks that jump, names that are forgotten."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from paceline.platform.runtime import ManualClock, SeededRandom
from paceline_chaos.checkers.expectations import Expectation, uncounted
from paceline_chaos.faults.plan import Fault
from paceline_chaos.history.model import FaultEvent
from paceline_chaos.history.recorder import Recorder
from paceline_chaos.processes.cluster import Cluster, Node
from paceline_chaos.processes.names import Names
from paceline_chaos.processes.node import power
from paceline_chaos.processes.node.control import Control
from paceline_chaos.processes.node.stepped_clock import SteppedClock
from paceline_chaos.processes.scenario import aim, damage
from paceline_chaos.processes.scenario.nemesis import Nemesis
from paceline_chaos.processes.watch import Watch


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    page = Control(tmp_path / "control")
    yield page
    page.close()


def test_wall_clock_jumps_and_running_time_does_not(control: Control) -> None:
    base = ManualClock(monotonic_ms=1_000)
    clock = SteppedClock(base, control)
    before = clock.unix_ms()

    control.set("wall_offset_ms", -3_600_000)

    assert clock.unix_ms() == before - 3_600_000
    assert clock.monotonic_ms() == 1_000


def test_running_time_keeps_what_it_gained_and_never_goes_back(control: Control) -> None:
    base = ManualClock()
    clock = SteppedClock(base, control)
    control.set("rate_ppm", 500_000)
    base.advance(1_000)
    assert clock.monotonic_ms() == 1_500

    control.set("rate_ppm", -2_000_000)
    seen = []
    for _ in range(10):
        base.advance(10)
        seen.append(clock.monotonic_ms())
    assert seen == [1_500] * 10

    control.set("rate_ppm", 0)
    base.advance(10)
    assert clock.monotonic_ms() == 1_510


def test_both_sides_of_the_control_page_see_one_number(tmp_path: Path) -> None:
    harness, node = Control(tmp_path / "page"), Control(tmp_path / "page")

    harness.set("sync_failures", 2)

    assert [node.take("sync_failures") for _ in range(3)] == [True, True, False]
    assert harness.get("sync_failures") == 0
    harness.close()
    node.close()


def test_prefix_of_the_unsynced_names_survives_in_their_order() -> None:
    names = Names()
    for entry in (
        ["d", "create", "a", 1],
        ["d", "sync"],
        ["d", "rename", "a", "b"],
        ["d", "create", "a", 2],
        ["d", "unlink", "b"],
    ):
        names.apply(entry)
    folder = names.folders["d"]

    after = [folder.names(count) for count in range(4)]

    assert after == [{"a": 1}, {"b": 1}, {"b": 1, "a": 2}, {"a": 2}]
    again = Names()
    for entry in names.entries():
        again.apply(entry)
    assert again == names


def test_flip_stays_below_confirm_and_changes_one_bit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / "00000000000000000000.log").write_bytes(bytes(100))
    (log / "00000000000000000100.log").write_bytes(bytes(100))
    (log / "LOCK").write_bytes(bytes(100))

    for seed in range(50):
        damage.flip(tmp_path, SeededRandom(str(seed)), file_class=0, confirm=110)

    assert damage.flip(tmp_path, SeededRandom("1"), file_class=1, confirm=None) is None
    content = b"".join(path.read_bytes() for path in sorted(log.glob("*.log")))
    assert any(content[:110])
    assert not any(content[110:])
    assert (log / "LOCK").read_bytes() == bytes(100)


def test_a_run_in_which_nothing_happened_proves_nothing() -> None:
    expect = Expectation(counters_min={"lost.unconfirmed": 1, "messages_read": 100})

    (missing,) = uncounted(expect, {"messages_read": 100})

    assert missing.sentence == "lost.unconfirmed is 0, expected at least 1"
    assert not uncounted(expect, {"lost.unconfirmed": 3, "messages_read": 200})


def a_node(control: Control, tmp_path: Path) -> Node:
    return Node(
        name="g1-b1",
        role="broker",
        group="g1",
        host="127.0.1.1",
        address="127.0.1.1:1",
        replication_address="",
        folder=tmp_path,
        config_path=tmp_path,
        log_path=tmp_path,
        control=control,
        control_path=tmp_path,
        shadow=tmp_path,
    )


class _Still:
    """A cluster of one node, which nothing happens to."""

    def __init__(self, node: Node) -> None:
        self.tls = None
        self.nodes, self.brokers, self.controllers = {node.name: node}, [node], list[Node]()

    def signal(self, node: Node, number: signal.Signals) -> None: ...

    def reap(self, node: Node) -> None: ...

    def start(self, node: Node) -> None: ...


async def test_fault_that_finds_nobody_to_hit_is_told(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aim, "_RESOLVE_TIMEOUT_MS", 0)
    recorder = Recorder(lambda: 0, {})
    cluster = cast(Cluster, _Still(a_node(control, tmp_path)))
    watch = Watch(cluster, recorder)
    nemesis = Nemesis(cluster, watch, recorder, SeededRandom("1"), network=None, clients={})

    await nemesis.carry_out([Fault(at_ms=0, kind="kill", target="leader", for_ms=1)])

    assert nemesis.missed == ["leader"]
    assert not recorder.history.entries


async def test_power_cut_begins_with_the_death_and_not_when_its_losses_are_known(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An election comes within milliseconds: told later, it would have had no cause (L6)."""
    clock = ManualClock()
    node = a_node(control, tmp_path)
    recorder = Recorder(lambda: clock.monotonic_ms() * 1000, {})
    cluster = cast(Cluster, _Still(node))
    nemesis = Nemesis(
        cluster,
        Watch(cluster, recorder),
        recorder,
        SeededRandom("1"),
        network=None,
        clients={},
    )

    def slow_cut(*_: object, **__: object) -> dict[str, int]:
        clock.advance(50)
        return {"lost_pages": 3}

    monkeypatch.setattr(power, "cut", slow_cut)
    await nemesis.carry_out([Fault(at_ms=0, kind="power", target="g1-b1", for_ms=1)])

    faults = [entry for entry in recorder.history.entries if isinstance(entry, FaultEvent)]
    assert [(fault.at_us // 1000, fault.is_begin, fault.detail) for fault in faults] == [
        (0, True, "lost_pages 3"),
        (50, False, ""),
    ]
