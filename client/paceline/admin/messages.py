"""The part of the admin client that finds single messages, and who has consumed them."""

from collections.abc import AsyncIterator
from typing import Any

from paceline.admin.consumer_groups import ConsumerGroups
from paceline.admin.requests import AdminRequests
from paceline.filters import of_told
from paceline.types import GroupName, TopicName
from paceline.wire.calls import messages as wire
from paceline.wire.message_ids import parse_offset_id
from paceline.wire.names import check_readable_topic_name

Row = dict[str, Any]

CONSUMED = "CONSUMED"
CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
NOT_CONSUME_YET = "NOT_CONSUME_YET"
NOT_ONLINE = "NOT_ONLINE"
"""RocketMQ's track types: past the message; past it without having wanted it; not yet there; not
there, and nobody of the group is online."""


class Messages:
    """`AdminClient.messages`. Messages are rows with `topic`, `group` (broker group), `queue`,
    `offset`, `message_id`, `unique_key`, `key`, `tag`, `properties`, `body` or `body_base64`,
    `born_unix_ms`, `store_unix_ms`, and `cause`: 0, or why a broker made it out of another."""

    def __init__(self, requests: AdminRequests, groups: ConsumerGroups) -> None:
        self._requests = requests
        self._groups = groups

    async def get(self, message_id: str) -> Row:
        """The message of an offset message id. MessageNotFoundError, BadRequestError."""
        group = GroupName(parse_offset_id(message_id).group)
        answer = await self._requests.of_master(group, wire.Message(id=message_id))
        found: Row = answer["message"]
        return found

    async def find(
        self,
        topic: str,
        *,
        key: str | None = None,
        unique_key: str | None = None,
        begin_unix_ms: int | None = None,
        end_unix_ms: int | None = None,
    ) -> AsyncIterator[Row]:
        """Messages of a topic with a key, with a unique key (also what brokers made of it), or all
        of them; stored in the given time (both ends included). By broker group, queue and offset.
        """
        name = check_readable_topic_name(topic)
        request = wire.Search(topic=name, key=key, unique_key=unique_key)
        if begin_unix_ms is not None:
            request.begin_unix_ms = begin_unix_ms
        if end_unix_ms is not None:
            request.end_unix_ms = end_unix_ms
        view = (await self._requests.view()).topics.get(TopicName(name))
        if view is None:
            raise await self._requests.cluster.no_topic(name)
        for group in sorted(view.queues):
            request.after = None
            while True:
                answer = await self._requests.of_master(group, request)
                for row in answer["messages"]:
                    yield row
                request.after = answer["after"]
                if request.after is None:
                    break

    async def track(self, message_id: str) -> list[Row]:
        """What became of a message in each consumer group that has committed on its queue.

        Rows have `group` (of consumers), `offset` (committed) and `status`, RocketMQ's track type.
        Members of broadcasting groups keep their offsets themselves: they are not seen here.
        """
        message = await self.get(message_id)
        request = wire.Track(
            topic=message["topic"], queue=message["queue"], offset=message["offset"]
        )
        answer = await self._requests.of_master(GroupName(message["group"]), request)
        rows: list[Row] = []
        for known in answer["groups"]:
            members = (await self._groups.members_of(known["group"]))["members"]
            rows.append({**known, "status": _status(message, is_done=known["is_done"], of=members)})
        return rows


def _status(message: Row, *, is_done: bool, of: list[Row]) -> str:
    if not is_done:
        return NOT_CONSUME_YET if of else NOT_ONLINE
    filters = [
        of_told(member["filters"][message["topic"]])
        for member in of
        if message["topic"] in member.get("filters", {})
    ]
    tag, key = message["tag"] or "", message["key"]
    is_wanted = not filters or any(
        wanted.matches(message["properties"], tag=tag, key=key) for wanted in filters
    )
    return CONSUMED if is_wanted else CONSUMED_BUT_FILTERED
