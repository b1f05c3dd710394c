"""What a reader should never meet: forgotten notes, links to nowhere, rules that do not exist."""

import re
from pathlib import Path

import pytest
from tests.tidy.tree import PRODUCT, ROOT, TESTS, Module

SOURCES = tuple(module for module in PRODUCT + TESTS if module.path != "tests/tidy/test_text.py")
DOCUMENTS = tuple(sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")}))

NOTE = re.compile(r"\b(FIXME|XXX|HACK)\b|\bTODO\b(?!\(#\d+\))")
RULE = re.compile(r"\b(?:INV-(\d+)|R(\d+))\b")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
MERGE = re.compile(r"<{7} |={7}$|>{7} ")
INVARIANTS_COUNT, RULES_COUNT = 12, 38


def test_no_note_was_forgotten() -> None:
    wrong = [
        f"{module.path}:{number}: {line.strip()}"
        for module in SOURCES
        for number, line in enumerate(module.text.splitlines(), 1)
        if NOTE.search(line)
    ]

    assert not wrong, "\n".join(wrong)


def test_no_merge_was_left_half_done() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in DOCUMENTS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if MERGE.match(line)
    ]

    assert not wrong, "\n".join(wrong)


def cited(module: Module) -> set[str]:
    return {match.group() for match in RULE.finditer(module.text)}


def test_cited_rules_exist() -> None:
    known = {f"INV-{number}" for number in range(1, INVARIANTS_COUNT + 1)}
    known |= {f"R{number}" for number in range(1, RULES_COUNT + 1)}
    wrong = [f"{module.path} cites {rule}" for module in SOURCES for rule in cited(module) - known]

    assert not wrong, "\n".join(wrong)


def rows() -> dict[str, str]:
    """Rule -> the cell of docs/INVARIANTS.md that says which files carry it."""
    found: dict[str, str] = {}
    for line in (ROOT / "docs/INVARIANTS.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and RULE.fullmatch(cells[0]):
            found[cells[0]] = cells[2]
    return found


def test_every_invariant_and_rule_has_its_row() -> None:
    expected = {f"INV-{number}" for number in range(1, INVARIANTS_COUNT + 1)}
    expected |= {f"R{number}" for number in range(1, RULES_COUNT + 1)}

    assert set(rows()) == expected


def test_files_that_are_said_to_carry_a_rule_cite_it() -> None:
    by_path = {module.path: module for module in PRODUCT + TESTS}
    wrong = [
        f"{rule}: {path}"
        for rule, cell in rows().items()
        for path in re.findall(r"`([\w/]+\.py)`", cell)
        if path not in by_path or rule not in cited(by_path[path])
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(document: Path) -> None:
    targets = [t for t in LINK.findall(document.read_text()) if "://" not in t]
    missing = [target for target in targets if not (document.parent / target).exists()]

    assert not missing, missing
