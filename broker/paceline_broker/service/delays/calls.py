"""Calls about delayed messages: taking one back before it is due, and what waits (R28, R34).

A recall is a record. It is decided on the state at `end`, where a delivery under way counts as
done: whichever of the two comes first in the log has happened. Its answer, a refusal too, leaves
when confirm has passed what it tells of.
"""

from typing import Any

from paceline.errors import BadRequestError, ConflictError, ForbiddenError, PacelineError
from paceline.records.header import Kind, pack_source, unpack_source
from paceline.wire.calls import messages as wire
from paceline.wire.message_ids import RECALL, OffsetMessageId, make_handle, parse_handle
from paceline.wire.names import check_topic_name
from paceline_broker.appender import Outcomes
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_of, topic_of
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.timers import Due, Timers
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import Handlers
from paceline_broker.service.settings import ServiceSettings


class DelayCalls:
    """The calls of one broker."""

    def __init__(
        self, role: Role, routes: Routes, ledger: Ledger, settings: ServiceSettings
    ) -> None:
        self._role = role
        self._routes = routes
        self._ledger = ledger
        self._settings = settings

    def handlers(self) -> Handlers:
        return {wire.Recall: self.recall, wire.Delays: self.delays}

    async def recall(self, asked: wire.Recall) -> wire.Recalled:
        """Take back the message of a handle; the message id it had.

        ForbiddenError: switched off. BadRequestError: the handle is not of this topic or group.
        ConflictError: nothing of it waits any more, it was delivered or taken back.
        """
        topic = self._routes.topic_named(check_topic_name(asked.topic))
        if not self._settings.recall_message_enable:
            raise ForbiddenError("recall_message_enable is off at this broker; nothing was done")
        message_id = parse_handle(RECALL, asked.handle)
        if message_id.group != self._role.identity.group:
            raise BadRequestError(
                f"this handle is of broker group {message_id.group}: ask its master",
                field="handle",
            )
        record: dict[str, Any] = {}
        refused: list[PacelineError] = []

        def decide(projections: Projections, writer: LogWriter, now_ms: int) -> Outcomes:
            try:
                found = _pending(projections.timers, message_id, topic.topic_id, now_ms)
            except PacelineError as error:
                refused.append(error)
                return []
            if found is None:
                return []
            # In the step that appends it.
            record["timers"] = {"recalled": [found.source]}
            return None

        await self._ledger.request(Kind.OPERATION, record, refusal=decide)
        if refused:
            raise refused[0]
        return wire.Recalled(str(message_id), topic.topic)

    async def delays(self, asked: wire.Delays) -> wire.Delayed:
        """How many messages wait here, by topic, and the next ones."""
        topic_id: int | None = None
        if asked.topic is not None:
            topic_id = self._routes.topic_named(asked.topic).topic_id

        def ask(projections: Projections) -> wire.Delayed:
            timers = projections.timers
            next_due = timers.first_due(1, topic_id)
            return wire.Delayed(
                pending=len(timers),
                topics=[
                    wire.DelayedTopic(topic_id=found, topic=self._name(found), pending=pending)
                    for found, pending in sorted(timers.by_topic.items())
                    if topic_id in (None, found)
                ],
                next_due_unix_ms=next_due[0].due_unix_ms if next_due else None,
                messages=[
                    self._row(entry, timers) for entry in timers.first_due(asked.max, topic_id)
                ],
            )

        return await self._ledger.query(ask)

    def _name(self, topic_id: int) -> str:
        return self._routes.topic_name(topic_id)

    def _row(self, entry: Due, timers: Timers) -> wire.DelayedMessage:
        origin = message_id_of(timers.origin(entry.source), self._role.identity.group)
        return wire.DelayedMessage(
            topic=self._name(topic_of(entry.key)),
            queue=queue_of(entry.key),
            due_unix_ms=entry.due_unix_ms,
            message_id=str(origin),
            recall_handle=make_handle(RECALL, origin),
        )


def message_id_of(source: int, group: str) -> OffsetMessageId:
    """The id of a message by its source, as a record names it."""
    return OffsetMessageId(group, *unpack_source(source))


def _pending(timers: Timers, message_id: OffsetMessageId, topic_id: int, now_ms: int) -> Due | None:
    """The entry to take back; None: that was done a moment ago, by a request that is repeated."""
    origin = pack_source(message_id.position, message_id.number)
    found = timers.find_origin(origin)
    key = timers.recalled_key(origin, now_ms) if found is None else found.key
    if key is None:
        raise ConflictError(
            f"message {message_id} does not wait: it was delivered or taken back, or never was"
        )
    if topic_of(key) != topic_id:
        raise BadRequestError(f"message {message_id} is of another topic", field="topic")
    return found
