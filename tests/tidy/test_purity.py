"""Pure modules decide and calculate: no clock, no I/O, no tasks, no logging (STYLE 1)."""

import ast
from fnmatch import fnmatch

from tests.tidy.tree import GENERATED, PACKAGES, PRODUCT, Module

PURE = (
    "client/paceline/platform/address.py",
    "client/paceline/consumer/group/allocation.py",
    "client/paceline/platform/config_values.py",
    "client/paceline/errors.py",
    "client/paceline/platform/metric_names.py",
    "client/paceline/platform/ports.py",
    "client/paceline/records/*.py",
    "client/paceline/net/backoff.py",
    "client/paceline/queues.py",
    "client/paceline/types.py",
    "client/paceline/wire/*.py",
    "broker/paceline_broker/log/epochs.py",
    "broker/paceline_broker/log/layout.py",
    "broker/paceline_broker/log/walk.py",
    "broker/paceline_broker/projections/*.py",
    "broker/paceline_broker/replication/master/acknowledgement.py",
    "broker/paceline_broker/replication/frames.py",
    "broker/paceline_broker/replication/master/master.py",
    "broker/paceline_broker/replication/replica/replica.py",
    "controller/paceline_controller/election/election.py",
    "controller/paceline_controller/election/liveness.py",
    "controller/paceline_controller/state/*.py",
)
"""Paths that must be pure. Besides, a module whose docstring begins with "Pure:" is held to it."""

IMPURE_LIBRARIES = frozenset(
    {
        "aiohttp",
        "asyncio",
        "concurrent",
        "ctypes",
        "datetime",
        "fcntl",
        "logging",
        "mmap",
        "multiprocessing",
        "os",
        "pathlib",
        "pysyncobj",
        "random",
        "secrets",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
        "uvloop",
    }
)


def is_pure(module: Module) -> bool:
    docstring = ast.get_docstring(module.tree) or ""
    return docstring.startswith("Pure:") or any(fnmatch(module.path, glob) for glob in PURE)


PURE_MODULES = tuple(module for module in PRODUCT if is_pure(module))
PURE_NAMES = frozenset(module.name for module in PURE_MODULES)
GENERATED_NAMES = GENERATED.partition("/")[2].replace("/", ".") + "."
"""Messages of protobuf: they do nothing."""
ALL_NAMES = frozenset(module.name for module in PRODUCT)


def test_every_path_of_the_list_exists() -> None:
    paths = [module.path for module in PRODUCT]
    missing = [glob for glob in PURE if not any(fnmatch(path, glob) for path in paths)]

    assert not missing, "\n".join(missing)


def test_pure_modules_import_no_clock_and_no_input_or_output() -> None:
    wrong = [
        f"{module.path}:{line} imports {name}"
        for module in PURE_MODULES
        for line, name in module.imports()
        if name.partition(".")[0] in IMPURE_LIBRARIES
    ]

    assert not wrong, "\n".join(wrong)


def test_pure_modules_import_only_pure_modules_of_ours() -> None:
    wrong = [
        f"{module.path}:{line} imports {name}"
        for module in PURE_MODULES
        for line, name in module.imports()
        if name.partition(".")[0] in PACKAGES
        and imported_module(name) not in PURE_NAMES
        and not name.startswith(GENERATED_NAMES)
    ]

    assert not wrong, "\n".join(wrong)


def imported_module(name: str) -> str:
    """The module that `name` is or is taken from; an empty package says nothing against purity."""
    return name if name in ALL_NAMES else name.rpartition(".")[0]


def test_pure_modules_have_no_coroutines() -> None:
    wrong = [
        f"{module.path}:{function.lineno} async {name}"
        for module in PURE_MODULES
        for name, function in module.functions()
        if isinstance(function, ast.AsyncFunctionDef)
    ]

    assert not wrong, "\n".join(wrong)
