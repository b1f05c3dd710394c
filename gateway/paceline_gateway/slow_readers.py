"""Clients that ask for much and do not read: cut after a while, so that what waits for them goes.

Nobody is cut who reads, however slowly he does what he reads for.
"""

import asyncio
from collections.abc import Callable

TAKING_S = 30.0
TAKING_BYTES_MIN = 64 * 1024
"""Who takes less within TAKING_S, while more waits for him, is cut."""


class Taking:
    """Of one connection. Tell it what is written, and when the transport pauses and resumes."""

    def __init__(self, transport: asyncio.Transport, on_slow: Callable[[], None]) -> None:
        self._transport, self._on_slow = transport, on_slow
        self._loop = asyncio.get_running_loop()
        self._written_bytes = 0
        self._taken_bytes = 0
        """When it was looked at last."""
        self._timer: asyncio.TimerHandle | None = None

    def wrote(self, size_bytes: int) -> None:
        """So much was handed to the transport."""
        self._written_bytes += size_bytes

    def paused(self) -> None:
        """Much waits: look after a while whether it is taken."""
        self.end()
        self._look_later()

    def end(self) -> None:
        """Little waits, or the connection has ended. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._taken_bytes = self._taken()
        self._timer = self._loop.call_later(TAKING_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._taken() - self._taken_bytes < TAKING_BYTES_MIN:
            self._on_slow()
        else:
            self._look_later()

    def _taken(self) -> int:
        return self._written_bytes - self._transport.get_write_buffer_size()
