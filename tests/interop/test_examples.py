"""docs/examples/clients: each program does what a user of its client copies it for."""

from pathlib import Path

import pytest
from interop.java import run
from tests.interop.examples import Language, go, java, java_remoting, node, python, rust
from tests.interop.scene import Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")

TIMEOUT_S = 300
LANGUAGES = [
    pytest.param(python, marks=pytest.mark.python_client),
    *(java, java_remoting, go, node, rust),
]


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.__name__)
async def test_three_messages_are_sent_and_received(
    scene: Scene, tmp_path: Path, language: Language
) -> None:
    await scene.prepare()
    command = await language(tmp_path)
    peer = scene.peer
    address = peer.nameserver if language is java_remoting else peer.grpc_endpoint

    code, output = await run(
        *("env", f"HOME={tmp_path}", *command, address, scene.topic, scene.group),
        timeout_s=TIMEOUT_S,
    )

    assert code == 0, output
    received = {line for line in output.splitlines() if line.startswith("received ")}
    assert received == {f"received hello {number}" for number in range(3)}


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.__name__)
async def test_without_arguments_it_says_which_it_needs(tmp_path: Path, language: Language) -> None:
    command = await language(tmp_path)

    code, output = await run("env", f"HOME={tmp_path}", *command, timeout_s=TIMEOUT_S)

    assert code == 1
    assert "usage: " in output
    assert len(output.splitlines()) == 1, output
