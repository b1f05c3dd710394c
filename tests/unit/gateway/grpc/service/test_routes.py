"""Routes and assignments of the gRPC door, over a cluster that may not answer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.errors import PeerError, TopicNotFoundError
from paceline.security.identity import Principal
from paceline.types import GroupName, TopicId, TopicName
from paceline.wire.topics import TopicView
from paceline_gateway.grpc.service.call import Call
from paceline_gateway.grpc.service.routes import RouteCalls
from paceline_gateway.grpc.stubs import messaging_pb2 as wire
from paceline_gateway.grpc.stubs.resources_pb2 import Endpoints, Resource

ORDERS = Resource(name="orders")


class Clusters:
    """One cluster; without nodes that answer while `is_there` is false."""

    def __init__(self) -> None:
        self.is_there = True
        self.topics = {"orders": a_topic()}
        group = SimpleNamespace(settings=SimpleNamespace(consume_message_orderly=True))
        self.view = SimpleNamespace(consumer_groups={"strict": group}, groups={"g1": None})
        self.cluster = self

    async def of(self, principal: Principal) -> "Clusters":
        if not self.is_there:
            raise PeerError("no node answers")
        return self

    def topic(self, name: str) -> TopicView | None:
        return self.topics.get(name)

    async def wait_topic(self, name: str, *, timeout_ms: int) -> TopicView:
        raise TopicNotFoundError(f"topic {name} does not exist", topic=name)


def a_topic() -> TopicView:
    return TopicView(topic=TopicName("orders"), topic_id=TopicId(1), queues={GroupName("g1"): 3})


def call_of(clusters: Any, user: str = "anna") -> Call:
    return Call(Principal(user, "10.0.0.1"), "c", "", "GO", "5", None, Endpoints(), clusters)


async def assigned(calls: RouteCalls, clusters: Clusters, group: str, **who: str) -> list[int]:
    request = wire.QueryAssignmentRequest(topic=ORDERS, group=Resource(name=group))
    answer = await calls.query_assignment(request, call_of(clusters, **who))
    return [each.message_queue.id for each in answer.assignments]


async def test_an_assignment_is_as_it_was_last_while_no_node_answers() -> None:
    calls, clusters = RouteCalls(), Clusters()
    asked = [("work", [-1]), ("strict", [0, 1, 2])]
    for group, queues in asked:
        assert await assigned(calls, clusters, group) == queues

    clusters.is_there = False

    for group, queues in asked:
        assert await assigned(calls, clusters, group) == queues
    with pytest.raises(PeerError):
        await assigned(calls, clusters, "work", user="ben")
    with pytest.raises(PeerError):
        await assigned(calls, clusters, "unknown")


async def test_an_assignment_of_a_topic_that_was_deleted_is_refused() -> None:
    calls, clusters = RouteCalls(), Clusters()
    await assigned(calls, clusters, "work")

    clusters.topics.clear()

    with pytest.raises(TopicNotFoundError):
        await assigned(calls, clusters, "work")


async def test_a_route_of_a_topic_that_is_not_there_makes_none() -> None:
    calls, clusters = RouteCalls(), Clusters()
    request = wire.QueryRouteRequest(topic=Resource(name="ordesr"))

    answers = await asyncio.gather(
        calls.query_route(request, call_of(clusters)), return_exceptions=True
    )

    assert [type(answer) for answer in answers] == [TopicNotFoundError]
