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
        read = _reader(type_, route, read_json)

        async def handle(request: web.Request) -> web.Response:
            document = await read(request)
            return answer(await carry(request, type_, document), status=route.status)

        return handle

    return [
        web.route(route.method, route.path, handler(type_, route))
        for type_ in calls
        for route in type_.routes
    ]


def _reader(type_: type[Request[Any]], route: Route, read_json: ReadJson) -> ReadJson:
    """Reads the fields of a request; what its type says is looked up once for each route."""
    named = (*names_in_path(route.path), CALLED)
    in_query = query_fields(type_, route)
    has_body = route.has_body and bool(body_fields(type_, route))
    types = {field.encode_name: field.type for field in msgspec.structs.fields(type_)}

    def read_texts(given: Mapping[str, str]) -> dict[str, Any]:
        return {name: _read_text(type_, name, types[name], given[name]) for name in given}

    async def read(request: web.Request) -> dict[str, Any]:
        """BadRequestError; NotFoundError: nothing has such an address."""
        if has_body:
            check_parameters(request)
            document = await read_json(request)
        else:
            document = {} if route.has_body else read_texts(check_parameters(request, *in_query))
        for name in named:
            if name in document:
                raise BadRequestError(f"the address names the {name}", field=name)
        try:
            return {**document, **read_texts(request.match_info)}
        except BadRequestError as error:
            raise NotFoundError(f"there is no {request.path}: {error.message}") from error

    return read


def check_parameters(request: web.Request, *known: str) -> Mapping[str, str]:
    """The query parameters; BadRequestError for an unknown one or one given twice."""
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known or name in given:
            what = "is there twice" if name in given else "is unknown"
            raise BadRequestError(f"query parameter {name[:40]!r} {what}", field=name[:40])
        given[name] = value
    return given


def _read_text(struct: type[Request[Any]], name: str, type_: Any, text: str) -> Any:
    """A field that stands as text in an address: numbers and flags too. BadRequestError."""
    try:
        return msgspec.convert(text, type_, strict=False)
    except msgspec.ValidationError as error:
        said = refused(struct.call_name(), str(error), type_=struct).message
        raise BadRequestError(f"{name}: {said}", field=name) from error
