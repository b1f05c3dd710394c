"""Runs of clients' programs: each gets a job, and tells what happens as lines of JSON."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
from interop.install import installed
from interop.java import QUICK_START, InteropError, end_with_parent
from interop.jobs import Job
from interop.judge import Event

from paceline.platform.runtime import cancel_and_wait, spawn

LINE_SIZE_MAX = 16 * 1024 * 1024
"""The largest body is 4 MiB; JSON may write six characters for one byte."""
READY_TIMEOUT_S = 60
"""Some wait for the server's settings for ever; JVMs on a busy machine take several seconds."""
STOP_TIMEOUT_S = 60
"""The Java client waits for receives in flight, which last 20 s."""

Condition = Callable[[list[Event]], bool]


class Unsupported(InteropError):
    """The client has no such feature."""


class Program:
    """One run. `events` is what it told so far, in its order."""

    def __init__(self, client: str, job: Job, process: asyncio.subprocess.Process, folder: Path):
        self.client = client
        self.job = job
        self.events: list[Event] = []
        self._folder = folder
        self._process = process
        self._news = asyncio.Condition()
        self._has_ended = False
        self._reading = spawn(self._read(), name=f"events of {client}")

    @classmethod
    async def start(cls, client: str, job: Job, folder: Path) -> "Program":
        """Start the program of a client, whose log and home are to be in `folder`.

        Raises InteropError, see `installed`.
        """
        command = await installed(client)
        folder.mkdir(parents=True, exist_ok=True)
        document = folder / "job.json"
        document.write_bytes(msgspec.json.encode(job))
        environment = os.environ | {
            "HOME": str(folder),
            # Java does not ask HOME where its user's home is.
            "JAVA_TOOL_OPTIONS": " ".join(
                [f"-Duser.home={folder}", *([] if job.scenario == "load" else [QUICK_START])]
            ),
        }
        if job.tls_ca:
            environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = job.tls_ca
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(document),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                limit=LINE_SIZE_MAX,
                env=environment,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        return cls(client, job, process, folder)

    async def until(self, condition: Condition, *, what: str, within_s: float = 60) -> None:
        """Wait until what it told meets a condition. InteropError, with the end of its log."""
        try:
            async with asyncio.timeout(within_s), self._news:
                while not condition(self.events):
                    if self._has_ended:
                        raise self._error(f"ended before {what}")
                    await self._news.wait()
        except TimeoutError:
            raise self._error(f"did not do within {within_s} s: {what}") from None

    async def ready(self) -> None:
        """Wait until the client has started. Raises InteropError if it could not."""

        def is_there(events: list[Event]) -> bool:
            for event in events:
                if event["event"] == "ready":
                    return True
                if event["event"] == "unsupported":
                    raise Unsupported(f"{self.client}: {event['why']}")
                if event["event"] == "failed" and not event["body"]:
                    raise self._error(f"could not start: {event['error']}")
            return False

        await self.until(is_there, what="it is ready", within_s=READY_TIMEOUT_S)

    async def finish(self, *, within_s: float = 120) -> list[Event]:
        """Wait until a sender has sent all and ended well. Its events. Raises InteropError."""
        return await self._end(within_s)

    async def stop(self) -> list[Event]:
        """Tell a consumer to end, and wait until it has, well. Its events. Raises InteropError."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self._end(STOP_TIMEOUT_S)

    async def kill(self) -> list[Event]:
        """SIGKILL, if it still runs. What it told until then."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await cancel_and_wait(self._reading)
        return self.events

    async def _end(self, within_s: float) -> list[Event]:
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
                await self._reading
        except TimeoutError:
            raise self._error(f"did not end within {within_s} s") from None
        if self.events and self.events[-1]["event"] == "unsupported":
            raise Unsupported(f"{self.client}: {self.events[-1]['why']}")
        is_done = bool(self.events) and self.events[-1]["event"] == "done"
        if self._process.returncode != 0 or not is_done:
            raise self._error(f"ended with {self._process.returncode}, done: {is_done}")
        return self.events

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                try:
                    event = msgspec.json.decode(line, type=dict)
                except msgspec.DecodeError:
                    # A library that prints is told as it is: the judge knows no such event.
                    event = {"event": "noise", "line": line.decode(errors="replace")}
                async with self._news:
                    self.events.append(event)
                    self._news.notify_all()
        finally:
            self._has_ended = True
            async with self._news:
                self._news.notify_all()

    def _error(self, what: str) -> InteropError:
        log = (self._folder / "log").read_text(errors="replace").splitlines()[-15:]
        told = [str(event)[:300] for event in self.events[-8:]]
        end = "\n".join([f"{self.client}, {self.job.scenario}: {what}", *told, *log])
        return InteropError(end)
