"""Pure: small JSON documents on disk that notice a flipped bit: an object with its own checksum.

`crc32c` is the CRC-32C of the other members as compact JSON with sorted keys. JSON alone notices
little: a digit of an epoch that became another digit is still a number.
"""

from collections.abc import Mapping
from typing import Any

import orjson
from crc32c import crc32c

from paceline.errors import CorruptLogError

_MEMBER = "crc32c"


def seal(document: Mapping[str, Any]) -> bytes:
    """The document with its checksum, as JSON."""
    assert _MEMBER not in document, document
    return orjson.dumps({**document, _MEMBER: _crc(document)}, option=orjson.OPT_SORT_KEYS)


def unseal(content: bytes) -> dict[str, Any]:
    """What was sealed, or CorruptLogError, whatever the bytes are."""
    try:
        document: Any = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise CorruptLogError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise CorruptLogError(f"{type(document).__name__}, an object was written")
    stated = document.pop(_MEMBER, None)
    if stated != _crc(document):
        raise CorruptLogError(f"its crc32c is {stated}, its content has {_crc(document)}")
    return document


def _crc(document: Mapping[str, Any]) -> int:
    return int(crc32c(orjson.dumps(dict(document), option=orjson.OPT_SORT_KEYS)))
