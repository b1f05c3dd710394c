"""Servers of a world: what their logs and exits say, and which faults excuse them, for how long."""

import logging
from collections.abc import Iterator

import pytest

from paceline.errors import ConfigError, CorruptLogError, StorageError
from paceline.platform.disk_memory import PowerLost
from paceline_chaos.cluster_sim.faults.inject import ARMED_MS, Injector
from paceline_chaos.cluster_sim.faults.plan import Plan
from paceline_chaos.cluster_sim.jobs.around import IntendedError
from paceline_chaos.cluster_sim.nodes import WELL_MS, BrokerNode
from paceline_chaos.cluster_sim.probes import EventCounter, counted_logs
from paceline_chaos.cluster_sim.run import run_world
from paceline_chaos.cluster_sim.script import stock_topology
from paceline_chaos.cluster_sim.stage import Stage
from paceline_chaos.faults.plan import Fault
from paceline_chaos.history.model import FaultEvent
from paceline_chaos.sim.simulation import Simulation


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Three brokers and three controllers, none of them started."""
    with Simulation("nodes") as simulation:
        yield Stage(simulation, stock_topology(1, load_ms=1_000), {"bed": "world"})


def test_logs_are_heard_though_who_runs_the_world_has_silenced_them() -> None:
    counter = EventCounter()
    ours = logging.getLogger("paceline")
    ours.setLevel(logging.CRITICAL)
    try:
        with counted_logs(counter):
            logging.getLogger("paceline.log").info("log_truncated")
        assert ours.level == logging.CRITICAL
    finally:
        ours.setLevel(logging.NOTSET)

    assert counter.counts["log_truncated"] == 1


def test_traceback_in_a_log_is_a_violation(stage: Stage) -> None:
    counter = EventCounter()
    counter.on_error = stage.logged

    with counted_logs(counter):
        try:
            raise ValueError("7 is no epoch")
        except ValueError:
            logging.getLogger("paceline.http").exception("request_failed")

    assert len(stage.bugs) == 1
    assert "logged request_failed" in stage.bugs[0].sentence
    assert "7 is no epoch" in stage.bugs[0].sentence


def test_traceback_of_what_a_listener_raised_on_purpose_is_none(stage: Stage) -> None:
    counter = EventCounter()
    counter.on_error = stage.logged
    log = logging.getLogger("paceline.client")

    with counted_logs(counter):
        log.warning("message_failed: it comes again", exc_info=IntendedError())
        log.warning("message_failed: it comes again", exc_info=ValueError("a bug of the harness"))

    assert counter.counts["message_failed"] == 2
    assert ["a bug of the harness" in bug.sentence for bug in stage.bugs] == [True]


def test_traceback_of_the_injected_failure_is_none(stage: Stage) -> None:
    node = stage.brokers["b1"]
    node.excuse("disk_fail")

    stage.logged("b1", "raft_failed", StorageError("sync failed"))
    stage.logged("b2", "anything", PowerLost())

    assert not stage.bugs


@pytest.mark.parametrize(
    ("error", "fault", "is_explained"),
    [
        (StorageError("x"), "disk_fail", True),
        (StorageError("x"), "disk_full", True),
        (StorageError("x"), "disk_stale", False),
        (StorageError("x"), None, False),
        (CorruptLogError("x"), "disk_fail", False),
        (ConfigError("x"), "disk_stale", True),
        (ConfigError("x"), None, False),
        (ValueError("x"), "disk_fail", False),
    ],
)
def test_fault_excuses_only_what_it_leads_to(
    stage: Stage, error: Exception, fault: str | None, is_explained: bool
) -> None:
    node = stage.brokers["b1"]
    if fault is not None:
        node.excuse(fault)

    assert node.is_explained(error) is is_explained


def test_excuse_ends_when_a_node_has_been_well_for_a_while(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.brokers["b1"]
    monkeypatch.setattr(BrokerNode, "is_well", lambda self: True)
    node.excuse("disk_fail")
    node.disk.fail_next("sync")

    node.check_health(0)
    node.check_health(10 * WELL_MS)
    assert node.excuses, "the failure is still to come"

    node.disk.forget_failures()
    node.check_health(20 * WELL_MS)
    node.check_health(21 * WELL_MS)
    assert not node.excuses


def test_failure_that_waits_for_a_call_ends_with_healing(stage: Stage) -> None:
    injector = Injector(stage)
    fault = Fault(at_ms=0, kind="disk_fail", target="b1", details={"count": 1})
    injector.begin(fault, stage.brokers["b1"].chance)
    assert stage.brokers["b1"].disk.is_failing

    injector.heal_all()

    assert not stage.brokers["b1"].disk.is_failing


def test_every_fault_that_begins_has_its_end_in_the_history() -> None:
    kinds = ("power_at", "disk_fail", "reset", "kill", "clock_step")
    faults = tuple(
        Fault(at_ms=500 + 1_500 * number, kind=kind, target="g1-b1", for_ms=300)
        for number, kind in enumerate(kinds)
    )
    result = run_world(1, plan=Plan(faults=faults), load_ms=ARMED_MS + 8_000)

    begun: dict[str, int] = {}
    for entry in result.history.entries:
        if isinstance(entry, FaultEvent):
            begun[entry.kind] = begun.get(entry.kind, 0) + (1 if entry.is_begin else -1)
    assert set(begun) >= set(kinds)
    assert not any(begun[kind] for kind in kinds)


@pytest.mark.parametrize(
    ("error", "is_explained"),
    [
        (CorruptLogError("a bad batch at 7"), True),
        (ConfigError("the log is damaged at 7: empty the folder"), True),
        (ConfigError("another cluster's folder"), False),
        (StorageError("the folder is locked"), False),
    ],
)
def test_flip_excuses_only_refusals_that_are_for_damage(
    stage: Stage, error: Exception, is_explained: bool
) -> None:
    node = stage.brokers["b1"]
    node.excuse("disk_flip")
    node.is_damaged = True

    assert node.is_explained(error) is is_explained


@pytest.mark.parametrize("kind", ["disk_flip", "power_at", "disk_fail"])
def test_fault_without_an_effect_is_not_told_and_not_counted(stage: Stage, kind: str) -> None:
    injector = Injector(stage)
    node = stage.brokers["b1"]

    injector.begin(Fault(at_ms=0, kind=kind, target="b1"), node.chance)
    injector.heal_all()

    assert not injector.done[kind]
    assert not node.is_damaged
    assert not node.excuses
    assert not stage.recorder.history.entries


def test_failing_call_is_told_when_it_fails(stage: Stage) -> None:
    injector = Injector(stage)
    node = stage.brokers["b1"]
    injector.begin(Fault(at_ms=0, kind="disk_fail", target="b1"), node.chance)
    assert not stage.recorder.history.entries

    node.disk.on_failed("sync")  # type: ignore[misc]  # it is set

    assert injector.done["disk_fail"] == 1
    assert [entry.kind for entry in stage.recorder.history.entries] == ["disk_fail"]  # type: ignore[union-attr]
    assert node.excuses == {"disk_fail"}


def test_power_that_fails_inside_an_operation_is_one_fault() -> None:
    fault = Fault(at_ms=500, kind="power_at", target="g1-b1", for_ms=300, details={"operations": 1})
    result = run_world(1, plan=Plan(faults=(fault,)), load_ms=3_000)

    assert result.counters["fault.power_at"] == 1
    assert result.counters["power_losses"] == result.counters["faults"] == 1
