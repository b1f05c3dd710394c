"""Cursors: where the clients of broadcasting groups stand, for as long as there are such clients.

In a group that broadcasts (`message_model`) every simple consumer is given every message: its
receipts and committed offsets stand under a name of its own, its cursor. Cursors are in the log, so
every later master knows them. A cursor ends by a record: when its client says that it has gone,
when nothing was heard of it for an hour, or to make room for another one, when it was silent for
two minutes and for longest in its group: no group takes room from a smaller one. A client is heard
of by what it asks of receipts, and by the news that clients send of themselves (`client`). While a
receipt of it counts nobody takes its cursor away. Only the master of the moment knows when clients
were heard of: the next one grants all of them that time again. It is counted in looks, so that a
process that stood still finds nobody silent for that (R12).
"""

import asyncio
import logging
from collections.abc import Collection, Iterable

from paceline.errors import BadRequestError, OverloadedError, PacelineError
from paceline.platform.runtime import cancel_and_wait, pause, spawn
from paceline_broker.ports import Role, RoleState
from paceline_broker.projections.cursors import cursor_of
from paceline_broker.projections.receipts import Receipts as KnownReceipts
from paceline_broker.service.pop.heard import Heard
from paceline_broker.service.pop.pop import Receipts
from paceline_broker.service.routes import Routes

log = logging.getLogger("paceline.service")

LOOK_MS = 30_000
IDLE_LOOKS = 120
"""A client that says nothing for so many looks, an hour, has gone: a receive waits for 20 s, and
clients with streams say every 30 s that they are there."""
SILENT_LOOKS = 5
"""One that says nothing for so many, two minutes, makes room for others (RocketMQ's
channelExpiredTimeout)."""
CURSORS_MAX = 5_000
"""Of one broker group."""
QUEUES_MAX = 50_000
"""Of all cursors together: a queue of a cursor takes 1.4 kB here and 110 B in checkpoints, 70 MB in
all. Cursors that there are may come to twice as many, when their topics grow."""
_AT_ONCE = 500


class Cursors:
    """One per broker, outlives every role."""

    def __init__(self, role: Role, routes: Routes, receipts: Receipts) -> None:
        self._role = role
        self._routes = routes
        self._receipts = receipts
        self._looks = 0
        self._heard = Heard()
        """Of a master; of others, nobody."""
        self._task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Of a master; of others, 0."""
        return len(self._known.cursors()) if self._is_master else 0

    @property
    def _known(self) -> KnownReceipts:
        return self._role.projections.receipts

    @property
    def _is_master(self) -> bool:
        return self._role.state is RoleState.MASTER

    def role_changed(self) -> None:
        """What is there now is watched from now on."""
        self._heard.clear()
        if self._is_master and self._known.has_cursors:
            self._start()

    async def close(self) -> None:
        await cancel_and_wait(self._task)

    # -- clients -----------------------------------------------------------------------------------

    async def admit(self, group: str, client_id: str, keys: Collection[int]) -> str:
        """Under which name a client receives from these queues: its cursor, or the group where it
        does not broadcast.

        NoPermissionError; OverloadedError: there is no room for one more; NotMasterError.
        """
        settings = self._routes.settings_of(group)
        self._routes.check_consume(group, is_broadcasting=settings.is_broadcasting)
        if not settings.is_broadcasting:
            return group
        self._role.writer()
        if not self._heard:
            self._know_all()  # of an earlier master
        cursor = cursor_of(group, client_id)
        is_new = cursor not in self._heard
        self._heard.hear(cursor, self._looks)  # others who come now find its place taken
        known = self._known.of_group(cursor)
        new_queues = sum(key not in known for key in keys)
        if is_new or new_queues:
            try:
                await self._make_room(group, new_queues, is_new=is_new)
            except PacelineError:
                if is_new:
                    self._heard.forget(cursor)
                raise
        self._heard.hear(cursor, self._looks)
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
        self.is_there(group, client_id)
        return cursor_of(group, client_id)

    def is_there(self, group: str, client_id: str) -> None:
        """A client was heard of. If it has no cursor it is given none."""
        cursor = cursor_of(group, client_id)
        if cursor in self._heard:
            self._heard.hear(cursor, self._looks)

    async def end(self, cursor: str) -> None:
        """Its client does not come back. Raises what appending raises."""
        self._role.writer()
        self._heard.forget(cursor)  # if it cannot be ended now, the next look knows it again
        if self._known.has(cursor):
            await self._receipts.end_cursors([cursor])

    # -- inside ------------------------------------------------------------------------------------

    def _know_all(self) -> None:
        """Those that came with the log are heard of now."""
        for cursor in self._known.cursors():
            if cursor not in self._heard:
                self._heard.hear(cursor, self._looks)

    async def _make_room(self, group: str, queues: int, *, is_new: bool) -> None:
        """For a client that is among `_heard`, on so many queues more."""
        silent: dict[str, int] = {}
        last = self._looks - SILENT_LOOKS
        queues_max = QUEUES_MAX if is_new else 2 * QUEUES_MAX
        left = self._known.cursor_queues + queues
        while len(self._heard) > CURSORS_MAX or (queues and left > queues_max):
            found = self._heard.makes_room(group, last)
            if found is None:
                self._put_back(silent)
                raise OverloadedError(
                    f"{len(self._heard)} clients of broadcasting groups receive here at once, from"
                    f" {self._known.cursor_queues} queues together, and there is no room for more:"
                    " end some of them, or share the messages among them"
                    " (message_model=clustering)",
                    retry_after_ms=LOOK_MS,
                )
            cursor, heard = found
            if self._has_receipts(cursor):
                continue
            self._heard.forget(cursor)
            silent[cursor] = heard
            left -= len(self._known.of_group(cursor))
        if silent:
            await self._end_forgotten(silent)

    def _has_receipts(self, cursor: str) -> bool:
        """Whether messages are its client's alone still, or on their way to the dead letters; then
        that counts as if it was heard of."""
        now = self._role.writer().appender.log_time_ms()
        if any(queue.holds(now) for queue in self._known.of_group(cursor).values()):
            self._heard.hear(cursor, self._looks)
            return True
        return False

    async def _end_silent(self, silent: Iterable[tuple[str, int]]) -> None:
        """Those that are so silent still when it is their turn. Raises what appending raises."""
        waiting = list(silent)
        for at in range(0, len(waiting), _AT_ONCE):
            some = {
                cursor: heard
                for cursor, heard in waiting[at : at + _AT_ONCE]
                if self._heard.at(cursor) == heard and not self._has_receipts(cursor)
            }
            for cursor in some:
                self._heard.forget(cursor)
            await self._end_forgotten(some)

    async def _end_forgotten(self, silent: dict[str, int]) -> None:
        """Raises what appending raises; then they are tried again when others are."""
        ended = [cursor for cursor in silent if self._known.has(cursor)]
        if not ended:
            return
        log.info("clients_silent", extra={"cursors": len(ended)})
        try:
            await self._receipts.end_cursors(ended)
        except PacelineError:
            self._put_back(silent)
            raise

    def _put_back(self, silent: dict[str, int]) -> None:
        for cursor in reversed(silent):
            self._heard.put_back(cursor, silent[cursor])

    def _start(self) -> None:
        if self._task is None:
            self._task = spawn(self._run(), name="cursors")

    async def _run(self) -> None:
        """As long as this is a master and there are any."""
        try:
            while self._is_master and (self._heard or self._known.has_cursors):
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
        await self._end_silent(self._heard.silent(self._looks - IDLE_LOOKS))
