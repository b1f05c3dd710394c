"""The calls about messages that consumers could not process: send back, and dead letters again."""

from collections.abc import Mapping
from typing import Any

from paceline.errors import BadRequestError, PacelineError
from paceline.wire.fields import Fields
from paceline.wire.names import check_group_name, check_readable_topic_name, dlq_topic
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.service.calls import U16_MAX, U32_MAX, Call, read_token
from paceline_broker.service.retry.resend import Resend, Resent
from paceline_broker.service.retry.send_back import Request, Row, SendBack, SentBack, message_id
from paceline_broker.service.retry.source_messages import Wanted
from paceline_broker.service.routes import Routes

ROWS_MAX = 1000
"""Messages of one call."""
LEVEL_MAX = 1000
"""Levels above the ladder's last one are that one, as in RocketMQ; this is only a bound."""
TIMES_MAX = 2**31 - 1
TO_TOPIC, TO_GROUP = "topic", "group"
"""Where dead letters are resent to: their topic, or only the group that failed on them."""


class SendBackCalls:
    """JSON in, JSON out."""

    def __init__(self, send_back: SendBack, resend: Resend, routes: Routes) -> None:
        self._send_back = send_back
        self._resend = resend
        self._routes = routes

    @property
    def table(self) -> dict[str, Call]:
        return {"send_back": self.send_back, "resend": self.resend}

    async def send_back(self, fields: Fields) -> dict[str, Any]:
        """`{group, messages: [{topic, queue, offset, delay_level?, token?}], ...}`."""
        group = check_group_name(fields.text("group"))
        times_max = None
        if fields.has("max_reconsume_times"):
            times_max = fields.integer("max_reconsume_times", high=TIMES_MAX)
        only_uncommitted = fields.has("only_uncommitted") and fields.flag("only_uncommitted")
        rows = [self._row(row) for row in read_rows(fields)]
        fields.done()
        check_distinct([row.wanted for row in rows])
        request = Request(
            group=group,
            rows=rows,
            max_reconsume_times=times_max,
            only_uncommitted=only_uncommitted,
        )
        outcomes = await self._send_back.send_back(request)
        raise_if_all_refused(outcomes)
        return {
            "messages": [
                self._outcome(row.wanted, outcome)
                for row, outcome in zip(rows, outcomes, strict=True)
            ]
        }

    async def resend(self, fields: Fields) -> dict[str, Any]:
        """`{group, messages: [{queue, offset}], to?}`: of the group's dead-letter topic."""
        group = check_group_name(fields.text("group"))
        to = fields.text("to") if fields.has("to") else TO_TOPIC
        if to not in (TO_TOPIC, TO_GROUP):
            raise fields.wrong("to", f"{TO_TOPIC} or {TO_GROUP}", to)
        topic_id = self._routes.topic_named(dlq_topic(group)).topic_id
        rows = [self._dead_row(row, topic_id) for row in read_rows(fields)]
        fields.done()
        check_distinct(rows)
        outcomes = await self._resend.resend(group, rows, is_for_group=to == TO_GROUP)
        raise_if_all_refused(outcomes)
        return {
            "messages": [
                self._resent(row, outcome) for row, outcome in zip(rows, outcomes, strict=True)
            ]
        }

    def _dead_row(self, row: Fields, topic_id: int) -> Wanted:
        queue = row.integer("queue", high=U16_MAX) if row.has("queue") else 0
        found = Wanted(queue_key(topic_id, queue), row.integer("offset"))
        row.done()
        self._routes.check_queue(topic_id, queue)
        return found

    def _resent(self, wanted: Wanted, outcome: Resent | PacelineError) -> dict[str, Any]:
        at = {"queue": wanted.key & 0xFFFF, "offset": wanted.offset}
        if isinstance(outcome, PacelineError):
            nothing = {"topic": None, "to_queue": None, "message_id": None, "duplicate": False}
            return {**at, "code": outcome.code, **nothing}
        return {
            **at,
            "code": None,
            "topic": outcome.topic,
            "to_queue": outcome.queue,
            "message_id": message_id(self._routes.group, outcome.made),
            "duplicate": outcome.is_duplicate,
        }

    def _row(self, row: Fields) -> Row:
        key = read_queue(row, self._routes)
        offset = row.integer("offset")
        level = 0
        if row.has("delay_level"):
            level = row.integer("delay_level", low=-1, high=LEVEL_MAX)
        found = Row(Wanted(key, offset), level, read_token(row))
        row.done()
        return found

    def _outcome(self, wanted: Wanted, outcome: SentBack | PacelineError) -> dict[str, Any]:
        row: dict[str, Any] = {
            "topic_id": wanted.key >> 16,
            "queue": wanted.key & 0xFFFF,
            "offset": wanted.offset,
            "code": None,
            "outcome": None,
            "reconsume_times": None,
            "due_unix_ms": None,
            "message_id": None,
            "duplicate": False,
        }
        if isinstance(outcome, PacelineError):
            return {**row, "code": outcome.code}
        return {
            **row,
            "outcome": outcome.outcome,
            "reconsume_times": outcome.reconsume_times,
            "due_unix_ms": outcome.due_unix_ms,
            "message_id": None
            if outcome.made is None
            else message_id(self._routes.group, outcome.made),
            "duplicate": outcome.is_duplicate,
        }


def read_queue(row: Fields, routes: Routes) -> int:
    """Key of the queue that a row names by `topic` or `topic_id`, and `queue`: any that may be
    read, retries and dead letters too. Raises TopicNotFoundError, QueueNotFoundError."""
    if row.has("topic"):
        topic_id: int = routes.topic_named(check_readable_topic_name(row.text("topic"))).topic_id
    else:
        topic_id = row.integer("topic_id", low=1, high=U32_MAX)
    queue = row.integer("queue", high=U16_MAX)
    routes.check_queue(topic_id, queue)
    return queue_key(topic_id, queue)


def read_rows(fields: Fields, name: str = "messages") -> list[Fields]:
    """The objects of a list of 1 to `ROWS_MAX`. Raises BadRequestError."""
    rows = fields.any(name)
    if not isinstance(rows, list) or not 1 <= len(rows) <= ROWS_MAX:
        raise BadRequestError(f"{name} must be a list of 1 to {ROWS_MAX} objects", field=name)
    return [Fields(row, name=f"{name}[{index}]") for index, row in enumerate(rows)]


def check_distinct(wanted: list[Wanted]) -> None:
    """Raises BadRequestError when a message is named twice."""
    if len(set(wanted)) != len(wanted):
        raise BadRequestError("a message is named twice", field="messages")


def raise_if_all_refused(outcomes: list[Any]) -> None:
    """A request whose messages were all refused for one reason is an error as a whole, the first
    one's; with several reasons each message is answered its own."""
    codes = {outcome.code if isinstance(outcome, PacelineError) else None for outcome in outcomes}
    if len(codes) == 1 and None not in codes:
        first: PacelineError = outcomes[0]
        details: Mapping[str, object] = first.details
        raise type(first)(first.message, **details)
