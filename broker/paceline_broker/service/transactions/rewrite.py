"""Open halves hold back retention: those in an old part of the log are stored again at its end, and
the fold moves them there (R14, R26).

The cleaner says below which position; turns work it off, a little at a time, one confirmed before
the next, so that the loop and the replicas serve others beside it.
"""

import asyncio
import logging

from paceline.errors import PacelineError
from paceline.platform.runtime import pause
from paceline.records.header import Cause, Kind
from paceline.types import PhysicalOffset
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_of, topic_of
from paceline_broker.projections.transactions import Half
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.routes import Routes
from paceline_broker.service.transactions.half_messages import (
    Chosen,
    HalfMessageReader,
    batches_of,
    size_of,
)

log = logging.getLogger("paceline.transactions")

TURN_BYTES = 256 * 1024
TURN_HALVES = 1024
REFUSED_MS = 500
"""After the log refused to take more, or what was appended was not confirmed in time."""


class HalfMessageRewriter:
    """`retention.Needs` of half messages. `run` ends only by cancellation."""

    def __init__(
        self, role: Role, routes: Routes, ledger: Ledger, halves: HalfMessageReader
    ) -> None:
        self._role = role
        self._routes = routes
        self._ledger = ledger
        self._halves = halves
        self._below = PhysicalOffset(0)
        self._end = PhysicalOffset(0)
        """Of the last turn's batches."""
        self._held: set[PhysicalOffset] = set()
        """Batches that could not be read since the cleaner asked last."""
        self._asked = asyncio.Event()

    def oldest(self) -> PhysicalOffset | None:
        """Position of the oldest batch with an open half."""
        return self._role.projections.transactions.oldest_open()

    def append_again(self, below: PhysicalOffset) -> None:
        """Begin to store again what is open below `below`; the turns do it."""
        self._below = below
        self._held.clear()
        self._asked.set()

    async def run(self) -> None:
        """Work off what the cleaner asks for, for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                while await self.turn():
                    await pause(0)  # others have their turn
            except PacelineError as error:
                log.warning("halves_not_moved", extra={"fault": error.message})
                await pause(REFUSED_MS)
                self._asked.set()

    async def turn(self) -> bool:
        """Store some again, one batch for each queue; False: nothing is left that can be read.

        Raises what `ensure_can_append` and the wait for the last turn's confirm raise.
        """
        before = self._writer()
        if before is None:
            return False
        if before.confirm < self._end:
            await self._ledger.confirmed(before)
        found = await self._read()
        writer = self._writer()  # no await from here on (R28)
        if writer is not before or writer is None or not found:
            return False
        writer.ensure_can_append(is_freeing=True)  # the old part goes after it
        projections = self._role.projections
        by_queue: dict[int, list[Chosen]] = {}
        for half, chosen in found:
            if projections.transactions.find(half.source) == half:  # it was not ended meanwhile
                by_queue.setdefault(half.key, []).append(chosen)
        now = self._ledger.log_time_ms()
        for key, rows in by_queue.items():
            for encoded in batches_of(
                rows,
                group=self._routes.group,
                topic_id=topic_of(key),
                queue_id=queue_of(key),
                cause=Cause.AGAIN,
                kind=Kind.HALF,
            ):
                writer.appender.made(encoded, store_unix_ms=now)
        self._end = writer.end
        return True

    def _writer(self) -> LogWriter | None:
        """None: not master any more; the next one's cleaner asks anew."""
        try:
            return self._role.writer()
        except PacelineError:
            return None

    async def _read(self) -> list[tuple[Half, Chosen]]:
        """Some of what is to be stored again. Where much is read for little, one batch of it."""
        transactions = self._role.projections.transactions
        found: list[tuple[Half, Chosen]] = []
        size = read = 0
        for position in transactions.open_batches():
            is_enough = max(size, read) >= TURN_BYTES or len(found) == TURN_HALVES
            if position >= self._below or is_enough:
                break
            halves = transactions.open_halves(position, limit=TURN_HALVES - len(found))
            if position in self._held or not halves:
                continue
            try:
                batch = await self._halves.batch_of(halves[0])
            except PacelineError as error:  # damage that is being mended: when asked again
                log.warning("half_held", extra={"position": position, "fault": error.message})
                self._held.add(position)
                continue
            read += batch.header.payload_raw_bytes
            for half in halves:
                chosen = Chosen(half.source, batch, half.number, {})
                found.append((half, chosen))
                size += size_of(chosen)
                if size >= TURN_BYTES:
                    break
        return found
