"""Calls that find messages: `message` by its id, `search` by key, unique key or time."""

from paceline.errors import BadRequestError, NoMasterError, NotMasterError
from paceline.security.access import Asker
from paceline.types import GroupName
from paceline.wire.calls import messages as wire
from paceline.wire.calls.request import U16_MAX
from paceline.wire.fields import I64_MAX
from paceline.wire.message_ids import parse_offset_id
from paceline.wire.names import check_readable_topic_name
from paceline_broker.ports import Role
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.projections import Projections
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.long_work import LongWork
from paceline_broker.service.queries.queries import (
    Finder,
    Matches,
    Range,
    born_between,
    by_key,
    by_unique_key,
    check_range,
    everything,
    no_message,
)
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import AskerHandlers, Handlers
from paceline_broker.service.topic_records import slowest_of_all


class QueryCalls:
    """The queries of one broker. Every readable replica answers; `track` is the master's."""

    def __init__(self, role: Role, routes: Routes, ledger: Ledger, work: LongWork) -> None:
        self._role = role
        self._ledger = ledger
        self._routes = routes
        self._finder = Finder(role, work)

    def handlers(self) -> Handlers:
        return {wire.Search: self.search}

    def handlers_of_askers(self) -> AskerHandlers:
        return {wire.Message: self.message, wire.Track: self.track}

    async def message(self, asked: wire.Message, asker: Asker) -> wire.Found:
        """MessageNotFoundError; NotMasterError names another group."""
        message_id = parse_offset_id(asked.id)
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
        if asker.sees_less and not asker.sees_topic(self._routes.topic_name(topic_id)):
            raise no_message(
                message_id
            )  # ids can be guessed: it tells as little as if none is there
        asker.check_topic(topic_id, *asked.finds)
        return wire.Found({**row, "topic": self._routes.topic_name(topic_id)})

    async def search(self, asked: wire.Search) -> wire.Results:
        name = check_readable_topic_name(asked.topic)
        topic = self._routes.topic_named(name)
        matches = self._matches(asked)
        queue_id, offset = _after(asked.after)
        check_range("begin_unix_ms", asked.begin_unix_ms, asked.end_unix_ms)
        check_range("born_begin_unix_ms", asked.born_begin_unix_ms, asked.born_end_unix_ms)
        queues = range(queue_id, self._routes.queue_counts.get(topic.topic_id, 0))
        wanted = Range(asked.begin_unix_ms, asked.end_unix_ms, queues, offset)
        knows_all = not asked.maybe_stale and await self._denies_nothing()
        rows, after = await self._finder.search(
            topic.topic_id, wanted, matches, count_max=asked.max
        )
        return wire.Results(
            messages=[{**row, "topic": name} for row in rows],
            after=None if after is None else f"{after[0]}:{after[1]}",
            maybe_stale=not knows_all,
        )

    async def _denies_nothing(self) -> bool:
        """Until then a master may know of less than was acknowledged: its epoch is not open, or
        another one's is (R3, R4). False: this is none, and answers with what it has."""
        try:
            self._role.writer()
        except (NotMasterError, NoMasterError):
            return False
        await self._ledger.query(lambda _: None)
        return True

    async def track(self, asked: wire.Track, asker: Asker) -> wire.Tracked:
        """Of the consumer groups that the asker may see."""
        topic = self._routes.topic_named(check_readable_topic_name(asked.topic))
        self._routes.check_queue(topic.topic_id, asked.queue)
        key = queue_key(topic.topic_id, asked.queue)

        def ask(projections: Projections) -> list[wire.TrackedGroup]:
            all_groups = slowest_of_all(projections, self._routes)
            found = [(group, of_group.get(key)) for group, of_group in all_groups]
            return [
                wire.TrackedGroup(
                    group=group,
                    offset=committed.offset,
                    is_done=committed.offset > asked.offset,
                )
                for group, committed in found
                if committed is not None
            ]

        rows = await self._ledger.query(ask)
        return wire.Tracked([row for row in rows if asker.sees_group(row.group)])

    def _matches(self, asked: wire.Search) -> Matches:
        found = self._named(asked)
        if asked.born_begin_unix_ms == 0 and asked.born_end_unix_ms == I64_MAX:
            return found
        return born_between(found, asked.born_begin_unix_ms, asked.born_end_unix_ms)

    def _named(self, asked: wire.Search) -> Matches:
        if asked.key is not None:
            if asked.unique_key is not None:
                raise BadRequestError("give key or unique_key, not both", field="key")
            return by_key(asked.key)
        if asked.unique_key is not None:
            return by_unique_key(asked.unique_key, self._role.identity.group)
        return everything()


def _after(text: str | None) -> tuple[int, int]:
    """Where an earlier answer stopped: (queue, offset)."""
    if text is None:
        return 0, 0
    queue, _, offset = text.partition(":")
    if int(queue) > U16_MAX:
        raise BadRequestError("after is from an earlier answer of this search", field="after")
    return int(queue), int(offset)
