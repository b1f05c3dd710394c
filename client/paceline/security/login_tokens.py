"""Pure: what a person shows after a login: a token that every node reads by itself.

It is shown as an access key and its secret key are. The access key says whose it is and until when;
the secret key is a MAC over that, made with a key that only nodes can derive. So nothing is stored
for a login, and a node takes a token the moment it was made. A user's number of logins
(`User.logins`) ends all tokens that were made before.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from paceline.wire.calls.request import Number
from paceline.wire.users import LOGIN_PREFIX, UserName

ID_BYTES = 6

_LENGTH_MAX = 512
_LABEL = b"paceline login token 1"

Secrets: TypeAlias = Callable[[], Sequence[bytes]]
"""The cluster secrets that count now; the first one makes, all of them are accepted."""


class LoginToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a token says."""

    user: UserName
    logins: Number
    """`User.logins` when it was made."""
    expires_unix_ms: Number
    id: Annotated[str, Meta(min_length=1, max_length=32)]
    """Names it in the audit."""

    @property
    def name(self) -> str:
        return LOGIN_PREFIX + self.id


def write_token(token: LoginToken, *, cluster_id: str, secrets: Secrets) -> tuple[str, str]:
    """The access key and the secret key to show."""
    written = base64.urlsafe_b64encode(msgspec.json.encode(token)).rstrip(b"=")
    secret, *_ = secrets()
    return LOGIN_PREFIX + written.decode(), _mac(written, cluster_id, secret)


def read_token(
    access_key: str, secret_key: str, *, cluster_id: str, secrets: Secrets
) -> LoginToken | None:
    """What a token says, or None if no node of this cluster has made it."""
    if len(access_key) > _LENGTH_MAX or not (access_key + secret_key).isascii():
        return None
    written = access_key.removeprefix(LOGIN_PREFIX).encode()
    macs = [_mac(written, cluster_id, secret) for secret in secrets()]
    if not any(hmac.compare_digest(mac, secret_key) for mac in macs):
        return None
    try:
        content = base64.b64decode(written + b"=" * (-len(written) % 4), b"-_", validate=True)
        return msgspec.json.decode(content, type=LoginToken)
    except (binascii.Error, msgspec.DecodeError):
        return None  # of a later version


def _mac(written: bytes, cluster_id: str, secret: bytes) -> str:
    key = hmac.digest(secret, _LABEL + b"\n" + cluster_id.encode(), hashlib.sha256)
    return hmac.digest(key, written, hashlib.sha256).hex()
