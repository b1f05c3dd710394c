"""Files that the documents name exist, and their examples are valid Python."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = tuple(sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")}))
PATH = re.compile(r"`((?:client|broker|controller|chaos|tests|docs|deploy)/[\w./-]+)`")
PYTHON = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAP_ENTRY = re.compile(r"`([\w/]+(?:\.py|/))`")
MADE_LATER = {"docs/BENCHMARKS.md", "docs/verification.jsonl"}
"""Written by `make bench` and `make verify`."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_in_a_document_exist(document: Path) -> None:
    named = set(PATH.findall(document.read_text())) - MADE_LATER
    missing = sorted(path for path in named if not (ROOT / path).exists())

    assert not missing, missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_in_a_document_compiles(document: Path) -> None:
    for text in PYTHON.findall(document.read_text()):
        compile(text, str(document), "exec")


def test_every_entry_of_the_file_map_is_there() -> None:
    """Entries are paths below the package whose table they stand in, or ends of such paths."""
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    sections = re.split(
        r"^`((?:client|broker|controller|gateway|chaos)/\w+)/`", text, flags=re.MULTILINE
    )
    missing = []
    for package, table in zip(sections[1::2], sections[2::2], strict=True):
        there = [f"/{path.relative_to(ROOT / package)}" for path in (ROOT / package).rglob("*")]
        rows = "\n".join(line for line in table.splitlines() if line.startswith("| "))
        for entry in MAP_ENTRY.findall(rows):
            end = f"/{entry.removesuffix('/')}"
            if not any(path.endswith(end) for path in there):
                missing.append(f"{package}: {entry}")

    assert len(sections) == 11, "one table, or more, for each of the five packages"
    assert missing == []
