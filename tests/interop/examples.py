"""The programs of docs/examples/clients, and how each of them is built and run."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from interop.install import CLIENTS, JAVAC, MAVEN, check, installed
from interop.java import BUILT, run
from tests.support.process.examples import ROOT

EXAMPLES = ROOT / "docs/examples/clients"
Language = Callable[[Path], Awaitable[list[str]]]
"""Builds an example into a folder, if it needs that, and says how it is run."""


async def python(_: Path) -> list[str]:
    interpreter, _program = await installed("python_grpc")
    return [interpreter, "-u", str(EXAMPLES / "simple.py")]


async def java(folder: Path) -> list[str]:
    return [*await _java(folder), str(EXAMPLES / "Simple.java")]


async def java_remoting(folder: Path) -> list[str]:
    return [*await _java(folder), str(EXAMPLES / "SimpleRemoting.java")]


async def _java(folder: Path) -> list[str]:
    await check(JAVAC)
    await check(MAVEN)
    libs = folder / "libs"
    await built(
        *("mvn", "-q", "-B", "-f", str(EXAMPLES / "pom.xml")),
        *("dependency:copy-dependencies", f"-DoutputDirectory={libs}"),
    )
    # These clients find the folder of their logs by the system's user, not by HOME.
    return ["java", f"-Duser.home={folder}", "-cp", f"{libs}/*"]


async def go(folder: Path) -> list[str]:
    await installed("go_grpc")
    program = folder / "simple"
    module = CLIENTS / "go_grpc"
    await built("go", "build", "-C", str(module), "-o", str(program), str(EXAMPLES / "simple.go"))
    return [str(program)]


async def node(_: Path) -> list[str]:
    _node, program = await installed("node_grpc")
    modules = Path(program).parent / "node_modules"
    return ["env", f"NODE_PATH={modules}", "node", str(EXAMPLES / "simple.js")]


async def rust(_: Path) -> list[str]:
    await installed("rust_grpc")
    manifest = CLIENTS / "rust_grpc/Cargo.toml"
    target = BUILT / "cargo"
    await built(
        *("cargo", "build", "--locked", "--quiet", "--example", "simple"),
        *("--target-dir", str(target), "--manifest-path", str(manifest)),
    )
    return [str(target / "debug/examples/simple")]


async def built(*command: str) -> None:
    code, output = await run(*command, timeout_s=1800)
    assert code == 0, output
