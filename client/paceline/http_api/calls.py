"""Requests over HTTP: path, query and body become the fields of a request, by its type.

`Request.routes` says where each stands (`paceline.wire.calls`, `paceline.wire.controller_calls`).
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec
from aiohttp import web

from paceline.errors import BadRequestError, NotFoundError
from paceline.wire.calls.request import (
    CALLED,
    Request,
    Route,
    body_fields,
    names_in_path,
    query_fields,
    refused,
)

ReadJson: TypeAlias = Callable[[web.Request], Awaitable[dict[str, Any]]]
"""The JSON object in the body of a request. Raises PacelineError."""
Carry: TypeAlias = Callable[
    [web.Request, type[Request[Any]], dict[str, Any]], Awaitable[Mapping[str, Any]]
]
"""Carries out what a document asks for; gives the JSON object to answer. Raises PacelineError."""


class WriteAnswer(Protocol):
    """Makes the answer of a JSON object."""

    def __call__(self, document: Mapping[str, Any], /, *, status: int) -> web.Response: ...


def call_routes(
    calls: Iterable[type[Request[Any]]], carry: Carry, *, read_json: ReadJson, answer: WriteAnswer
) -> list[web.RouteDef]:
    """A resource for each route of each request."""

    def handler(type_: type[Request[Any]], route: Route) -> Any:
        async def handle(request: web.Request) -> web.Response:
            document = await _read(request, type_, route, read_json)
            return answer(await carry(request, type_, document), status=route.status)

        return handle

    return [
        web.route(route.method, route.path, handler(type_, route))
        for type_ in calls
        for route in type_.routes
    ]


async def _read(
    request: web.Request, type_: type[Request[Any]], route: Route, read_json: ReadJson
) -> dict[str, Any]:
    """The fields of the request. BadRequestError; NotFoundError: nothing has such an address."""
    if not route.has_body:
        given = check_parameters(request, *query_fields(type_, route))
        document = read_parameters(type_, given)
    elif body_fields(type_, route):
        check_parameters(request)
        document = await read_json(request)
    else:
        document = {}
    for name in (*names_in_path(route.path), CALLED):
        if name in document:
            raise BadRequestError(f"the address names the {name}", field=name)
    try:
        return {**document, **read_parameters(type_, request.match_info)}
    except BadRequestError as error:
        raise NotFoundError(f"there is no {request.path}: {error.message}") from error


def check_parameters(request: web.Request, *known: str) -> Mapping[str, str]:
    """The query parameters; BadRequestError for an unknown one or one given twice."""
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known or name in given:
            what = "is there twice" if name in given else "is unknown"
            raise BadRequestError(f"query parameter {name[:40]!r} {what}", field=name[:40])
        given[name] = value
    return given


def read_parameters(type_: type[Request[Any]], given: Mapping[str, str]) -> dict[str, Any]:
    """Texts by the types of their fields: numbers and flags are text here. BadRequestError."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(type_):
        name = field.encode_name
        if name not in given:
            continue
        try:
            found[name] = msgspec.convert(given[name], field.type, strict=False)
        except msgspec.ValidationError as error:
            said = refused(type_.call_name(), str(error), type_=type_).message
            raise BadRequestError(f"{name}: {said}", field=name) from error
    return found
