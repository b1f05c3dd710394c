"""Java programs of RocketMQ: their jars, fetched once, and the processes that run them."""

import asyncio
import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

INTEROP = Path(__file__).parent
BUILT = INTEROP / ".built"
"""What is fetched and compiled; git ignores it."""
OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
"""RocketMQ unmaps its files through internals of the JDK."""
FETCH_TIMEOUT_S = 600
STOP_TIMEOUT_S = 15
_PR_SET_PDEATHSIG = 1


class InteropError(Exception):
    """A peer, a client or a tool did not do its part; one sentence, then the end of its log."""


async def rocketmq_jars() -> Path:
    """The folder with all jars of interop/rocketmq/pom.xml; fetched if it is not there yet."""
    pom = INTEROP / "rocketmq/pom.xml"
    version = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    folder = BUILT / "rocketmq" / f"libs-{version}"
    if folder.is_dir():
        return folder
    # Two that fetch at a time have a folder each; the first one to end gives it its name.
    half = BUILT / "rocketmq" / f"half-{os.getpid()}"
    code, log = await run(
        tool("mvn", package="maven"),
        *("-q", "-B", "-f", str(pom), "dependency:copy-dependencies"),
        *("-DincludeScope=runtime", f"-DoutputDirectory={half}"),
        timeout_s=FETCH_TIMEOUT_S,
    )
    if code != 0:
        shutil.rmtree(half, ignore_errors=True)
        raise InteropError(f"Maven could not fetch RocketMQ ({code}): is its mirror there?\n{log}")
    with contextlib.suppress(OSError):  # the other one was first
        half.rename(folder)
    shutil.rmtree(half, ignore_errors=True)
    return folder


def tool(name: str, *, package: str) -> str:
    """The path of a program. Raises InteropError that names the package it is in."""
    path = shutil.which(name)
    if path is None:
        raise InteropError(f"{name} is not there: install {package}")
    return path


async def run(*command: str, timeout_s: float) -> tuple[int, str]:
    """Status and all output of a command. Raises InteropError when its time is over."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=end_with_parent,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    except TimeoutError:
        raise InteropError(f"{' '.join(command)[-200:]} took more than {timeout_s} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode(errors="replace")


QUICK_START = "-XX:TieredStopAtLevel=1"
"""A JVM that lives for seconds is ready sooner so; one that is measured compiles in full."""


def java_command(
    jars: Path, main: str, *arguments: str, home: Path, heap_mb: int, is_measured: bool = False
) -> list[str]:
    """RocketMQ's programs read and write what is theirs below `home` (user.home too)."""
    return [
        tool("java", package="openjdk-17-jdk-headless"),
        *(f"-Xms{heap_mb}m", f"-Xmx{heap_mb}m", "-XX:MaxDirectMemorySize=512m"),
        *("-XX:+UseSerialGC", *([] if is_measured else [QUICK_START]), *OPENS),
        *(f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"),
        *("-cp", str(jars / "*"), main, *arguments),
    ]


@dataclass
class Jvm:
    """One server that runs; it ends with this process. Only `stop` and `kill` end it before."""

    name: str
    log_path: Path
    process: asyncio.subprocess.Process

    @classmethod
    async def start(cls, name: str, command: list[str], *, log_path: Path) -> "Jvm":
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is the starter's
                preexec_fn=end_with_parent,
            )
        return cls(name, log_path, process)

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    def log_end(self, lines_max: int = 15) -> str:
        """The last lines that it printed."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines_max:])

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL to what has not ended after 15 s."""
        if not self.has_ended:
            self.process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await self.process.wait()
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if not self.has_ended:
            self.process.kill()
        await self.process.wait()


def end_with_parent() -> None:
    """In a child before exec: SIGKILL when the parent ends (Linux), so that nothing is left."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
