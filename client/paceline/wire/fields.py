"""Pure: strict reading of JSON objects that came from outside.

Each call takes one member and checks its type and range; `done` refuses members nobody asked for.
All errors are `BadRequestError` with `field`.
"""

import re
from collections.abc import Hashable, Mapping
from typing import Any

import orjson

from paceline.errors import BadJsonError, BadRequestError

I64_MAX = 2**63 - 1
_PORT = r"[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
ADDRESS_PATTERN = rf"(?:[A-Za-z0-9._-]{{1,253}}|\[[0-9A-Fa-f:.]{{2,45}}\]):(?:{_PORT})"


def parse_object(text: bytes | str, *, size_bytes_max: int) -> dict[str, Any]:
    """A JSON object; BadJsonError on anything else (NaN and bad UTF-8 included)."""
    if len(text) > size_bytes_max:
        raise BadJsonError(f"message of {len(text)} bytes is over {size_bytes_max}")
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadJsonError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadJsonError(f"expected a JSON object, got {type(document).__name__}")
    return document


class Fields:
    """Reads one JSON object member by member."""

    def __init__(self, document: object, *, name: str, caller: Hashable = None) -> None:
        """`name` says in errors what kind of object this is; `caller` is where it came from."""
        if not isinstance(document, dict):
            raise BadRequestError(f"{name} must be an object", field=name)
        self._document: Mapping[str, Any] = document
        self._name = name
        self.caller = caller
        """The connection that a request came over, if its end matters; never part of the JSON."""
        self._seen: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the member is there and not null."""
        self._seen.add(key)
        return self._document.get(key) is not None

    def any(self, key: str) -> Any:
        """The member, of any type; it must be there."""
        self._seen.add(key)
        if key not in self._document:
            raise BadRequestError(f"{self._name}: {key} is missing", field=key)
        return self._document[key]

    def text(self, key: str, *, length_max: int = 255, pattern: str | None = None) -> str:
        value = self.any(key)
        if not isinstance(value, str) or not 1 <= len(value) <= length_max:
            raise self.wrong(key, f"a string of 1 to {length_max} characters", value)
        if pattern is not None and re.fullmatch(pattern, value) is None:
            raise self.wrong(key, f"a string matching {pattern}", value)
        return value

    def integer(self, key: str, *, low: int = 0, high: int = I64_MAX) -> int:
        """An int in [low, high]; true and 1.0 are not ints."""
        value = self.any(key)
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(key, f"an integer from {low} to {high}", value)
        return value

    def flag(self, key: str) -> bool:
        value = self.any(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def done(self) -> None:
        """Refuse members that nobody read."""
        unknown = sorted(str(key) for key in self._document if key not in self._seen)
        if unknown:
            raise BadRequestError(f"{self._name}: unknown field {unknown[0]}", field=unknown[0])

    def wrong(self, key: str, expected: str, value: object) -> BadRequestError:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        return BadRequestError(f"{self._name}: {key} must be {expected}, got {shown}", field=key)
