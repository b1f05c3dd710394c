"""Topics, for `AdminClient`.

Writes return once this client's own view shows them, so what is made can be used at once.
"""

from collections.abc import Mapping, Sequence

from paceline.admin.requests import AdminRequests
from paceline.types import TopicName
from paceline.wire.calls.request import read_request
from paceline.wire.cluster import ClusterView
from paceline.wire.controller_calls import topics as calls
from paceline.wire.names import check_readable_topic_name, check_topic_name
from paceline.wire.topics import NORMAL, PERM_BOTH, TopicView

QUEUES_DEFAULT = 8
Queues = int | Mapping[str, int]
"""A number for every broker group, or a table of broker groups."""


class Topics:
    """`AdminClient.topics`."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def create(
        self,
        topic: str,
        *,
        queues: Queues | None = None,
        read_queues: Queues | None = None,
        perm: int = PERM_BOTH,
        message_type: str = NORMAL,
        attributes: Mapping[str, str] | None = None,
        logical_queues: int | None = None,
        groups: Sequence[str] | None = None,
    ) -> TopicView:
        """Create a topic with `queues` (8) in every broker group (or as the table of groups says).

        With `logical_queues` a static topic: so many in all, spread over `groups` (all) in turn.
        Returns when this client's own view has it. TopicExistsError, BadNameError, BadRequestError,
        GroupNotFoundError; PeerError or DeadlineError when no controller could do it in time.
        """
        if queues is None and logical_queues is None:
            queues = QUEUES_DEFAULT
        document = {
            "topic": topic,
            "queues": _queues(queues),
            "read_queues": _queues(read_queues),
            "logical_queues": logical_queues,
            "groups": None if groups is None else list(groups),
            "perm": perm,
            "message_type": message_type,
            "attributes": dict(attributes or {}),
        }
        answer = await self._requests.once(read_request(calls.CreateTopic, document))
        await self._requests.shown(answer)
        return TopicView.from_json(answer)

    async def alter(
        self,
        topic: str,
        *,
        queues: Queues | None = None,
        read_queues: Queues | None = None,
        write_queues: Queues | None = None,
        perm: int | None = None,
        message_type: str | None = None,
        attributes: Mapping[str, str | None] | None = None,
        logical_queues: int | None = None,
        force: bool = False,
    ) -> TopicView:
        """Change what is named; `queues` is both numbers. An attribute of None is taken away.

        `logical_queues`, alone, gives a static topic more of them: keys change their places then.

        To shrink: lower `write_queues`, let consumers drain the rest, then lower `read_queues`.
        While messages are left there CommandRefusedError says so (UNREAD_MESSAGES); `force` leaves
        them unread. TopicNotFoundError, BadRequestError, GroupNotFoundError.
        """
        document = {
            "topic": check_topic_name(topic),
            "queues": _queues(queues),
            "read_queues": _queues(read_queues),
            "write_queues": _queues(write_queues),
            "logical_queues": logical_queues,
            "perm": perm,
            "message_type": message_type,
            "attributes": dict(attributes or {}),
            "force": force,
        }
        answer = await self._requests.once(read_request(calls.AlterTopic, document))
        await self._requests.shown(answer)
        return TopicView.from_json(answer)

    async def remap_queue(
        self,
        topic: str,
        logical_queue: int,
        group: str,
        *,
        generation: int | None = None,
    ) -> TopicView:
        """Have a logical queue of a static topic move to a broker group, while it is in use.

        Returns when that is on record; it has moved once the master of its present group has sealed
        it there (`wait_remapped`). `generation`: only if that is its present segment's. Asked again
        it finds it moving, or there. TopicNotFoundError, GroupNotFoundError, BadRequestError;
        CommandRefusedError with `reason` STALE_GENERATION, MOVING or WRITE_WIPED.
        """
        request = calls.RemapQueue(
            topic=check_topic_name(topic),
            logical_queue=logical_queue,
            group=group,
            generation=generation,
        )
        answer = await self._requests.once(request)
        await self._requests.shown(answer)
        return TopicView.from_json(answer)

    async def wait_remapped(
        self, topic: str, logical_queue: int, group: str, *, timeout_ms: int
    ) -> TopicView:
        """The topic once a logical queue has arrived in a broker group; DeadlineError."""
        name = TopicName(check_topic_name(topic))

        def has_arrived(view: ClusterView) -> bool:
            queues = view.topics[name].logical_queues if name in view.topics else ()
            if logical_queue >= len(queues):
                return False
            found = queues[logical_queue]
            return found.moving_to is None and found.last.group == group

        cluster = self._requests.cluster
        if cluster.topic(name) is None:
            await cluster.check_visible(calls.GetTopic(topic=name))
        view = await cluster.watch.wait_for(has_arrived, timeout_ms=timeout_ms)
        return view.topics[name]

    async def delete(self, topic: str) -> None:
        """Delete a topic and its messages. TopicNotFoundError."""
        await self._requests.once(calls.DeleteTopic(topic=check_topic_name(topic)))

    async def all(self, *, system: bool = False) -> list[TopicView]:
        """All topics, by name; with `system` also those that brokers make for themselves."""
        view = await self._requests.latest()
        found = [view.topics[name] for name in sorted(view.topics)]
        return [topic for topic in found if system or not topic.is_system]

    async def get(self, topic: str) -> TopicView:
        """One topic; NotAuthorizedError, TopicNotFoundError."""
        view = await self._requests.latest()
        found = view.topics.get(TopicName(check_readable_topic_name(topic)))
        if found is None:
            raise await self._requests.cluster.no_topic(topic)
        return found

    __call__ = all  # its former name, for one version: `await admin.topics()`


def _queues(queues: Queues | None) -> int | dict[str, int] | None:
    return dict(queues) if isinstance(queues, Mapping) else queues
