"""The calls about queue locks (R33): a lock is a record with a lease, and its token fences."""

from typing import Any

from paceline.records.header import Kind
from paceline.wire.calls import locks as wire
from paceline.wire.calls.request import to_json
from paceline.wire.names import check_name
from paceline_broker.appender import Outcomes
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_of, topic_of
from paceline_broker.projections.locks import LockEntry, LockOutcome, LockRequest, Token, token_json
from paceline_broker.projections.projections import Projections
from paceline_broker.service.groups.acting import ActingUse
from paceline_broker.service.groups.offset_calls import Freed, check_distinct, token_of
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.produce.auto_create import AutoCreator
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import Handlers, raise_if_all_refused
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.service.topic_records import knowing_group


class LockCalls:
    """`lock` and `unlock` of one broker."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        ledger: Ledger,
        acting: ActingUse,
        creator: AutoCreator,
        settings: ServiceSettings,
        *,
        freed: Freed,
    ) -> None:
        self._role = role
        self._routes = routes
        self._ledger = ledger
        self._acting = acting
        self._creator = creator
        self._settings = settings
        self._freed = freed

    def handlers(self) -> Handlers:
        return {wire.Lock: self.lock, wire.Unlock: self.unlock}

    async def lock(self, asked: wire.Lock) -> wire.Locked:
        lease_ms = min(self._settings.lock_lease_ms, asked.lease_ms or wire.LEASE_MS_ASKED_MAX)
        rows = await self._change(asked, lease_ms=lease_ms)
        return wire.Locked(queues=rows, lease_ms=lease_ms)

    async def unlock(self, asked: wire.Unlock) -> wire.Locked:
        return wire.Locked(queues=await self._change(asked, lease_ms=self._settings.lock_lease_ms))

    async def _change(
        self, asked: wire.Lock | wire.Unlock, *, lease_ms: int
    ) -> list[wire.LockedRow]:
        group, is_unlock = check_name(asked.group, "group"), isinstance(asked, wire.Unlock)
        entries = tuple(LockEntry(self._routes.key_of(row), token_of(row)) for row in asked.queues)
        check_distinct([entry.key for entry in entries])
        if not is_unlock:
            await self._creator.ensure_group(group)
        request = LockRequest(
            group=group,
            client_id=asked.client_id,
            is_unlock=is_unlock,
            lease_ms=lease_ms,
            entries=entries,
        )

        def refusal(projections: Projections, writer: LogWriter, now_ms: int) -> Outcomes:
            token = Token(writer.epoch, writer.end)
            outcomes = projections.locks.decide(request, new_token=token, now_unix_ms=now_ms)
            return outcomes if all(outcome.code for outcome in outcomes) else None

        acting = self._role.acting
        if acting is not None:
            decided = await self._acting.change_locks(acting, request)
        else:
            outcomes = await self._ledger.request(
                Kind.LOCK,
                request.to_json(),
                refusal=knowing_group(self._routes, group, refusal),
            )
            decided = [outcome for outcome in outcomes or [] if isinstance(outcome, LockOutcome)]
            if is_unlock:
                self._freed(group, (row.key for row in decided if row.code is None))
        rows = [_row(outcome) for outcome in decided]
        raise_if_all_refused([row.code for row in rows], queues=to_json(rows))
        return rows


def _row(outcome: LockOutcome) -> wire.LockedRow:
    lock = outcome.lock
    token: Any = None
    if outcome.code is None and lock is not None:
        # Another client's token is nobody's business: with it one could commit in its name.
        token = token_json(lock.token)
    return wire.LockedRow(
        topic_id=topic_of(outcome.key),
        queue=queue_of(outcome.key),
        code=outcome.code,
        token=token,
        holder=None if lock is None else lock.client_id,
        expires_unix_ms=None if lock is None else lock.expires_unix_ms,
    )
