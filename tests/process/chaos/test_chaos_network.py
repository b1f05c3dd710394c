"""A cut is a cut: one direction stalls, the other does not, and both go on when it is healed."""

import ctypes
import errno
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.process.harness import paceline_command

from paceline.errors import ConfigError
from paceline_chaos.processes import network

pytestmark = pytest.mark.process

ECHO = """
import asyncio
from paceline_chaos.processes.network import Network, enter, reset_connections

A, B = "127.0.0.2", "127.0.0.3"

async def heard(reader):
    try:
        async with asyncio.timeout(0.4):
            return await reader.read(100)
    except TimeoutError:
        return None

async def main():
    async with Network() as network:
        accepted = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(lambda *streams: accepted.set_result(streams), B, 0)
        port = server.sockets[0].getsockname()[1]
        a_reads, a_writes = await asyncio.open_connection(B, port, local_addr=(A, 0))
        b_reads, b_writes = await accepted

        await network.cut([(A, B)])
        a_writes.write(b"question")
        assert await heard(b_reads) is None, "the cut leaks"
        try:
            await asyncio.open_connection(B, port, local_addr=(A, 0))
            raise AssertionError("a new connection passes")
        except OSError:
            pass
        await network.heal([(A, B)])
        assert await b_reads.read(100) == b"question", "it goes on after the heal"

        await network.cut([(B, A)])
        a_writes.write(b"more")
        assert await heard(b_reads) == b"more", "the other way is open"
        b_writes.write(b"answer")
        assert await heard(a_reads) is None, "the cut leaks"
        await network.cut([(B, A)])
        await network.heal([(B, A)])
        assert await heard(a_reads) is None, "the second of two cuts still holds"
        await network.heal([(B, A)])
        assert await a_reads.read(100) == b"answer"

        assert reset_connections(A) > 0
        try:
            assert await a_reads.read(100) == b""
        except ConnectionError:
            pass
        for writer in (a_writes, b_writes):
            writer.close()
        server.close()

enter()
asyncio.run(main())
"""


@pytest.mark.alone
def test_one_way_cut_stalls_one_way_and_goes_on_after_the_heal() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", ECHO], capture_output=True, text=True, check=False, timeout=60
    )

    assert finished.returncode == 0, finished.stderr


def test_machine_without_namespaces_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoNamespaces:
        def unshare(self, flags: int) -> int:
            assert flags & network.CLONE_NEWNET
            ctypes.set_errno(errno.EPERM)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: NoNamespaces())

    with pytest.raises(ConfigError, match="does not permit one .* run as root, or allow"):
        network.enter()


def test_run_that_cannot_be_made_ends_with_its_sentence_and_2(tmp_path: Path) -> None:
    scenario = tmp_path / "mine.toml"
    scenario.write_text(
        'title = "t"\nfamily = "kill"\nproves = "p"\n'
        '[[fault]]\nat_ms = 1\nkind = "singing"\ntarget = "all"\n'
    )

    finished = subprocess.run(
        paceline_command("chaos", "run", str(scenario), "--output", str(tmp_path / "runs")),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert finished.returncode == 2
    where = f"paceline: {scenario}, fault 1 (line 4): no fault is called 'singing'; known: kill, "
    assert finished.stderr.startswith(where)
    assert finished.stderr.count("\n") == 1
