"""Imports go one way, and some libraries have one home (STYLE 1 to 3)."""

from collections.abc import Iterator

from tests.tidy.tree import PACKAGES, PRODUCT, TESTS, Module

MAY_IMPORT = {
    "paceline": frozenset[str](),
    "paceline_broker": frozenset({"paceline"}),
    "paceline_controller": frozenset({"paceline"}),
    "paceline_chaos": frozenset({"paceline", "paceline_broker", "paceline_controller"}),
}

HOMES = {
    "pysyncobj": "controller/paceline_controller/raft/",
    "pyspark": "client/paceline/spark/",
    "psutil": "client/paceline/cli/",
}
"""Library -> the one folder that may import it."""

KERNEL = frozenset(
    {
        "errors",
        "filters",
        "platform",
        "records",
        "server",
        "types",
        "wire",
    }
)
"""Modules of `paceline` that every process shares; all others are the client."""


def ours(module: Module) -> Iterator[tuple[str, str]]:
    """(where, dotted name) of what a module imports from the four packages."""
    for line, name in module.imports():
        if name.partition(".")[0] in PACKAGES:
            yield f"{module.path}:{line}", name


def part(name: str) -> str:
    """ "paceline.wire.cluster" -> "wire"."""
    return name.split(".")[1] if "." in name else ""


def test_packages_import_in_one_direction() -> None:
    wrong = [
        f"{where} imports {name}"
        for module in PRODUCT
        for where, name in ours(module)
        if name.partition(".")[0] not in MAY_IMPORT[module.package] | {module.package}
    ]

    assert not wrong, "\n".join(wrong)


def test_library_is_imported_in_its_home_only() -> None:
    wrong = [
        f"{module.path}:{line} imports {name}; only {HOMES[name.partition('.')[0]]} may"
        for module in PRODUCT
        for line, name in module.imports()
        if not module.path.startswith(HOMES.get(name.partition(".")[0], ""))
    ]

    assert not wrong, "\n".join(wrong)


def test_nothing_imports_the_spark_extra_at_module_level() -> None:
    wrong = [
        f"{module.path}:{line}"
        for module in PRODUCT
        if not module.name.startswith("paceline.spark")
        for line, name in module.imports(top_level_only=True)
        if name.startswith("paceline.spark")
    ]

    assert not wrong, "\n".join(wrong)


def test_kernel_never_imports_the_client() -> None:
    wrong = [
        f"{where} imports {name}"
        for module in PRODUCT
        if module.package == "paceline" and part(module.name) in KERNEL
        for where, name in ours(module)
        if part(name) not in KERNEL
    ]

    assert not wrong, "\n".join(wrong)


def test_broker_and_controller_use_the_kernel_only() -> None:
    wrong = [
        f"{where} imports {name}"
        for module in PRODUCT
        if module.package in {"paceline_broker", "paceline_controller"}
        for where, name in ours(module)
        if name.startswith("paceline.") and part(name) not in KERNEL
    ]

    assert not wrong, "\n".join(wrong)


def test_no_test_file_imports_another_one() -> None:
    """What tests share is in tests/support."""
    wrong = [
        f"{module.path}:{line} imports {name}"
        for module in TESTS
        for line, name in module.imports()
        if name.startswith("tests.") and ".test_" in name
    ]

    assert not wrong, "\n".join(wrong)
