"""Files that the documents name exist, and their examples are valid Python."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = tuple(sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")}))
PATH = re.compile(r"`((?:client|broker|controller|chaos|tests|docs|deploy)/[\w./-]+)`")
PYTHON = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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
