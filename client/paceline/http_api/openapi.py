"""Pure: HTTP interfaces as OpenAPI 3.1 documents, made from the types of their requests."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from inspect import cleandoc
from typing import Any, NamedTuple

import msgspec

from paceline.errors import BY_CODE
from paceline.platform.version import VERSION
from paceline.wire.calls.request import (
    CALLED,
    Answer,
    Request,
    Route,
    body_fields,
    names_in_path,
    query_fields,
)
from paceline.wire.rights import ANYBODY, Needs

_REF = "#/components/schemas/{name}"
_SCHEMES = {
    "access_key": {
        "type": "http",
        "scheme": "bearer",
        "description": "ACCESS_KEY.SECRET_KEY, where users and rights are switched on.",
    }
}


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


class Resource(NamedTuple):
    """A resource that is no request of the tables."""

    method: str
    path: str
    summary: str
    needs: Needs
    """Rights that whoever asks must have; fields are names in braces of the path."""
    parameters: Mapping[str, str] = {}
    """Name -> type."""
    body: str | None = None
    """Content type."""
    schema: Mapping[str, Any] | None = None
    """Of the body."""
    answer: str = "application/json"


def openapi_document(
    *,
    title: str,
    description: str,
    calls: Mapping[str, type[Request[Any]]],
    others: Iterable[Resource],
    envelope: type[Answer] | None = None,
) -> dict[str, Any]:
    """The document of a node. `envelope`: what every answer of a request carries."""
    types: dict[str, Any] = {"Problem": Problem}
    if envelope is not None:
        types["envelope"] = envelope
    for name, call in calls.items():
        types[name] = call
        types[f"{name}.answer"] = call.answer_type()
    found, schemas = msgspec.json.schema_components(types.values(), ref_template=_REF)
    by_name = dict(zip(types, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for name, call in calls.items():
        answer = by_name[f"{name}.answer"]
        if envelope is not None:
            answer = {"allOf": [by_name["envelope"], answer]}
        for route in call.routes:
            operation = _of_call(call, route, schemas, answer)
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    for other in others:
        paths.setdefault(other.path, {})[other.method.lower()] = _of_resource(other)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": VERSION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": description,
        },
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": schemas, "securitySchemes": _SCHEMES},
    }
    # As JSON has it: defaults of types are tuples.
    as_json: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return as_json


def schema_of(name: str) -> dict[str, str]:
    """Where a document has a struct, by the name of its class."""
    return {"$ref": _REF.format(name=name)}


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
        "security": _security(call.needs or ()),
        "parameters": [_parameter(name, "path", schema["properties"][name]) for name in in_path],
        "responses": _responses(answer, status=route.status),
    }
    if not route.has_body:
        operation["parameters"] += [
            _parameter(name, "query", rest[name], is_required=name in required)
            for name in query_fields(call, route)
        ]
    elif body_fields(call, route):
        body = {"type": "object", "properties": rest, "additionalProperties": False}
        if required:
            body["required"] = required
        operation["requestBody"] = _body("application/json", body)
    return operation


def _of_resource(other: Resource) -> dict[str, Any]:
    in_path = names_in_path(other.path)
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{other.method.lower()}{other.path}").strip("_"),
        "summary": other.summary,
        "security": _security(other.needs),
        "parameters": [
            *(_parameter(name, "path", {"type": "string"}) for name in in_path),
            *(_parameter(name, "query", {"type": of}) for name, of in other.parameters.items()),
        ],
        "responses": _responses({}, content_type=other.answer),
    }
    if other.body is not None:
        schema = other.schema or ({"type": "object"} if other.body == "application/json" else {})
        operation["requestBody"] = _body(other.body, schema)
    return operation


def _security(needs: Needs) -> list[dict[str, list[str]]]:
    return [] if needs == ANYBODY else [{"access_key": []}]


def _parameter(name: str, place: str, schema: Any, *, is_required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path" or is_required, "schema": schema}


def _body(content_type: str, schema: Any) -> dict[str, Any]:
    return {"required": True, "content": {content_type: {"schema": schema}}}


def _responses(
    schema: Any, *, content_type: str = "application/json", status: int = 200
) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": schema_of("Problem")}}
    statuses = sorted({int(error.status) for error in BY_CODE.values()})
    told = ", ".join(f"{each} {HTTPStatus(each).phrase}" for each in statuses)
    return {
        str(status): {"description": "Done", "content": {content_type: {"schema": schema}}},
        "default": {"description": f"A problem: {told}", "content": problem},
    }
