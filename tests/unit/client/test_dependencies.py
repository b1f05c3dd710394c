"""Every dependency stands in ADR 5 with the licence that its own metadata states."""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs/adr/0005-dependencies.md"
ROWS = dict(re.findall(r"^\| ([a-z0-9-]+) \| ([^|]+?) \|", TABLE.read_text(), re.MULTILINE))
ROWS.pop("distribution")


def needed() -> list[str]:
    """Names of the run-time dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(re.split(r"[^\w-]", text, maxsplit=1)[0] for text in project["dependencies"])


def stated_licence(name: str) -> str:
    """What the distribution says: the licence expression, else the licence, else its classifier."""
    metadata = distribution(name).metadata
    for field in ("License-Expression", "License"):
        if field in metadata:
            return metadata[field]
    classifiers = metadata.get_all("Classifier", [])
    return str(next(text for text in classifiers if "License" in text).rpartition(" :: ")[2])


def test_table_lists_exactly_the_dependencies() -> None:
    assert sorted(ROWS) == needed()


@pytest.mark.parametrize("name", sorted(ROWS))
def test_licence_is_what_the_metadata_says(name: str) -> None:
    assert ROWS[name] == stated_licence(name)
