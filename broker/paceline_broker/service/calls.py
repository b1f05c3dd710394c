"""Calls by name: offsets, locks, ends, members, routes. The same for streams and HTTP resources.

A call is one JSON object in, one out; docs/protocol/stream.md lists them. Input is checked here,
strictly: unknown fields are refused, and every error names its field.
"""

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from paceline.errors import BY_CODE, BadRequestError, OutOfMemoryError, PacelineError
from paceline.records.header import Kind
from paceline.wire.fields import Fields
from paceline.wire.names import CLIENT_ID_PATTERN, check_name, check_readable_topic_name
from paceline_broker.appender import Outcomes
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.locks import (
    LockEntry,
    LockOutcome,
    LockRequest,
    Token,
    token_json,
)
from paceline_broker.projections.offsets import (
    CommitEntry,
    CommitOutcome,
    CommitRequest,
    Committed,
)
from paceline_broker.projections.projections import Projections
from paceline_broker.service.calls_creating import CreatingCalls
from paceline_broker.service.calls_shrinking import ShrinkingCalls
from paceline_broker.service.delays.calls import DelayCalls
from paceline_broker.service.fetch.bulk_reads import Planner
from paceline_broker.service.groups.acting import MAYBE_STALE, ActingUse
from paceline_broker.service.groups.calls_offsets import OffsetCalls
from paceline_broker.service.groups.member_fields import (
    QUEUES_MAX,
    about_member,
    owned_of,
    topics_of,
)
from paceline_broker.service.groups.members import Coordinator
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.produce.auto_create import Creator
from paceline_broker.service.routes import Routes
from paceline_broker.service.settings import ServiceSettings
from paceline_broker.service.topic_records import is_former_group, knowing_group, standing

log = logging.getLogger("paceline.service")

U32_MAX = 2**32 - 1
U16_MAX = 2**16 - 1
_LEASE_MS_ASKED_MAX = 24 * 3600 * 1000
"""Of a lock; what is granted is at most `lock_lease_ms`, and the answer says how much."""

Call = Callable[[Fields], Awaitable[dict[str, Any]]]


class Calls:
    """All calls of one broker."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        ledger: Ledger,
        coordinator: Coordinator,
        acting: ActingUse,
        settings: ServiceSettings,
        creator: Creator,
    ) -> None:
        self._creator = creator
        self._acting = acting
        self._role = role
        self._routes = routes
        self._ledger = ledger
        self._coordinator = coordinator
        self._settings = settings
        self._planner = Planner(role)
        self.on_freed: Callable[[str, Iterable[int]], None] = lambda group, keys: None
        """Told of queues whose lock was given back, or that a commit or reset has moved: receivers
        who wait may be given more."""
        self.may_expire: Callable[[], bool] = lambda: False
        """Set by the service (R29): the clock is not known to be wrong."""
        offsets = OffsetCalls(role, routes, ledger, acting, creator)
        offsets.on_moved = lambda group, keys: self.on_freed(group, keys)
        creating = CreatingCalls(creator)
        self.delays = delays = DelayCalls(role, routes, ledger, settings)
        self._calls: dict[str, Call] = {
            "commit": self._commit,
            "offsets": self._offsets,
            "ends": self._ends,
            "lag": offsets.lag,
            "resets": offsets.resets,
            "reset": offsets.reset,
            "clone_offsets": offsets.clone,
            "recall": delays.recall,
            "delays": delays.delays,
            "cuts": self._cuts,
            "times": self._times,
            "lock": self._lock,
            "unlock": self._unlock,
            "heartbeat": self._heartbeat,
            "leave": self._leave,
            "members": self._members,
            "routes": self._routes_call,
            "ensure_topic": creating.ensure_topic,
            "ensure_group": creating.ensure_group,
            "unread": ShrinkingCalls(routes, ledger, settings).unread,
        }

    def add(self, calls: Mapping[str, Call]) -> None:
        """More calls, by name: whoever has them makes them."""
        assert not self._calls.keys() & calls.keys(), calls.keys()
        self._calls.update(calls)

    async def call(self, document: object, *, caller: Hashable = None) -> dict[str, Any]:
        """Carry out `{"call": name, ...}`. Raises PacelineError.

        `caller` is the stream it came over, whose end is told to `Service.connection_lost`.
        """
        fields = Fields(document, name="call", caller=caller)
        name = fields.text("call")
        found = self._calls.get(name)
        if found is None:
            known = ", ".join(self._calls)
            raise BadRequestError(f"unknown call; known are {known}", field="call")
        return await self.run(found, fields)

    async def named(self, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a call whose name the door knows."""
        return await self.run(self._calls[name], Fields(dict(document), name=name))

    async def run(self, found: Call, fields: Fields) -> dict[str, Any]:
        try:
            answer = await found(fields)
        except MemoryError as error:
            log.exception("call_failed")
            raise OutOfMemoryError from error
        return {**answer, **self.envelope()}

    def envelope(self) -> dict[str, Any]:
        """What every answer carries (DESIGN 5)."""
        identity = self._role.identity
        return {
            "epoch": self._role.epoch,
            "broker": {"group": identity.group, "replica_id": identity.replica_id},
            "confirm": self._role.reader.confirm,
            **({} if self._role.acting is None else MAYBE_STALE),
        }

    # -- offsets -----------------------------------------------------------------------------------

    async def _commit(self, fields: Fields) -> dict[str, Any]:
        group = check_name(fields.text("group"), "group")
        is_reset = fields.has("reset") and fields.flag("reset")
        rows = _rows(fields, "offsets")
        entries = tuple(self._commit_entry(row) for row in rows)
        fields.done()
        _check_distinct([entry.key for entry in entries])
        request = CommitRequest(
            group=group, is_reset=is_reset, entries=entries, may_expire=self.may_expire()
        )
        is_known = self._role.projections.group_ids.get(group) is not None
        is_new = not is_known and group not in self._routes.consumer_groups
        if is_new and self._role.acting is None:
            # A commit that is refused makes no group.
            first = await self._ledger.query(
                lambda found: found.offsets.decide(request, found, now_unix_ms=found.log_time_ms)
            )
            _committed_answer(first)
        await self._creator.ensure_group(group)

        def refusal(projections: Projections, writer: LogWriter, now_ms: int) -> Outcomes:
            outcomes = projections.offsets.decide(request, projections, now_unix_ms=now_ms)
            return outcomes if all(outcome.code for outcome in outcomes) else None

        acting = self._role.acting
        if acting is not None:
            decided = await self._acting.commit(acting, request)
        else:
            outcomes = await self._ledger.request(
                Kind.OFFSET_COMMIT,
                request.to_json(),
                refusal=knowing_group(self._routes, group, refusal),
            )
            decided = [outcome for outcome in outcomes or [] if isinstance(outcome, CommitOutcome)]
            self.on_freed(group, (row.key for row in decided if row.code is None))
        return _committed_answer(decided)

    def _commit_entry(self, row: Fields) -> CommitEntry:
        key = self._queue(row)
        offset = row.integer("offset")
        generation = row.integer("generation") if row.has("generation") else None
        entry = CommitEntry(key, offset, read_token(row), generation)
        row.done()
        return entry

    async def _offsets(self, fields: Fields) -> dict[str, Any]:
        group = check_name(fields.text("group"), "group")
        keys = self._queues(fields) if fields.has("queues") else None
        fields.done()

        def ask(projections: Projections) -> list[dict[str, Any]]:
            known = standing(projections, self._routes, group)
            committed = self._acting.merged(group, known)
            asked = sorted(committed) if keys is None else keys
            return [
                {
                    **_committed_json(key, committed.get(key)),
                    **self._joined(projections, group, key),
                }
                for key in asked
            ]

        return {"offsets": await self._ledger.query(ask)}

    def _joined(self, projections: Projections, group: str, key: int) -> dict[str, Any]:
        """When the group began to read the topic here, and where the queue stood then."""
        joined = projections.offsets.joined(group, key >> 16)
        if joined is None or is_former_group(projections, self._routes, group):
            return {"joined_offset": None, "joined_unix_ms": None}
        offset = projections.joined_at(group, key)
        return {"joined_offset": offset, "joined_unix_ms": joined.unix_ms}

    async def _ends(self, fields: Fields) -> dict[str, Any]:
        keys = self._queues(fields)
        fields.done()

        def ask(projections: Projections) -> list[dict[str, Any]]:
            return [_range_json(projections, key) for key in keys]

        return {"queues": await self._ledger.query(ask)}

    async def _cuts(self, fields: Fields) -> dict[str, Any]:
        piece_bytes = fields.integer("piece_bytes", low=1)
        asked = []
        for row in _rows(fields, "queues"):
            asked.append((self._queue(row), row.integer("from"), row.integer("to")))
            row.done()
        fields.done()
        return {
            "queues": [
                _planned(key, self._planner.cuts(key, low, high, piece_bytes))
                for key, low, high in asked
            ]
        }

    async def _times(self, fields: Fields) -> dict[str, Any]:
        unix_ms = fields.integer("unix_ms")
        keys = self._queues(fields)
        fields.done()
        found = [_planned(key, await self._planner.offset_at(key, unix_ms)) for key in keys]
        return {"queues": found}

    # -- locks -------------------------------------------------------------------------------------

    async def _lock(self, fields: Fields) -> dict[str, Any]:
        return await self._change_locks(fields, is_unlock=False)

    async def _unlock(self, fields: Fields) -> dict[str, Any]:
        return await self._change_locks(fields, is_unlock=True)

    async def _change_locks(self, fields: Fields, *, is_unlock: bool) -> dict[str, Any]:
        group = check_name(fields.text("group"), "group")
        client_id = fields.text("client_id", pattern=CLIENT_ID_PATTERN)
        lease_ms = self._settings.lock_lease_ms
        if not is_unlock and fields.has("lease_ms"):
            asked_ms = fields.integer("lease_ms", low=1000, high=_LEASE_MS_ASKED_MAX)
            lease_ms = min(lease_ms, asked_ms)
        entries = tuple(self._lock_entry(row) for row in _rows(fields, "queues"))
        fields.done()
        _check_distinct([entry.key for entry in entries])
        if not is_unlock:
            await self._creator.ensure_group(group)
        request = LockRequest(
            group=group,
            client_id=client_id,
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
                self.on_freed(group, (row.key for row in decided if row.code is None))
        answer: dict[str, Any] = {"queues": [_lock_json(outcome) for outcome in decided]}
        _raise_if_all_refused([row.code for row in decided], answer)
        return answer if is_unlock else {**answer, "lease_ms": lease_ms}

    def _lock_entry(self, row: Fields) -> LockEntry:
        entry = LockEntry(self._queue(row), read_token(row))
        row.done()
        return entry

    # -- members and routes ------------------------------------------------------------------------

    async def _heartbeat(self, fields: Fields) -> dict[str, Any]:
        group = check_name(fields.text("group"), "group")
        client_id = fields.text("client_id", pattern=CLIENT_ID_PATTERN)
        topics = topics_of(fields)
        owned = owned_of(fields)
        generation = fields.integer("generation")
        wait_ms = fields.integer("wait_ms") if fields.has("wait_ms") else 0
        about = about_member(fields)
        fields.done()
        is_broadcasting = about.get("message_model") == "broadcasting"
        self._routes.check_consume(group, is_broadcasting=is_broadcasting)
        await self._creator.ensure_group(group)
        return await self._coordinator.heartbeat(
            group,
            client_id,
            topics,
            owned,
            generation=generation,
            wait_ms=wait_ms,
            via=fields.caller,
            about=about,
        )

    async def _leave(self, fields: Fields) -> dict[str, Any]:
        group = check_name(fields.text("group"), "group")
        client_id = fields.text("client_id", pattern=CLIENT_ID_PATTERN)
        fields.done()
        return self._coordinator.leave(group, client_id)

    async def _members(self, fields: Fields) -> dict[str, Any]:
        group = check_name(fields.text("group"), "group")
        fields.done()
        return self._coordinator.describe(group)

    async def _routes_call(self, fields: Fields) -> dict[str, Any]:
        version = fields.integer("version") if fields.has("version") else 0
        fields.done()
        await self._routes.wait_newer(version - 1, timeout_ms=self._settings.view_wait_ms)
        return {} if self._routes.view is None else self._routes.view.to_json()

    # -- queues ------------------------------------------------------------------------------------

    def _queues(self, fields: Fields) -> list[int]:
        keys = []
        for row in _rows(fields, "queues"):
            keys.append(self._queue(row))
            row.done()
        return keys

    def _queue(self, row: Fields) -> int:
        """The key of the queue a row names by `topic` or `topic_id`, and `queue`."""
        if row.has("topic"):
            topic_id: int = self._routes.topic_named(
                check_readable_topic_name(row.text("topic"))
            ).topic_id
        else:
            topic_id = row.integer("topic_id", low=1, high=U32_MAX)
        queue_id = row.integer("queue", high=U16_MAX)
        self._routes.check_queue(topic_id, queue_id)
        return queue_key(topic_id, queue_id)


def _rows(fields: Fields, name: str) -> list[Fields]:
    rows = fields.any(name)
    if not isinstance(rows, list) or not 1 <= len(rows) <= QUEUES_MAX:
        raise BadRequestError(f"{name} must be a list of 1 to {QUEUES_MAX} objects", field=name)
    return [Fields(row, name=f"{name}[{index}]") for index, row in enumerate(rows)]


def read_token(row: Fields) -> Token | None:
    """The token of a queue's lock that a row names, if it does. Raises BadRequestError."""
    if not row.has("token"):
        return None
    token = row.any("token")
    if (
        not isinstance(token, list)
        or len(token) != 2
        or any(type(number) is not int or number < 0 for number in token)
    ):
        raise BadRequestError("token must be [epoch, position]", field="token")
    return Token.from_json(token)


def _check_distinct(keys: list[int]) -> None:
    if len(set(keys)) != len(keys):
        raise BadRequestError("a queue is named twice", field="queue")


def _committed_json(
    key: int, committed: Committed | None, code: str | None = None
) -> dict[str, Any]:
    return {
        "topic_id": key >> 16,
        "queue": key & 0xFFFF,
        "offset": None if committed is None else committed.offset,
        "generation": 0 if committed is None else committed.generation,
        "code": code,
    }


def _range_json(projections: Projections, key: int) -> dict[str, Any]:
    queue = projections.consume_queues.get(key)
    start, end = (0, 0) if queue is None else (queue.start, queue.end)
    return {"topic_id": key >> 16, "queue": key & 0xFFFF, "start": start, "end": end}


def _planned(key: int, answer: dict[str, Any]) -> dict[str, Any]:
    return {"topic_id": key >> 16, "queue": key & 0xFFFF, **answer}


def _lock_json(outcome: LockOutcome) -> dict[str, Any]:
    lock = outcome.lock
    is_mine = outcome.code is None and lock is not None
    return {
        "topic_id": outcome.key >> 16,
        "queue": outcome.key & 0xFFFF,
        "code": outcome.code,
        # Another client's token is nobody's business: with it one could commit in its name.
        "token": token_json(lock.token) if is_mine and lock is not None else None,
        "holder": None if lock is None else lock.client_id,
        "expires_unix_ms": None if lock is None else lock.expires_unix_ms,
    }


def _committed_answer(decided: Sequence[CommitOutcome]) -> dict[str, Any]:
    """Raises what refused it, if every row was refused."""
    answer = {"offsets": [_committed_json(row.key, row.committed, row.code) for row in decided]}
    _raise_if_all_refused([row.code for row in decided], answer)
    return answer


def _raise_if_all_refused(codes: list[str | None], answer: dict[str, Any]) -> None:
    first = codes[0]
    if first is None or not all(codes):
        return
    error_class: type[PacelineError] = BY_CODE[first]
    raise error_class(f"refused: {', '.join(sorted({str(code) for code in codes}))}", **answer)
