"""Each checker passes the least good history and alone catches the least bad one."""

import re
from pathlib import Path

import pytest
from tests.unit.chaos.checkers.cases import history_of
from tests.unit.chaos.checkers.door_cases import CASES

from paceline_chaos.checkers import ALL, judge


def test_every_property_has_a_case() -> None:
    assert {name.split()[0] for name in CASES} == ALL.keys()


@pytest.mark.parametrize("name", CASES)
def test_good_history_passes_and_was_judged(name: str) -> None:
    verdict = judge(history_of(name, is_bad=False))

    assert verdict.violations == ()
    assert verdict.counters[f"judged.{name.split()[0]}"] > 0


@pytest.mark.parametrize("name", CASES)
def test_bad_history_breaks_exactly_its_property(name: str) -> None:
    history = history_of(name, is_bad=True)
    verdict = judge(history)

    assert {violation.property for violation in verdict.violations} == {name.split()[0]}
    for violation in verdict.violations:
        assert violation.proof
        assert set(violation.proof) <= {entry.number for entry in history.entries}


def test_document_has_a_row_for_each_property() -> None:
    text = (Path(__file__).parents[4] / "docs/CHECKERS.md").read_text()

    rows = re.findall(r"^\| ((?:S|L|R|INV-)\d+) \|", text, flags=re.MULTILINE)
    assert sorted(rows) == sorted(ALL)
