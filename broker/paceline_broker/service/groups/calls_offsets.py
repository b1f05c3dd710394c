"""Calls about a whole consumer group: lag, reset, clone, and whether it was reset (R33).

A reset is a commit record that may lower, and starts a generation: commits under way cannot undo
it, and members that consume learn of it by asking `resets` each second.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from paceline.errors import BadRequestError, GroupNotFoundError
from paceline.records.header import Kind
from paceline.wire.fields import I64_MAX, Fields
from paceline.wire.names import check_name
from paceline_broker.ports import Role
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.offsets import (
    CommitEntry,
    CommitOutcome,
    CommitRequest,
    Committed,
)
from paceline_broker.projections.projections import Projections
from paceline_broker.service.fetch.bulk_reads import Planner
from paceline_broker.service.groups.acting import ActingUse
from paceline_broker.service.groups.member_fields import QUEUES_MAX
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.produce.auto_create import Creator
from paceline_broker.service.routes import Routes
from paceline_broker.service.topic_records import is_former_group, knowing_group, standing

ENDS = ("first", "last")
U32_MAX = 2**32 - 1
U16_MAX = 2**16 - 1


class OffsetCalls:
    """The calls of one broker; `None` as outcome of `refusal` means that a record is appended."""

    def __init__(
        self, role: Role, routes: Routes, ledger: Ledger, acting: ActingUse, creator: Creator
    ) -> None:
        self._creator = creator
        self._routes = routes
        self._ledger = ledger
        self._acting = acting
        self._planner = Planner(role)
        self.on_moved: Callable[[str, Iterable[int]], None] = lambda group, keys: None
        """Told of queues on which a group was reset."""

    async def lag(self, fields: Fields) -> dict[str, Any]:
        """How far behind the group is on each queue it has committed: in messages, and in time.

        So too on those of `queues` that it has not committed: all that they have is unread.
        """
        group = check_name(fields.text("group"), "group")
        unread = _keys_of_segments(fields) if fields.has("queues") else ()
        fields.done()

        def ask(projections: Projections) -> list[dict[str, Any]]:
            rows = []
            known = self._acting.merged(group, standing(projections, self._routes, group))
            for key in sorted({*known, *unread}):
                committed = known.get(key)
                start, end = _range(projections, key)
                rows.append(
                    {
                        "topic_id": key >> 16,
                        "topic": self._routes.topic_name(key >> 16),
                        "queue": key & 0xFFFF,
                        "start": start,
                        "end": end,
                        "offset": None if committed is None else committed.offset,
                        "lag": max(0, end - _offset(committed, start)),
                        "behind_ms": 0,
                        "in_flight": projections.receipts.open_count(group, key),
                    }
                )
            return rows

        rows = await self._ledger.query(ask)
        now_ms = self._ledger.log_time_ms()
        for row in rows:
            if row["lag"]:
                key = queue_key(row["topic_id"], row["queue"])
                stored_ms = await self._planner.stored_at(key, row["offset"] or 0)
                row["behind_ms"] = 0 if stored_ms is None else max(0, now_ms - stored_ms)
        return {"queues": rows, "lag": sum(row["lag"] for row in rows)}

    async def resets(self, fields: Fields) -> dict[str, Any]:
        """A number that changes with each reset of the group here.

        A confirmed one (R28): a number that the next master gives again, for another reset, would
        hide that one from who remembers it.
        """
        group = check_name(fields.text("group"), "group")
        fields.done()

        def ask(found: Projections) -> int:
            return 0 if is_former_group(found, self._routes, group) else found.offsets.resets(group)

        return {"resets": await self._ledger.query(ask)}

    async def reset(self, fields: Fields) -> dict[str, Any]:
        """Move a group on a topic's queues here: to the first or last offset, to one, to a time.

        One that is not on record must have committed something here, or be called `new`: offsets
        under a misspelt name would be nobody's, and a client has looked at the other brokers too.
        """
        group = check_name(fields.text("group"), "group")
        keys = self._keys(fields)
        at = self._target(fields)
        is_back_only = fields.has("back_only") and fields.flag("back_only")
        may_be_new = fields.has("new") and fields.flag("new")
        fields.done()
        wanted = await at(keys)
        committed = await self._ledger.query(lambda found: standing(found, self._routes, group))
        if not (committed or may_be_new or group in self._routes.consumer_groups):
            raise GroupNotFoundError(
                f"consumer group {group} does not exist: it is not on record, and has committed"
                " nothing at this broker; `new` moves it all the same",
                group=group,
            )
        await self._creator.ensure_group(group)
        if is_back_only:  # RocketMQ's reset without force: nothing is skipped
            wanted = [row for row in wanted if row[1] < _offset(committed.get(row[0]), row[1])]
        return await self._move(group, wanted, committed)

    async def clone(self, fields: Fields) -> dict[str, Any]:
        """Give a group the offsets that another one has on a topic's queues here."""
        group = check_name(fields.text("group"), "group")
        source = check_name(fields.text("source"), "source")
        keys = self._keys(fields)
        fields.done()

        def ask(found: Projections) -> tuple[dict[int, Committed], dict[int, Committed]]:
            theirs = standing(found, self._routes, source)
            return theirs, standing(found, self._routes, group)

        await self._creator.ensure_group(group)
        theirs, ours = await self._ledger.query(ask)
        wanted = [(key, int(theirs[key].offset)) for key in keys if key in theirs]
        return await self._move(group, wanted, ours)

    # -- inside ------------------------------------------------------------------------------------

    def _keys(self, fields: Fields) -> list[int]:
        """The queues meant: those named, or all that the topic has in this broker group."""
        topic = self._routes.topic_named(fields.text("topic"))
        count = self._routes.queue_counts.get(topic.topic_id, 0)
        if not fields.has("queues"):
            return [queue_key(topic.topic_id, queue) for queue in range(count)]
        queues = fields.any("queues")
        if not isinstance(queues, list) or not queues or len(set(map(str, queues))) != len(queues):
            raise fields.wrong("queues", "a list of different queue ids", queues)
        if any(type(queue) is not int or not 0 <= queue < count for queue in queues):
            raise BadRequestError(
                f"topic {topic.topic} has the queues 0 to {count - 1} here", field="queues"
            )
        return [queue_key(topic.topic_id, queue) for queue in queues]

    def _target(self, fields: Fields) -> "Target":
        named = [name for name in ("to", "offset", "unix_ms") if fields.has(name)]
        if len(named) != 1:
            raise BadRequestError("name one of to, offset, unix_ms", field="to")
        if named == ["unix_ms"]:
            unix_ms = fields.integer("unix_ms")

            async def at_time(keys: list[int]) -> list[tuple[int, int]]:
                found = [(key, await self._planner.offset_at(key, unix_ms)) for key in keys]
                return [(key, answer["offset"]) for key, answer in found]

            return at_time
        if named == ["to"] and fields.text("to") not in ENDS:
            raise fields.wrong("to", "first or last", fields.text("to"))
        to = fields.text("to") if named == ["to"] else ""
        asked = 0 if to else fields.integer("offset")

        async def at_offset(keys: list[int]) -> list[tuple[int, int]]:
            ranges = await self._ledger.query(lambda found: [_range(found, key) for key in keys])
            named = {"first": 0, "last": I64_MAX}.get(to, asked)
            return [
                (key, min(max(named, start), end))
                for key, (start, end) in zip(keys, ranges, strict=True)
            ]

        return at_offset

    async def _move(
        self, group: str, wanted: list[tuple[int, int]], before: dict[int, Committed]
    ) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
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
                rows.append(_moved_json(outcome, before.get(outcome.key)))
            self.on_moved(group, (key for key, _ in wanted))
        return {"group": group, "queues": rows}


Target = Callable[[list[int]], Awaitable[list[tuple[int, int]]]]
"""The offset that is meant on each of these queues."""


def _keys_of_segments(fields: Fields) -> list[int]:
    """Queues that this broker may not have heard of yet: they are empty then."""
    rows = fields.any("queues")
    if not isinstance(rows, list) or len(rows) > QUEUES_MAX:
        raise fields.wrong("queues", f"a list of at most {QUEUES_MAX} objects", rows)
    keys = []
    for index, row in enumerate(rows):
        each = Fields(row, name=f"queues[{index}]")
        topic_id = each.integer("topic_id", low=1, high=U32_MAX)
        keys.append(queue_key(topic_id, each.integer("queue", high=U16_MAX)))
        each.done()
    return keys


def _range(projections: Projections, key: int) -> tuple[int, int]:
    queue = projections.consume_queues.get(key)
    return (0, 0) if queue is None else (queue.start, queue.end)


def _offset(committed: Committed | None, otherwise: int) -> int:
    return otherwise if committed is None else int(committed.offset)


def _moved_json(outcome: CommitOutcome, before: Committed | None) -> dict[str, Any]:
    committed = outcome.committed
    return {
        "topic_id": outcome.key >> 16,
        "queue": outcome.key & 0xFFFF,
        "before": None if before is None else before.offset,
        "offset": None if committed is None else committed.offset,
        "generation": 0 if committed is None else committed.generation,
        "code": outcome.code,
    }
