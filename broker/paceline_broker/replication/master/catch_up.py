"""Sends the log to replicas that are behind, at a rate that does not delay acknowledgements.

A replica is *far* once more than a window separates it from the end, until it is there: only then
its pieces keep to the pace (catch_up_pace.py). Who is behind for a moment gets them at once.
"""

import asyncio
from collections.abc import Callable

from paceline.errors import StorageError
from paceline.platform.ports import Buffer, Clock
from paceline.platform.runtime import spawn
from paceline.types import PhysicalOffset, ReplicaId
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.replication.master.catch_up_pace import CatchUpPace
from paceline_broker.replication.master.ports import ReplicaLink, TermSettings

WARM_BYTES = 4 * 1024 * 1024
"""Cold pages are brought in this much at a time, while the replica works on half a window."""


class Push:
    """How far one replica has been sent: the term's state of one connection."""

    __slots__ = (
        "acked", "confirm", "heard_ms", "is_far", "is_installing", "is_joined", "is_live",
        "is_pumping", "link", "replica", "round", "sent",
    )  # fmt: skip

    def __init__(self, link: ReplicaLink, replica: ReplicaId, now_ms: int) -> None:
        self.link = link
        self.replica = replica
        self.is_installing = False
        """A checkpoint is under way to it: the server's deadline bounds its silence."""
        self.is_joined = False
        self.is_live = False
        """It was sent everything that is written: the next turn can be pushed from memory."""
        self.is_far = False
        """More than a window behind, and not at the end since: it keeps to the pace."""
        self.is_pumping = False
        self.sent = PhysicalOffset(0)
        self.acked = PhysicalOffset(0)
        self.confirm = -1
        self.round = -1
        self.heard_ms = now_ms


class CatchUp:
    """The pump of one term: one bounded frame per callback to each replica that is behind."""

    def __init__(
        self,
        commit_log: CommitLog,
        clock: Clock,
        settings: TermSettings,
        *,
        is_current: Callable[[Push], bool],
        write_frame: Callable[[Push, list[Buffer], int], None],
        fail: Callable[[str], None],
    ) -> None:
        self.pace = CatchUpPace(clock.monotonic_ms())
        self._log = commit_log
        self._clock = clock
        self._settings = settings
        self._is_current = is_current
        self._write_frame = write_frame
        self._fail = fail
        self._loop = asyncio.get_running_loop()

    def pump_soon(self, push: Push) -> None:
        if not push.is_pumping:
            push.is_pumping = True
            self._loop.call_soon(self.pump, push)

    def pump(self, push: Push) -> None:
        """Send the next piece of the log to a replica that is not at its end."""
        push.is_pumping = False
        if push.is_live or not self._is_current(push):
            return
        if push.sent - push.acked > self._settings.window_bytes:
            return  # its next acknowledgement calls again
        if push.sent < self._log.start:  # deleted meanwhile: it comes again, for a checkpoint (R14)
            push.link.close()
            return
        try:
            # Before anything looks at a size in it: a cold page would stop the loop (and sends).
            ahead = self._log.read(push.sent, WARM_BYTES)
            if self._log.is_cold(ahead[: self._settings.catch_up_frame_bytes]):
                self._warm_soon(push, ahead)
                return
            piece = self._log.read_raw(push.sent, self._settings.catch_up_frame_bytes)
        except StorageError as error:
            self._fail(f"reading the log at {push.sent}: {error.message}")
            return
        if len(piece) == 0:
            push.is_live, push.is_far = True, False
        elif self._log.is_cold(piece):  # one large batch
            self._warm_soon(push, piece)
        else:
            self._send(push, piece)

    def _send(self, push: Push, piece: memoryview) -> None:
        if self._log.written - push.sent > self._settings.window_bytes:
            push.is_far = True
        wait_ms = 0.0
        if push.is_far:
            wait_ms = self.pace.wait_ms(len(piece), self._clock.monotonic_ms())
        if wait_ms > 0:
            push.is_pumping = True
            self._loop.call_later(max(wait_ms, 1.0) / 1000, self.pump, push)
            return
        began_s = self._loop.time()
        self._write_frame(push, [piece], len(piece))
        self.pace.spent(len(piece), self._loop.time() - began_s)
        self.pump_soon(push)

    def _warm_soon(self, push: Push, view: memoryview) -> None:
        push.is_pumping = True
        spawn(self._warm(push, view), name=f"warm-for-replica-{push.replica}")

    async def _warm(self, push: Push, view: memoryview) -> None:
        try:
            await self._log.warm(view)
        except StorageError as error:
            self._fail(f"reading the log at {push.sent}: {error.message}")
        self.pump(push)
