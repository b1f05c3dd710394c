"""`python -m interop.install [NAME ...]`: build programs with RocketMQ's own clients.

A client is a folder of `interop/clients/`: its build file, which holds the versions, and one
program (interop/README.md). What is made of it lies in `interop/.built/NAME-HASH/`, and is made
again when the folder changes. Nothing else changes on the machine but the caches of the tools.
"""

import argparse
import asyncio
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from interop.java import BUILT, INTEROP, InteropError, run

CLIENTS = INTEROP / "clients"
BUILD_TIMEOUT_S = 1800
"""The Rust client compiles 200 crates; on two busy cores that takes some ten minutes."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program of the machine, and the oldest version that will do."""

    title: str
    version_of: tuple[str, ...]
    """The command that tells the version."""
    at_least: tuple[int, int]
    package: str


GO = Tool(title="Go", version_of=("go", "version"), at_least=(1, 24), package="golang-go")
JAVAC = Tool(
    title="a JDK",
    version_of=("javac", "-version"),
    at_least=(17, 0),
    package="openjdk-17-jdk-headless",
)
MAVEN = Tool(title="Maven", version_of=("mvn", "-v"), at_least=(3, 6), package="maven")
NODE = Tool(title="Node", version_of=("node", "--version"), at_least=(18, 0), package="nodejs")
NPM = Tool(title="npm", version_of=("npm", "--version"), at_least=(9, 0), package="npm")
CARGO = Tool(title="Cargo", version_of=("cargo", "--version"), at_least=(1, 75), package="cargo")


@dataclass(frozen=True, kw_only=True)
class Language:
    """How a folder with a build file of this name becomes a program."""

    build_file: str
    tools: tuple[Tool, ...]
    build: Callable[[Path, Path], Awaitable[None]]
    """(folder of the client, new folder to build into)"""
    command: Callable[[Path, Path], list[str]]
    """(folder of the client, folder that was built); the path of a job follows."""


def clients() -> list[str]:
    """The names of all clients."""
    return sorted(path.name for path in CLIENTS.iterdir() if path.is_dir())


async def installed(name: str) -> list[str]:
    """The command that runs a client's program; it is built first if it is not there yet.

    Raises InteropError: there is no such client, a tool is missing or too old, or a build failed.
    """
    folder = CLIENTS / name
    language = _language(folder)
    built = BUILT / f"{name}-{_hash(folder)}"
    if not built.is_dir():
        for tool in language.tools:
            await check(tool)
        # Two that build at a time have a folder each; the first one to end gives it its name.
        half = BUILT.resolve() / f"half-{name}-{os.getpid()}"
        half.mkdir(parents=True)
        try:
            await language.build(folder, half)
            if not built.is_dir():
                half.rename(built)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return language.command(folder, built)


async def check(tool: Tool) -> None:
    """Raises InteropError that names the package if a tool is missing or too old."""
    wanted = ".".join(map(str, tool.at_least))
    advice = f"interop needs {tool.title} {wanted} or newer: apt-get install {tool.package}"
    if shutil.which(tool.version_of[0]) is None:
        raise InteropError(advice)
    _, output = await run(*tool.version_of, timeout_s=60)
    found = re.search(r"(\d+)\.(\d+)", output)
    if found is None or (int(found[1]), int(found[2])) < tool.at_least:
        raise InteropError(f"{advice} (found: {output.strip().splitlines()[0]})")


def _language(folder: Path) -> Language:
    for language in LANGUAGES:
        if (folder / language.build_file).is_file():
            return language
    raise InteropError(f"there is no client {folder.name!r}; known: {', '.join(clients())}")


def _hash(folder: Path) -> str:
    """Of all files."""
    found = hashlib.sha256(str(sys.version_info[:2]).encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:12]


async def _step(*command: str | Path) -> None:
    code, output = await run(*map(str, command), timeout_s=BUILD_TIMEOUT_S)
    if code != 0:
        end = "\n".join(output.splitlines()[-25:])
        raise InteropError(f"{' '.join(map(str, command))} failed ({code})\n{end}")


async def _build_python(folder: Path, half: Path) -> None:
    await _step(sys.executable, "-m", "venv", half / "venv")
    await _step(
        half / "venv/bin/python",
        *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("-r", folder / "requirements.txt"),
    )


async def _build_java(folder: Path, half: Path) -> None:
    libs = half / "libs"
    await _step(
        *("mvn", "-q", "-B", "-f", folder / "pom.xml", "dependency:copy-dependencies"),
        *("-DincludeScope=runtime", f"-DoutputDirectory={libs}"),
    )
    await _step(
        *("javac", "--release", "17", "-cp", libs / "*", "-d", half / "classes"),
        *sorted(folder.rglob("*.java")),
    )


async def _build_go(folder: Path, half: Path) -> None:
    await _step(
        *("go", "build", "-C", folder, "-mod=readonly", "-buildvcs=false"),
        *("-o", half / "program", "."),
    )


async def _build_node(folder: Path, half: Path) -> None:
    for name in ("package.json", "package-lock.json", "program.js"):
        shutil.copy(folder / name, half / name)
    await _step(
        *("npm", "ci", "--prefix", half, "--ignore-scripts", "--no-audit", "--no-fund"),
        *("--loglevel", "error"),
    )


async def _build_rust(folder: Path, half: Path) -> None:
    # What it depends on takes minutes, and is the same for the next state of the program.
    target = BUILT / "cargo"
    await _step(
        *("cargo", "build", "--locked", "--quiet", "--target-dir", target),
        *("--manifest-path", folder / "Cargo.toml"),
    )
    shutil.copy(target / "debug/program", half / "program")


LANGUAGES = (
    Language(
        build_file="requirements.txt",
        tools=(),
        build=_build_python,
        command=lambda folder, built: [
            str(built / "venv/bin/python"),
            str(folder / "program.py"),
        ],
    ),
    Language(
        build_file="pom.xml",
        tools=(JAVAC, MAVEN),
        build=_build_java,
        command=lambda _, built: [
            *("java", "-Xmx256m", "-XX:+UseSerialGC"),
            *("-cp", f"{built}/classes:{built}/libs/*", "Program"),
        ],
    ),
    Language(
        build_file="go.mod",
        tools=(GO,),
        build=_build_go,
        command=lambda _, built: [str(built / "program")],
    ),
    Language(
        build_file="package.json",
        tools=(NODE, NPM),
        build=_build_node,
        command=lambda _, built: ["node", str(built / "program.js")],
    ),
    Language(
        build_file="Cargo.toml",
        tools=(CARGO,),
        build=_build_rust,
        command=lambda _, built: [str(built / "program")],
    ),
)


async def _install(names: list[str]) -> None:
    for name in names:
        command = await installed(name)
        sys.stdout.write(f"{name}: {' '.join(command)}\n")
        sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Install RocketMQ's own clients.")
    parser.add_argument("name", nargs="*", help="all by default")
    given = parser.parse_args()
    try:
        asyncio.run(_install(given.name or clients()))
    except InteropError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
