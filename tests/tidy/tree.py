"""The five packages as syntax trees, for the tests in this folder."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "paceline": "client/paceline",
    "paceline_broker": "broker/paceline_broker",
    "paceline_controller": "controller/paceline_controller",
    "paceline_gateway": "gateway/paceline_gateway",
    "paceline_chaos": "chaos/paceline_chaos",
}
GENERATED = "gateway/paceline_gateway/grpc/stubs"
"""Made by protoc: no rule of style is for them (pyproject.toml says the same to ruff and mypy)."""


@dataclass(frozen=True)
class Module:
    """One source file. `path` is relative to the repository, "/" separates."""

    path: str
    name: str
    planted: str | None = None
    """Text instead of the file's, for tests of the checks themselves."""

    @cached_property
    def text(self) -> str:
        return (ROOT / self.path).read_text() if self.planted is None else self.planted

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    def imports(self, *, top_level_only: bool = False) -> Iterator[tuple[int, str]]:
        """(line, dotted name) of everything imported; `from a import b` gives "a.b".

        Relative imports are made absolute.
        """
        nodes = _top_level(self.tree) if top_level_only else ast.walk(self.tree)
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        is_package = self.path.endswith("/__init__.py")
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + (1 if is_package else 0)]
        return ".".join([*base, *([node.module] if node.module else [])])

    def calls(self) -> Iterator[tuple[int, str]]:
        """(line, dotted name) of every use of an imported name, or of a bare name (`print`).

        Imported names are resolved: after `import time as t`, `t.time` is "time.time".
        """
        names = dict(self._imported_names())
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute | ast.Name):
                head, dot, rest = (_dotted(node) or "").partition(".")
                if head in names:
                    yield node.lineno, names[head] + dot + rest
                elif head and not dot:
                    yield node.lineno, head

    def _imported_names(self) -> Iterator[tuple[str, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield (
                        alias.asname or alias.name.partition(".")[0],
                        (alias.name if alias.asname else alias.name.partition(".")[0]),
                    )
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield alias.asname or alias.name, f"{self._absolute(node)}.{alias.name}"

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Qualified name and node of every function, nested ones too."""
        yield from _functions(self.tree, "")


def _top_level(tree: ast.Module) -> Iterator[ast.AST]:
    for node in tree.body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from ast.iter_child_nodes(node)


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return None if base is None else f"{base}.{node.attr}"
    return None


def _functions(
    node: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def _modules(folder: str, package: str) -> Iterator[Module]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        relative = path.relative_to(ROOT / folder).with_suffix("")
        parts = [part for part in relative.parts if part != "__init__"]
        yield Module(str(path.relative_to(ROOT)), ".".join([package, *parts]))


PRODUCT = tuple(
    module
    for package, folder in PACKAGES.items()
    for module in _modules(folder, package)
    if not module.path.startswith(f"{GENERATED}/") or module.path.endswith("/__init__.py")
)
"""Every module of the five packages that people write."""

TESTS = tuple(_modules("tests", "tests"))
