"""Calls with one home: time, chance, tasks, threads, the environment (STYLE 29, 34, 37)."""

import ast
from collections.abc import Iterator
from fnmatch import fnmatch

import pytest
from tests.tidy.tree import PRODUCT, TESTS, Module

RUNTIME = "client/paceline/platform/runtime.py"
"""The real Clock and Random, and the only place that starts tasks or waits."""

SEEDED = "chaos/paceline_chaos/*"
"""Faults and schedules are drawn from generators made of a seed's text: the same everywhere."""

PATCHES = "chaos/paceline_chaos/sim/patches.py"
"""Replaces names of the standard library while a simulation runs, so it has to name them."""

SPARK = "client/paceline/spark/"

HOMES: dict[str, tuple[str, ...]] = {
    # The bench measures microseconds of this machine; the Clock port counts milliseconds.
    "time.perf_counter": ("client/paceline/cli/bench*.py", f"{SPARK}bench.py"),
    "time.*": (RUNTIME,),
    "datetime.datetime.now": (RUNTIME,),
    "datetime.datetime.utcnow": (RUNTIME,),
    "datetime.datetime.today": (RUNTIME,),
    "datetime.date.today": (RUNTIME,),
    "random.Random": (RUNTIME, SEEDED),
    "random.*": (RUNTIME, PATCHES),
    "secrets.*": (RUNTIME,),
    "uuid.uuid1": (RUNTIME,),
    "uuid.uuid4": (RUNTIME,),
    "os.urandom": (RUNTIME,),
    "asyncio.sleep": (RUNTIME,),
    "asyncio.create_task": (RUNTIME,),
    "asyncio.ensure_future": (RUNTIME,),
    "asyncio.to_thread": (),
    "threading.Thread": (
        "client/paceline/platform/disk_real.py",
        "client/paceline/blocking/twin.py",
        "controller/paceline_controller/watchdog.py",  # what watches a loop cannot live on it
        f"{SPARK}export/command.py",
        PATCHES,
    ),
    # Tasks of Spark and listeners of blocking clients are blocking code; the flood of a bench has
    # processes of its own.
    "concurrent.futures.*": (
        f"{SPARK}*",
        "client/paceline/blocking/*",
        "client/paceline/cli/bench/overload.py",
    ),
    # Nothing below the entry point of a process reads the environment; Spark itself does.
    "os.environ": ("*/app.py", "client/paceline/cli/*", f"{SPARK}session.py", f"{SPARK}options.py"),
    "os.getenv": (),
    # What a master stamps it appends and folds in the same step (R28).
    "paceline.records.header.stamp": ("broker/paceline_broker/appender.py",),
    # No pickle from the network; inside raft/ the library pickles its own snapshots.
    "pickle.*": ("controller/paceline_controller/raft/*",),
    "eval": (),
    "exec": (),
    "print": (),
}
"""Dotted name (or everything below it) -> the files that may use it."""


def is_at_home(name: str, path: str) -> bool:
    for pattern, homes in HOMES.items():
        if fnmatch(name, pattern):
            return any(fnmatch(path, home) for home in homes)
    return True


def astray(module: Module) -> list[str]:
    return [
        f"{module.path}:{line} uses {name}"
        for line, name in module.calls()
        if not is_at_home(name, module.path)
    ]


def test_calls_stay_in_their_homes() -> None:
    wrong = [line for module in PRODUCT for line in astray(module)]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "planted",
    [
        "import time\nnow = time.monotonic()",
        "import time as clock\nnow = clock.time_ns()",
        "from time import perf_counter\nnow = perf_counter()",
        "import asyncio\ntask = asyncio.create_task(work())",
        "from asyncio import sleep as rest\nrest(1)",
        "from datetime import datetime\nnow = datetime.now()",
        "import os\nvalue = os.environ['A']",
        "import pickle\npickle.loads(b'')",
        "print('x')",
    ],
)
def test_planted_call_is_found(planted: str) -> None:
    assert astray(Module("broker/paceline_broker/x.py", "paceline_broker.x", planted))


def test_argument_with_the_name_of_a_library_is_not_the_library() -> None:
    planted = "def f(random: Random) -> bytes:\n    return random.token(8)"

    assert not astray(Module("broker/paceline_broker/x.py", "paceline_broker.x", planted))


def test_tests_wait_for_conditions_and_never_for_time() -> None:
    wrong = [
        f"{module.path}:{line} uses {name}"
        for module in TESTS
        for line, name in module.calls()
        if name in {"time.sleep", "asyncio.sleep"}
    ]

    assert not wrong, "\n".join(wrong)


def test_no_module_has_state_that_functions_change() -> None:
    wrong = [
        f"{module.path}:{node.lineno} global {', '.join(node.names)}"
        for module in PRODUCT
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
    ]

    assert not wrong, "\n".join(wrong)


def swallowed(module: Module) -> Iterator[int]:
    """Lines where any exception at all is caught and nothing is done."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            is_broad = node.type is None or _names_everything(node.type)
            if is_broad and all(isinstance(step, ast.Pass | ast.Continue) for step in node.body):
                yield node.lineno
        elif isinstance(node, ast.Call) and _is_suppress(node.func):
            yield from (node.lineno for argument in node.args if _names_everything(argument))


def _names_everything(node: ast.expr) -> bool:
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(isinstance(n, ast.Name) and n.id in {"Exception", "BaseException"} for n in names)


def _is_suppress(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "suppress") or (
        isinstance(node, ast.Attribute) and node.attr == "suppress"
    )


@pytest.mark.parametrize(
    "planted",
    [
        "try:\n    f()\nexcept:\n    pass",
        "try:\n    f()\nexcept (OSError, Exception):\n    pass",
        "for x in y:\n    try:\n        f()\n    except BaseException:\n        continue",
        "with contextlib.suppress(Exception):\n    f()",
    ],
)
def test_planted_swallowing_is_found(planted: str) -> None:
    assert list(swallowed(Module("x.py", "x", planted)))


def test_no_exception_is_swallowed() -> None:
    wrong = [f"{module.path}:{line}" for module in PRODUCT for line in swallowed(module)]

    assert not wrong, "\n".join(wrong)
