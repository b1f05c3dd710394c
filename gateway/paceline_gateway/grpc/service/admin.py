"""The Admin service: what of it reads, and this system knows. It is done as the client's user."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from paceline.errors import BadRequestError
from paceline.filters import of_told
from paceline.platform.version import VERSION
from paceline.wire.message_ids import parse_offset_id
from paceline.wire.names import RETRY_PREFIX
from paceline_gateway.connected_clients import ConnectedClients
from paceline_gateway.grpc.codec.received import found_of
from paceline_gateway.grpc.codec.statuses import OK, Refused
from paceline_gateway.grpc.codec.values import (
    Named,
    duration_of,
    expression_of,
    group_of,
    milliseconds,
    timestamp_of,
    topic_of,
)
from paceline_gateway.grpc.service.call import Answer, Call
from paceline_gateway.grpc.service.routes import TYPES, known_topic, queue_numbers
from paceline_gateway.grpc.service.time_spans import time_spans
from paceline_gateway.grpc.stubs import admin_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Code, FilterExpression, Resource
from paceline_gateway.remoting.codec.routes import json_of, route_of

_MODELS = {
    "clustering": wire.MessageModel.CLUSTERING,
    "broadcasting": wire.MessageModel.BROADCASTING,
}


class AdminCalls:
    """Those that nodes, or this gateway, can answer; `questions.py` has those to clients. What is
    in neither is NOT_IMPLEMENTED."""

    def __init__(self, clients: ConnectedClients, name: str) -> None:
        """`name`: the gateway's."""
        self._clients, self._name = clients, name

    def handlers(self) -> dict[str, Answer]:
        return {
            "DescribeTopicStatus": self.topic_status,
            "ListConsumerConnection": self.consumers,
            "DescribeGroupAccumulation": self.accumulation,
            "ListSubscription": self.subscriptions,
            "DescribeSubscription": self.subscribers,
            "QueryMessage": self.messages,
            "GetTopicRoute": self.route,
            "QueryTimeSpan": time_spans,
            "GetProxyRuntimeStats": self.stats,
        }

    async def topic_status(
        self, request: wire.DescribeTopicStatusRequest, call: Call
    ) -> wire.DescribeTopicStatusResponse:
        """Of which type the messages of a topic are."""
        topic = topic_of(request.topic, call.namespace)
        view = await known_topic(await call.cluster(), topic.full)
        return wire.DescribeTopicStatusResponse(
            status=OK, topic_message_type=TYPES[view.message_type][0]
        )

    async def consumers(
        self, request: wire.ListConsumerConnectionRequest, call: Call
    ) -> wire.ListConsumerConnectionResponse:
        """The consumers of a group, by whichever door, perhaps only those with a topic."""
        group = group_of(request.group, call.namespace).full
        topic = None
        if request.HasField("topic") and request.topic.name:
            topic = topic_of(request.topic, call.namespace).full
        cluster = await call.cluster()
        found = await cluster.admin.clients.all(group=group, topic=topic, kind="consumer")
        return wire.ListConsumerConnectionResponse(
            status=OK, client_info=[_client_of(row) for row in found.clients]
        )

    async def accumulation(
        self, request: wire.DescribeGroupAccumulationRequest, call: Call
    ) -> wire.DescribeGroupAccumulationResponse:
        """How many messages a group has still before it, in all and of each topic."""
        group = group_of(request.group, call.namespace).full
        wanted = {topic_of(each, call.namespace).full for each in request.topics}
        cluster = await call.cluster()
        of_topics: dict[str, list[Any]] = {}
        for row in await cluster.admin.consumer_groups.lag(group):
            if not wanted or row["topic"] in wanted:
                of_topics.setdefault(row["topic"], []).append(row)
        rows = [row for each in of_topics.values() for row in each]
        return wire.DescribeGroupAccumulationResponse(
            status=OK,
            accumulation=_accumulated(rows),
            topic_accumulation={topic: _accumulated(each) for topic, each in of_topics.items()},
        )

    async def subscriptions(
        self, request: wire.ListSubscriptionRequest, call: Call
    ) -> wire.ListSubscriptionResponse:
        """Who asks for which topics: consumer groups that are online, and of a group that is named
        also the topics that it has consumed before."""
        group, topic = _asked(request, call)
        rows, conflicts = await _consumers(call, group, topic)
        found: dict[tuple[str, str], wire.SubscriptionInfo] = {}
        for row in rows:
            for info in _subscriptions_of(row, topic, conflicts):
                found.setdefault((info.group.name, info.topic.name), info)
        if group is not None:
            cluster = await call.cluster()
            for row in await cluster.admin.consumer_groups.lag(group.full):
                if _is_meant(row["topic"], topic):
                    info = wire.SubscriptionInfo(
                        group=Resource(name=group.full),
                        topic=Resource(name=row["topic"]),
                        expression=_expression(""),
                        subscription_consistency=True,
                    )
                    found.setdefault((info.group.name, info.topic.name), info)
        return wire.ListSubscriptionResponse(status=OK, subscription_info=found.values())

    async def subscribers(
        self, request: wire.DescribeSubscriptionRequest, call: Call
    ) -> wire.DescribeSubscriptionResponse:
        """The same of each consumer that is online."""
        group, topic = _asked(request, call)
        rows, conflicts = await _consumers(call, group, topic)
        of_client = wire.DescribeSubscriptionResponse.ClientSubscriptionInfo
        return wire.DescribeSubscriptionResponse(
            status=OK,
            client_subscription_info=[
                of_client(client_info=_client_of(row), subscription_info=info)
                for row in rows
                for info in _subscriptions_of(row, topic, conflicts)
            ],
        )

    async def messages(
        self, request: wire.ListMessageRequest, call: Call
    ) -> wire.ListMessageResponse:
        """Messages of a topic, by key, by id, or by time alone; a page of them."""
        topic = topic_of(request.topic, call.namespace)
        skip, count = _page(request)
        numbers = queue_numbers(await known_topic(await call.cluster(), topic.full))
        found: list[Any] = []
        async with aclosing(_search(request, topic.full, call)) as rows:
            async for row in rows:
                number = numbers.get((row["group"], row["queue"]))
                if number is None or (request.HasField("queue_id") and number != request.queue_id):
                    continue
                if skip:
                    skip -= 1
                    continue
                found.append(found_of(row, request.topic, number))
                if len(found) == count:
                    break
        return wire.ListMessageResponse(status=OK, messages=found)

    async def route(
        self, request: wire.GetTopicRouteRequest, call: Call
    ) -> wire.GetTopicRouteResponse:
        """TopicRouteData; every broker group is reached by this gateway."""
        topic = topic_of(request.topic, call.namespace)
        view = await known_topic(await call.cluster(), topic.full)
        address = call.endpoints.addresses[0]
        here = dict.fromkeys(view.queues, f"{address.host}:{address.port}")
        return wire.GetTopicRouteResponse(
            status=OK, topic_route_data=json_of(route_of(view, here)).decode()
        )

    async def stats(
        self, request: wire.GetProxyRuntimeStatsRequest, call: Call
    ) -> wire.GetProxyRuntimeStatsResponse:
        """How much goes through this gateway, by all its doors. Controllers refuse whoever may not
        see the cluster; he may not see this either."""
        await (await call.cluster()).admin.controllers.members()
        traffic, clients = call.clusters.traffic, self._clients.counts()
        return wire.GetProxyRuntimeStatsResponse(
            status=OK,
            proxy_name=self._name,
            version=VERSION,
            in_tps=traffic.stored.per_second(),
            out_tps=traffic.given.per_second(),
            connections=traffic.connections,
            producers=clients["producer"],
            consumers=clients["consumer"],
        )


_PAGE, _PAGE_MAX = 32, 64
_SKIPPED_MAX = 10_000
"""What is before a page is read too."""


def _page(request: wire.ListMessageRequest) -> tuple[int, int]:
    """How many messages to pass over, and how many to answer; Refused."""
    count = request.page_size or request.max_message_nums or _PAGE
    skip = max(0, request.page_num - 1) * count
    if not 0 < count <= _PAGE_MAX or skip > _SKIPPED_MAX:
        raise Refused(
            Code.BAD_REQUEST,
            f"a page has 1 to {_PAGE_MAX} messages, and at most {_SKIPPED_MAX} before it: narrow"
            " the times",
        )
    return skip, count


async def _search(
    request: wire.ListMessageRequest, topic: str, call: Call
) -> AsyncGenerator[dict[str, Any], None]:
    """Rows of messages."""
    cluster = await call.cluster()
    admin, full = cluster.admin, cluster.cluster.namespace.full_topic
    kind = request.WhichOneof("search_key")
    if kind in ("subscription", "lite_topic"):
        raise Refused(Code.NOT_IMPLEMENTED, f"messages are not found by {kind}: name a key")
    if kind == "message_id" and _is_offset_id(request.message_id):
        row = await admin.messages.get(request.message_id)
        if full(row["topic"]) == full(topic):
            yield row
        return
    begin, end = milliseconds(request.begin_timestamp), milliseconds(request.end_timestamp)
    found = admin.messages.find(
        topic,
        key=request.message_key if kind == "message_key" else None,
        unique_key=request.message_id if kind == "message_id" else None,
        begin_unix_ms=max(0, begin),
        end_unix_ms=end if end > 0 else None,
    )
    async for row in found:
        yield row


def _is_offset_id(text: str) -> bool:
    try:
        parse_offset_id(text)
    except BadRequestError:
        return False
    return True


def _asked(
    request: wire.ListSubscriptionRequest | wire.DescribeSubscriptionRequest, call: Call
) -> tuple[Named | None, Named | None]:
    """The group and the topic that a request names, if it does."""
    group = group_of(request.group, call.namespace) if request.group.name else None
    return group, topic_of(request.topic, call.namespace) if request.topic.name else None


async def _consumers(
    call: Call, group: Named | None, topic: Named | None
) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """Rows of consumers that are online, and topics on which a group's members differ."""
    found = await (await call.cluster()).admin.clients.all(
        group=None if group is None else group.full,
        topic=None if topic is None else topic.full,
        kind="consumer",
    )
    return found.clients, found.conflicts


def _subscriptions_of(
    row: dict[str, Any], topic: Named | None, conflicts: dict[str, list[str]]
) -> Iterator[wire.SubscriptionInfo]:
    """What a consumer asks for."""
    for name in row["topics"]:
        if _is_meant(name, topic):
            yield wire.SubscriptionInfo(
                group=Resource(name=row["group"]),
                topic=Resource(name=name),
                expression=_expression(row.get("filters", {}).get(name, "")),
                online=True,
                last_update_timestamp=timestamp_of(row["since_unix_ms"]),
                message_model=_MODELS.get(row.get("message_model") or ""),
                subscription_consistency=name not in conflicts.get(row["group"], ()),
            )


def _is_meant(name: str, topic: Named | None) -> bool:
    """A group's own retries are no subscription."""
    return not name.startswith(RETRY_PREFIX) if topic is None else name == topic.full


def _expression(told: str) -> FilterExpression:
    wanted = of_told(told)
    return expression_of(wanted.type, wanted.expression)


def _client_of(row: dict[str, Any]) -> wire.ClientInfo:
    return wire.ClientInfo(
        client_id=row["client_id"],
        version=row["version"],
        language=row["language"],
        egress_ip=row["address"] or "",
        message_model=_MODELS.get(row.get("message_model") or ""),
    )


def _accumulated(rows: list[Any]) -> wire.DescribeGroupAccumulationResponse.GroupAccumulation:
    return wire.DescribeGroupAccumulationResponse.GroupAccumulation(
        accumulation=sum(row["lag"] for row in rows),
        inflight_messages=sum(row["in_flight"] for row in rows),
        ready_messages=sum(max(0, row["lag"] - row["in_flight"]) for row in rows),
        deliver_delay_time=duration_of(max((row["behind_ms"] for row in rows), default=0)),
    )
