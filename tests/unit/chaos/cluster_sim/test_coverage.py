"""What a batch of worlds must have shown, or it has proved nothing."""

from pathlib import Path

from paceline_chaos import ledger
from paceline_chaos.checkers import ALL
from paceline_chaos.cluster_sim.coverage import (
    COVERAGE,
    JUDGED_BY_MOMENTS,
    MEANS,
    WORLDS_FOR_COVERAGE,
    judged_counts,
    lacks,
    said_of_judged,
)
from paceline_chaos.cluster_sim.faults.plan import WEIGHTS
from paceline_chaos.faults.plan import PLANNED_IN_WORLDS
from paceline_chaos.verify import Verification


def whole(worlds: int) -> dict[str, int]:
    """Sums of a batch that lacks nothing."""
    sums = dict.fromkeys(COVERAGE, 1) | judged_counts({f"judged.{name}": 1 for name in ALL})
    return sums | {name: least * worlds for name, least in MEANS.items()}


def test_whole_batch_lacks_nothing() -> None:
    assert not lacks(whole(WORLDS_FOR_COVERAGE), worlds=WORLDS_FOR_COVERAGE)


def test_every_kind_that_is_drawn_is_asked_for() -> None:
    assert set(WEIGHTS) == set(PLANNED_IN_WORLDS)
    assert {f"hit_{kind}" for kind in WEIGHTS} <= set(COVERAGE)


def test_few_worlds_owe_nothing() -> None:
    assert not lacks({}, worlds=WORLDS_FOR_COVERAGE - 1)


def test_every_counter_every_mean_and_every_property_is_asked_for() -> None:
    for name in COVERAGE:
        sums = whole(WORLDS_FOR_COVERAGE) | {name: 0}
        assert lacks(sums, worlds=WORLDS_FOR_COVERAGE), name
    for name, least in MEANS.items():
        sums = whole(WORLDS_FOR_COVERAGE) | {name: least * WORLDS_FOR_COVERAGE - 1}
        assert lacks(sums, worlds=WORLDS_FOR_COVERAGE), name
    for name in ALL:
        sums = whole(WORLDS_FOR_COVERAGE)
        del sums[f"judged_{name}"]
        wanted = [] if name in JUDGED_BY_MOMENTS else [f"never judged: {name}"]
        assert lacks(sums, worlds=WORLDS_FOR_COVERAGE) == wanted


def test_counts_of_judged_things_are_told_in_one_line() -> None:
    line = said_of_judged(judged_counts({"judged.S4": 7}))

    assert "S4=7" in line
    assert "L2=0" in line


def test_verify_is_not_good_after_worlds_that_have_shown_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "ledger"
    ledger.append(ledger.Line(source="none", bed="world", end=WORLDS_FOR_COVERAGE), path)
    verification = Verification(processes=1, path=path, say=said.append, source="none")

    verification.weigh("world")

    assert not verification.is_good
    assert any("never judged: L2" in line for line in said)
