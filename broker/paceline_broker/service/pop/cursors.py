"""Cursors: where the clients of broadcasting groups stand, for as long as there are such clients.

In a group that broadcasts (`message_model`) every simple consumer is given every message: its
receipts and committed offsets stand under a name of its own, its cursor. Cursors are in the log, so
every later master knows them. A cursor ends by a record: when its client says that it has gone,
when nothing was heard of it for an hour, or to make room for another one, when it is the one that
was silent for longest. Only the master of the moment knows when clients were heard of: the next one
grants all of them that time again. It is counted in looks, so that a process that stood still finds
nobody silent for that (R12).
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence

from paceline.errors import BadRequestError, OverloadedError, PacelineError
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline_broker.ports import Role, RoleState
from paceline_broker.projections.cursors import cursor_of
from paceline_broker.service.pop.pop import Receipts
from paceline_broker.service.routes import Routes

log = logging.getLogger("paceline.service")

LOOK_MS = 30_000
IDLE_LOOKS = 120
"""A client that says nothing for so many looks, an hour, has gone: a receive waits for 20 s."""
SILENT_LOOKS = 5
"""One that says nothing for so many, two minutes, makes room for others (RocketMQ's
channelExpiredTimeout)."""
CURSORS_MAX = 5_000
"""Of one broker group. A cursor takes some 300 B for each queue of its topics, here and in
checkpoints: 12 MB with 8 queues each."""
_AT_ONCE = 500


class Cursors:
    """One per broker, outlives every role."""

    def __init__(self, role: Role, routes: Routes, receipts: Receipts) -> None:
        self._role = role
        self._routes = routes
        self._receipts = receipts
        self._looks = 0
        self._heard: OrderedDict[str, int] = OrderedDict()
        """By cursor, after how many looks its client was heard of last; the longest silent
        first."""
        self._task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Of a master; of others, 0."""
        is_master = self._role.state is RoleState.MASTER
        return len(self._role.projections.receipts.cursors()) if is_master else 0

    def role_changed(self) -> None:
        """What is there now is watched from now on."""
        self._heard.clear()
        if self._role.projections.receipts.cursors():
            self._start()

    async def close(self) -> None:
        await cancel_and_wait(self._task)

    # -- clients -----------------------------------------------------------------------------------

    async def admit(self, group: str, client_id: str) -> str:
        """Under which name a client receives: its cursor, or the group where it does not broadcast.
        NoPermissionError; OverloadedError: there is no room for one more."""
        settings = self._routes.settings_of(group)
        self._routes.check_consume(group, is_broadcasting=settings.is_broadcasting)
        if not settings.is_broadcasting:
            return group
        cursor = cursor_of(group, client_id)
        if not self._heard:
            self._know_all()  # of an earlier master
        if cursor not in self._heard:
            await self._make_room()
        self._hear(cursor)
        self._start()
        return cursor

    def of_receipts(self, group: str, client_id: str | None) -> str:
        """Under which name the receipts of a client stand. BadRequestError: it does not say whose
        they are, and the group broadcasts."""
        if not self._routes.settings_of(group).is_broadcasting:
            return group
        if client_id is None:
            raise BadRequestError(
                f"consumer group {group} broadcasts, so each client has receipts of its own: name"
                " the one that received the messages",
                field="client_id",
            )
        cursor = cursor_of(group, client_id)
        if cursor in self._heard:
            self._hear(cursor)
        return cursor

    async def end(self, cursor: str) -> None:
        """Its client does not come back. Raises what appending raises."""
        await self._end([cursor])

    # -- inside ------------------------------------------------------------------------------------

    def _hear(self, cursor: str) -> None:
        self._heard[cursor] = self._looks
        self._heard.move_to_end(cursor)

    def _know_all(self) -> None:
        """Those that came with the log are heard of now."""
        for cursor in self._role.projections.receipts.cursors():
            self._heard.setdefault(cursor, self._looks)

    async def _make_room(self) -> None:
        while len(self._heard) >= CURSORS_MAX:  # others may come meanwhile
            cursor, heard = next(iter(self._heard.items()))
            if self._looks - heard < SILENT_LOOKS:
                raise OverloadedError(
                    f"{len(self._heard)} clients of broadcasting groups receive here at once, and"
                    " there is no room for more: end some of them, or share the messages among"
                    " them (message_model=clustering)",
                    retry_after_ms=LOOK_MS,
                )
            await self._end([cursor])

    async def _end(self, cursors: Sequence[str]) -> None:
        """Raises what appending raises; then they are tried again when others are."""
        known = self._role.projections.receipts
        heard = {cursor: self._heard.pop(cursor, self._looks) for cursor in cursors}
        ended = [cursor for cursor in cursors if known.has(cursor)]
        try:
            for at in range(0, len(ended), _AT_ONCE):
                await self._receipts.end_cursors(ended[at : at + _AT_ONCE])
        except PacelineError:
            for cursor in ended:
                self._heard.setdefault(cursor, heard[cursor])
                self._heard.move_to_end(cursor, last=False)
            raise

    def _start(self) -> None:
        if self._task is None:
            self._task = spawn(self._run(), name="cursors")

    async def _run(self) -> None:
        """As long as there are any."""
        try:
            while self._heard or self._role.projections.receipts.cursors():
                await pause(LOOK_MS)
                try:
                    await self.look()
                except PacelineError as error:  # a master does it, or the next look
                    log.debug("cursors_not_ended", extra={"error": error.message})
        finally:
            self._task = None

    async def look(self) -> None:
        """End the cursors of clients that are silent for too long. Raises what appending raises."""
        self._role.writer()
        self._looks += 1
        self._know_all()
        last = self._looks - IDLE_LOOKS
        idle = [cursor for cursor, heard in self._heard.items() if heard <= last]
        if idle:
            log.info("clients_silent", extra={"cursors": len(idle)})
            await self._end(idle)
