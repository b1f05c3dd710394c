"""Calls as resources: path, parameters and body of a request become the fields of its call.

`Request.routes` in `paceline.wire.calls` says where each call stands.
"""

from typing import Any

import msgspec
from aiohttp import web

from paceline.errors import BadRequestError
from paceline.wire.calls.request import CALLED, Request, Route, names_in_path, query_fields, refused
from paceline.wire.calls.table import CALLS
from paceline_broker.server.http_requests import check_parameters, json_answer, read_json
from paceline_broker.service.rpc import Calls


def call_routes(calls: Calls) -> list[web.RouteDef]:
    """A resource for each route of each call."""
    return [
        web.route(route.method, route.path, _handler(calls, type_, route))
        for type_ in CALLS.values()
        for route in type_.routes
    ]


def _handler(calls: Calls, type_: type[Request[Any]], route: Route) -> Any:
    name = type_.call_name()
    in_path = names_in_path(route.path)
    in_query = sorted(query_fields(type_, route))

    async def handler(request: web.Request) -> web.Response:
        if route.method == "GET":
            document = read_parameters(type_, check_parameters(request, *in_query))
        else:
            document = await _read_body(request, in_path)
        return json_answer(await calls.named(name, {**document, **request.match_info}))

    return handler


def read_parameters(type_: type[Request[Any]], given: Any) -> dict[str, Any]:
    """Query parameters by their types in the call: numbers and flags are text here."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(type_):
        if field.name not in given:
            continue
        try:
            found[field.name] = msgspec.convert(given[field.name], field.type, strict=False)
        except msgspec.ValidationError as error:
            raise BadRequestError(
                f"{field.name}: {refused(type_.call_name(), str(error)).message}", field=field.name
            ) from error
    return found


async def _read_body(request: web.Request, in_path: list[str]) -> dict[str, Any]:
    check_parameters(request)
    document = await read_json(request)
    for name in (*in_path, CALLED):
        if name in document:
            raise BadRequestError(f"the address names the {name}", field=name)
    return document
