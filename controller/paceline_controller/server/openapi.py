"""Pure: the controller's HTTP interface as an OpenAPI 3.1 document."""

from functools import cache
from typing import Any

from paceline.http_api.openapi import Resource, openapi_document
from paceline.wire import session
from paceline.wire.calls.resources import RESOURCES
from paceline.wire.controller_calls.table import CALLS
from paceline.wire.rights import ANYBODY, KNOWN_USER, SEE_CLUSTER

OTHERS = (
    Resource(
        "GET", session.PATH, "Upgrade to a broker's session (docs/protocol/controller.md).", ANYBODY
    ),
    Resource(
        "GET",
        "/v1/routes",
        "The cluster view as it is.",
        KNOWN_USER,
        parameters={"linearizable": "boolean"},
    ),
    Resource(
        "GET",
        "/v1/watch",
        "The cluster view once it is newer than `from`, or after `wait_ms` as it is. With `changes`"
        " only what leads there from the version `from`, if that is known. With names of `topics`"
        " or `consumer_groups`, separated by commas, the view has these and no others, and changes"
        " are answered when one of them, a broker group or the rights of users are others.",
        KNOWN_USER,
        parameters={
            "from": "integer",
            "wait_ms": "integer",
            "changes": "boolean",
            "topics": "string",
            "consumer_groups": "string",
        },
    ),
    Resource(
        "GET",
        "/v1/security/watch",
        "For nodes only: users and rights once they are newer than `from`, or after `wait_ms`.",
        KNOWN_USER,
        parameters={"from": "integer", "wait_ms": "integer"},
    ),
    Resource(
        "GET", "/v1/whoami", "Who asks, and the policy that counts.", RESOURCES["GET /v1/whoami"]
    ),
    Resource("GET", "/v1/openapi.json", "This document.", ANYBODY),
    Resource("GET", "/metrics", "Metrics for Prometheus.", SEE_CLUSTER, answer="text/plain"),
    Resource("GET", "/healthz", "Whether the process works.", ANYBODY),
    Resource("GET", "/readyz", "Whether it knows a leader and the cluster.", ANYBODY),
)


@cache
def controller_openapi() -> dict[str, Any]:
    """The document; the same for every controller of this version."""
    return openapi_document(
        title="paceline controller",
        description="The replicated state of a cluster: broker groups, topics, consumer groups.",
        calls=CALLS,
        others=OTHERS,
    )
