"""The Admin service: what of it reads, and this system knows. It is done as the client's user."""

from typing import Any

from paceline_gateway.grpc.codec.statuses import OK
from paceline_gateway.grpc.codec.values import duration_of, group_of, topic_of
from paceline_gateway.grpc.service.call import Answer, Call
from paceline_gateway.grpc.service.routes import TYPES, known_topic
from paceline_gateway.grpc.stubs import admin_pb2 as wire

_MODELS = {
    "clustering": wire.MessageModel.CLUSTERING,
    "broadcasting": wire.MessageModel.BROADCASTING,
}


class AdminCalls:
    """Those that are served; all others are NOT_IMPLEMENTED."""

    def handlers(self) -> dict[str, Answer]:
        return {
            "DescribeTopicStatus": self.topic_status,
            "ListConsumerConnection": self.consumers,
            "DescribeGroupAccumulation": self.accumulation,
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
        """How many messages a group has still before it, in all and of each topic. How many are
        with consumers just now is not told."""
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
        deliver_delay_time=duration_of(max((row["behind_ms"] for row in rows), default=0)),
    )
