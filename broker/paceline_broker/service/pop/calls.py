"""Calls of simple consumers: receive, ack, invisible, end_receive (docs/protocol/stream.md).

`receive` answers with ranges of offsets and what a handle is made of; a client of the stream makes
the handles itself and fetches the messages as any others. `Received.messages` is for the JSON door.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from paceline.errors import (
    BY_CODE,
    BadRequestError,
    QueueNotFoundError,
)
from paceline.filters import ALL, Filter
from paceline.filters.filter import TAG
from paceline.wire.fields import Fields
from paceline.wire.names import CLIENT_ID_PATTERN, check_name, check_topic_name, retry_topic
from paceline.wire.receipts import ATTEMPT_MAX, Receipt, format_handle, parse_handle, why_refused
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.service.fetch.filters import EXPRESSION_LENGTH_MAX, FilterRegistry
from paceline_broker.service.pop.grant import FIRST, LAST, Asked, Given
from paceline_broker.service.pop.operations import Settled
from paceline_broker.service.pop.pop import Receipts
from paceline_broker.service.produce.auto_create import Creator
from paceline_broker.service.routes import Routes

MESSAGES_MAX = 32
"""RocketMQ's limit of one pop."""
HANDLES_MAX = 1024
TOPICS_MAX = 1000
INVISIBLE_MS = 60_000
INVISIBLE_MS_MIN = 10_000
INVISIBLE_MS_MAX = 12 * 3600 * 1000
WAIT_MS_MAX = 20_000

Call = Callable[[Fields], Awaitable[dict[str, Any]]]


class ReceiptCalls:
    """Checks what simple consumers ask, strictly, and answers in JSON."""

    def __init__(
        self, receipts: Receipts, routes: Routes, creator: Creator, filters: FilterRegistry
    ) -> None:
        self._filters = filters
        self._receipts = receipts
        self._routes = routes
        self._creator = creator

    def table(self) -> Mapping[str, Call]:
        return {
            "receive": self._receive,
            "end_receive": self._end_receive,
            "ack": self._ack,
            "invisible": self._invisible,
        }

    # -- receive -----------------------------------------------------------------------------------

    async def _receive(self, fields: Fields) -> dict[str, Any]:
        given = await self.receive(fields)
        return {
            "position": given.position,
            "invisible_until_unix_ms": given.until_unix_ms,
            "messages": [[row.key >> 16, row.key & 0xFFFF, *row[1:]] for row in given.rows],
        }

    async def receive(self, fields: Fields) -> Given:
        """What a receiver that asks so is given; for both doors."""
        group = check_name(fields.text("group"), "group")
        client_id = fields.text("client_id", pattern=CLIENT_ID_PATTERN)
        keys = self._keys(await self._subscriptions(fields))
        messages_max = MESSAGES_MAX
        if fields.has("max_messages"):
            messages_max = fields.integer("max_messages", low=1, high=MESSAGES_MAX)
        invisible_ms = INVISIBLE_MS
        if fields.has("invisible_ms"):
            low, high = INVISIBLE_MS_MIN, INVISIBLE_MS_MAX
            invisible_ms = fields.integer("invisible_ms", low=low, high=high)
        wait_ms = fields.integer("wait_ms", high=WAIT_MS_MAX) if fields.has("wait_ms") else 0
        start = fields.text("start") if fields.has("start") else FIRST
        if start not in (FIRST, LAST):
            raise fields.wrong("start", f'"{FIRST}" or "{LAST}"', start)
        is_ordered = fields.has("order") and fields.flag("order")
        fields.done()
        await self._creator.ensure_group(group)  # with the topic of its dead letters
        self._routes.check_consume(group)  # NoPermissionError
        settings = self._routes.settings_of(group)
        wanted = {key: one for key, one in keys.items() if one != ALL}
        retries = self._routes.find_topic(retry_topic(group))
        if retries is not None:
            self._add_queues(keys, retries.topic_id, ALL)
        asked = Asked(
            group=group,
            client_id=client_id,
            keys=tuple(keys),
            filters=wanted,
            messages_max=messages_max,
            invisible_ms=invisible_ms,
            start=start,
            is_from_min=settings.consume_from_min_enable,
            is_ordered=is_ordered or settings.consume_message_orderly,
            attempts_max=min(ATTEMPT_MAX, settings.retry_max_times + 1),
        )
        return await self._receipts.receive(asked, wait_ms=wait_ms)

    async def _subscriptions(self, fields: Fields) -> list[tuple[str, Filter]]:
        """Topics by name, each with its filter; expressions are parsed once for all who say them.

        Those that are long to parse wait in line, so nothing of a topic is looked at before.
        """
        rows = fields.any("topics")
        if not isinstance(rows, list) or not 1 <= len(rows) <= TOPICS_MAX:
            raise BadRequestError(f"topics must be a list of 1 to {TOPICS_MAX}", field="topics")
        return [await self._subscription(row, asker=fields.caller) for row in rows]

    async def _subscription(self, row: object, *, asker: Hashable) -> tuple[str, Filter]:
        """A name, or `{"topic", "type", "expression"}`."""
        if isinstance(row, str):
            return check_topic_name(row, "topics"), ALL
        fields = Fields(row, name="topics")
        name = check_topic_name(fields.text("topic"), "topics")
        type_ = fields.text("type") if fields.has("type") else TAG
        expression = fields.text("expression", length_max=EXPRESSION_LENGTH_MAX)
        fields.done()
        _, wanted = await self._filters.ensure(type_, expression, asker=asker)
        return name, wanted

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

    async def _end_receive(self, fields: Fields) -> dict[str, Any]:
        group = check_name(fields.text("group"), "group")
        client_id = fields.text("client_id", pattern=CLIENT_ID_PATTERN)
        fields.done()
        return {"ended": self._receipts.end_receives(group, client_id)}

    # -- receipts ----------------------------------------------------------------------------------

    async def _ack(self, fields: Fields) -> dict[str, Any]:
        group = check_name(fields.text("group"), "group")
        receipts = self._parsed(fields, group)
        fields.done()
        return _answer(await self._receipts.acknowledge(group, receipts), group)

    async def _invisible(self, fields: Fields) -> dict[str, Any]:
        group = check_name(fields.text("group"), "group")
        receipts = self._parsed(fields, group)
        is_unseen = fields.has("unseen") and fields.flag("unseen")
        invisible_ms = fields.integer("invisible_ms", high=INVISIBLE_MS_MAX)
        if 0 < invisible_ms < INVISIBLE_MS_MIN:
            expected = f"0 (give back), or {INVISIBLE_MS_MIN} to {INVISIBLE_MS_MAX}"
            raise fields.wrong("invisible_ms", expected, invisible_ms)
        fields.done()
        settled = await self._receipts.change(group, receipts, invisible_ms, is_unseen=is_unseen)
        return _answer(settled, group)

    def _parsed(self, fields: Fields, group: str) -> list[Receipt]:
        handles = fields.any("handles")
        if not isinstance(handles, list) or not 1 <= len(handles) <= HANDLES_MAX:
            raise BadRequestError(f"handles must be a list of 1 to {HANDLES_MAX}", field="handles")
        receipts = [parse_handle(handle, group) for handle in handles]
        for receipt in receipts:
            if receipt.broker_group != self._routes.group:
                raise BadRequestError(
                    f"broker group {receipt.broker_group} gave this message, not"
                    f" {self._routes.group}: take its handle back there",
                    field="handles",
                )
        return receipts


def _answer(settled: Sequence[Settled], group: str) -> dict[str, Any]:
    """A row for each handle; if none of them counted, the first one's error."""
    rows = []
    for _, code, renewed, until_unix_ms in settled:
        row: dict[str, Any] = {"code": code}
        if renewed is not None:
            row |= {
                "handle": format_handle(renewed, group),
                "invisible_until_unix_ms": until_unix_ms,
            }
        rows.append(row)
    codes = {row["code"] for row in rows}
    if None not in codes:
        code = str(rows[0]["code"])
        raise BY_CODE[code](why_refused(code), receipts=rows)
    return {"receipts": rows}
