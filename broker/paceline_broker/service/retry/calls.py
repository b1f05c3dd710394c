"""The calls about messages that consumers could not process: send back, and dead letters again."""

from collections.abc import Mapping
from typing import Any

from paceline.errors import BadRequestError, PacelineError
from paceline.security.access import Asker
from paceline.wire.calls import messages as wire
from paceline.wire.names import check_group_name, dlq_topic
from paceline_broker.projections.consume_queues import queue_key, queue_of, topic_of
from paceline_broker.service.groups.offset_calls import token_of
from paceline_broker.service.retry.resend import Resend, Resent
from paceline_broker.service.retry.send_back import Request, Row, SendBack, SentBack, message_id
from paceline_broker.service.retry.source_messages import Wanted
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import AskerHandlers, Handlers


class SendBackCalls:
    """Handlers of one broker."""

    def __init__(self, send_back: SendBack, resend: Resend, routes: Routes) -> None:
        self._send_back = send_back
        self._resend = resend
        self._routes = routes

    def handlers(self) -> Handlers:
        return {wire.SendBack: self.send_back}

    def handlers_of_askers(self) -> AskerHandlers:
        return {wire.Resend: self.resend}

    async def send_back(self, asked: wire.SendBack) -> wire.SentBack:
        group = check_group_name(asked.group)
        rows = [
            Row(Wanted(self._routes.key_of(row), row.offset), row.delay_level or 0, token_of(row))
            for row in asked.messages
        ]
        check_distinct([row.wanted for row in rows])
        request = Request(
            group=group,
            rows=rows,
            max_reconsume_times=asked.max_reconsume_times,
            only_uncommitted=asked.only_uncommitted,
        )
        outcomes = await self._send_back.send_back(request)
        raise_if_all_refused(outcomes)
        return wire.SentBack(
            [
                self._outcome(row.wanted, outcome)
                for row, outcome in zip(rows, outcomes, strict=True)
            ]
        )

    async def resend(self, asked: wire.Resend, asker: Asker) -> wire.Resent:
        group = check_group_name(asked.group)
        topic_id = self._routes.topic_named(dlq_topic(group)).topic_id
        rows = []
        for row in asked.messages:
            self._routes.check_queue(topic_id, row.queue)
            rows.append(Wanted(queue_key(topic_id, row.queue), row.offset))
        check_distinct(rows)
        is_for_group = asked.to == "group"
        outcomes = await self._resend.resend(group, rows, is_for_group=is_for_group, asker=asker)
        raise_if_all_refused(outcomes)
        return wire.Resent(
            [self._resent(row, outcome) for row, outcome in zip(rows, outcomes, strict=True)]
        )

    def _resent(self, wanted: Wanted, outcome: Resent | PacelineError) -> wire.ResentRow:
        return wire.ResentRow(
            queue=queue_of(wanted.key),
            offset=wanted.offset,
            code=outcome.code if isinstance(outcome, PacelineError) else None,
            topic=None if isinstance(outcome, PacelineError) else outcome.topic,
            to_queue=None if isinstance(outcome, PacelineError) else outcome.queue,
            message_id=None
            if isinstance(outcome, PacelineError)
            else message_id(self._routes.group, outcome.made),
            duplicate=not isinstance(outcome, PacelineError) and outcome.is_duplicate,
        )

    def _outcome(self, wanted: Wanted, outcome: SentBack | PacelineError) -> wire.SentBackRow:
        row = wire.SentBackRow(
            topic_id=topic_of(wanted.key),
            queue=queue_of(wanted.key),
            offset=wanted.offset,
            code=None,
            outcome=None,
            reconsume_times=None,
            due_unix_ms=None,
            message_id=None,
            duplicate=False,
        )
        if isinstance(outcome, PacelineError):
            row.code = outcome.code
            return row
        row.outcome = outcome.outcome
        row.reconsume_times = outcome.reconsume_times
        row.due_unix_ms = outcome.due_unix_ms
        if outcome.made is not None:
            row.message_id = message_id(self._routes.group, outcome.made)
        row.duplicate = outcome.is_duplicate
        return row


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
