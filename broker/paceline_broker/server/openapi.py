"""Pure: the broker's HTTP interface as an OpenAPI 3.1 document.

What is no call (messages, batches, pins, status) stands in `OTHERS`; a test compares the paths of
both with the routes that the broker serves.
"""

from functools import cache
from typing import Any

from paceline.http_api.openapi import Resource, openapi_document, schema_of
from paceline.wire.calls.request import Envelope
from paceline.wire.calls.resources import RESOURCES
from paceline.wire.calls.table import CALLS
from paceline.wire.rights import (
    ANYBODY,
    KNOWN_USER,
    PUB,
    SEE_CLUSTER,
    SUB,
    on_group,
    on_topic,
)

_BATCH = "application/vnd.paceline.batch"


OTHERS = (
    Resource(
        "POST",
        "/v1/topics/{topic}/messages",
        "Send 1 to 65,535 messages; makes the topic if brokers make topics.",
        (on_topic(PUB),),
        body="application/json",
    ),
    Resource(
        "POST",
        "/v1/topics/{topic}/queues/{queue}/batches",
        "Send one record batch (docs/format/record-batch.md).",
        (on_topic(PUB),),
        body=_BATCH,
    ),
    Resource(
        "GET",
        "/v1/topics/{topic}/queues/{queue}/messages",
        "Pull one queue: JSON, or record batches with Accept.",
        (on_topic(SUB),),
        parameters={
            "offset": "integer",
            "max_messages": "integer",
            "max_bytes": "integer",
            "wait_ms": "integer",
            "tags": "string",
            "filter": "string",
            "filter_type": "string",
            "group": "string",
        },
    ),
    Resource(
        "POST",
        "/v1/fetch",
        "Fetch many queues at once.",
        KNOWN_USER,
        body="application/json",
        answer=_BATCH,
    ),
    Resource(
        "POST",
        "/v1/groups/{group}/receive",
        "The call `receive`, with the messages in the answer.",
        (on_group(SUB),),
        body="application/json",
    ),
    Resource(
        "POST",
        "/v1/call",
        "Any call by its name; docs/protocol/calls.md lists them; the same as on a stream.",
        KNOWN_USER,
        body="application/json",
        schema={"oneOf": [schema_of(call.__name__) for call in CALLS.values()]},
    ),
    Resource("POST", "/v1/transactions/{id}/commit", "Commit a transaction.", KNOWN_USER),
    Resource("POST", "/v1/transactions/{id}/rollback", "Roll a transaction back.", KNOWN_USER),
    Resource(
        "GET",
        "/v1/pins",
        "Pins of this broker group, and where its log begins.",
        RESOURCES["GET /v1/pins"],
    ),
    Resource(
        "PUT",
        "/v1/pins/{owner}",
        "Set or renew a pin: retention keeps what its owner reads.",
        RESOURCES["PUT /v1/pins/{owner}"],
        body="application/json",
    ),
    Resource("DELETE", "/v1/pins/{owner}", "Give a pin up.", RESOURCES["DELETE /v1/pins/{owner}"]),
    Resource(
        "GET",
        "/v1/routes",
        "The cluster view, once it has that version (waits up to 1 s).",
        KNOWN_USER,
        parameters={"version": "integer"},
    ),
    Resource(
        "GET",
        "/v1/watch",
        "The cluster view once it is newer than `from`, or after `wait_ms` as it is. With names of"
        " `topics` or `consumer_groups`, separated by commas, it has these and no others.",
        KNOWN_USER,
        parameters={
            "from": "integer",
            "wait_ms": "integer",
            "topics": "string",
            "consumer_groups": "string",
        },
    ),
    Resource("GET", "/v1/probe", "Who answers at this address.", ANYBODY),
    Resource(
        "GET", "/v1/status", "Positions, role, replication, counts.", RESOURCES["GET /v1/status"]
    ),
    Resource(
        "GET",
        "/v1/epochs",
        "Which master epoch wrote which bytes of this log.",
        RESOURCES["GET /v1/epochs"],
    ),
    Resource("GET", "/v1/openapi.json", "This document.", ANYBODY),
    Resource("GET", "/v1/stream", "Upgrade to a stream (docs/protocol/stream.md).", KNOWN_USER),
    Resource("GET", "/metrics", "Metrics for Prometheus.", SEE_CLUSTER, answer="text/plain"),
    Resource("GET", "/healthz", "Whether the process works.", ANYBODY),
    Resource("GET", "/readyz", "Whether it takes requests.", ANYBODY),
)


@cache
def broker_openapi() -> dict[str, Any]:
    """The document; the same for every broker of this version."""
    return openapi_document(
        title="paceline broker",
        description="Messages, offsets, locks and groups of one broker.",
        calls=CALLS,
        others=OTHERS,
        envelope=Envelope,
    )
