"""RocketMQ's own `mqadmin` (rocketmq-tools 5.5.0), run against the address of a name server."""

import asyncio
import contextlib
import subprocess
from pathlib import Path

from interop.java import BUILT, INTEROP, InteropError, end_with_parent, java_command, rocketmq_jars

COMMAND_TIMEOUT_S = 60
_PROGRAM = INTEROP / "rocketmq/Mqadmin.java"
_END = "\x1e"


class Mqadmin:
    """One JVM for many commands, since most of the time of a command is the start of one.

    Started by the first command; owns its process. Below `home` lie its logs, and its access key in
    conf/tools.yml.
    """

    def __init__(self, *, nameserver: str, home: Path):
        self._nameserver = nameserver
        self._home = home
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def __call__(self, *arguments: str) -> str:
        """All that a command prints. Raises InteropError if it tells an exception."""
        async with self._turn:
            try:
                async with asyncio.timeout(COMMAND_TIMEOUT_S):
                    output = await self._ask(*arguments, "-n", self._nameserver)
            except TimeoutError:
                await self.stop()
                raise InteropError(
                    f"mqadmin {' '.join(arguments)} took more than {COMMAND_TIMEOUT_S} s"
                ) from None
        if "\tat org.apache.rocketmq." in output:
            end = "\n".join(output.splitlines()[:12])
            raise InteropError(f"mqadmin {' '.join(arguments)} failed\n{end}")
        return output

    async def stop(self) -> None:
        """End its process. The next command starts another one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None

    async def _ask(self, *arguments: str) -> str:
        if self._process is None or self._process.returncode is not None:
            self._process = await self._start()
        asked, told = self._process.stdin, self._process.stdout
        assert asked is not None
        assert told is not None
        asked.write(("\t".join(arguments) + "\n").encode())
        await asked.drain()
        lines: list[str] = []
        while (line := (await told.readline()).decode(errors="replace")) != f"{_END}\n":
            if not line:
                raise InteropError("mqadmin ended\n" + "".join(lines[-15:]))
            lines.append(line)
        return "".join(lines)

    async def _start(self) -> asyncio.subprocess.Process:
        self._home.mkdir(parents=True, exist_ok=True)
        jars = await rocketmq_jars()
        return await asyncio.create_subprocess_exec(
            *java_command(jars, str(_PROGRAM), home=self._home, heap_mb=96),
            cwd=self._home,  # some commands write files where they run
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            limit=1 << 24,
            start_new_session=True,  # Ctrl-C is the starter's
            preexec_fn=end_with_parent,
        )


async def mqadmin(*arguments: str, nameserver: str) -> str:
    """One command alone, against any name server. Raises InteropError."""
    one = Mqadmin(nameserver=nameserver, home=BUILT / "mqadmin")
    try:
        return await one(*arguments)
    finally:
        await one.stop()
