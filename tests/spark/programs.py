"""Spark programs as processes of their own, to be killed: Python, its JVM, and the workers."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from tests.support.process.harness import end_with_parent

from paceline.platform.runtime import SystemClock

FOLDER = Path(__file__).parent
WAIT_MS_MAX = 120_000


class Running:
    """One started program in a process group of its own."""

    def __init__(self, arguments: list[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )

    def kill(self) -> None:
        """kill -9 of the driver, its JVM and its workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self, timeout_s: float) -> int:
        return self.process.wait(timeout=timeout_s)

    def said(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-4000:]

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._output.close()


class Program:
    """A program of this folder with its arguments."""

    def __init__(self, name: str, *arguments: str) -> None:
        self._arguments = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]

    def start(self) -> Running:
        return Running(self._arguments)


def kill_when(running: Running, is_time: Callable[[], bool]) -> bool:
    """Kill it once `is_time()`; False if it ended before that."""
    clock = SystemClock()
    deadline = clock.monotonic_ms() + WAIT_MS_MAX
    while running.process.poll() is None:
        if is_time():
            running.kill()
            return True
        assert clock.monotonic_ms() < deadline, "the moment to kill never came: " + running.said()
        threading.Event().wait(0.02)
    return False
