"""The name server's part: routes (105), brokers (106), topics (206)."""

from collections.abc import Mapping
from typing import Protocol

from paceline.types import GroupName, TopicName
from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import ResponseCode
from paceline_gateway.remoting.codec.frames import Command
from paceline_gateway.remoting.codec.routes import (
    DEFAULT_TOPIC,
    cluster_info,
    json_of,
    route_of,
    route_of_new,
    route_of_retries,
)
from paceline_gateway.remoting.state.peers import Place


class Addresses(Protocol):
    """Where the listeners of broker groups are."""

    def of(self, place: Place) -> Mapping[GroupName, str]:
        """host:port by broker group, as a client at that place reaches them."""
        ...


class Naming:
    """Handlers that know the listeners."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses

    async def route(self, call: Call) -> Command:
        """105. Producers ask for the default topic after one that there is not, to have that made
        by the first send; whether it is, the broker says then."""
        topic = fields.text(call.request, "topic")
        cluster = call.user.cluster.cluster
        addresses = self._addresses.of(call.peer.place)
        if topic == DEFAULT_TOPIC:
            return call.ok(body=json_of(route_of_new(addresses)))
        found = cluster.topic(topic)
        if found is not None:
            return call.ok(body=json_of(route_of(found, addresses)))
        if cluster.view is not None:
            route = route_of_retries(topic, cluster.view, addresses)
            if route is not None:
                return call.ok(body=json_of(route))
        error = await cluster.no_topic(TopicName(topic))
        return call.request.answer(
            ResponseCode.TOPIC_NOT_EXIST,
            remark=f"No topic route info in name server for the topic: {topic} ({error.message})",
        )

    async def brokers(self, call: Call) -> Command:
        """106."""
        addresses = self._addresses.of(call.peer.place)
        return call.ok(body=json_of(cluster_info(addresses)))

    async def topics(self, call: Call) -> Command:
        """206."""
        view = call.user.cluster.cluster.view
        names = [] if view is None else sorted(view.topics)
        return call.ok(body=json_of({"topicList": names}))
