"""Shell: errors of the HTTP interface as problem documents (RFC 9457), and query parameters."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import ceil

import orjson
from aiohttp import web

from paceline.errors import (
    BadRequestError,
    DeadlineError,
    NotFoundError,
    OutOfMemoryError,
    OverloadedError,
    PacelineError,
    TooLargeError,
    to_problem,
)
from paceline.server.http_guard import check_request

log = logging.getLogger("paceline.controller")

REQUEST_TIMEOUT_S = 70.0
"""Above the longest watch: no request lives longer."""
_UPGRADED = "/v1/session"


@web.middleware
async def problem_middleware(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The one place where an error becomes an HTTP answer."""
    try:
        check_request(request)
        if request.path == _UPGRADED:
            return await handler(request)
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await handler(request)
    except PacelineError as error:
        return _problem(error)
    except ConnectionResetError:
        # The client left before its answer: no fault of ours, and nobody reads this one.
        return web.Response()
    except TimeoutError:
        return _problem(DeadlineError("the request took too long"))
    except web.HTTPRequestEntityTooLarge:
        return _problem(TooLargeError("the body is too large", limit=request.client_max_size))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return _method_not_allowed(allowed)
    except web.HTTPNotFound:
        return _problem(NotFoundError("there is no such route"))
    except web.HTTPException as error:
        return _problem(BadRequestError(error.reason))
    except MemoryError:
        log.exception("request_failed", extra={"path": request.path})
        return _problem(OutOfMemoryError())
    except Exception:
        log.exception("request_failed", extra={"path": request.path})
        return _problem(PacelineError("internal error, see the controller's log"))


def query_integer(
    request: web.Request, key: str, *, default: int, low: int = 0, high: int = 2**53
) -> int:
    """A query parameter as an integer in [low, high]. Raises BadRequestError."""
    text = request.query.get(key)
    if text is None:
        return default
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 16
    if not is_number or not low <= int(text) <= high:
        raise BadRequestError(f"{key} must be an integer from {low} to {high}", field=key)
    return int(text)


def query_flag(request: web.Request, key: str) -> bool:
    """A query parameter that is true or false; false without one. Raises BadRequestError."""
    text = request.query.get(key, "false")
    if text not in ("true", "false"):
        raise BadRequestError(f"{key} must be true or false", field=key)
    return text == "true"


def _problem(error: PacelineError) -> web.Response:
    response = web.Response(
        body=orjson.dumps(to_problem(error), default=str),
        status=int(error.status),
        content_type="application/problem+json",
    )
    if isinstance(error, OverloadedError):
        retry_after_ms = error.details.get("retry_after_ms")
        wait_s = ceil(retry_after_ms / 1000) if isinstance(retry_after_ms, int) else 1
        response.headers["Retry-After"] = str(max(1, wait_s))
    return response


def _method_not_allowed(allowed: str) -> web.Response:
    document = {**to_problem(BadRequestError(f"this route allows {allowed}")), "status": 405}
    return web.Response(
        body=orjson.dumps(document),
        status=405,
        content_type="application/problem+json",
        headers={"Allow": allowed},
    )
