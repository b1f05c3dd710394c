"""Lengthening the invisible time of what an application is still processing.

A change gives a new receipt and voids the old one, while the application holds the message with
the receipt it came with: so the newest receipt of each is kept here, and handed over when it is
needed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from paceline.errors import PacelineError
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline.wire.calls.pop import ReceiptRow

log = logging.getLogger("paceline.client")

_HANDLES_MAX = 1024
"""Brokers take so many in one call."""

Change = Callable[[str, list[str], int], Awaitable[list[ReceiptRow]]]
"""(broker group, handles, invisible ms) -> a row for each handle."""


class _Held:
    """A message that is processed. `handle` is its newest receipt."""

    __slots__ = ("broker_group", "handle", "invisible_ms", "renew_at", "renewed", "until")

    def __init__(
        self, broker_group: str, handle: str, invisible_ms: int, now: float, until: float
    ) -> None:
        self.broker_group = broker_group
        self.handle = handle
        self.invisible_ms = invisible_ms
        self.renew_at = now + invisible_ms / 4000  # up to half may be over already
        self.until = until
        self.renewed: asyncio.Future[None] | None = None
        """A renewal is under way; done when `handle` is the newest again."""


class LeaseRenewal:
    """Owned by one consumer; does nothing unless something is held."""

    def __init__(self, change: Change, *, limit_ms: int, group: str) -> None:
        self._change = change
        self._limit_s = limit_ms / 1000
        self._group = group
        self._held: dict[str, _Held] = {}
        """By the receipt that the application has."""
        self._task: asyncio.Task[None] | None = None

    def hold(self, broker_group: str, handle: str, invisible_ms: int) -> None:
        """Renew that receipt from now on, at half of its time."""
        now = asyncio.get_running_loop().time()
        self._held[handle] = _Held(broker_group, handle, invisible_ms, now, now + self._limit_s)
        if self._task is None:
            self._task = spawn(self._run(), name="renew-receipts")

    @property
    def holds_any(self) -> bool:
        return bool(self._held)

    def holds(self, handle: str) -> bool:
        """Whether that receipt, as it was handed out, is renewed."""
        return handle in self._held

    async def release(self, handle: str) -> str:
        """Renew no more; the newest receipt of the message."""
        held = self._held.pop(handle, None)
        if held is None:
            return handle
        if held.renewed is not None:
            await asyncio.shield(held.renewed)
        return held.handle

    async def close(self) -> None:
        self._held.clear()
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._held:
            first = min(held.renew_at for held in self._held.values())
            await pause(max(1.0, (first - loop.time()) * 1000))
            await self._renew(loop.time())
        self._task = None

    async def _renew(self, now: float) -> None:
        by_group: dict[tuple[str, int], list[tuple[str, _Held]]] = {}
        for handle, held in list(self._held.items()):
            if now >= held.until:
                del self._held[handle]  # who takes this long has forgotten it
            elif now >= held.renew_at:
                at = (held.broker_group, held.invisible_ms)
                by_group.setdefault(at, []).append((handle, held))
        for (broker_group, invisible_ms), due in by_group.items():
            for low in range(0, len(due), _HANDLES_MAX):
                await self._renew_at(broker_group, invisible_ms, due[low : low + _HANDLES_MAX])

    async def _renew_at(
        self, broker_group: str, invisible_ms: int, due: list[tuple[str, _Held]]
    ) -> None:
        loop = asyncio.get_running_loop()
        due = [(handle, held) for handle, held in due if handle in self._held]
        if not due:
            return
        renewed: asyncio.Future[None] = loop.create_future()
        for _, held in due:
            held.renewed = renewed
        try:
            await self._change_all(broker_group, invisible_ms, due, loop.time())
        finally:
            renewed.set_result(None)
            for _, held in due:
                held.renewed = None

    async def _change_all(
        self, broker_group: str, invisible_ms: int, due: list[tuple[str, _Held]], now: float
    ) -> None:
        try:
            rows = await self._change(broker_group, [held.handle for _, held in due], invisible_ms)
        except PacelineError as error:
            log.warning("renew_failed", extra={"group": self._group, "error": error.message})
            for _, held in due:
                held.renew_at = now + 1.0
            return
        for (handle, held), row in zip(due, rows, strict=True):
            if row.code is not None or row.handle is None:
                self._held.pop(handle, None)
                continue
            held.handle = row.handle
            held.renew_at = now + invisible_ms / 2000
