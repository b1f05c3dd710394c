"""What the handlers of a controller's HTTP interface share: bodies in, answers and refusals out."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from paceline.errors import (
    BadRequestError,
    CommandRefusedError,
    ForbiddenError,
    GroupExistsError,
    GroupNotFoundError,
    PacelineError,
    QuotaExceededError,
    TopicExistsError,
    TopicNotFoundError,
    UserNotFoundError,
)
from paceline.server.http_bodies import receive_body
from paceline.wire.http import parse_json_object

JSON_BYTES_MAX = 256 * 1024
"""A body names a topic, a group or settings; a queue table of a thousand groups fits."""

_REFUSALS: dict[str, type[PacelineError]] = {
    "TOPIC_EXISTS": TopicExistsError,
    "TOPIC_UNKNOWN": TopicNotFoundError,
    "GROUP_UNKNOWN": GroupNotFoundError,
    "CONSUMER_GROUP_UNKNOWN": GroupNotFoundError,
    "GROUP_EXISTS": GroupExistsError,
    "USER_UNKNOWN": UserNotFoundError,
    "BAD_USER": BadRequestError,
    "SYSTEM_TOPIC": ForbiddenError,
    "SYSTEM_GROUP": ForbiddenError,
    "BAD_COMMAND": BadRequestError,
    "BAD_QUEUES": BadRequestError,
    "READ_BELOW_WRITE": BadRequestError,
    "TOO_MANY_ATTRIBUTES": BadRequestError,
    "BAD_MESSAGE_TYPE": BadRequestError,
    "NOT_STATIC": BadRequestError,
    "STATIC_TOPIC": BadRequestError,
}


def checked(result: dict[str, Any]) -> dict[str, Any]:
    if result["ok"]:
        return result
    if result["reason"] == QuotaExceededError.code:
        raise QuotaExceededError(
            result["detail"], retry_after_ms=result["retry_after_ms"], kind="creations"
        )
    error_class = _REFUSALS.get(result["reason"], CommandRefusedError)
    raise error_class(result["detail"], reason=result["reason"])


async def json_body(request: web.Request) -> dict[str, Any]:
    """The JSON object in the body; errors as for `receive_body`, BadJsonError."""
    body = await receive_body(request, content_type="application/json", limit=JSON_BYTES_MAX)
    return parse_json_object(body, limit=JSON_BYTES_MAX)


def json_answer(document: Mapping[str, Any], *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(document), status=status, content_type="application/json")
