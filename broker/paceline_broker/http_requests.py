"""Reading what a request of the HTTP door carries, with its limits, and writing JSON answers."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from paceline.errors import (
    BadRequestError,
    DeadlineError,
    TooLargeError,
)
from paceline.http_guard import check_media_type
from paceline.wire.fields import I64_MAX
from paceline.wire.http import JSON_BYTES_MAX, parse_json_object, parse_number

BODY_TIMEOUT_S = 30.0
"""A body must have arrived after this, however it trickles."""


async def read_body(request: web.Request, *, content_type: str, limit: int) -> bytes:
    """The body of that content type, in one piece.

    Raises UnsupportedMediaTypeError (also for any Content-Encoding), TooLargeError before or while
    reading, BadRequestError for none, DeadlineError.
    """
    check_media_type(request, content_type)
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                chunks.append(chunk)
    except TimeoutError:
        raise DeadlineError(f"the body took over {BODY_TIMEOUT_S:.0f} s") from None
    if not size:
        raise BadRequestError("the body is empty", field="body")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"the body is over {limit} bytes", limit=limit)


async def read_json(request: web.Request) -> dict[str, Any]:
    """The JSON object in the body; errors as for `read_body`, BadJsonError."""
    body = await read_body(request, content_type="application/json", limit=JSON_BYTES_MAX)
    return parse_json_object(body)


def check_parameters(request: web.Request, *known: str) -> Mapping[str, str]:
    """The query parameters; BadRequestError for an unknown one or one given twice."""
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known or name in given:
            what = "is there twice" if name in given else "is unknown"
            raise BadRequestError(f"query parameter {name[:40]!r} {what}", field=name[:40])
        given[name] = value
    return given


def integer_parameter(
    parameters: Mapping[str, str], name: str, *, default: int = 0, high: int = I64_MAX
) -> int:
    """A number in [0, high]."""
    if name not in parameters:
        return default
    return parse_number(parameters[name], name, high=high)


def json_answer(document: Mapping[str, Any], *, status: int = 200) -> web.Response:
    """A JSON answer."""
    body = orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
    return web.Response(status=status, body=body, content_type="application/json")
