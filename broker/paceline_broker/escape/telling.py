"""Reports to the next master what was sent elsewhere, so that it does not deliver it again (R36).

It may be told twice or late, by this start or another one: what waits no more is not touched. The
master waits a moment for it (`wait.py`), so this is the first thing that a broker does that acted.
"""

import asyncio
import logging
from typing import Protocol

from paceline.errors import PacelineError, StorageError
from paceline.wire.cluster import GroupView
from paceline_broker.escape.bridge import Bridge, Connect
from paceline_broker.escape.connection import EscapeConnection
from paceline_broker.escape.notes_file import NotesFile
from paceline_broker.ports import Acting, Identity
from paceline_broker.service.escape.intake import Intake
from paceline_broker.service.escape.wire import EPOCHS_MAX, NOTES_MAX, EscapeTold

log = logging.getLogger("paceline.escape")

AGAIN_MS = 50
"""While there is something to tell."""
IDLE_MS = 500


class TellingRole(Protocol):
    """What of the role is looked at."""

    @property
    def acting(self) -> Acting | None: ...

    @property
    def identity(self) -> Identity: ...

    @property
    def group_view(self) -> GroupView | None: ...


class SentReporter:
    """The duty of a broker that has acted; `run` ends only by cancellation."""

    def __init__(
        self,
        role: TellingRole,
        bridge: Bridge,
        notes: NotesFile,
        intake: Intake,
        connect: Connect,
    ) -> None:
        self._role = role
        self._bridge = bridge
        self._kept = notes
        self._intake = intake
        self._connect = connect
        self._news = asyncio.Event()

    def poke(self) -> None:
        """The role changed."""
        self._news.set()

    async def run(self) -> None:
        while True:
            self._news.clear()
            try:
                await self.tell()
            except (PacelineError, OSError) as error:
                log.info("telling_waits", extra={"why": repr(error)})
            try:
                async with asyncio.timeout((AGAIN_MS if self._has_news else IDLE_MS) / 1000):
                    await self._news.wait()
            except TimeoutError:
                continue

    @property
    def _has_news(self) -> bool:
        return bool(self._bridge.untold_epochs or len(self._kept.notes))

    async def tell(self) -> None:
        """All there is, unless there is no master, or something is on its way yet.

        Raises what the connection and the own intake raise; it is told again then.
        """
        group = self._role.group_view
        if group is None or group.master_view() is None or not self._has_news:
            return
        if self._role.acting is not None or self._bridge.is_busy:
            return
        if group.master == self._role.identity.replica_id:
            await self._tell_all(None)
            return
        connection = await self._connect(group)
        try:
            await self._tell_all(connection)
        finally:
            connection.close()

    async def _tell_all(self, connection: EscapeConnection | None) -> None:
        told_count = 0
        while self._has_news:
            notes = self._kept.notes.first(NOTES_MAX)
            is_last = len(notes) == len(self._kept.notes)
            untold = sorted(self._bridge.untold_epochs) if is_last else []
            epochs = tuple(untold[-EPOCHS_MAX:])  # the newest first: a master waits for those
            told = EscapeTold(notes=tuple(notes), epochs=epochs)
            if connection is None:
                await self._intake.told(told)
            else:
                code = await connection.tell(told)
                if code is not None:
                    log.info("telling_waits", extra={"why": code})
                    return
            told_count += len(notes)
            self._bridge.untold_epochs.difference_update(epochs)
            try:
                await self._kept.settle(len(notes))
            except StorageError as error:
                # What is forgotten in memory only is told once more after a restart.
                log.warning("escape_notes_not_cleared", extra={"fault": error.message})
        log.info("escaped_told", extra={"n": told_count})
