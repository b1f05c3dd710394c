"""Files that are generated from code are what the code says."""

from pathlib import Path

import pytest
from tests.tidy.generated import ROOT, documents

DOCUMENTS = documents()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_file_is_up_to_date(path: Path) -> None:
    assert path.read_text() == DOCUMENTS[path], "run: make docs"
