"""The brokers of a container as processes of their own, started again when they end.

The container has no event loop and no thread, so it may fork at any time: a broker that is started
again costs no imports. It waits for signals and for the next start that is due, and does nothing
else.
"""

import logging
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from paceline.errors import ConfigError
from paceline.platform.node_process import EXIT_REFUSED, be_program, end_with_parent
from paceline.platform.ports import Clock

log = logging.getLogger("paceline.container")

RESTART_MS_MIN, RESTART_MS_MAX = 1_000, 30_000
SETTLED_MS = 10_000
"""A broker that has run for so long has good settings: whatever ends it, it is started again."""
_FORWARDED = (signal.SIGHUP,)
_STOPPING = (signal.SIGTERM, signal.SIGINT)
_OWN = (*_STOPPING, *_FORWARDED, signal.SIGCHLD)

Program = Callable[[], int]


class _Process:
    """One broker; running, or to be started at `due_ms`."""

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self.program = program
        self.pid: int | None = None
        self.started_ms = 0
        self.due_ms = 0
        self.wait_ms = RESTART_MS_MIN


class BrokerProcesses:
    """Owned by the container's only thread. `run` once."""

    def __init__(
        self, programs: Mapping[str, Program], *, clock: Clock, stop_timeout_ms: int
    ) -> None:
        """`programs`: by name; each runs in a process of its own, its value is the exit code."""
        self._clock = clock
        self._stop_timeout_ms = stop_timeout_ms
        self._processes = [_Process(name, program) for name, program in programs.items()]
        self._kill_at_ms: int | None = None
        """Once it stops: when what still runs is killed."""
        self._refusal: str | None = None
        self._woken, self._wake = os.pipe()

    def run(self) -> None:
        """Until SIGTERM or SIGINT. ConfigError: a broker was refused right after its start."""
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (*_STOPPING, *_FORWARDED):
            signal.signal(number, self._told)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it only wakes the wait below
        while self._kill_at_ms is None or self._running:
            self._reap()
            if self._kill_at_ms is None:
                self._start_due()
            elif self._clock.monotonic_ms() >= self._kill_at_ms:
                self._signal(signal.SIGKILL)
            self._wait()
        if self._refusal is not None:
            raise ConfigError(self._refusal)

    @property
    def _running(self) -> Sequence[_Process]:
        return [process for process in self._processes if process.pid is not None]

    def _told(self, number: int, _: object) -> None:
        if number in _FORWARDED:
            self._signal(signal.Signals(number))
        else:
            self._stop()

    def _stop(self) -> None:
        if self._kill_at_ms is None:
            self._kill_at_ms = self._clock.monotonic_ms() + self._stop_timeout_ms
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running:
            assert process.pid is not None
            with suppress(ProcessLookupError):  # a signal came in the middle of `_reap`
                os.kill(process.pid, number)

    def _start_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for process in self._processes:
            if process.pid is None and process.due_ms <= now_ms:
                process.started_ms = now_ms
                process.pid = self._fork(process.program)
                log.info("broker_started", extra={"broker": process.name, "pid": process.pid})

    def _fork(self, program: Program) -> int:
        # Until the child has handlers of its own, a signal would make it stop the other brokers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OWN)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in _OWN:
                signal.signal(number, signal.SIG_DFL)
            os.close(self._woken)
            os.close(self._wake)
            end_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if pid == 0:
            be_program(None, program)
        return pid

    def _reap(self) -> None:
        for process in self._running:
            assert process.pid is not None
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                process.pid = None
                self._ended(process, os.waitstatus_to_exitcode(status))

    def _ended(self, process: _Process, status: int) -> None:
        if self._kill_at_ms is not None:
            return
        now_ms = self._clock.monotonic_ms()
        is_settled = now_ms - process.started_ms >= SETTLED_MS
        if status == EXIT_REFUSED and not is_settled:
            self._refusal = f"broker {process.name} was refused: its last line above says why"
            self._stop()
            return
        if is_settled:
            process.wait_ms = RESTART_MS_MIN
        process.due_ms = now_ms + process.wait_ms
        log.error(
            "broker_ended",
            extra={"broker": process.name, "status": status, "again_ms": process.wait_ms},
        )
        process.wait_ms = min(2 * process.wait_ms, RESTART_MS_MAX)

    def _wait(self) -> None:
        """For a signal, or until something is due."""
        dues = [process.due_ms for process in self._processes if process.pid is None]
        if self._kill_at_ms is not None:
            dues = [self._kill_at_ms]
        seconds = None
        if dues:
            seconds = max(0, min(dues) - self._clock.monotonic_ms()) / 1000
        if self._kill_at_ms is not None and not self._running:
            return
        if select.select([self._woken], [], [], seconds)[0]:
            os.read(self._woken, 4096)
