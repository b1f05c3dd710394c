"""How RocketMQ's clients sign: HMAC-SHA1 with their secret key.

By gRPC they sign the text of the header `x-mq-date-time` and nothing else, by remoting the values
of the header's fields in the order of their names, and the body. Neither says for whom it is, so
what somebody overhears he can send again: connections should have TLS, and dates have a bound.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from paceline.errors import UnauthenticatedError
from paceline.security.identity import Signed

ALGORITHM = "MQv2-HMAC-SHA1"
ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
"""Fields of a remoting header."""
NO_KEY = (
    "this cluster has users and rights: give this client an access key that signs and its secret"
    " key (paceline user add-key USER --signs)"
)
DATE_AGE_MS_MAX = 26 * 3600 * 1000
"""Python's client sends its local time as if it were UTC, up to 14 hours off; and a day besides."""
_UNIQUE_MSG_QUERY_FLAG, _V4_9_3 = "_UNIQUE_KEY_QUERY", 399
"""Clients up to that version, by the number in their header, add the field after signing."""
_HEADER_LENGTH_MAX = 1024


def grpc_signature(authorization: str, date_time: str | None, *, now_unix_ms: int) -> Signed:
    """What the headers `authorization` and `x-mq-date-time` of a call show. UnauthenticatedError:
    another form, or a date further than DATE_AGE_MS_MAX from now."""
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM or len(authorization) > _HEADER_LENGTH_MAX:
        raise UnauthenticatedError(f"the authorization header must begin with {ALGORITHM}")
    if not date_time or len(date_time) > _HEADER_LENGTH_MAX:
        raise UnauthenticatedError("the header x-mq-date-time is missing, which is what is signed")
    _check_date(date_time, now_unix_ms)
    parts = dict(each.strip().partition("=")[::2] for each in rest.split(","))
    access_key = parts.get("Credential", "").partition("/")[0]  # Go: KEY//Rocketmq
    try:
        shown = bytes.fromhex(parts.get(SIGNATURE, ""))
    except ValueError:
        shown = b""
    if not access_key:
        raise UnauthenticatedError(NO_KEY)
    if not shown:
        raise UnauthenticatedError(
            "the authorization header must have Credential=KEY and Signature=HEXADECIMAL"
        )
    return Signed(access_key, partial(_is_by, content=date_time.encode(), shown=shown))


def remoting_signature(fields: Mapping[str, str], body: bytes, *, version: int) -> Signed:
    """What a remoting request with the field ACCESS_KEY shows. UnauthenticatedError: it has no
    signature. `version`: of the client, as the header has it."""
    try:
        shown = base64.b64decode(fields.get(SIGNATURE, ""), validate=True)
    except (binascii.Error, ValueError):
        shown = b""
    if not shown:
        raise UnauthenticatedError("the request has an AccessKey, but no Signature in base64")
    left_out = {SIGNATURE, _UNIQUE_MSG_QUERY_FLAG} if version <= _V4_9_3 else {SIGNATURE}
    text = "".join(fields[name] for name in sorted(fields) if name not in left_out)
    content = text.encode("utf-8", "surrogatepass") + body
    return Signed(fields[ACCESS_KEY], partial(_is_by, content=content, shown=shown))


def _is_by(secret_key: bytes, *, content: bytes, shown: bytes) -> bool:
    return hmac.compare_digest(hmac.digest(secret_key, content, "sha1"), shown)


def _check_date(text: str, now_unix_ms: int) -> None:
    """Compact ISO 8601 with a Z that need not be true, or RFC 3339 (Rust)."""
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise UnauthenticatedError("the header x-mq-date-time is no date of ISO 8601") from error
    unix_ms = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000
    if abs(now_unix_ms - unix_ms) > DATE_AGE_MS_MAX:
        raise UnauthenticatedError(
            "the header x-mq-date-time is more than a day away: somebody repeats an old call, or"
            " the client's clock is wrong"
        )
