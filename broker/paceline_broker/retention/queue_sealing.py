"""Sealing: a master ends its part of a logical queue that is to go on in another broker group.

The view says that a logical queue moves away. The master appends a record that seals its queue:
from that place of the log on nobody appends to it. Once the record is confirmed it tells the
controllers how many messages the queue holds, and they open the next segment at that end (R28): not
before, or a failover that loses the record would let the queue grow beyond where the next one
begins. The record outlives the master, so a later one reports it in its stead.
Owned by the broker's event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from paceline.errors import PacelineError
from paceline.platform.ports import Clock
from paceline.records.header import Kind
from paceline.types import GroupName
from paceline.wire.session import BrokerCommand, QueueSealed
from paceline.wire.static_topics import LogicalQueue, Segment
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.seals import Seal, seal_document
from paceline_broker.role.mastership import Mastership
from paceline_broker.role.role import BrokerRole
from paceline_broker.service.routes import Routes

log = logging.getLogger("paceline.sealing")

LOOK_INTERVAL_MS = 500
"""Between two looks without news: for a mastership, for room in the log, for confirm."""
SEALS_PER_RECORD_MAX = 1000
CONFIRM_TIMEOUT_MS = 3000

Request = Callable[[BrokerCommand], Awaitable[dict[str, Any]]]


class Sealing:
    """Made once per process, with its role; `run` ends only by cancellation."""

    def __init__(
        self, *, role: BrokerRole, routes: Routes, clock: Clock, group: GroupName, request: Request
    ) -> None:
        self._role = role
        self._routes = routes
        self._clock = clock
        self._group = group
        self._request = request
        self._news = asyncio.Event()
        routes.on_change(self._news.set)

    async def run(self) -> None:
        while True:
            self._news.clear()
            self.seal()
            await self.report()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL_MS / 1000):
                    await self._news.wait()

    def seal(self) -> None:
        """Append the record for all queues that move away, and that the log has not sealed yet."""
        writer = self._writer()
        if writer is None:
            return
        seals = self._role.projections.seals.by_key
        due = [
            (topic_id, segment.queue_id)
            for topic_id, _, segment, logical in self._segments()
            if queue_key(topic_id, segment.queue_id) not in seals
            and (not segment.is_open or logical.moving_to is not None)
        ]
        if not due:
            return
        try:
            writer.ensure_can_append(is_freeing=True)
            self._append(writer, due[:SEALS_PER_RECORD_MAX])
        except PacelineError as error:
            log.info("seal_waits", extra={"queues": len(due), "why": error.message})
            return
        log.info("queues_sealed", extra={"queues": due[:SEALS_PER_RECORD_MAX]})
        writer.wait_confirmed(writer.end, self._confirmed, timeout_ms=CONFIRM_TIMEOUT_MS)
        if len(due) > SEALS_PER_RECORD_MAX:
            self._news.set()

    async def report(self) -> None:
        """Tell the controllers the ends of sealed queues that the view does not show yet."""
        for topic_id, number, segment, _ in list(self._segments()):
            writer = self._writer()
            seal = self._role.projections.seals.by_key.get(queue_key(topic_id, segment.queue_id))
            if writer is None or seal is None or not is_to_report(segment, seal, writer.confirm):
                continue
            command = QueueSealed(
                group=self._group,
                master=writer.term.replica_id,
                master_incarnation=writer.term.incarnation,
                master_epoch=writer.epoch,
                confirm=writer.confirm,
                topic_id=topic_id,
                logical_queue=number,
                generation=segment.generation,
                end=seal.end,
            )
            try:
                result = await self._request(command)
            except PacelineError as error:
                # Unknown: saying it again is no harm, and until then the move waits.
                log.warning("seal_not_told", extra={"why": error.message})
                return
            if not result["ok"]:
                log.info("seal_refused", extra={"reason": result.get("reason")})

    def _confirmed(self, error: PacelineError | None) -> None:
        self._news.set()

    def _writer(self) -> Mastership | None:
        """Of an open master whose view is of its own epoch: it is as new as any before it."""
        group = self._role.group_view
        try:
            writer = self._role.writer()
        except PacelineError:
            return None
        if group is None or group.master_epoch != writer.epoch:
            return None
        return writer if writer.is_open else None

    def _segments(self) -> Iterator[tuple[int, int, Segment, LogicalQueue]]:
        """Every segment of this broker group: topic id, logical queue, itself, and all of that."""
        for topic in self._routes.static_topics:
            for number, logical in enumerate(topic.logical_queues):
                for segment in logical.segments:
                    if segment.group == self._group:
                        yield topic.topic_id, number, segment, logical

    def _append(self, writer: Mastership, queues: Sequence[tuple[int, int]]) -> None:
        """Raises StorageError, which ends the mastership (R22)."""
        log_time_ms = writer.appender.log_time_ms()
        document = seal_document(queues)
        writer.appender.record(Kind.OPERATION, document, store_unix_ms=log_time_ms)


def is_to_report(segment: Segment, seal: Seal, confirm: int) -> bool:
    """Whether the controllers are to hear of the seal now: it is confirmed, and news to them."""
    if confirm < seal.position:
        return False
    return segment.end is None or segment.start + seal.end < segment.end
