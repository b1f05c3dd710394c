"""The call by which controllers ask whether queues may be taken from readers: what is unread there.

Answered by an open master after a read round, and only with a view in which producers send to those
queues no more: what is counted is all that there will ever be.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from paceline.errors import CommandRefusedError, NotYetAvailableError
from paceline.wire.calls import offsets as wire
from paceline_broker.projections.consume_queues import queue_key, queue_of, topic_of
from paceline_broker.projections.offsets import Committed
from paceline_broker.projections.projections import Projections
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import Handlers
from paceline_broker.service.settings import ServiceSettings

ROWS_MAX = 64
"""Enough to say why not."""

_Pending: TypeAlias = tuple[Literal["delayed", "transaction"], Mapping[int, int]]


class UnreadCalls:
    """`unread` of one broker."""

    def __init__(self, routes: Routes, ledger: Ledger, settings: ServiceSettings) -> None:
        self._routes = routes
        self._ledger = ledger
        self._settings = settings

    def handlers(self) -> Handlers:
        return {wire.Unread: self.unread}

    async def unread(self, asked: wire.Unread) -> wire.UnreadOf:
        """Messages that a consumer group has not consumed."""
        version, topic_id, first = asked.version, asked.topic_id, asked.from_queue
        await self._routes.wait_newer(version - 1, timeout_ms=self._settings.view_wait_ms)
        if self._routes.version < version:
            raise NotYetAvailableError(f"this broker has not seen view {version} yet")
        here = self._routes.sendable.get(topic_id)
        if here is not None and here.writes > first:
            raise CommandRefusedError(
                f"messages are still sent to {here.writes} queues", reason="STILL_WRITTEN"
            )
        rows = await self._ledger.query(lambda found: _unread(found, topic_id, first))
        return wire.UnreadOf(rows[:ROWS_MAX])


def _unread(found: Projections, topic_id: int, first: int) -> list[wire.UnreadRow]:
    """A row for each queue from `first` on and each group that has messages left in it.

    A group counts if it has consumed from any queue of the topic; messages that no group at all has
    consumed from count too, with a group of null. So do those that are still to come into a queue:
    delayed ones, and halves of open transactions. Without the queue they would be buried (R35).
    """
    known = found.topics.get(topic_id)
    readers: dict[str | None, dict[int, Committed]] = {
        group: committed
        for group, committed in found.offsets.of_all().items()
        if any(topic_of(key) == topic_id for key in committed)
    }
    rows = []
    for queue_id in range(first, 0 if known is None else known.queues):
        key = queue_key(topic_id, queue_id)
        queue = found.consume_queues.get(key)
        if queue is None or queue.end == queue.start:
            continue
        for group, committed in (readers or {None: {}}).items():
            read = committed[key].offset if key in committed else queue.start
            left = queue.end - max(queue.start, read)
            if left > 0:
                rows.append(wire.UnreadRow(queue=queue_id, group=group, messages=left))
    delayed: _Pending = ("delayed", found.timers.by_queue)
    transaction: _Pending = ("transaction", found.transactions.open_by_queue())
    for pending, counts in (delayed, transaction):
        for key, count in sorted(counts.items()):
            if topic_of(key) == topic_id and queue_of(key) >= first:
                rows.append(
                    wire.UnreadRow(queue=queue_of(key), group=None, messages=count, pending=pending)
                )
    return rows
