"""The OpenAPI document says what a controller serves, and is one; answers are of their types."""

from typing import Any

import msgspec
import pytest
from openapi_spec_validator import validate
from tests.support.controller.harness import controllers
from tests.support.controller.sessions import a_cluster

from paceline.wire.calls.request import Request, http_form, read_answer
from paceline.wire.controller_calls import broker_groups, consumer_groups, quorum, topics
from paceline.wire.controller_calls.table import CALLS
from paceline_controller.server.openapi import controller_openapi

DOCUMENT = controller_openapi()


def test_it_is_valid_openapi_3_1() -> None:
    validate(DOCUMENT)
    assert DOCUMENT["openapi"].startswith("3.1")


async def test_it_names_every_route_that_is_served_and_no_other() -> None:
    async with controllers() as cluster:
        served = {
            (route.method.lower(), route.resource.canonical)
            for route in cluster.leader.http.app.router.routes()
            if route.resource is not None and route.method != "HEAD"
        }
        assert (await cluster.ask("GET", "/v1/openapi.json"))[1] == DOCUMENT

    told = {
        (method, path) for path, operations in DOCUMENT["paths"].items() for method in operations
    }
    assert told == served


async def test_every_request_has_a_handler() -> None:
    async with controllers() as cluster:
        http = cluster.leader.http
        assert {*http._handlers, *http._logins.handlers} == set(CALLS.values())


ASKED: list[Request[Any]] = [
    topics.CreateTopic(topic="t", queues=2, attributes={"team": "a"}),
    topics.CreateTopic(topic="s", logical_queues=2),
    topics.AlterTopic(topic="t", queues=4),
    topics.AlterTopic(topic="s", logical_queues=3),
    topics.ListTopics(linearizable=True, system=True),
    topics.GetTopic(topic="s"),
    topics.DeleteTopic(topic="t"),
    consumer_groups.CreateConsumerGroup(group="billing"),
    consumer_groups.AlterConsumerGroup(group="billing", retry_max_times=3),
    consumer_groups.ListConsumerGroups(),
    consumer_groups.GetConsumerGroup(group="billing"),
    consumer_groups.DeleteConsumerGroup(group="billing"),
    quorum.GetCluster(),
    quorum.GetStatus(),
    broker_groups.ListGroups(),
    broker_groups.GetGroup(group="g1"),
    broker_groups.GetGroupSettings(group="g1"),
    broker_groups.SetGroupSettings(group="g1", min_in_sync_replicas=1),
    broker_groups.SetWritePermission(group="g1", writable=True),
    broker_groups.GetHistory(group="g1", limit=1),
    broker_groups.Elect(group="g1", preferred=2),
    broker_groups.GetHeard(group="g1", replica=1),
    broker_groups.ListStores(),
]


async def test_answers_are_of_the_types_that_are_told() -> None:
    async with a_cluster() as (cluster, _):
        for asked in ASKED:
            form = http_form(asked)
            status, answer = await cluster.ask(form.method, form.path, form.body)
            assert status == asked.routes[0].status, (asked, answer)
            type_ = asked.answer_type()
            read_answer(type_, answer)
            if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
                known = {field.encode_name for field in msgspec.structs.fields(type_)}
                assert set(answer) <= known, asked


@pytest.mark.parametrize(
    "path", ["/v1/topics?what=1", "/v1/topics?system=true&system=true", "/v1/routes?x=1"]
)
async def test_parameters_that_nobody_knows_are_refused(path: str) -> None:
    async with controllers() as cluster:
        status, problem = await cluster.ask("GET", path)
        assert (status, problem["code"]) == (400, "BAD_REQUEST")
