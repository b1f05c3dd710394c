"""Pins: an owner that reads old messages keeps retention away from them, for a lease (R26).

Set and given up by a record, like every change; listed behind the barrier, like every query. A pin
is set where its owner reads, by queues and offsets, or at all that is kept. It holds nothing that
was given up before: below the log's start it is refused.
"""

from typing import Any, NamedTuple

from paceline.errors import BadRequestError, OffsetOutOfRangeError
from paceline.records.header import Kind
from paceline.security.access import Asker
from paceline.wire.fields import Fields
from paceline.wire.names import check_name, check_readable_topic_name
from paceline.wire.pins import LEASE_MS_MAX, LEASE_MS_MIN, PinView
from paceline.wire.rights import SEE_TOPIC
from paceline_broker.appender import Outcomes
from paceline_broker.ports import LogWriter
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.pins import Pin, PinRequest
from paceline_broker.projections.projections import Projections
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.routes import Routes

QUEUES_MAX = 10_000
PINS_MAX = 1000
"""Owners at one time in a broker group: pins are state, and state is bounded."""


class PinCalls:
    """The requests about pins of one broker."""

    def __init__(self, ledger: Ledger, routes: Routes) -> None:
        self._ledger = ledger
        self._routes = routes

    async def put(self, owner: str, document: dict[str, Any], *, asker: Asker) -> dict[str, Any]:
        """Set or renew a pin: `lease_ms`, and `queues` with offsets; none: all that is kept.

        A queue without an offset is pinned from its first kept one.
        """
        owner = check_name(owner, "owner")
        fields = Fields(document, name="pin")
        lease_ms = fields.integer("lease_ms", low=LEASE_MS_MIN, high=LEASE_MS_MAX)
        queues = self._queues(fields.any("queues"), asker) if fields.has("queues") else None
        fields.done()
        record: dict[str, Any] = {}

        def choose(projections: Projections, writer: LogWriter, now_ms: int) -> Outcomes:
            if projections.pins.get(owner) is None and len(projections.pins.all()) >= PINS_MAX:
                raise BadRequestError(f"{PINS_MAX} pins are set already", field="owner")
            position = _position(projections, queues)
            request = PinRequest(owner=owner, position=position, lease_ms=lease_ms)
            record.update(request.to_json())  # in the step that appends it
            return None

        await self._ledger.request(Kind.PIN, record, refusal=choose)
        found = await self._ledger.query(lambda projections: projections.pins.get(owner))
        if found is None:  # run out, or fallen, between the two
            raise OffsetOutOfRangeError(f"the pin of {owner} has ended already")
        return _json(owner, found)

    async def remove(self, owner: str) -> dict[str, Any]:
        """Give a pin up; none is fine."""
        owner = check_name(owner, "owner")
        request = PinRequest(owner=owner, position=None, lease_ms=0)

        def is_gone(projections: Projections, writer: LogWriter, now_ms: int) -> Outcomes:
            return [] if projections.pins.get(owner) is None else None

        outcomes = await self._ledger.request(Kind.PIN, request.to_json(), refusal=is_gone)
        return {"removed": outcomes is None}

    async def all(self) -> dict[str, Any]:
        """All pins, and where the log begins."""

        def ask(projections: Projections) -> tuple[int, dict[str, Pin]]:
            return projections.log_start, projections.pins.all()

        log_start, pins = await self._ledger.query(ask)
        return {
            "log_start": log_start,
            "pins": [_json(owner, pin) for owner, pin in pins.items()],
        }

    def _queues(self, rows: object, asker: Asker) -> list["_Wanted"]:
        if not isinstance(rows, list) or not 1 <= len(rows) <= QUEUES_MAX:
            raise BadRequestError(f"queues must be a list of 1 to {QUEUES_MAX}", field="queues")
        found = []
        for row in rows:
            fields = Fields(row, name="queues")
            name = check_readable_topic_name(fields.text("topic"))
            asker.check_topic(name, *SEE_TOPIC)
            topic = self._routes.topic_named(name)
            queue_id = fields.integer("queue")
            self._routes.check_queue(topic.topic_id, queue_id)
            offset = fields.integer("offset") if fields.has("offset") else None
            text = f"{topic.topic} {self._routes.group}/{queue_id}"
            found.append(_Wanted(queue_key(topic.topic_id, queue_id), offset, text))
            fields.done()
        return found


class _Wanted(NamedTuple):
    """One queue to pin, from `offset` on; None: from its first kept one."""

    key: int
    offset: int | None
    name: str


def _position(projections: Projections, queues: list[_Wanted] | None) -> int:
    """The lowest position that the queues' readers still need."""
    if queues is None:
        return projections.log_start
    return min([int(projections.position), *(_needed(projections, row) for row in queues)])


def _needed(projections: Projections, wanted: _Wanted) -> int:
    """Where the first batch stands that a reader of one queue needs; the log's end if none."""
    queue, log_start = projections.consume_queues.get(wanted.key), projections.log_start
    start, end = (0, 0) if queue is None else (queue.start, queue.end)
    offset = start if wanted.offset is None else wanted.offset
    if offset > end:
        raise OffsetOutOfRangeError(
            f"offset {offset} of {wanted.name} is beyond the end, {end}", start=start, end=end
        )
    found = None if queue is None else queue.position_of(offset)
    is_gone = offset < start or (found is not None and found < log_start)
    if is_gone and wanted.offset is not None:
        raise OffsetOutOfRangeError(
            f"offset {offset} of {wanted.name} is deleted, or about to be; the first one is"
            f" {start}: pin from there, or without an offset",
            start=start,
            end=end,
        )
    return int(projections.position) if found is None else max(int(found), log_start)


def _json(owner: str, pin: Pin) -> dict[str, Any]:
    return PinView(
        owner=owner,
        position=pin.position,
        expires_unix_ms=pin.expires_unix_ms,
        lease_ms=pin.lease_ms,
    ).to_json()
