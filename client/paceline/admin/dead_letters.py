"""The part of the admin client that is about dead letters: looked at, resent, set aside.

A dead letter is a message of `%DLQ%group`, named by broker group, queue and offset; nobody consumes
it by itself. The group's own committed offset in that topic says which are dealt with: `purge`
moves it to the end, and retention deletes the messages when their time has come.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, cast

from paceline.admin.requests import AdminRequests
from paceline.consumer.pull import PullConsumer
from paceline.errors import (
    BadRequestError,
    DeadlineError,
    GroupNotFoundError,
    OffsetOutOfRangeError,
)
from paceline.message import ReceivedMessage
from paceline.net.cluster import Cluster
from paceline.net.group_links import GroupLinks
from paceline.net.master_http import check_broker_group
from paceline.queues import QueueName
from paceline.types import GroupName, QueueId, TopicName
from paceline.wire import properties as names
from paceline.wire.calls import messages as wire
from paceline.wire.controller_calls.consumer_groups import GetConsumerGroup
from paceline.wire.names import check_group_name, dlq_topic
from paceline.wire.namespaces import Namespace

TO_TOPIC, TO_GROUP = "topic", "group"
_ROWS_MAX = 500
_POLL_MS = 5_000
_BEHIND_MS = 1_500
"""For so long the own view may not have a consumer group that was just made."""


class DeadLetter(NamedTuple):
    """The name of one dead letter of a consumer group."""

    group: str
    """Broker group."""
    queue_id: int
    offset: int

    @property
    def queue(self) -> int:
        """Former name of `queue_id`, for one version."""
        return self.queue_id

    def __str__(self) -> str:
        return f"{self.group}/{self.queue_id}/{self.offset}"


def parse_dead_letter(text: str) -> DeadLetter:
    """What `str` gave: "g1/0/17". BadRequestError."""
    parts = text.split("/")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts[1:]):
        raise BadRequestError(
            f"{text!r} is no dead letter: write BROKER_GROUP/QUEUE/OFFSET, for example g1/0/17",
            field="id",
        )
    return DeadLetter(parts[0], int(parts[1]), int(parts[2]))


def name_of(message: ReceivedMessage) -> DeadLetter:
    """The name of a message that was read from a dead-letter topic."""
    return DeadLetter(message.group, message.queue_id, message.queue_offset)


class Resent(NamedTuple):
    """What became of one dead letter."""

    letter: DeadLetter
    code: str | None
    """None = done; else why it was not resent."""
    topic: str | None
    message_id: str | None
    is_duplicate: bool
    """It had been resent before: there is one message of it, not two."""


class DeadLetters:
    """`AdminClient.dead_letters`."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def all(
        self, group: str, *, limit: int = 100, is_all: bool = False
    ) -> list[ReceivedMessage]:
        """Dead letters of a consumer group, by broker group, queue and offset; at most `limit`.

        Those that were purged only with `is_all`. GroupNotFoundError, as of all that follow.
        """
        topic = dlq_topic(check_group_name(group))
        found: list[ReceivedMessage] = []
        async with PullConsumer(self._requests.cluster) as consumer:
            await _check_group(self._requests.cluster, group)
            left = await _left(consumer, group, topic, is_all=is_all)
            for name, (start, end) in left.items():
                await consumer.assign({name: start})
                while len(found) < limit and consumer.position(name) < end:
                    try:
                        found += await consumer.poll(
                            max_messages=limit - len(found), timeout_ms=_POLL_MS
                        )
                    except OffsetOutOfRangeError:
                        continue  # retention: it goes on at the first kept one
        namespace = self._requests.cluster.namespace
        return [_with_own_origin(message, namespace) for message in found[:limit]]

    async def get(self, group: str, letter: DeadLetter) -> ReceivedMessage:
        """One dead letter. OffsetOutOfRangeError if it is not there, or not any more."""
        topic = TopicName(dlq_topic(check_group_name(group)))
        name = QueueName(topic, GroupName(letter.group), QueueId(letter.queue_id))
        async with PullConsumer(self._requests.cluster) as consumer:
            await _check_group(self._requests.cluster, group)
            await check_broker_group(self._requests.cluster, name.group)
            kept = (await consumer.ranges([name]))[name]
            if not kept.start <= letter.offset < kept.end:
                why = f"the queue has {kept.start} to {kept.end - 1}"
                if kept.start == kept.end:
                    why = "the queue has none"
                raise OffsetOutOfRangeError(
                    f"there is no dead letter {letter}: {why}", offset=letter.offset
                )
            await consumer.assign({name: letter.offset})
            [*found] = await consumer.poll(max_messages=1, timeout_ms=_POLL_MS)
        if not found or found[0].queue_offset != letter.offset:
            raise OffsetOutOfRangeError(f"there is no dead letter {letter}", offset=letter.offset)
        return _with_own_origin(found[0], self._requests.cluster.namespace)

    async def resend(
        self, group: str, letters: Iterable[DeadLetter], *, to: str = TO_TOPIC
    ) -> list[Resent]:
        """Put dead letters back into the topics they came from, each once however often asked.

        `to` "group": only this consumer group gets them again, with all attempts anew.
        Raises what all letters of a broker group were refused with.
        """
        if to not in {"topic", "group"}:
            raise BadRequestError(f'to must be "topic" or "group", not {to!r}', field="to")
        await self._requests.find_cluster()
        await _check_group(self._requests.cluster, group)
        by_group: dict[str, list[DeadLetter]] = {}
        for letter in dict.fromkeys(letters):
            by_group.setdefault(letter.group, []).append(letter)
        resent: list[Resent] = []
        links = GroupLinks(self._requests.cluster)
        try:
            for name, mine in sorted(by_group.items()):
                await check_broker_group(self._requests.cluster, GroupName(name))
                for at in range(0, len(mine), _ROWS_MAX):
                    part = mine[at : at + _ROWS_MAX]
                    request = wire.Resend(
                        group=group,
                        to=cast(Literal["topic", "group"], to),
                        messages=[
                            wire.ResendRow(queue=letter.queue_id, offset=letter.offset)
                            for letter in part
                        ],
                    )
                    answer, _ = await links.call(
                        GroupName(name),
                        request,
                        timeout_ms=self._requests.timeout_ms,
                        attempt_ms=5_000,
                    )
                    resent += _resent(part, answer.messages)
        finally:
            await links.close()
        return resent

    async def purge(self, group: str) -> int:
        """Count all dead letters of a group as dealt with; how many there were.

        They stay in the log until retention deletes them, and `is_all` still shows them.
        """
        topic = dlq_topic(check_group_name(group))
        async with PullConsumer(self._requests.cluster) as consumer:
            await _check_group(self._requests.cluster, group)
            left = await _left(consumer, group, topic, is_all=False)
            moved = {name: end for name, (start, end) in left.items() if end > start}
            if moved:
                await consumer.commit(group, moved)
            return sum(left[name][1] - left[name][0] for name in moved)

    __call__ = all  # its former name, for one version: `await admin.dead_letters()`


def _with_own_origin(message: ReceivedMessage, namespace: Namespace) -> ReceivedMessage:
    """With the topic that it came from under the name that the program knows."""
    topic = message.properties.get(names.DLQ_ORIGIN_TOPIC)
    if topic is None:
        return message
    origin = {names.DLQ_ORIGIN_TOPIC: namespace.own_topic(topic)}
    return message._replace(properties={**message.properties, **origin})


async def _check_group(cluster: Cluster, group: str) -> None:
    """GroupNotFoundError unless the view has the group's topic of dead letters: it comes with the
    group, which may be new."""
    topic = TopicName(dlq_topic(check_group_name(group)))
    try:
        await cluster.watch.wait_for(lambda view: topic in view.topics, timeout_ms=_BEHIND_MS)
    except DeadlineError as error:
        await cluster.check_visible(GetConsumerGroup(group=group))
        raise GroupNotFoundError(
            f"consumer group {group} is not on record, so it has no dead letters; `paceline group"
            " list` shows those that are",
            group=group,
        ) from error


async def _left(
    consumer: PullConsumer, group: str, topic: str, *, is_all: bool
) -> dict[QueueName, tuple[int, int]]:
    """The range of each queue that is not dealt with, or all that is kept."""
    queues = await consumer.queues(topic)
    ranges = await consumer.ranges(queues)
    committed = {} if is_all else await consumer.committed(group, queues)
    left: dict[QueueName, tuple[int, int]] = {}
    for name in queues:
        start, end = ranges[name].start, ranges[name].end
        left[name] = (min(end, max(start, committed.get(name) or 0)), end)
    return left


def _resent(letters: Sequence[DeadLetter], rows: Sequence[wire.ResentRow]) -> list[Resent]:
    return [
        Resent(letter, row.code, row.topic, row.message_id, row.duplicate)
        for letter, row in zip(letters, rows, strict=True)
    ]
