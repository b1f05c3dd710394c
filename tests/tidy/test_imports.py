"""Imports go one way, and some libraries have one home (STYLE 1 to 3)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tests.tidy.tree import PACKAGES, PRODUCT, TESTS, Module

MAY_IMPORT = {
    "paceline": frozenset[str](),
    "paceline_broker": frozenset({"paceline"}),
    "paceline_controller": frozenset({"paceline"}),
    "paceline_gateway": frozenset({"paceline"}),
    "paceline_chaos": frozenset(
        {"paceline", "paceline_broker", "paceline_controller", "paceline_gateway"}
    ),
}

HOMES = {
    "pysyncobj": "controller/paceline_controller/raft/",
    "pyspark": "client/paceline/spark/",
    "psutil": "client/paceline/cli/",
    "grpc": "gateway/paceline_gateway/grpc/",
    "kombu": "client/paceline/kombu/",
}
"""Library -> the one folder that may import it."""

KERNEL = frozenset(
    {
        "errors",
        "filters",
        "http_api",
        "platform",
        "records",
        "security",
        "server",
        "sorted_map",
        "types",
        "wire",
    }
)
"""Modules of `paceline` that every process shares; all others are the client."""


def ours(module: Module) -> Iterator[tuple[str, str]]:
    """(where, dotted name) of what a module imports from the five packages."""
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


# -- circles and rooms ----------------------------------------------------------------------------

BY_NAME = {module.name: module for module in PRODUCT}


def module_of(name: str) -> str | None:
    """The module of ours that a dotted name is in."""
    while name and name not in BY_NAME:
        name = name.rpartition(".")[0]
    return name or None


def imports_of(module: Module) -> set[str]:
    """Modules of ours that a module imports, wherever in it, and be it only for types."""
    found = {module_of(name) for _, name in module.imports()}
    return {name for name in found if name is not None} - {module.name}


IMPORTS: Mapping[str, set[str]] = {module.name: imports_of(module) for module in PRODUCT}


def circles(arrows: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """Sets of nodes that reach one another."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        seen: set[str] = set()
        waiting = list(arrows[start])
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(arrows.get(node, ()))
        reached[start] = seen
    found: list[set[str]] = []
    for node, seen in reached.items():
        if node in seen and not any(node in circle for circle in found):
            found.append({other for other in seen if node in reached.get(other, ())})
    return found


def rooms(package: str) -> dict[str, set[str]]:
    """Modules and folders in one folder -> those of them that each imports."""
    arrows: dict[str, set[str]] = defaultdict(set)
    depth = package.count(".") + 2
    for name, imported in IMPORTS.items():
        for other in imported:
            if name.startswith(f"{package}.") and other.startswith(f"{package}."):
                room, to = (".".join(each.split(".")[:depth]) for each in (name, other))
                if room != to:
                    arrows[room].add(to)
    return arrows


def test_no_modules_import_one_another() -> None:
    assert circles(IMPORTS) == []


def test_rooms_import_one_another_in_one_direction() -> None:
    """So each folder can be read from the bottom up."""
    packages = [module.name for module in PRODUCT if module.path.endswith("/__init__.py")]

    found = {package: circles(rooms(package)) for package in packages}

    assert {package: at for package, at in found.items() if at} == {}


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
    assert circles({"a": {"b"}, "b": {"c"}}) == []
