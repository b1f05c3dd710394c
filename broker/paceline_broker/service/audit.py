"""The call `take_audit`: records of all nodes' audits become messages of `%SYS%AUDIT`.

A message is a record as one line of JSON, with its user as key: so the audit of one user is found
like messages of one key.
"""

from paceline.errors import ForbiddenError
from paceline.records.encode import encode_batch
from paceline.records.header import parse_header
from paceline.security.access import Asker
from paceline.wire.calls.audit import AuditTaken, TakeAudit, json_of
from paceline.wire.names import AUDIT_TOPIC
from paceline_broker.ports import Role
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import AskerHandlers
from paceline_broker.service.topic_records import log_topic

QUEUE = 0
"""The topic has one in each broker group."""


class AuditCalls:
    """Of one broker."""

    def __init__(self, role: Role, routes: Routes, ledger: Ledger) -> None:
        self._role, self._routes, self._ledger = role, routes, ledger

    def handlers_of_askers(self) -> AskerHandlers:
        return {TakeAudit: self.take}

    async def take(self, asked: TakeAudit, asker: Asker) -> AuditTaken:
        """ForbiddenError; TopicNotFoundError: rights were never on, or no view says so yet."""
        if not asker.principal.is_node:
            raise ForbiddenError(
                "only nodes of this cluster write its audit: nothing was stored; read it with"
                " `paceline audit search`"
            )
        topic_id = self._routes.topic_named(AUDIT_TOPIC).topic_id
        self._routes.check_queue(topic_id, QUEUE)
        writer = self._role.writer()
        writer.ensure_can_append()
        records = asked.records
        batch = encode_batch(
            [json_of(record) for record in records],
            keys=[record.user or None for record in records],
            born_unix_ms=[record.unix_ms for record in records],
            topic_id=topic_id,
            queue_id=QUEUE,
        )
        now_ms = writer.appender.log_time_ms()
        log_topic(writer, self._role.projections, self._routes, topic_id, store_unix_ms=now_ms)
        writer.appender.messages(batch, parse_header(batch), store_unix_ms=now_ms)
        await self._ledger.confirmed(writer)
        return AuditTaken(count=len(records))
