"""Shell: a controller whose event loop hangs ends itself, so that another one leads.

A loop that hangs sends no heartbeats, but its connections stay open and its port answers: whoever
depends on it waits longer than for a dead one. A thread looks at a count that the loop raises. It
counts only time in which it was awake itself, so a process that was stopped (SIGSTOP) or a machine
that slept is not taken for a loop that hangs.
"""

import asyncio
import faulthandler
import logging
import os
import sys
import threading

from paceline.platform.ports import Clock

log = logging.getLogger("paceline.controller")

EXIT_HUNG = 70
"""EX_SOFTWARE of sysexits.h."""
BEAT_MS = 200
LOOK_MS = 200
OVERSLEPT_MS = 300
"""A look that comes later than this was not awake: nor was the loop, perhaps."""


class HangJudge:
    """Pure: counts the awake time without a beat."""

    def __init__(self, *, limit_ms: int, now_ms: int) -> None:
        self._limit_ms = limit_ms
        self._beats = -1
        self._looked_ms = now_ms
        self._silent_ms = 0

    def look(self, beats: int, *, now_ms: int) -> bool:
        """Whether the loop hangs; called every LOOK_MS."""
        elapsed_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        if beats != self._beats:
            self._beats, self._silent_ms = beats, 0
        elif elapsed_ms > LOOK_MS + OVERSLEPT_MS:
            self._silent_ms = 0  # this thread did not run either
        else:
            self._silent_ms += elapsed_ms
        return self._silent_ms >= self._limit_ms


class Watchdog:
    """`start` on the loop that is watched, `stop` before it ends."""

    def __init__(self, clock: Clock, *, limit_ms: int) -> None:
        self._clock = clock
        self._limit_ms = limit_ms
        self._beats = 0
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        self._beats += 1
        self._timer = asyncio.get_running_loop().call_later(BEAT_MS / 1000, self._beat)

    def _watch(self) -> None:
        judge = HangJudge(limit_ms=self._limit_ms, now_ms=self._clock.monotonic_ms())
        while not self._stopped.wait(LOOK_MS / 1000):
            if judge.look(self._beats, now_ms=self._clock.monotonic_ms()):
                self._end()

    def _end(self) -> None:
        """No clean stop: whatever would do it hangs. The journal is as after kill -9."""
        log.critical("loop_hangs", extra={"silent_ms": self._limit_ms})
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        sys.stderr.flush()
        os._exit(EXIT_HUNG)
