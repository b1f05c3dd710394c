"""Pure: tokens that every node reads by itself: of a login, or of an identity provider.

What a person shows after a login looks like an access key and its secret key. The access key says
whose it is and until when; the secret key is a MAC over that, made with a key that only nodes can
derive. So nothing is stored for a login, and a node takes a token the moment it was made. A user's
number of logins (`User.logins`) ends all tokens that were made before.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from paceline.errors import UnauthenticatedError
from paceline.security.sealed_keys import open_key
from paceline.wire.calls.request import Number
from paceline.wire.users import LOGIN_PREFIX, UserName

ID_BYTES = 6

OF_PROVIDER = "token"
"""The name of every token of an identity provider."""

_LENGTH_MAX = 512
_DOTS_IN_JWT = 2
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


class Claim(NamedTuple):
    """Who a token says it is."""

    user: str
    name: str
    """In place of an access key, for the audit."""
    expires_unix_ms: int
    logins: int | None = None
    """`User.logins` when it was made; None: it hangs on nothing."""


class Provider(Protocol):
    """An identity provider (`security.oidc`)."""

    def read(self, token: str) -> tuple[str, int]:
        """The user that a token is for, and when it ends (Unix time, ms). UnauthenticatedError."""


class Tokens:
    """Reads what a node of one cluster is shown."""

    def __init__(self, secrets: Secrets = tuple, provider: Provider | None = None) -> None:
        """`provider`: None: its tokens are none."""
        self._secrets = secrets
        self._provider = provider

    def open_key(self, sealed: str, *, access_key: str, cluster_id: str) -> str | None:
        """See `sealed_keys.open_key`."""
        return open_key(
            sealed, access_key=access_key, cluster_id=cluster_id, secrets=self._secrets()
        )

    def read(self, shown: str, *, cluster_id: str) -> Claim | None:
        """What a token says; None: it is an access key and its secret key. UnauthenticatedError."""
        if self._provider is not None and shown.count(".") == _DOTS_IN_JWT:
            user, expires_unix_ms = self._provider.read(shown)
            return Claim(user, OF_PROVIDER, expires_unix_ms)
        if not shown.startswith(LOGIN_PREFIX):
            return None
        access_key, _, secret = shown.partition(".")
        token = read_token(access_key, secret, cluster_id=cluster_id, secrets=self._secrets)
        if token is None:
            raise UnauthenticatedError("no node of this cluster has made this login; log in again")
        return Claim(token.user, LOGIN_PREFIX + token.id, token.expires_unix_ms, token.logins)


def _mac(written: bytes, cluster_id: str, secret: bytes) -> str:
    key = hmac.digest(secret, _LABEL + b"\n" + cluster_id.encode(), hashlib.sha256)
    return hmac.digest(key, written, hashlib.sha256).hex()
