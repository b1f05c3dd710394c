"""Calls about offsets: commits, standings, ranges, lag, and resets of a group (R33).

A reset is a commit record that may lower, and starts a generation: commits under way cannot undo
it, and members that consume learn of it by asking `resets` each second.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from paceline.errors import BadRequestError, GroupNotFoundError
from paceline.records.header import Kind
from paceline.wire.calls import offsets as wire
from paceline.wire.calls.request import to_json
from paceline.wire.fields import I64_MAX
from paceline.wire.names import check_name
from paceline_broker.appender import Outcomes
from paceline_broker.controllers.clock_skew import ClockTrust
from paceline_broker.ports import LogWriter, Role
from paceline_broker.projections.consume_queues import queue_key, queue_of, topic_of
from paceline_broker.projections.locks import Token
from paceline_broker.projections.offsets import (
    CommitEntry,
    CommitOutcome,
    CommitRequest,
    Committed,
)
from paceline_broker.projections.projections import Projections
from paceline_broker.service.fetch.bulk_reads import Planner
from paceline_broker.service.groups.acting import ActingUse
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.produce.auto_create import AutoCreator
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import Handlers, raise_if_all_refused
from paceline_broker.service.topic_records import (
    is_former_group,
    knowing_group,
    slowest,
    standing,
)

Freed: TypeAlias = Callable[[str, Iterable[int]], None]
"""(group, keys): queues that a commit or reset has moved, or whose lock was given back: receivers
who wait may be given more."""


class OffsetCalls:
    """The calls of one broker."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        ledger: Ledger,
        acting: ActingUse,
        creator: AutoCreator,
        *,
        trust: Callable[[], ClockTrust],
        freed: Freed,
    ) -> None:
        self._role = role
        self._routes = routes
        self._ledger = ledger
        self._acting = acting
        self._creator = creator
        self._planner = Planner(role)
        self._trust = trust
        self._freed = freed

    def handlers(self) -> Handlers:
        return {
            wire.Commit: self.commit,
            wire.Offsets: self.offsets,
            wire.Ends: self.ends,
            wire.Lag: self.lag,
            wire.Resets: self.resets,
            wire.Reset: self.reset,
            wire.CloneOffsets: self.clone,
            wire.Cuts: self.cuts,
            wire.Times: self.times,
        }

    # -- commits and standings ---------------------------------------------------------------------

    async def commit(self, asked: wire.Commit) -> wire.Committed:
        group = check_name(asked.group, "group")
        entries = tuple(
            CommitEntry(self._routes.key_of(row), row.offset, token_of(row), row.generation)
            for row in asked.offsets
        )
        check_distinct([entry.key for entry in entries])
        request = CommitRequest(
            group=group,
            is_reset=asked.reset,
            entries=entries,
            may_expire=self._trust() is not ClockTrust.DIFFERS,  # R29
        )
        is_known = self._role.projections.group_ids.get(group) is not None
        is_new = not is_known and group not in self._routes.consumer_groups
        if is_new and self._role.acting is None:
            # A commit that is refused makes no group.
            first = await self._ledger.query(
                lambda found: found.offsets.decide(request, found, now_unix_ms=found.log_time_ms)
            )
            _committed(first)
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
            self._freed(group, (row.key for row in decided if row.code is None))
        return _committed(decided)

    async def offsets(self, asked: wire.Offsets) -> wire.Standings:
        group = check_name(asked.group, "group")
        keys = None if asked.queues is None else [self._routes.key_of(row) for row in asked.queues]

        def ask(projections: Projections) -> list[wire.StandingRow]:
            committed = self._acting.merged(group, standing(projections, self._routes, group))
            asked_keys = sorted(committed) if keys is None else keys
            return [self._standing(projections, group, key, committed) for key in asked_keys]

        return wire.Standings(await self._ledger.query(ask))

    def _standing(
        self, projections: Projections, group: str, key: int, committed: dict[int, Committed]
    ) -> wire.StandingRow:
        """With when the group began to read the topic here, and where the queue stood then."""
        found = committed.get(key)
        joined = projections.offsets.joined(group, topic_of(key))
        if is_former_group(projections, self._routes, group):
            joined = None
        return wire.StandingRow(
            topic_id=topic_of(key),
            queue=queue_of(key),
            offset=None if found is None else found.offset,
            generation=0 if found is None else found.generation,
            code=None,
            joined_offset=None if joined is None else projections.joined_at(group, key),
            joined_unix_ms=None if joined is None else joined.unix_ms,
        )

    async def lag(self, asked: wire.Lag) -> wire.LagOf:
        group = check_name(asked.group, "group")
        unread = [queue_key(row.topic_id, row.queue) for row in asked.queues or ()]

        def ask(projections: Projections) -> list[wire.LagRow]:
            known = self._acting.merged(group, slowest(projections, self._routes, group))
            return [
                self._lag(projections, group, key, known.get(key))
                for key in sorted({*known, *unread})
            ]

        rows = await self._ledger.query(ask)
        now_ms = self._ledger.log_time_ms()
        for row in rows:
            if row.lag:
                key = queue_key(row.topic_id, row.queue)
                stored_ms = await self._planner.stored_at(key, row.offset or 0)
                row.behind_ms = 0 if stored_ms is None else max(0, now_ms - stored_ms)
            if asked.times and row.start < row.end:
                await self._tell_times(row)
        return wire.LagOf(rows, sum(row.lag for row in rows))

    async def _tell_times(self, row: wire.LagRow) -> None:
        """Of a queue that has messages."""
        key, stored_at = queue_key(row.topic_id, row.queue), self._planner.stored_at
        row.first_unix_ms = await stored_at(key, row.start)
        row.last_unix_ms = await stored_at(key, row.end - 1)
        if row.offset is not None and row.offset > row.start:
            row.consumed_unix_ms = await stored_at(key, min(row.offset, row.end) - 1)

    def _lag(
        self, projections: Projections, group: str, key: int, committed: Committed | None
    ) -> wire.LagRow:
        start, end = _range(projections, key)
        return wire.LagRow(
            topic_id=topic_of(key),
            topic=self._routes.topic_name(topic_of(key)),
            queue=queue_of(key),
            start=start,
            end=end,
            offset=None if committed is None else committed.offset,
            lag=max(0, end - _offset(committed, start)),
            behind_ms=0,
            in_flight=projections.receipts.open_count(group, key),
        )

    # -- queues ------------------------------------------------------------------------------------

    async def ends(self, asked: wire.Ends) -> wire.Ranges:
        keys = [self._routes.key_of(row) for row in asked.queues]

        def ask(projections: Projections) -> list[wire.RangeRow]:
            return [
                wire.RangeRow(topic_id=topic_of(key), queue=queue_of(key), start=start, end=end)
                for key in keys
                for start, end in [_range(projections, key)]
            ]

        return wire.Ranges(await self._ledger.query(ask))

    async def cuts(self, asked: wire.Cuts) -> wire.CutsOf:
        wanted = [(self._routes.key_of(row), row.from_, row.to) for row in asked.queues]
        return wire.CutsOf(
            [
                wire.CutsRow(
                    topic_id=topic_of(key),
                    queue=queue_of(key),
                    **self._planner.cuts(key, low, high, asked.piece_bytes),
                )
                for key, low, high in wanted
            ]
        )

    async def times(self, asked: wire.Times) -> wire.TimesOf:
        keys = [self._routes.key_of(row) for row in asked.queues]
        rows = []
        for key in keys:
            found = await self._planner.offset_at(key, asked.unix_ms)
            rows.append(wire.TimesRow(topic_id=topic_of(key), queue=queue_of(key), **found))
        return wire.TimesOf(rows)

    # -- resets ------------------------------------------------------------------------------------

    async def resets(self, asked: wire.Resets) -> wire.ResetsOf:
        """A confirmed number (R28): one that the next master gives again, for another reset, would
        hide that one from who remembers it."""
        group = check_name(asked.group, "group")

        def ask(found: Projections) -> int:
            return 0 if is_former_group(found, self._routes, group) else found.offsets.resets(group)

        return wire.ResetsOf(await self._ledger.query(ask))

    async def reset(self, asked: wire.Reset) -> wire.Moved:
        """A group that is not on record must have committed something here, or be called `new`:
        offsets under a misspelt name would be nobody's."""
        group = check_name(asked.group, "group")
        self._check_shared(group)
        keys = self._keys(asked)
        at = self._target(asked)
        wanted = await at(keys)
        committed = await self._ledger.query(lambda found: standing(found, self._routes, group))
        if not (committed or asked.new or group in self._routes.consumer_groups):
            raise GroupNotFoundError(
                f"consumer group {group} does not exist: it is not on record, and has committed"
                " nothing at this broker; `new` moves it all the same",
                group=group,
            )
        await self._creator.ensure_group(group)
        if asked.back_only:  # RocketMQ's reset without force: nothing is skipped
            wanted = [row for row in wanted if row[1] < _offset(committed.get(row[0]), row[1])]
        return await self._move(group, wanted, committed)

    async def clone(self, asked: wire.CloneOffsets) -> wire.Moved:
        group = check_name(asked.group, "group")
        source = check_name(asked.source, "source")
        self._check_shared(group)
        keys = self._keys(asked)

        def ask(found: Projections) -> tuple[dict[int, Committed], dict[int, Committed]]:
            theirs = standing(found, self._routes, source)
            return theirs, standing(found, self._routes, group)

        await self._creator.ensure_group(group)
        theirs, ours = await self._ledger.query(ask)
        wanted = [(key, int(theirs[key].offset)) for key in keys if key in theirs]
        return await self._move(group, wanted, ours)

    def _check_shared(self, group: str) -> None:
        """BadRequestError for a group that broadcasts."""
        if self._routes.settings_of(group).is_broadcasting:
            raise BadRequestError(
                f"consumer group {group} broadcasts: each of its clients stands where it is, and"
                " there are no offsets of the group to move; where new clients begin is its setting"
                " consume_from_where",
                field="group",
            )

    def _keys(self, asked: wire.Reset | wire.CloneOffsets) -> list[int]:
        """The queues meant: those named, or all that the topic has in this broker group."""
        topic = self._routes.topic_named(asked.topic)
        count = self._routes.queue_counts.get(topic.topic_id, 0)
        if asked.queues is None:
            return [queue_key(topic.topic_id, queue) for queue in range(count)]
        if len(set(asked.queues)) != len(asked.queues):
            raise BadRequestError("queues must be a list of different queue ids", field="queues")
        if max(asked.queues) >= count:
            raise BadRequestError(
                f"topic {topic.topic} has the queues 0 to {count - 1} here", field="queues"
            )
        return [queue_key(topic.topic_id, queue) for queue in asked.queues]

    def _target(self, asked: wire.Reset) -> "Target":
        if [asked.to, asked.offset, asked.unix_ms].count(None) != 2:
            raise BadRequestError("name one of to, offset, unix_ms", field="to")
        unix_ms = asked.unix_ms
        if unix_ms is not None:

            async def at_time(keys: list[int]) -> list[tuple[int, int]]:
                found = [(key, await self._planner.offset_at(key, unix_ms)) for key in keys]
                return [(key, answer["offset"]) for key, answer in found]

            return at_time
        named = I64_MAX if asked.to == "last" else asked.offset or 0

        async def at_offset(keys: list[int]) -> list[tuple[int, int]]:
            ranges = await self._ledger.query(lambda found: [_range(found, key) for key in keys])
            return [
                (key, min(max(named, start), end))
                for key, (start, end) in zip(keys, ranges, strict=True)
            ]

        return at_offset

    async def _move(
        self, group: str, wanted: list[tuple[int, int]], before: dict[int, Committed]
    ) -> wire.Moved:
        rows: list[wire.MovedRow] = []
        if wanted:
            request = CommitRequest(
                group=group,
                is_reset=True,
                entries=tuple(CommitEntry(key, offset) for key, offset in wanted),
            )
            outcomes = await self._ledger.request(
                Kind.OFFSET_COMMIT,
                request.to_json(),
                refusal=knowing_group(self._routes, group, lambda *_: None),
            )
            for outcome in outcomes or []:
                assert isinstance(outcome, CommitOutcome)
                rows.append(_moved(outcome, before.get(outcome.key)))
            self._freed(group, (key for key, _ in wanted))
        return wire.Moved(group, rows)


Target: TypeAlias = Callable[[list[int]], Awaitable[list[tuple[int, int]]]]
"""The offset that is meant on each of these queues."""


def token_of(row: Any) -> Token | None:
    """The token of a queue's lock that a row names, if it does."""
    return None if row.token is None else Token.from_json(list(row.token))


def check_distinct(keys: list[int]) -> None:
    """BadRequestError when a queue is named twice."""
    if len(set(keys)) != len(keys):
        raise BadRequestError("a queue is named twice", field="queue")


def _range(projections: Projections, key: int) -> tuple[int, int]:
    queue = projections.consume_queues.get(key)
    return (0, 0) if queue is None else (queue.start, queue.end)


def _offset(committed: Committed | None, otherwise: int) -> int:
    return otherwise if committed is None else int(committed.offset)


def _committed(decided: Sequence[CommitOutcome]) -> wire.Committed:
    """Raises what refused it, if every row was refused."""
    rows = [
        wire.CommittedRow(
            topic_id=topic_of(row.key),
            queue=queue_of(row.key),
            offset=None if row.committed is None else row.committed.offset,
            generation=0 if row.committed is None else row.committed.generation,
            code=row.code,
        )
        for row in decided
    ]
    raise_if_all_refused([row.code for row in rows], offsets=to_json(rows))
    return wire.Committed(rows)


def _moved(outcome: CommitOutcome, before: Committed | None) -> wire.MovedRow:
    committed = outcome.committed
    return wire.MovedRow(
        topic_id=topic_of(outcome.key),
        queue=queue_of(outcome.key),
        before=None if before is None else before.offset,
        offset=None if committed is None else committed.offset,
        generation=0 if committed is None else committed.generation,
        code=outcome.code,
    )
