"""Group commit: the loop's side of fdatasync.

One flush is outstanding at most; whatever is written meanwhile goes to the next one. That is the
whole batching policy: no linger, and under load each fdatasync serves everybody who came during the
one before. Beside it the flusher keeps the log's spare segment and checkpoint up to date, off the
loop too, so a roll costs a rename.
"""

import asyncio
import logging
from collections.abc import Callable

from paceline.errors import StorageError
from paceline.platform.ports import Disk
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.types import PhysicalOffset
from paceline_broker.log.checkpoint import encode_checkpoint
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.layout import CHECKPOINT_NAME
from paceline_broker.log.tickets import FlushTicket

log = logging.getLogger("paceline.log")

# Recovery verifies up to twice this: 64 MiB of 1 KiB batches take 0.2 s (2.7 us a batch).
CHECKPOINT_BYTES = 32 * 1024 * 1024
UPKEEP_RETRY_S = 5.0
"""A full disk stays full for longer than a flush: not every flush tries, and logs, again."""


class Flusher:
    """Runs the flushes of one CommitLog. Callbacks come on the loop, in the order of positions."""

    def __init__(
        self,
        disk: Disk,
        commit_log: CommitLog,
        folder: str,
        *,
        on_flushed: Callable[[PhysicalOffset], None],
        on_failed: Callable[[StorageError], None],
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        """`on_failed` is called once; the log is poisoned by then and the role must fence (R22)."""
        self._disk = disk
        self._log = commit_log
        self._folder = folder
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._checkpoint_bytes = checkpoint_bytes
        self.linger_ms = 0
        """With memory durability nobody waits for a flush: one may wait this long for more."""
        self.syncs_finished = 0
        """Of log files, for whoever watches the disk."""
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._wakeup: asyncio.Future[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._keep_not_before = 0.0

    def start(self) -> None:
        self._flushing = spawn(self._run(), name="log-flusher")
        self.keep_up()

    def poke(self) -> None:
        """Something was written. Cheap; call it after every `write_pending`."""
        if self.linger_ms == 0:
            self._wake()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.linger_ms / 1000, self._lingered)

    def _lingered(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        self._is_due = True
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def stop(self) -> None:
        """Stop after the flush in progress; no callback comes any more.

        The log may be closed then, or given to another flusher.
        """
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake()
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        await cancel_and_wait(self._keeping)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self._is_stopping:
                is_due = self._is_due or self.linger_ms == 0
                ticket = self._log.begin_flush() if is_due else None
                self._is_due = False
                if ticket is None:
                    self._wakeup = loop.create_future()
                    await self._wakeup
                    continue
                await self._sync(ticket)
                flushed = self._log.finish_flush(ticket)
                if not self._is_stopping:
                    self._on_flushed(flushed)
                    self.keep_up()
        except StorageError as error:
            self._fail(error)

    async def _sync(self, ticket: FlushTicket) -> None:
        for file in ticket.files:
            if ticket.generation != self._log.generation:
                return  # a truncation came between: it made its own syncs and closed what it cut
            await self._disk.sync(file)
            self.syncs_finished += 1
        if ticket.folder is not None:
            await self._disk.sync_folder_later(ticket.folder)

    def _fail(self, error: StorageError) -> None:
        self._log.fail_flush(error)
        log.error("log_flush_failed", extra={"fault": error.message})
        if not self._is_stopping:
            self._on_failed(error)

    # -- the spare segment and the checkpoint -----------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """No file is being made ahead, no checkpoint written, no segment deleted."""
        return self._keeping is None or self._keeping.done()

    def keep_up(self) -> None:
        """Start making what is missing, unless that is going on."""
        is_idle = self.is_idle
        if is_idle and asyncio.get_running_loop().time() < self._keep_not_before:
            return
        if is_idle and (self._log.spare_wanted is not None or self._is_checkpoint_due()):
            self._keeping = spawn(self._keep(), name="log-keeper")

    def _is_checkpoint_due(self) -> bool:
        behind = self._log.flushed - self._log.checkpointed.flushed
        is_due = behind >= self._checkpoint_bytes or self._log.drop_wanted is not None
        return is_due and self._log.failure is None

    async def _keep(self) -> None:
        try:
            wanted = self._log.spare_wanted
            if wanted is not None:
                file = await self._disk.create_ahead(wanted.path, wanted.size_bytes)
                self._log.give_spare(wanted, file)
            if self._is_checkpoint_due():
                await self._save_checkpoint()
        except StorageError as error:
            # Not fatal by itself: a roll makes its own file, recovery walks further back.
            self._keep_not_before = asyncio.get_running_loop().time() + UPKEEP_RETRY_S
            log.warning("log_upkeep_failed", extra={"fault": error.message})

    async def _save_checkpoint(self) -> None:
        """`write_durably` without blocking, and without outliving a truncation (R25)."""
        checkpoint, base = self._log.make_checkpoint(), self._log.checkpointed
        path = f"{self._folder}/{CHECKPOINT_NAME}"
        temporary = f"{self._folder}/.{CHECKPOINT_NAME}.later"
        if self._disk.exists(temporary):
            self._disk.unlink(temporary)
        file = self._disk.open(temporary, create=True)
        try:
            self._disk.writev(file, [encode_checkpoint(checkpoint)], 0)
            await self._disk.sync(file)
        finally:
            file.close()
        if self._log.checkpointed is not base:
            return  # a truncation came between: the marks may lie above the end now
        self._disk.rename(temporary, path)
        self._log.checkpoint_saved(checkpoint)
        await self._disk.sync_folder_later(self._folder)
        if checkpoint.start > self._log.start:
            await self._drop_below(checkpoint.start)

    async def _drop_below(self, start: PhysicalOffset) -> None:
        """The new start is durable: what lies below goes, off the loop (R26)."""
        if self._log.checkpointed.start != start:
            return  # a truncation or an installed checkpoint came between
        paths = self._log.drop(start)
        for path in paths:
            await self._disk.unlink_later(path)
        log.info("segments_deleted", extra={"count": len(paths), "start": int(start)})
