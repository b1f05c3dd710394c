"""JSON text from outside, read strictly: one object, no duplicate keys, only what can be text.

orjson refuses NaN, bad UTF-8, lone surrogates and deep nesting; numbers beyond 64 bits become
floats, which no field takes. It keeps the last of duplicate keys, so those are counted here.
"""

from typing import Any

import orjson

from paceline.errors import BadJsonError, TooLargeError

JSON_BYTES_MAX = 1024 * 1024
"""A MiB of the worst JSON parses in tens of ms; larger would stop the event loop for too long."""


def parse_json(text: bytes, *, size_bytes_max: int = JSON_BYTES_MAX) -> dict[str, Any]:
    """The JSON object in `text`. Raises BadJsonError, or TooLargeError over the limit."""
    if len(text) > size_bytes_max:
        raise TooLargeError(
            f"JSON of {len(text)} bytes, at most {size_bytes_max}", limit=size_bytes_max
        )
    try:
        document = orjson.loads(text)
        again = orjson.dumps(document)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
        raise BadJsonError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadJsonError(f"expected a JSON object, got {type(document).__name__}")
    # What was parsed, written again, has every string of the text unless a key came twice.
    if _strings_count(again) != _strings_count(text):
        raise BadJsonError("a key stands twice in one object")
    return document


def _strings_count(text: bytes) -> int:
    """Strings in valid JSON: quotes that no backslash stands before, in pairs."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"")
        return (text.count(b'"') - text.count(b'\\"')) // 2
    return text.count(b'"') // 2
