"""Who asks, by what he shows: an access key, a token or a certificate."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from paceline.errors import UnauthenticatedError
from paceline.platform.ports import Clock
from paceline.security.audit import Caller
from paceline.security.delegation import Delegation
from paceline.security.key_uses import KeyUses
from paceline.security.tokens import Tokens
from paceline.wire.users import ANONYMOUS, NODE, Security, User

_BEARER = "bearer "


class Principal(NamedTuple):
    """Who asks."""

    user: str
    source: str
    """His address; empty: unknown."""
    access_key: str = ""
    is_node: bool = False
    """A node of this cluster, proven by the cluster's secret. It may do everything."""
    expires_unix_ms: int | None = None
    """Of a token; that of an access key stands with the key."""
    logins: int | None = None
    """Of a login: `User.logins` when it was made."""
    namespace: str = ""
    """His default namespace, also while rights are off: his programs' names mean the same."""
    door: str = "http"
    """How he came: http, stream or session; grpc or remoting through a gateway."""
    request_id: str = ""
    """Of his request, or the one that opened his stream; empty while rights are off."""

    def caller(self, number: int | None = None) -> Caller:
        """For the audit. `number`: of a request on a stream."""
        request_id = self.request_id if number is None else f"{self.request_id}/{number}"
        return Caller(self.user, self.access_key, self.source, self.door, request_id)


class Signed(NamedTuple):
    """What a request shows that was signed with a secret key."""

    access_key: str
    is_by: Callable[[bytes], bool]
    """Whether that secret key has made the signature, in constant time."""


def of_delegation(delegation: Delegation) -> Principal:
    """Whose request a gateway carries out; whether he counts now, `Identities.check` says."""
    user, source, access_key, door, *_ = msgspec.structs.astuple(delegation)
    return Principal(user, source, access_key, door=door)


class Identities:
    """The users of one state, and what they show."""

    def __init__(self, clock: Clock, tokens: Tokens) -> None:
        self._clock = clock
        self._tokens = tokens
        self._security = Security()
        self._owners: dict[str, str] = {}
        """Access key -> user."""
        self._opened: dict[str, bytes] = {}
        """Access key -> secret key, of those that have signed."""
        self.key_uses = KeyUses(clock.unix_ms)

    def apply(self, security: Security) -> None:
        """Go by these users from now on."""
        self._security = security
        self._owners = {key: name for name, user in security.users.items() for key in user.keys}
        self._opened.clear()
        self.key_uses.keep_only(self._owners)

    def of_certificate(self, users: Collection[str], source: str) -> Principal:
        """Whom a certificate of the cluster's authority for these users is of; whether that counts
        now, `check` says. UnauthenticatedError."""
        name = min(users)
        if len(users) > 1:
            raise UnauthenticatedError(
                f"the certificate is for {len(users)} users; who comes must be one"
            )
        if name in (ANONYMOUS, NODE):
            raise UnauthenticatedError(f"{name} is no user that a certificate can be for")
        return Principal(name, source)

    def of_header(self, authorization: str, source: str) -> Principal:
        """Who shows that Authorization header; whether that counts now, `check` says.
        UnauthenticatedError."""
        if authorization[: len(_BEARER)].lower() != _BEARER:
            raise UnauthenticatedError("the Authorization header must be: Bearer KEY.SECRET")
        shown = authorization[len(_BEARER) :].strip()
        claim = self._tokens.read(shown, cluster_id=self._security.cluster_id)
        if claim is not None:
            return Principal(
                claim.user,
                source,
                claim.name,
                expires_unix_ms=claim.expires_unix_ms,
                logins=claim.logins,
            )
        access_key, _, secret = shown.partition(".")
        principal = Principal(self._owners.get(access_key, ""), source, access_key)
        user = self._security.users.get(principal.user)
        key = None if user is None else user.keys.get(access_key)
        if key is None or not key.is_secret(secret):
            # Whether there is such a key is not told to whoever does not hold it.
            raise UnauthenticatedError("this access key is unknown, or its secret key is another")
        return principal

    def of_signature(self, signed: Signed, source: str) -> Principal:
        """Who has signed; whether that counts now, `check` says. UnauthenticatedError."""
        access_key = signed.access_key
        principal = Principal(self._owners.get(access_key, ""), source, access_key)
        secret_key = self._secret_key(principal)
        if not signed.is_by(secret_key) or not secret_key:
            raise UnauthenticatedError(
                "this access key is unknown, or the request was signed with another secret key"
            )
        return principal

    def _secret_key(self, principal: Principal) -> bytes:
        """Of its access key; empty: there is no such key. UnauthenticatedError."""
        access_key = principal.access_key
        found = self._opened.get(access_key)
        if found is not None or not principal.user:
            return found or b""
        key = self._security.users[principal.user].keys[access_key]
        if not key.sealed:
            raise UnauthenticatedError(
                f"access key {access_key} is not kept to sign with, and this client signs: make one"
                " for it (paceline user add-key USER --signs)"
            )
        opened = self._tokens.open_key(
            key.sealed, access_key=access_key, cluster_id=self._security.cluster_id
        )
        if opened is None:
            raise UnauthenticatedError(
                f"access key {access_key} is encrypted with a cluster secret that is not here any"
                " more; make another key"
            )
        self._opened[access_key] = opened.encode()
        return self._opened[access_key]

    def check(self, principal: Principal) -> None:
        """UnauthenticatedError once the user or the key of a principal does not count any more."""
        name, held = principal.user, principal.access_key
        if principal.is_node or name == ANONYMOUS:
            return
        user: User | None = self._security.users.get(name)
        if user is None:
            raise UnauthenticatedError(f"there is no user {name}, or not any more")
        if not user.is_enabled:
            raise UnauthenticatedError(f"user {name} is disabled")
        expires_unix_ms = principal.expires_unix_ms
        if expires_unix_ms is not None and self._clock.unix_ms() >= expires_unix_ms:
            raise UnauthenticatedError(f"the login or token of {name} has expired; log in again")
        if principal.logins not in (None, user.logins):
            raise UnauthenticatedError(f"all logins of {name} were ended; log in again")
        if expires_unix_ms is not None or not held:
            return  # by certificate: it was checked when the connection came
        key = user.keys.get(held)
        if key is None:
            raise UnauthenticatedError(f"access key {held} of user {name} was revoked")
        if key.is_expired(self._clock.unix_ms()):
            raise UnauthenticatedError(
                f"access key {held} of user {name} has expired; make another one"
                f" (paceline user add-key {name})"
            )
        self.key_uses.used(held)
