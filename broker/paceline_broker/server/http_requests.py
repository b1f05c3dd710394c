"""Reads HTTP requests with their limits, and writes JSON answers."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from paceline.errors import BadRequestError
from paceline.server.byte_budget import JSON_FACTOR, source_of
from paceline.server.http_bodies import receive_body
from paceline.server.http_guard import take_room
from paceline.wire.fields import I64_MAX
from paceline.wire.http import JSON_BYTES_MAX, parse_json_object, parse_number


async def read_body(request: web.Request, *, content_type: str, limit: int) -> bytes:
    """As `receive_body`; BadRequestError for an empty one."""
    body = await receive_body(request, content_type=content_type, limit=limit)
    if not body:
        raise BadRequestError("the body is empty", field="body")
    return body


def asker_of(request: web.Request) -> str | None:
    """Whose share of long work a request has."""
    return None if request.remote is None else source_of(request.remote)


async def read_json(request: web.Request) -> dict[str, Any]:
    """The JSON object in the body; errors as for `read_body`, BadJsonError."""
    body = await read_body(request, content_type="application/json", limit=JSON_BYTES_MAX)
    take_room(request, (JSON_FACTOR - 1) * len(body), "this document")
    return parse_json_object(body)


def integer_parameter(
    parameters: Mapping[str, str], name: str, *, default: int = 0, high: int = I64_MAX
) -> int:
    """A number in [0, high]."""
    if name not in parameters:
        return default
    return parse_number(parameters[name], name, high=high)


def json_answer(document: Mapping[str, Any], *, status: int = 200) -> web.Response:
    """A JSON answer."""
    return json_text_answer(json_text(document), status=status)


def json_text(document: Mapping[str, Any]) -> bytes:
    """A document as JSON."""
    return orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)


def json_text_answer(text: bytes, *, status: int = 200) -> web.Response:
    """An answer whose JSON is at hand."""
    return web.Response(status=status, body=text, content_type="application/json")
