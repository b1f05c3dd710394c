"""Consumer groups, for `AdminClient`: settings, members, and where they stand.

Offsets belong to the broker group that has the queue: its master is asked, and whoever follows it.
"""

from collections.abc import Mapping
from typing import Any, Literal, cast

from msgspec.structs import replace

from paceline.admin.requests import AdminRequests
from paceline.consumer.group.membership import coordinating_group
from paceline.consumer.queues.segments import not_begun
from paceline.errors import BadRequestError, GroupNotFoundError
from paceline.types import ConsumerGroupName, GroupName, QueueId, TopicName
from paceline.wire.calls import groups as group_calls
from paceline.wire.calls import offsets as wire
from paceline.wire.calls.request import read_request
from paceline.wire.cluster import ClusterView, TopicView
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.controller_calls import consumer_groups as calls
from paceline.wire.names import check_group_name, check_name
from paceline.wire.static_topics import places

Row = dict[str, Any]


class ConsumerGroups:
    """`AdminClient.consumer_groups`. Rows name queues by `topic`, `group` (of brokers), `queue`."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def create(self, /, group: str, **settings: Any) -> ConsumerGroupView:
        """Create a consumer group, with its retry and dead letter topics.

        `settings`: retry_max_times, consume_enable, ... (docs/features/topics.md). Groups make
        themselves when they first consume, unless brokers are told otherwise. GroupExistsError.
        """
        document = {"group": check_group_name(group), "settings": settings}
        answer = await self._requests.once(read_request(calls.CreateConsumerGroup, document))
        await self._requests.shown(answer)
        return ConsumerGroupView.from_json(answer)

    async def alter(self, /, group: str, **changes: Any) -> ConsumerGroupView:
        """Change the settings that are named. GroupNotFoundError, BadRequestError."""
        document = {**changes, "group": check_group_name(group)}
        answer = await self._requests.once(read_request(calls.AlterConsumerGroup, document))
        await self._requests.shown(answer)
        return ConsumerGroupView.from_json(answer)

    async def delete(self, group: str) -> None:
        """Delete a consumer group, its retries and its dead letters. GroupNotFoundError."""
        await self._requests.once(calls.DeleteConsumerGroup(group=check_group_name(group)))

    async def all(self) -> list[ConsumerGroupView]:
        """All consumer groups on record, by name."""
        view = await self._requests.latest()
        return [view.consumer_groups[name] for name in sorted(view.consumer_groups)]

    async def get(self, group: str) -> ConsumerGroupView:
        """One consumer group; NotAuthorizedError, GroupNotFoundError."""
        view = await self._requests.latest()
        found = view.consumer_groups.get(ConsumerGroupName(check_group_name(group)))
        if found is None:
            await self._requests.cluster.check_visible(calls.GetConsumerGroup(group=group))
            raise GroupNotFoundError(
                f"consumer group {group} is not on record; make it with `paceline group create"
                f" {group}`",
                group=group,
            )
        return found

    # -- where they stand -------------------------------------------------------------------------

    async def reset_offsets(
        self,
        consumer_group: str,
        topic: str,
        *,
        to: str | None = None,
        offset: int | None = None,
        unix_ms: int | None = None,
        back_only: bool = False,
    ) -> list[Row]:
        """Move a consumer group on all queues of a topic; one row for each that was moved.

        To one of: `to` "first" or "last"; an `offset`, moved into each queue's range; the first
        message stored at or after `unix_ms`. `back_only` skips nothing. Members that consume go on
        from there within about a second; messages they work on may be processed again. Not to an
        `offset` in a static topic, of which each segment has its own. Rows have
        `before` (None: never committed), `offset`, `generation`. TopicNotFoundError;
        GroupNotFoundError: the group is not on record, has committed nothing and has no members.
        """
        if [to, offset, unix_ms].count(None) != 2:
            raise BadRequestError("name one of to, offset, unix_ms", field="to")
        if to not in {None, "first", "last"}:
            raise BadRequestError(f'to must be "first" or "last", not {to!r}', field="to")
        group = check_name(consumer_group, "group")
        await self._check_known(consumer_group)
        request = wire.Reset(group=group, topic=topic, back_only=back_only, new=True)
        request.to = cast(Literal["first", "last"] | None, to)
        request.offset, request.unix_ms = offset, unix_ms
        return await self._move(request)

    async def clone_offsets(self, consumer_group: str, topic: str, *, source: str) -> list[Row]:
        """Give a consumer group, which may be new, the offsets that `source` has on a topic.

        Rows and errors as of a reset.
        """
        group, of = check_name(consumer_group, "group"), check_name(source, "source")
        await self._check_known(source)
        return await self._move(wire.CloneOffsets(group=group, source=of, topic=topic))

    async def lag(self, consumer_group: str) -> list[Row]:
        """Where a group stands on each queue that it has committed.

        Rows have `start`, `end`, `offset`, `lag` in messages, and `behind_ms`: how long ago the
        next message was stored (0: none waits). Of a static topic also `logical_queue`, and rows
        of the segments that the group has still before it: `offset` None, all of them unread.
        GroupNotFoundError as of a reset.
        """
        view = await self._requests.view()
        request = wire.Lag(group=check_name(consumer_group, "group"))
        answers = await self._requests.of_masters(dict.fromkeys(view.groups, request))
        if not any(answer["queues"] for answer in answers.values()):
            await self._check_known(consumer_group)
        ahead = _segments_ahead(view, answers)
        answers |= await self._requests.of_masters(
            {group: replace(request, queues=queues) for group, queues in ahead.items()}
        )
        numbers = {
            (topic.topic_id, *where): {"logical_queue": place.logical_queue}
            for topic in view.topics.values()
            for where, place in places(topic.logical_queues).items()
        }
        return [
            {**row, "group": group, **numbers.get((row["topic_id"], group, row["queue"]), {})}
            for group, answer in sorted(answers.items())
            for row in answer["queues"]
        ]

    async def members(self, consumer_group: str) -> Row:
        """Who consumes in a group now: `members`, and the `inconsistent_topics`, which not all of
        them subscribe to in the same way. GroupNotFoundError as of a reset."""
        found = await self.members_of(consumer_group)
        if not found["members"]:
            await self._check_known(consumer_group)
        return found

    # -- inside -----------------------------------------------------------------------------------

    async def members_of(self, consumer_group: str) -> Row:
        """As `members`, and nothing of a group that nobody knows."""
        view = await self._requests.view()
        full = self._requests.cluster.namespace.full_group(check_name(consumer_group, "group"))
        coordinator = coordinating_group(full, view.groups)
        request = group_calls.Members(group=consumer_group)
        return await self._requests.of_master(coordinator, request)

    async def _check_known(self, consumer_group: str) -> None:
        """GroupNotFoundError unless somebody knows the group: it is on record, or has committed
        somewhere (groups without a record do), or has members that have not done so yet."""
        view = await self._requests.view()
        if ConsumerGroupName(consumer_group) in view.consumer_groups:
            return
        request = wire.Offsets(group=consumer_group)
        answers = await self._requests.of_masters(dict.fromkeys(view.groups, request))
        if any(answer["offsets"] for answer in answers.values()):
            return
        if (await self.members_of(consumer_group))["members"]:
            return
        raise GroupNotFoundError(
            f"consumer group {consumer_group} does not exist: it is not on record, has committed"
            f" nothing and has no members; make it with `paceline group create {consumer_group}`",
            group=consumer_group,
        )

    async def _move(self, request: wire.Reset | wire.CloneOffsets) -> list[Row]:
        topic = request.topic
        view = (await self._requests.view()).topics.get(TopicName(topic))
        if view is None:
            raise await self._requests.cluster.no_topic(topic)
        has_offset = isinstance(request, wire.Reset) and request.offset is not None
        if view.is_static and has_offset:
            raise BadRequestError(
                f"topic {topic} is static: an offset means another place in each segment; reset to"
                " first, last or a time",
                field="offset",
            )
        rows: list[Row] = []
        for step in _steps(view):
            answers = await self._requests.of_masters(
                {group: replace(request, queues=queues) for group, queues in step.items()}
            )
            rows += [
                {"topic": topic, "group": group, **row}
                for group, answer in answers.items()
                for row in answer["queues"]
            ]
        return rows

    __call__ = all  # its former name, for one version: `await admin.consumer_groups()`


def _segments_ahead(
    view: ClusterView, answers: Mapping[GroupName, Row]
) -> dict[GroupName, list[wire.SegmentOf]]:
    """The queues to ask for as well, by broker group: segments that come after those in `answers`,
    where a consumer group has committed."""
    begun: dict[int, set[tuple[GroupName, QueueId]]] = {}
    for group, answer in answers.items():
        for row in answer["queues"]:
            begun.setdefault(row["topic_id"], set()).add((group, row["queue"]))
    found: dict[GroupName, list[wire.SegmentOf]] = {}
    for topic in view.topics.values():
        for group, queue in not_begun(topic.logical_queues, begun.get(topic.topic_id, ())):
            if group in answers:
                row = wire.SegmentOf(topic_id=topic.topic_id, queue=queue)
                found.setdefault(group, []).append(row)
    return found


def _steps(topic: TopicView) -> list[dict[GroupName, list[int] | None]]:
    """Which queues are moved (None: all), one step after another: all at once; of a static topic
    segment after segment, so that a member that sees its own moved finds those before it moved as
    well."""
    if not topic.is_static:
        return [{group: None for group in sorted(topic.queues) if topic.queues[group]}]
    deepest = max(len(queue.segments) for queue in topic.logical_queues)
    steps: list[dict[GroupName, list[int] | None]] = []
    for number in range(deepest):
        queues: dict[GroupName, list[int]] = {}
        for logical in topic.logical_queues:
            for segment in logical.segments[number : number + 1]:
                queues.setdefault(segment.group, []).append(segment.queue_id)
        steps.append({group: sorted(found) for group, found in queues.items()})
    return steps
