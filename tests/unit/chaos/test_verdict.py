"""Whose exception it was: a finding about the product, or a bed that broke."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.disk_memory import MemoryDisk
from paceline.records.decode import BatchView
from paceline.types import PhysicalOffset
from paceline_broker.replication.master.acknowledgement import AcknowledgementTracker
from paceline_broker.storage.store import lock_data_folder
from paceline_chaos.mutants import MUTANTS, Mutant
from paceline_chaos.protocol_sim.judge import content
from paceline_chaos.protocol_sim.run import run_seed
from paceline_chaos.protocol_sim.world import World
from paceline_chaos.verdict import CODE, HARNESS, code_or_harness


def _property(act: Callable[[], object]) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of any kind, that is the subject
        act()
    return code_or_harness(raised.value).property


def _tracker() -> Any:
    return AcknowledgementTracker(confirm=PhysicalOffset(8))


def test_assertion_of_the_product_is_a_finding_also_when_a_bed_called() -> None:
    tracker = _tracker()

    assert _property(lambda: tracker.advance(PhysicalOffset(4))) == CODE


def test_what_a_bed_raises_is_none() -> None:
    log: Any = None

    assert _property(lambda: content(log, 0, 1)) == HARNESS


def test_a_bed_that_breaks_inside_a_call_of_the_product_is_none() -> None:
    world: Any = None
    tracker = _tracker()
    tracker.add(PhysicalOffset(9), lambda error: content(world, 0, 1), deadline_ms=1)

    def call_back() -> None:
        for callback in tracker.advance(PhysicalOffset(9)):
            callback(None)

    assert _property(call_back) == HARNESS


def test_the_test_disk_that_breaks_is_no_finding_but_what_it_promises_to_raise_is() -> None:
    disk: Any = MemoryDisk()
    lock_data_folder(disk, "data")

    assert _property(lambda: disk.exists(7)) == HARNESS
    assert _property(lambda: lock_data_folder(disk, "data")) == CODE


def test_what_the_product_raises_on_bad_bytes_is_its_own() -> None:
    assert _property(lambda: BatchView(bytes(200), 0)) == CODE


def test_of_several_errors_one_of_the_product_is_enough() -> None:
    tracker = _tracker()
    errors: list[Exception] = []
    for act in (lambda: content(None, 0, 1), lambda: tracker.advance(PhysicalOffset(4))):  # type: ignore[arg-type]
        try:
            act()
        except Exception as error:  # noqa: BLE001 - collected as a task group does
            errors.append(error)

    assert code_or_harness(ExceptionGroup("tasks", errors)).property == CODE
    assert code_or_harness(ExceptionGroup("tasks", errors[:1])).property == HARNESS


def test_a_bed_that_breaks_catches_no_mutant() -> None:
    def breaks(world: World) -> None:
        raise StorageError("the bed is broken")

    mutant = Mutant(
        rule="none",
        meaning="the bed breaks",
        caught_by=frozenset({CODE}),
        patches=lambda: [(World, "_step", breaks)],
    )

    found = run_seed(0, mutant=mutant).violations

    assert [violation.property for violation in found] == [HARNESS]


def test_no_mutant_may_name_the_harness() -> None:
    with pytest.raises(AssertionError, match="has caught nothing"):
        Mutant(rule="x", meaning="", caught_by=frozenset({HARNESS}), patches=list)
    assert not any(HARNESS in mutant.caught_by for mutant in MUTANTS.values())


def test_an_error_without_any_frame_of_ours_is_none() -> None:
    error = CorruptLogError("by hand", offset=1)

    assert code_or_harness(error).property == HARNESS
