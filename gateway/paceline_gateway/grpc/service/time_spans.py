"""QueryTimeSpan: between which times the messages of queues were stored, and how far a group is.

Brokers tell it with a group's lag. A logical queue of a static topic is told of as one queue,
whatever segments it has.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from paceline.queues import queues_of
from paceline.types import GroupName
from paceline.wire.calls.offsets import Lag, LagRow, SegmentOf
from paceline.wire.names import RETRY_PREFIX
from paceline.wire.static_topics import places
from paceline.wire.topics import TopicView
from paceline_gateway.clusters import UserCluster
from paceline_gateway.grpc.codec.statuses import OK
from paceline_gateway.grpc.codec.values import group_of, topic_of
from paceline_gateway.grpc.service.call import Call
from paceline_gateway.grpc.service.routes import BROKER_NAME, known_topic, queue_numbers
from paceline_gateway.grpc.stubs import admin_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Broker, MessageQueue, Resource

_TIMEOUT_MS = 10_000
_NO_MESSAGE = -1
"""As RocketMQ's brokers say it."""
_Span = wire.QueryTimeSpanResponse.QueueTimeSpan


class _Topic(NamedTuple):
    """A topic, as the client calls it."""

    resource: Resource
    view: TopicView


async def time_spans(request: wire.QueryTimeSpanRequest, call: Call) -> wire.QueryTimeSpanResponse:
    """Of all queues of the topics that are named; of a request that names none, of those on which
    the group has committed, its retries apart."""
    group = group_of(request.group, call.namespace).full
    cluster = await call.cluster()
    topics: dict[int, _Topic] = {}
    asked: dict[GroupName, list[SegmentOf]] = {}
    for resource in request.topics:
        view = await known_topic(cluster, topic_of(resource, call.namespace).full)
        topics[view.topic_id] = _Topic(resource, view)
        for key in queues_of(view):
            row = SegmentOf(topic_id=key.topic_id, queue=key.queue_id)
            asked.setdefault(key.group, []).append(row)
    if not request.topics:
        known = cluster.cluster.view
        asked = {} if known is None else {name: [] for name in known.groups}
    answers = await asyncio.gather(
        *(_rows(cluster, name, group, queues) for name, queues in asked.items())
    )
    rows = dict(zip(asked, answers, strict=True))
    if not request.topics:
        topics = dict(_committed(cluster, rows.values()))
    spans = [span for each in topics.values() for span in _of(each, rows)]
    return wire.QueryTimeSpanResponse(status=OK, queue_time_span_list=spans)


async def _rows(
    cluster: UserCluster, name: GroupName, group: str, queues: list[SegmentOf]
) -> list[LagRow]:
    """What a broker group has."""
    request = Lag(group=group, queues=queues or None, times=True)
    answer, _ = await cluster.links.call(name, request, timeout_ms=_TIMEOUT_MS)
    return answer.queues


def _committed(
    cluster: UserCluster, answers: Iterable[list[LagRow]]
) -> Iterator[tuple[int, _Topic]]:
    for row in sorted((row for rows in answers for row in rows), key=lambda row: row.topic):
        view = cluster.cluster.topic(row.topic)
        if view is not None and not row.topic.startswith(RETRY_PREFIX):
            yield row.topic_id, _Topic(Resource(name=row.topic), view)


def _of(topic: _Topic, answers: dict[GroupName, list[LagRow]]) -> Iterator[_Span]:
    """Spans of its queues, in the order of the route."""
    found: dict[int, list[LagRow]] = {}
    numbers = _numbers(topic.view)
    for group, rows in answers.items():
        for row in rows:
            number = numbers.get((group, row.queue))
            if row.topic_id == topic.view.topic_id and number is not None:
                found.setdefault(number, []).append(row)
    for number, segments in sorted(found.items()):
        queue = MessageQueue(topic=topic.resource, id=number, broker=Broker(name=BROKER_NAME))
        yield span_of(queue, segments)


def _numbers(view: TopicView) -> Mapping[tuple[str, int], int]:
    """The number in the route of each queue, or of the logical queue that it is a segment of."""
    if not view.is_static:
        return queue_numbers(view)
    found = places(view.logical_queues)
    return {(group, queue): place.logical_queue for (group, queue), place in found.items()}


def span_of(queue: MessageQueue, rows: list[LagRow]) -> _Span:
    """Of a queue, or of a logical one by its segments. A group that has consumed nothing of it
    stands at the first message, as in RocketMQ."""
    first = min(_known(row.first_unix_ms for row in rows), default=_NO_MESSAGE)
    return _Span(
        message_queue=queue,
        min_timestamp=first,
        max_timestamp=max(_known(row.last_unix_ms for row in rows), default=_NO_MESSAGE),
        consume_timestamp=max(_known(row.consumed_unix_ms for row in rows), default=first),
        delay_time_ms=max(row.behind_ms for row in rows),
    )


def _known(times: Iterable[int | None]) -> list[int]:
    return [each for each in times if each is not None]
