"""`pyspark_paceline`, by which Spark finds the source: never in the way of anybody's source."""

import importlib
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

import pytest

SHIM = "pyspark_paceline"
SOURCE = "paceline.spark.source"


class _Broken(MetaPathFinder):
    """Fails to import one module, and whatever is in it, with an error."""

    def __init__(self, name: str, error: Exception) -> None:
        self._name = name
        self._error = error
        self.asked = 0

    def find_spec(self, name: str, *_: Any) -> None:
        if name == self._name or name.startswith(f"{self._name}."):
            self.asked += 1
            raise self._error


@pytest.fixture(autouse=True)
def _modules_as_before() -> Iterator[None]:
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    sys.modules.update(before)
    for name, module in before.items():
        parent, _, child = name.rpartition(".")
        if name.startswith("paceline.spark") and parent in before:
            setattr(before[parent], child, module)


def shim_where(broken: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The shim, imported anew in a Python where a module cannot be."""
    finder = _Broken(broken, error)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    for name in list(sys.modules):
        is_broken = name == broken or name.startswith(f"{broken}.")
        if is_broken or name.startswith(("paceline.spark", SHIM)):
            del sys.modules[name]
    found = importlib.import_module(SHIM)
    assert finder.asked > 0, f"{broken} was not looked for"
    return found


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("pyspark", ModuleNotFoundError("No module named 'pyspark'")),
        (SOURCE, ImportError("cannot import name 'Filter' from 'pyspark.sql.datasource'")),
        (SOURCE, SyntaxError("invalid syntax")),
        (SOURCE, RuntimeError("whatever")),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_shim_can_be_imported_whatever_is_broken(
    broken: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = shim_where(broken, error, monkeypatch)

    # Spark asks a module for this name, and takes nothing from one that has none.
    assert not hasattr(shim, "DefaultSource")
