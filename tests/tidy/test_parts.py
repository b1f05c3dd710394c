"""The parts of `make test` leave no test out, and what judges a time has nothing beside it."""

import ast
import asyncio
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import tests.parts
from tests.interpreters import other_interpreters
from tests.parts import ROOT, Part, parts, run, run_in_turn
from tests.support.process.harness import end_with_parent
from tests.tidy.tree import TESTS, Module

from paceline.platform.runtime import pause, spawn

CHECKED = {"tests/tidy", "tests/unit"}
"""What `make check` runs."""
MEASURED = re.compile(r"_(ms|us)(_|$)")
"""Names of times, as all code has them."""
GENEROUS = {"BUSY_MS_MAX", "RETURNED_WITHIN_MS", "REPAIRED_WITHIN_MS", "LATE_MS", "deadline_ms"}
"""Bounds that hold on a busy machine too: they only tell that something hangs."""
REAL_TIME = {"tests.sim.raft.cluster", "paceline.platform.runtime.SystemClock", "asyncio.run"}


def test_every_test_is_of_one_part() -> None:
    marks: defaultdict[str, list[str]] = defaultdict(list)
    for part in parts().values():
        for folder in part.folders:
            marks[folder].append(part.marks)
    folders = {f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/test_*.py")}
    folders |= {f"tests/{path.parent.parent.name}" for path in (ROOT / "tests").glob("*/*/test_*")}

    assert folders == set(marks) | CHECKED
    for folder, chosen in marks.items():
        one = min(chosen, key=len)
        assert sorted(chosen) == sorted([one, f"not {one}"] if one else [""]), folder


def a_part(folder: Path, name: str, text: str, *, is_aside: bool = False) -> Part:
    path = folder / f"test_{name}.py"
    path.write_text(text)
    return Part(title=name, folders=(str(path),), is_background=is_aside, is_shown_at_end=is_aside)


async def test_after_a_part_that_fails_nothing_more_begins(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # At a low priority it would wait for all other tests of a busy machine.
    monkeypatch.setattr(tests.parts, "_in_background", end_with_parent)
    good = a_part(tmp_path, "good", "def test_it(): assert True")
    bad = a_part(tmp_path, "bad", "def test_it(): assert not 'shown'", is_aside=True)

    assert await run_in_turn([good]) is True
    assert await run_in_turn([bad, good]) is False

    said = capfd.readouterr().out
    assert said.count("good: passed") == said.count("bad: FAILED") == 1
    assert "assert not 'shown'" in said


WAITS = """
import pathlib, pytest, threading

@pytest.fixture
def cluster():
    pathlib.Path(__file__).with_name("begun").touch()
    yield
    pathlib.Path(__file__).with_name("stopped").touch()

def test_it(cluster):
    threading.Event().wait(20)
"""


async def test_an_interrupted_part_stops_what_it_started(tmp_path: Path) -> None:
    async def one() -> None:
        await run(a_part(tmp_path, "waits", WAITS))

    running = spawn(one(), name="part")
    async with asyncio.timeout(20):
        while not (tmp_path / "begun").exists():
            await pause(20)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (tmp_path / "stopped").exists()


# -- times of real processes ----------------------------------------------------------------------


def judging(module: Module) -> Iterator[str]:
    """Tests that find a measured time too long, themselves or in a function of their module, and
    have not the marker "alone"."""
    functions = {
        node.name: node
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for name, function in functions.items():
        if name.startswith("test_") and not _is_marked(function, "alone"):
            reached = _reached(function, functions)
            yield from (f"{module.path}:{line} {name}" for one in reached for line in _bounds(one))


def _reached(
    function: ast.AST, functions: "dict[str, ast.FunctionDef | ast.AsyncFunctionDef]"
) -> list[ast.AST]:
    found: list[ast.AST] = [function]
    for one in found:
        names = {node.id for node in ast.walk(one) if isinstance(node, ast.Name)}
        found += [
            functions[name] for name in names & set(functions) if functions[name] not in found
        ]
    return found


def _bounds(function: ast.AST) -> Iterator[int]:
    """Lines of asserts that something measured is below something."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
            [*operators], right = node.test.ops, node.test.comparators[-1]
            is_upper = isinstance(operators[-1], ast.Lt | ast.LtE)
            is_time = any(map(MEASURED.search, _names(node.test)))
            if is_upper and is_time and not GENEROUS & _names(right):
                yield node.lineno


def _names(tree: ast.AST) -> set[str]:
    """Variables, attributes, and keys in brackets."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def _is_marked(function: "ast.FunctionDef | ast.AsyncFunctionDef", mark: str) -> bool:
    return any(ast.unparse(one) == f"pytest.mark.{mark}" for one in function.decorator_list)


def of(folder: str) -> list[Module]:
    return [one for one in TESTS if one.path.startswith(folder) and "/test_" in one.path]


def test_whoever_judges_a_time_runs_alone() -> None:
    wrong = [line for module in of("tests/process/") for line in judging(module)]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("planted", "is_found"),
    [
        ("async def test_it():\n    assert gap_ms < 1_000", True),
        ("def test_it():\n    assert load.gap_ms_max() <= LAG", True),
        ("def test_it():\n    assert 0 < answer['elapsed_ms'] < 1_000", True),
        ("def test_it():\n    check()\ndef check():\n    assert late_ms < 9", True),
        ("@pytest.mark.alone\ndef test_it():\n    assert gap_ms < 1_000", False),
        ("def test_it():\n    assert gap_ms < BUSY_MS_MAX", False),
        ("def test_it():\n    assert stored_ms >= due_ms", False),
        ("def test_it():\n    assert count < 9", False),
    ],
)
def test_planted_time_is_found(planted: str, is_found: bool) -> None:
    assert bool(list(judging(Module("x.py", "x", planted)))) is is_found


# -- simulations ----------------------------------------------------------------------------------


def test_simulations_in_real_time_are_not_run_at_the_lowest_priority() -> None:
    wrong = []
    for module in of("tests/sim/"):
        used = {name for _, name in (*module.imports(), *module.calls())}
        is_real = any(name.startswith(tuple(REAL_TIME)) for name in used)
        if is_real != ("pytest.mark.real_time" in module.text):
            wrong.append(module.path)

    assert not wrong, "\n".join(wrong)


def test_every_other_interpreter_is_found_once_and_one_that_does_not_run_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def an_interpreter(folder: str, name: str, text: str) -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    an_interpreter("first", "python3.18", "echo no such version >&2; exit 127")
    good = an_interpreter("second", "python3.18", "echo 18")
    an_interpreter("third", "python3.18", "echo 18")
    other = an_interpreter("pyenv/versions/3.17.4/bin", "python3.17", "echo 17")
    an_interpreter("first", f"python3.{sys.version_info[1]}", f"echo {sys.version_info[1]}")
    folders = [str(tmp_path / folder) for folder in ("first", "second", "third")]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("HOME", str(tmp_path))

    assert other_interpreters() == {17: other, 18: good}
