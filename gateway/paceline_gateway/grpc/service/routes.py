"""Routes and assignments: one logical broker for each door, under the name that the client gave.

The door reaches every broker group, so a route has one broker, id 0, at the endpoints by which the
client came: that serves clients behind address translation too. Queue ids number the queues over
all broker groups, in their stable order.
"""

from collections import OrderedDict

from paceline.errors import PacelineError
from paceline.queues import shared_queues_of
from paceline.wire.topics import DELAY, FIFO, MIXED, NORMAL, PRIORITY, TRANSACTION, TopicView
from paceline_gateway.clusters import UserCluster
from paceline_gateway.grpc.codec.statuses import OK, status_of
from paceline_gateway.grpc.codec.values import Named, group_of, has_addresses, topic_of
from paceline_gateway.grpc.service.call import Answer, Call
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import (
    Assignment,
    Broker,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
)

BROKER_NAME = "paceline"
ALL_QUEUES = -1
"""Queue id of an assignment that stands for the whole topic."""
REMEMBERED_MAX = 10_000
_SERVER_FAULTS = 50_000
"""Codes from here on: it is not the request that is wrong."""
_KNOWN_SOON_MS = 200
TYPES = {
    NORMAL: (MessageType.NORMAL,),
    FIFO: (MessageType.FIFO,),
    DELAY: (MessageType.DELAY,),
    TRANSACTION: (MessageType.TRANSACTION,),
    PRIORITY: (MessageType.PRIORITY, MessageType.DELAY),
    MIXED: (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION),
}
_PERMISSIONS = {
    (False, False): Permission.NONE,
    (True, False): Permission.READ,
    (False, True): Permission.WRITE,
    (True, True): Permission.READ_WRITE,
}


class RouteCalls:
    """QueryRoute and QueryAssignment. Owned by one gateway's gRPC door."""

    def __init__(self) -> None:
        self._assigned: OrderedDict[tuple[str, str, str], _Assigned] = OrderedDict()
        """By user, topic and group, what was answered last."""

    def handlers(self) -> dict[str, Answer]:
        return {"QueryRoute": self.query_route, "QueryAssignment": self.query_assignment}

    async def query_route(
        self, request: wire.QueryRouteRequest, call: Call
    ) -> wire.QueryRouteResponse:
        """The queues of a topic. It makes none, as RocketMQ's makes none: who asks does not say
        whether to send or to receive."""
        topic = topic_of(request.topic, call.namespace)
        view = await known_topic(await call.cluster(), topic.full)
        endpoints = endpoints_of(request.endpoints, call)
        return wire.QueryRouteResponse(
            status=OK,
            message_queues=[
                _queue(view, topic, endpoints, number) for number in range(_count(view))
            ],
        )

    async def query_assignment(
        self, request: wire.QueryAssignmentRequest, call: Call
    ) -> wire.QueryAssignmentResponse:
        """What a push consumer receives from: the whole topic; of an ordered group each queue, so
        that the client processes them side by side. While no node answers it is as it was last:
        clients drop all their queues where this fails."""
        topic = topic_of(request.topic, call.namespace)
        group = group_of(request.group, call.namespace)
        view, ordered = await self._assignment(topic.full, group.full, call)
        endpoints = endpoints_of(request.endpoints, call)
        numbers = range(_count(view)) if ordered else (ALL_QUEUES,)
        return wire.QueryAssignmentResponse(
            status=OK,
            assignments=[
                Assignment(message_queue=_queue(view, topic, endpoints, number))
                for number in numbers
            ],
        )

    async def _assignment(self, topic: str, group: str, call: Call) -> "_Assigned":
        name = call.principal.user, topic, group
        try:
            cluster = await call.cluster()
            found = await known_topic(cluster, topic), is_ordered(cluster, group)
        except PacelineError as error:
            known = self._assigned.get(name)
            if known is None or status_of(error).code < _SERVER_FAULTS:
                raise
            return known
        self._assigned[name] = found
        self._assigned.move_to_end(name)
        if len(self._assigned) > REMEMBERED_MAX:
            self._assigned.popitem(last=False)
        return found


_Assigned = tuple[TopicView, bool]
"""The topic, and whether the group is ordered."""


def endpoints_of(told: Endpoints, call: Call) -> Endpoints:
    """How the client is to name this server."""
    return told if has_addresses(told) else call.endpoints


def is_ordered(cluster: UserCluster, group: str) -> bool:
    """Whether the record of a consumer group says that it consumes in order."""
    view = cluster.cluster.view
    known = None if view is None else view.consumer_groups.get(group)  # type: ignore[call-overload]
    return known is not None and known.settings.consume_message_orderly


async def known_topic(cluster: UserCluster, name: str) -> TopicView:
    """A topic, which may have been made a moment ago. TopicNotFoundError, NotAuthorizedError,
    PeerError."""
    found = cluster.cluster.topic(name)
    if found is not None:
        return found
    return await cluster.cluster.wait_topic(name, timeout_ms=_KNOWN_SOON_MS)


def _count(view: TopicView) -> int:
    return len(shared_queues_of(view))


def queue_numbers(view: TopicView) -> dict[tuple[str, int], int]:
    """(broker group, queue) -> its number in the route."""
    return {(key.group, key.queue_id): at for at, key in enumerate(shared_queues_of(view))}


def _queue(view: TopicView, topic: Named, endpoints: Endpoints, number: int) -> MessageQueue:
    can_read, can_write = view.can_read, view.can_write
    if number != ALL_QUEUES and not view.is_static:
        key = shared_queues_of(view)[number]
        can_read &= key.queue_id < view.read_queues.get(key.group, 0)
        can_write &= key.queue_id < view.write_queues.get(key.group, 0)
    return MessageQueue(
        topic=topic.resource,
        id=number,
        permission=_PERMISSIONS[can_read, can_write],
        broker=Broker(name=BROKER_NAME, id=0, endpoints=endpoints),
        accept_message_types=TYPES[view.message_type],
    )
