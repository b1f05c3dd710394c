"""The OpenAPI document says what the broker serves, and is one."""

import re

import pytest
from openapi_spec_validator import validate
from tests.support.askers import PROOFS
from tests.support.service.fakes import Bench

from paceline.platform.telemetry import Metrics
from paceline.wire.calls.table import CALLS
from paceline_broker.server.http import BrokerHttp
from paceline_broker.server.openapi import broker_openapi

DOCUMENT = broker_openapi()


def test_it_is_valid_openapi_3_1() -> None:
    validate(DOCUMENT)
    assert DOCUMENT["openapi"].startswith("3.1")


async def test_it_names_every_route_that_is_served_and_no_other() -> None:
    metrics = Metrics(cluster="c", node_type="broker", node_id="b")
    http = BrokerHttp(Bench().service, metrics=metrics, proofs=PROOFS)

    served = {
        (route.method.lower(), route.resource.canonical)
        for route in http.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }

    told = {
        (method, path) for path, operations in DOCUMENT["paths"].items() for method in operations
    }
    assert told == served


@pytest.mark.parametrize("name", sorted(CALLS))
async def test_every_call_has_a_handler(name: str) -> None:
    assert name in Bench().service.calls._handlers


def test_operations_have_names_of_their_own() -> None:
    names = [
        operation["operationId"]
        for operations in DOCUMENT["paths"].values()
        for operation in operations.values()
    ]

    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"\w+", name) for name in names)
