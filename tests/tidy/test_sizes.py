"""Functions of at most 60 lines, modules of at most 500, or 700 where it is one class (STYLE 11),
folders of at most 24 modules.

exceptions.txt lists what is longer: `path[::function] lines reason`. An entry is exact, so that
what has shrunk cannot grow back, and there may never be more entries than `EXCEPTIONS_COUNT_MAX`.
"""

import ast
from collections import Counter

from tests.tidy.tree import PACKAGES, PRODUCT, ROOT, TESTS, Module

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 500
CLASS_MODULE_LINES_MAX = 700
"""Of a module most of which is one class: spread over two, its state would have two owners."""
FOLDER_MODULES_MAX = 24
"""More than that are not one subject any more."""
EXCEPTIONS_COUNT_MAX = 0
"""Only ever lowered."""


def too_long() -> dict[str, int]:
    found: dict[str, int] = {}
    for module in PRODUCT + TESTS:
        lines = module.text.count("\n")
        if lines > _lines_max(module, lines):
            found[module.path] = lines
        for name, function in module.functions():
            assert function.end_lineno is not None
            size = function.end_lineno - function.lineno + 1
            if size > FUNCTION_LINES_MAX:
                found[f"{module.path}::{name}"] = size
    return found


def _lines_max(module: Module, lines: int) -> int:
    classes = [node for node in module.tree.body if isinstance(node, ast.ClassDef)]
    longest = max((node.end_lineno or 0) - node.lineno for node in classes) if classes else 0
    return CLASS_MODULE_LINES_MAX if longest > lines * 0.6 else MODULE_LINES_MAX


def listed() -> dict[str, int]:
    entries: dict[str, int] = {}
    for line in (ROOT / "tests/tidy/exceptions.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, size, reason = line.split(maxsplit=2)
            assert reason, line
            entries[name] = int(size)
    return entries


def test_functions_and_modules_are_short_or_listed_with_their_size() -> None:
    assert too_long() == listed()


def test_list_of_exceptions_only_shrinks() -> None:
    assert len(listed()) <= EXCEPTIONS_COUNT_MAX


def test_no_folder_of_the_packages_is_crowded() -> None:
    folders = Counter(
        module.path.rpartition("/")[0]
        for module in (*PRODUCT, *TESTS)
        if not module.path.endswith("/__init__.py")
    )

    assert {name: n for name, n in folders.items() if n > FOLDER_MODULES_MAX} == {}


def test_unit_tests_lie_where_what_they_test_lies() -> None:
    """`tests/unit/broker/log/` tests `broker/paceline_broker/log/`: neither has to be searched."""
    sources = {path.partition("/")[0]: path for path in PACKAGES.values()}
    folders = {module.path.rpartition("/")[0] for module in TESTS}
    strays = []
    for folder in sorted(folders):
        head, _, place = folder.partition("tests/unit/")
        package, _, rest = place.partition("/")
        if head or not package or rest == "records/golden":
            continue  # not a unit test, or bytes that a test reads
        if package in ("docs", "security", "interop"):
            continue  # of documents, of what all packages keep out, of programs in no package
        if package not in sources or not (ROOT / sources[package] / rest).is_dir():
            strays.append(folder)

    assert strays == []
