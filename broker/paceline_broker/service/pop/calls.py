"""Calls of simple consumers: receive, ack, invisible, end_receive (docs/protocol/stream.md).

`receive` answers with ranges of offsets and what a handle is made of; a client of the stream makes
the handles itself and fetches the messages as any others. Over HTTP the messages come in the answer
(server/http_receipts.py).
"""

from collections.abc import Hashable, Iterable, Sequence

from paceline.errors import (
    BY_CODE,
    BadRequestError,
    QueueNotFoundError,
)
from paceline.filters import ALL, Filter
from paceline.wire.calls import pop as wire
from paceline.wire.calls.request import to_json
from paceline.wire.names import check_name, check_topic_name, retry_topic
from paceline.wire.receipts import ATTEMPT_MAX, Receipt, format_handle, parse_handle, why_refused
from paceline_broker.projections.consume_queues import queue_key, queue_of, topic_of
from paceline_broker.projections.cursors import cursor_of
from paceline_broker.service.fetch.filters import FilterRegistry
from paceline_broker.service.pop.cursors import Cursors
from paceline_broker.service.pop.grant import PopGrant, PopRequest
from paceline_broker.service.pop.operations import SettledReceipt
from paceline_broker.service.pop.pop import Receipts
from paceline_broker.service.produce.auto_create import AutoCreator
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import CallerHandlers, Handlers


class ReceiptCalls:
    """Handlers of one broker."""

    def __init__(
        self,
        receipts: Receipts,
        cursors: Cursors,
        routes: Routes,
        creator: AutoCreator,
        filters: FilterRegistry,
    ) -> None:
        self._filters = filters
        self._cursors = cursors
        self._receipts = receipts
        self._routes = routes
        self._creator = creator

    def handlers(self) -> Handlers:
        return {
            wire.EndReceive: self._end_receive,
            wire.Ack: self._ack,
            wire.Invisible: self._invisible,
        }

    def handlers_of_callers(self) -> CallerHandlers:
        return {wire.Receive: self._receive}

    # -- receive -----------------------------------------------------------------------------------

    async def _receive(self, asked: wire.Receive, caller: Hashable) -> wire.Received:
        given = await self.receive(asked, caller)
        return wire.Received(
            position=given.position,
            invisible_until_unix_ms=given.until_unix_ms,
            messages=[[topic_of(row.key), queue_of(row.key), *row[1:]] for row in given.rows],
        )

    async def receive(self, wanted: wire.Receive, caller: Hashable) -> PopGrant:
        """What a receiver that asks so is given; for streams and HTTP."""
        group = check_name(wanted.group, "group")
        keys = self._keys(await self._subscriptions(wanted, caller))
        later = {row.topic for row in wanted.topics if not isinstance(row, str) and row.is_later}
        await self._creator.ensure_group(group)  # with the topic of its dead letters
        name = await self._cursors.admit(group, wanted.client_id, keys)
        settings = self._routes.settings_of(group)
        filters = {key: one for key, one in keys.items() if one != ALL}
        is_cursor = name != group
        retries = self._routes.find_topic(retry_topic(group))
        if retries is not None and not is_cursor:  # nobody else's retries
            self._add_queues(keys, retries.topic_id, ALL)
        asked = PopRequest(
            group=name,
            client_id=wanted.client_id,
            keys=tuple(keys),
            has_priorities=frozenset(map(topic_of, keys)) & self._routes.with_priorities,
            filters=filters,
            messages_max=wanted.max_messages,
            invisible_ms=wanted.invisible_ms,
            start=settings.consume_from_where if is_cursor else wanted.start,
            from_first=frozenset(
                self._routes.topic_named(name).topic_id for name in later if is_cursor
            ),
            is_from_min=is_cursor or settings.consume_from_min_enable,
            is_ordered=wanted.order or settings.consume_message_orderly,
            attempts_max=min(ATTEMPT_MAX, settings.retry_max_times + 1),
        )
        return await self._receipts.receive(asked, wait_ms=wanted.wait_ms)

    async def _subscriptions(
        self, wanted: wire.Receive, caller: Hashable
    ) -> list[tuple[str, Filter]]:
        """Topics by name, each with its filter; expressions are parsed once for all who say them.

        Those that are long to parse wait in line, so nothing of a topic is looked at before.
        """
        found: list[tuple[str, Filter]] = []
        for row in wanted.topics:
            if isinstance(row, str):
                found.append((check_topic_name(row, "topics"), ALL))
                continue
            name = check_topic_name(row.topic, "topics")
            _, filtered = await self._filters.ensure(row.type, row.expression, asker=caller)
            found.append((name, filtered))
        return found

    def _keys(self, subscriptions: Iterable[tuple[str, Filter]]) -> dict[int, Filter]:
        """Queues of this broker group of these topics, each with its filter."""
        keys: dict[int, Filter] = {}
        for name, wanted in subscriptions:
            topic_id = self._routes.topic_named(name).topic_id
            self._routes.check_read(topic_id)
            self._add_queues(keys, topic_id, wanted)
        if not keys:
            raise QueueNotFoundError(
                f"no queue of these topics is in broker group {self._routes.group}", queues=0
            )
        return keys

    def _add_queues(self, keys: dict[int, Filter], topic_id: int, wanted: Filter) -> None:
        for queue_id in range(self._routes.queue_counts.get(topic_id, 0)):
            keys[queue_key(topic_id, queue_id)] = wanted

    async def _end_receive(self, asked: wire.EndReceive) -> wire.EndedReceives:
        group = check_name(asked.group, "group")
        cursor = cursor_of(group, asked.client_id)
        ended = sum(self._receipts.end_receives(name, asked.client_id) for name in (group, cursor))
        if asked.has_gone:
            await self._cursors.end(cursor)
        return wire.EndedReceives(ended)

    # -- receipts ----------------------------------------------------------------------------------

    async def _ack(self, asked: wire.Ack) -> wire.Receipts:
        group = check_name(asked.group, "group")
        receipts = self._parsed(asked.handles, group)
        name = self._cursors.of_receipts(group, asked.client_id)
        return _answer(await self._receipts.acknowledge(name, receipts), group)

    async def _invisible(self, asked: wire.Invisible) -> wire.Receipts:
        group = check_name(asked.group, "group")
        receipts = self._parsed(asked.handles, group)
        invisible_ms = asked.invisible_ms
        if 0 < invisible_ms < wire.INVISIBLE_MS_MIN:
            raise BadRequestError(
                f"invisible_ms must be 0 (give back), or {wire.INVISIBLE_MS_MIN} to"
                f" {wire.INVISIBLE_MS_MAX}, not {invisible_ms}",
                field="invisible_ms",
            )
        name = self._cursors.of_receipts(group, asked.client_id)
        settled = await self._receipts.change(name, receipts, invisible_ms, is_unseen=asked.unseen)
        return _answer(settled, group)

    def _parsed(self, handles: Sequence[str], group: str) -> list[Receipt]:
        receipts = [parse_handle(handle, group) for handle in handles]
        for receipt in receipts:
            if receipt.broker_group != self._routes.group:
                raise BadRequestError(
                    f"broker group {receipt.broker_group} gave this message, not"
                    f" {self._routes.group}: take its handle back there",
                    field="handles",
                )
        return receipts


def _answer(settled: Sequence[SettledReceipt], group: str) -> wire.Receipts:
    """A row for each handle; if none of them counted, the first one's error."""
    rows = []
    for _, code, renewed, until_unix_ms in settled:
        row = wire.ReceiptRow(code=code)
        if renewed is not None:
            row.handle = format_handle(renewed, group)
            row.invisible_until_unix_ms = until_unix_ms
        rows.append(row)
    if None not in {row.code for row in rows}:
        code = str(rows[0].code)
        raise BY_CODE[code](why_refused(code), receipts=to_json(rows))
    return wire.Receipts(rows)
