"""docs/examples/clients: each program does what a user of its client copies it for."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from interop.install import CLIENTS, installed
from interop.java import BUILT, run
from tests.interop.scene import Scene
from tests.support.process.examples import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="session")

EXAMPLES = ROOT / "docs/examples/clients"
TIMEOUT_S = 300
Language = Callable[[Path], Awaitable[list[str]]]
"""Builds an example into a folder, if it needs that, and says how it is run."""


async def python(_: Path) -> list[str]:
    interpreter, _program = await installed("python_grpc")
    return [interpreter, "-u", str(EXAMPLES / "simple.py")]


async def java(_: Path) -> list[str]:
    command = await installed("java_grpc")
    return [*command[:-1], str(EXAMPLES / "Simple.java")]


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


@pytest.mark.parametrize(
    "language",
    [pytest.param(python, marks=pytest.mark.python_client), java, go, node, rust],
    ids=lambda language: language.__name__,
)
async def test_three_messages_are_sent_and_received(
    scene: Scene, tmp_path: Path, language: Language
) -> None:
    await scene.prepare()
    command = await language(tmp_path)

    code, output = await run(
        *("env", f"HOME={tmp_path}", *command, scene.peer.grpc_endpoint, scene.topic, scene.group),
        timeout_s=TIMEOUT_S,
    )

    assert code == 0, output
    received = {line for line in output.splitlines() if line.startswith("received ")}
    assert received == {f"received hello {number}" for number in range(3)}
