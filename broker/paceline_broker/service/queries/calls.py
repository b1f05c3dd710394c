"""Calls that find messages: `message` by its id, `search` by key, unique key or time."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from paceline.errors import BadRequestError, NoMasterError, NotMasterError
from paceline.records.header import KEY_BYTES_MAX
from paceline.types import GroupName
from paceline.wire.fields import I64_MAX, Fields
from paceline.wire.message_ids import parse_offset_id
from paceline.wire.names import check_readable_topic_name
from paceline_broker.ports import Role
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.projections import Projections
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.long_work import LongWork
from paceline_broker.service.queries.queries import (
    RESULTS_DEFAULT,
    RESULTS_MAX,
    Finder,
    Matches,
    Range,
    by_key,
    by_unique_key,
    check_range,
    everything,
)
from paceline_broker.service.routes import Routes

U16_MAX = 2**16 - 1


class QueryCalls:
    """The queries of one broker. Every readable replica answers; `track` is the master's."""

    def __init__(self, role: Role, routes: Routes, ledger: Ledger, work: LongWork) -> None:
        self._role = role
        self._ledger = ledger
        self._routes = routes
        self._finder = Finder(role, work)
        self.table: Mapping[str, Callable[[Fields], Awaitable[dict[str, Any]]]] = {
            "message": self.message,
            "search": self.search,
            "track": self.track,
        }

    async def message(self, fields: Fields) -> dict[str, Any]:
        """{"id"} -> {"message"}. MessageNotFoundError; NotMasterError names another group."""
        message_id = parse_offset_id(fields.text("id"))
        fields.done()
        group = self._role.identity.group
        if message_id.group != group:
            view = self._routes.view
            other = None if view is None else view.groups.get(GroupName(message_id.group))
            master = None if other is None else other.serving_view()
            raise NotMasterError(
                f"message {message_id} is of broker group {message_id.group}, not {group}",
                master=None if master is None else master.client_address,
                group=message_id.group,
            )
        topic_id, row = await self._finder.by_id(message_id)
        return {"message": {**row, "topic": self._routes.topic_name(topic_id)}}

    async def search(self, fields: Fields) -> dict[str, Any]:
        """{"topic", one of "key", "unique_key" or none, "begin_unix_ms"?, "end_unix_ms"?, "max"?,
        "after"?} -> {"messages", "after"}: ask again with `after` unless it is null."""
        name = check_readable_topic_name(fields.text("topic"))
        topic = self._routes.topic_named(name)
        matches = self._matches(fields)
        begin = fields.integer("begin_unix_ms") if fields.has("begin_unix_ms") else 0
        end = I64_MAX - 1
        if fields.has("end_unix_ms"):
            end = fields.integer("end_unix_ms", high=I64_MAX - 1)
        count_max = RESULTS_DEFAULT
        if fields.has("max"):
            count_max = fields.integer("max", low=1, high=RESULTS_MAX)
        queue_id, offset = _after(fields)
        fields.done()
        check_range(begin, end)
        queues = range(queue_id, self._routes.queue_counts.get(topic.topic_id, 0))
        asked = Range(begin, end, queues, offset)
        await self._denies_nothing()
        rows, after = await self._finder.search(topic.topic_id, asked, matches, count_max=count_max)
        return {
            "messages": [{**row, "topic": name} for row in rows],
            "after": None if after is None else f"{after[0]}:{after[1]}",
        }

    async def _denies_nothing(self) -> None:
        """Until then a master may know of less than was acknowledged: its epoch is not open, or
        another one's is (R3, R4). Other replicas answer with what they have."""
        try:
            self._role.writer()
        except (NotMasterError, NoMasterError):
            return
        await self._ledger.query(lambda _: None)

    async def track(self, fields: Fields) -> dict[str, Any]:
        """{"topic", "queue", "offset"} -> {"groups": [{"group", "offset", "is_done"}]}.

        Every group that has committed on that queue, and whether it is past the message (R4).
        """
        topic = self._routes.topic_named(check_readable_topic_name(fields.text("topic")))
        queue_id = fields.integer("queue", high=U16_MAX)
        offset = fields.integer("offset")
        fields.done()
        self._routes.check_queue(topic.topic_id, queue_id)
        key = queue_key(topic.topic_id, queue_id)

        def ask(projections: Projections) -> list[dict[str, Any]]:
            offsets = projections.offsets
            found = [(group, offsets.get(group, key)) for group in offsets.groups()]
            return [
                {
                    "group": group,
                    "offset": committed.offset,
                    "is_done": committed.offset > offset,
                }
                for group, committed in found
                if committed is not None
            ]

        return {"groups": await self._ledger.query(ask)}

    def _matches(self, fields: Fields) -> Matches:
        if fields.has("key"):
            if fields.has("unique_key"):
                raise BadRequestError("give key or unique_key, not both", field="key")
            return by_key(fields.text("key", length_max=KEY_BYTES_MAX))
        if fields.has("unique_key"):
            return by_unique_key(fields.text("unique_key"), self._role.identity.group)
        return everything()


def _after(fields: Fields) -> tuple[int, int]:
    """Where an earlier answer stopped: (queue, offset)."""
    if not fields.has("after"):
        return 0, 0
    queue, _, offset = fields.text("after", pattern=r"[0-9]{1,5}:[0-9]{1,18}").partition(":")
    if int(queue) > U16_MAX:
        raise BadRequestError("after is from an earlier answer of this search", field="after")
    return int(queue), int(offset)
