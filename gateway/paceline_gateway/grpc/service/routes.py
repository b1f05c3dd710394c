"""Routes and assignments: one logical broker for each door, under the name that the client gave.

The door reaches every broker group, so a route has one broker, id 0, at the endpoints by which the
client came: that serves clients behind address translation too. Queue ids number the queues over
all broker groups, in their stable order.
"""

from paceline.errors import (
    BadRequestError,
    ForbiddenError,
    NotFoundError,
    PacelineError,
    TopicNotFoundError,
)
from paceline.queues import shared_queues_of
from paceline.wire.calls.groups import EnsureTopic
from paceline.wire.topics import DELAY, FIFO, MIXED, NORMAL, PRIORITY, TRANSACTION, TopicView
from paceline_gateway.clusters import UserCluster
from paceline_gateway.grpc.codec.statuses import OK
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
_KNOWN_SOON_MS = 200
_MADE_TIMEOUT_MS = 2_000
_TYPES = {
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
    """QueryRoute and QueryAssignment."""

    def handlers(self) -> dict[str, Answer]:
        return {"QueryRoute": self.query_route, "QueryAssignment": self.query_assignment}

    async def query_route(
        self, request: wire.QueryRouteRequest, call: Call
    ) -> wire.QueryRouteResponse:
        """The queues of a topic, which is made if the cluster makes topics."""
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
        that the client processes them side by side. From what is known, also in a failover: clients
        drop all their queues where this fails."""
        topic = topic_of(request.topic, call.namespace)
        group = group_of(request.group, call.namespace)
        cluster = await call.cluster()
        view = cluster.cluster.topic(topic.full) or await known_topic(cluster, topic.full)
        endpoints = endpoints_of(request.endpoints, call)
        numbers = range(_count(view)) if is_ordered(cluster, group.full) else (ALL_QUEUES,)
        return wire.QueryAssignmentResponse(
            status=OK,
            assignments=[
                Assignment(message_queue=_queue(view, topic, endpoints, number))
                for number in numbers
            ],
        )


def endpoints_of(told: Endpoints, call: Call) -> Endpoints:
    """How the client is to name this server."""
    return told if has_addresses(told) else call.endpoints


def is_ordered(cluster: UserCluster, group: str) -> bool:
    """Whether the record of a consumer group says that it consumes in order."""
    view = cluster.cluster.view
    known = None if view is None else view.consumer_groups.get(group)  # type: ignore[call-overload]
    return known is not None and known.settings.consume_message_orderly


async def known_topic(cluster: UserCluster, name: str) -> TopicView:
    """A topic, which may have to be made. TopicNotFoundError, NotAuthorizedError, PeerError."""
    found = cluster.cluster.topic(name)
    if found is not None:
        return found
    try:
        return await cluster.cluster.wait_topic(name, timeout_ms=_KNOWN_SOON_MS)
    except TopicNotFoundError as error:
        view = cluster.cluster.view
        for group in () if view is None else sorted(view.groups):
            if await _is_made(cluster, group, name):
                return await cluster.cluster.wait_topic(name, timeout_ms=_MADE_TIMEOUT_MS)
        raise error from None


async def _is_made(cluster: UserCluster, group: str, name: str) -> bool:
    link = cluster.links.link(group)  # type: ignore[arg-type]
    try:
        connection = await link.wait_up(timeout_ms=_MADE_TIMEOUT_MS)
        await connection.call(EnsureTopic(topic=name), timeout_ms=_MADE_TIMEOUT_MS)
    except (NotFoundError, BadRequestError, ForbiddenError):
        return False
    except PacelineError:  # another broker group may
        return False
    return True


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
        accept_message_types=_TYPES[view.message_type],
    )
