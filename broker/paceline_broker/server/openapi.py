"""Pure: the broker's HTTP interface as an OpenAPI 3.1 document, made from the types of the calls.

What is no call (messages, batches, pins, status) stands in `_OTHERS`; a test compares the paths of
both with the routes that the broker serves.
"""

import re
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from inspect import cleandoc
from typing import Any, NamedTuple

import msgspec

from paceline.errors import BY_CODE
from paceline.platform.version import VERSION
from paceline.wire.calls.request import CALLED, Answer, Request, Route, names_in_path, query_fields
from paceline.wire.calls.table import CALLS

_BATCH = "application/vnd.paceline.batch"
_REF = "#/components/schemas/{name}"


class BrokerName(Answer):
    """Which broker answered."""

    group: str
    replica_id: int | None


class Envelope(Answer, kw_only=True):
    """What every answer of a call carries. `acting` and `maybe_stale` are there, and true, if an
    acting master answered (R36)."""

    epoch: int
    broker: BrokerName
    confirm: int
    acting: bool = False
    maybe_stale: bool = False


class Problem(Answer, kw_only=True):
    """A problem document (RFC 9457); docs/protocol/errors.md lists the codes. More members are the
    details of the code."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    retry: str
    """What may help: never, same_node (later) or new_master (ask for routes first)."""
    definite: bool
    """Nothing was stored."""


class _Other(NamedTuple):
    """A resource that is no call."""

    method: str
    path: str
    summary: str
    parameters: Mapping[str, str] = {}
    """Name -> type."""
    body: str | None = None
    """Content type."""
    answer: str = "application/json"


_OTHERS = (
    _Other(
        "POST",
        "/v1/topics/{topic}/messages",
        "Send 1 to 65,535 messages; makes the topic if brokers make topics.",
        body="application/json",
    ),
    _Other(
        "POST",
        "/v1/topics/{topic}/queues/{queue}/batches",
        "Send one record batch (docs/format/record-batch.md).",
        body=_BATCH,
    ),
    _Other(
        "GET",
        "/v1/topics/{topic}/queues/{queue}/messages",
        "Pull one queue: JSON, or record batches with Accept.",
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
    _Other(
        "POST",
        "/v1/fetch",
        "Fetch many queues at once.",
        body="application/json",
        answer=_BATCH,
    ),
    _Other(
        "POST",
        "/v1/groups/{group}/receive",
        "The call `receive`, with the messages in the answer.",
        body="application/json",
    ),
    _Other("POST", "/v1/transactions/{id}/commit", "Commit a transaction."),
    _Other("POST", "/v1/transactions/{id}/rollback", "Roll a transaction back."),
    _Other("GET", "/v1/pins", "Pins of this broker group, and where its log begins."),
    _Other(
        "PUT",
        "/v1/pins/{owner}",
        "Set or renew a pin: retention keeps what its owner reads.",
        body="application/json",
    ),
    _Other("DELETE", "/v1/pins/{owner}", "Give a pin up."),
    _Other(
        "GET",
        "/v1/routes",
        "The cluster view, once it has that version (waits up to 1 s).",
        parameters={"version": "integer"},
    ),
    _Other(
        "GET",
        "/v1/watch",
        "The cluster view once it is newer than `from`, or after `wait_ms` as it is.",
        parameters={"from": "integer", "wait_ms": "integer"},
    ),
    _Other("GET", "/v1/probe", "Who answers at this address."),
    _Other("GET", "/v1/status", "Positions, role, replication, counts."),
    _Other("GET", "/v1/epochs", "Which master epoch wrote which bytes of this log."),
    _Other("GET", "/v1/openapi.json", "This document."),
    _Other("GET", "/v1/stream", "Upgrade to a stream (docs/protocol/stream.md)."),
    _Other("GET", "/metrics", "Metrics for Prometheus.", answer="text/plain"),
    _Other("GET", "/healthz", "Whether the process works."),
    _Other("GET", "/readyz", "Whether it takes requests."),
)


@cache
def openapi_document() -> dict[str, Any]:
    """The document; the same for every broker of this version."""
    types: dict[str, Any] = {}
    for call in CALLS.values():
        types[call.call_name()] = call
        types[f"{call.call_name()}.answer"] = call.answer_type()
    structs = [*types.values(), Envelope, Problem]
    found, schemas = msgspec.json.schema_components(structs, ref_template=_REF)
    by_name = dict(zip(types, found, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for name, call in CALLS.items():
        for route in call.routes:
            operation = _of_call(call, route, schemas, by_name[f"{name}.answer"])
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    paths["/v1/call"] = {"post": _any_call(by_name)}
    for other in _OTHERS:
        paths.setdefault(other.path, {})[other.method.lower()] = _of_other(other)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "paceline broker",
            "version": VERSION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Messages, offsets, locks and groups of one broker.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": schemas},
    }


def _of_call(
    call: type[Request[Any]], route: Route, schemas: Mapping[str, Any], answer: Any
) -> dict[str, Any]:
    schema = schemas[call.__name__]
    described = cleandoc(call.__doc__ or "")
    in_path = names_in_path(route.path)
    rest = {
        name: each for name, each in schema["properties"].items() if name not in {*in_path, CALLED}
    }
    required = [name for name in schema["required"] if name in rest]
    operation: dict[str, Any] = {
        "operationId": f"{call.call_name()}_{route.method.lower()}",
        "summary": described.partition("\n\n")[0].partition(". ")[0].replace("\n", " "),
        "description": described,
        "parameters": [_parameter(name, "path", schema["properties"][name]) for name in in_path],
        "responses": _responses(_in_envelope(answer)),
    }
    if route.method == "GET":
        operation["parameters"] += [
            _parameter(name, "query", rest[name], is_required=name in required)
            for name in query_fields(call, route)
        ]
    else:
        body = {"type": "object", "properties": rest, "additionalProperties": False}
        if required:
            body["required"] = required
        operation["requestBody"] = _body("application/json", body)
    return operation


def _any_call(by_name: Mapping[str, Any]) -> dict[str, Any]:
    requests = [by_name[name] for name in CALLS]
    return {
        "operationId": "call",
        "summary": "Any call by its name",
        "description": "docs/protocol/calls.md lists them; the same as on a stream.",
        "requestBody": _body("application/json", {"oneOf": requests}),
        "responses": _responses({"$ref": _REF.format(name="Envelope")}),
    }


def _of_other(other: _Other) -> dict[str, Any]:
    in_path = names_in_path(other.path)
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{other.method.lower()}{other.path}").strip("_"),
        "summary": other.summary,
        "parameters": [
            *(_parameter(name, "path", {"type": "string"}) for name in in_path),
            *(_parameter(name, "query", {"type": of}) for name, of in other.parameters.items()),
        ],
        "responses": _responses({}, content_type=other.answer),
    }
    if other.body is not None:
        schema = {"type": "object"} if other.body == "application/json" else {}
        operation["requestBody"] = _body(other.body, schema)
    return operation


def _parameter(name: str, place: str, schema: Any, *, is_required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path" or is_required, "schema": schema}


def _body(content_type: str, schema: Any) -> dict[str, Any]:
    return {"required": True, "content": {content_type: {"schema": schema}}}


def _in_envelope(answer: Any) -> dict[str, Any]:
    return {"allOf": [{"$ref": _REF.format(name="Envelope")}, answer]}


def _responses(schema: Any, *, content_type: str = "application/json") -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}}
    statuses = sorted({int(error.status) for error in BY_CODE.values()})
    told = ", ".join(f"{status} {HTTPStatus(status).phrase}" for status in statuses)
    return {
        "200": {"description": "Done", "content": {content_type: {"schema": schema}}},
        "default": {"description": f"A problem: {told}", "content": problem},
    }
