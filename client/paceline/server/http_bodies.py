"""Reads the bodies of requests: of one media type, of bounded size, in a bounded time."""

import asyncio
import hashlib

from aiohttp import StreamReader, web

from paceline.errors import (
    DeadlineError,
    TooLargeError,
    UnauthenticatedError,
    UnsupportedMediaTypeError,
)

BODY_TIMEOUT_S = 30.0
"""A body must have arrived after this, however it trickles."""
BODY_SILENCE_S = 5.0
"""So long no byte of it may come."""
BODY_DIGEST = web.RequestKey("body_digest", str)
"""SHA-256 of the body that a request must have: its sender has proven that one."""


async def receive_body(request: web.Request, *, content_type: str, limit: int) -> bytes:
    """The body of that content type, in one piece; it may be empty.

    Raises UnsupportedMediaTypeError (also for any Content-Encoding), TooLargeError before or while
    reading, DeadlineError, OverloadedError where it finds no room, and UnauthenticatedError for
    another body than the one that a node has proven.
    """
    _check_media_type(request, content_type)
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)
    content = request.content
    if content.is_eof():  # it came with its head
        body = content.read_nowait()
        if len(body) > limit:
            raise _too_large(limit)
    else:
        body = await _received(content, limit)
    digest = request.get(BODY_DIGEST)
    if digest is not None and digest != hashlib.sha256(body).hexdigest():
        raise UnauthenticatedError("the body is not the one that the node has proven")
    return body


async def _received(content: StreamReader, limit: int) -> bytes:
    """What comes until the body ends."""
    chunks: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + BODY_TIMEOUT_S
    try:
        async with asyncio.timeout(None) as silence:
            silence.reschedule(loop.time() + BODY_SILENCE_S)
            async for chunk in content.iter_any():
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                chunks.append(chunk)
                silence.reschedule(min(ends_at, loop.time() + BODY_SILENCE_S))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    except TimeoutError:
        raise DeadlineError(
            f"the body took over {BODY_TIMEOUT_S:.0f} s, or nothing of it came for"
            f" {BODY_SILENCE_S:.0f} s"
        ) from None
    finally:
        chunks.clear()  # a refusal has this frame in its traceback, until cycles are collected


def _check_media_type(request: web.Request, content_type: str) -> None:
    """Raise UnsupportedMediaTypeError unless the body is of that type, UTF-8 and not encoded.

    A page may send text/plain to any site unasked, and JSON only after the site has agreed.
    """
    if request.content_type != content_type or (request.charset or "utf-8").lower() != "utf-8":
        raise UnsupportedMediaTypeError(f"this resource takes {content_type}")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaTypeError("bodies are taken without Content-Encoding")


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"the body is over {limit} bytes", limit=limit)
