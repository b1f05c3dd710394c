"""Functions of at most 60 lines, modules of at most 500 (STYLE 11).

exceptions.txt lists what is longer: `path[::function] lines reason`. An entry is exact, so that
what has shrunk cannot grow back, and there may never be more entries than `EXCEPTIONS_COUNT_MAX`.
"""

from tests.tidy.tree import PRODUCT, ROOT, TESTS

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 500
EXCEPTIONS_COUNT_MAX = 0
"""Only ever lowered."""


def too_long() -> dict[str, int]:
    found: dict[str, int] = {}
    for module in PRODUCT + TESTS:
        lines = module.text.count("\n")
        if lines > MODULE_LINES_MAX:
            found[module.path] = lines
        for name, function in module.functions():
            assert function.end_lineno is not None
            size = function.end_lineno - function.lineno + 1
            if size > FUNCTION_LINES_MAX:
                found[f"{module.path}::{name}"] = size
    return found


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
