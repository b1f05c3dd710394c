"""Pure: a gateway shows on whose behalf it comes, and nodes believe it.

A gateway has found out itself who its client is: RocketMQ's clients sign, and show no secret. What
it then asks of nodes it asks as that user, from that client's address, so rights, quotas and audit
are the user's. It holds the cluster secret, and shows an Authorization header of a scheme of its
own: who, from where, with which access key, through which door, for the node at which address, and
until when; and a MAC over that, made with a key that only nodes can derive.

Whoever overhears one can show it to that one node for a minute at most; on connections without TLS
gateways show none beyond their own machine, unless they are told to. Wall clocks are compared, so
those of gateways and nodes may be CLOCK_SKEW_MS apart. That the user and the key count, each node
checks itself, as long as a stream lives.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Container, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from paceline.errors import UnauthenticatedError
from paceline.wire.calls.request import Number
from paceline.wire.users import UserName

LIFETIME_MS = 30_000
CLOCK_SKEW_MS = 15_000
"""A node refuses what ended longer ago by its own clock, or ends later than a fresh one would."""
SCHEME = "Delegated "

Door: TypeAlias = Literal["grpc", "remoting"]

_LABEL = b"paceline delegation 1"
_LENGTH_MAX = 1024


class Delegation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who a request is of."""

    user: UserName
    source: Annotated[str, Meta(min_length=1, max_length=64)]
    """Address of the gateway's client."""
    access_key: Annotated[str, Meta(max_length=64)]
    """That it has signed with; empty: none, as of a certificate or of `anonymous`."""
    door: Door
    address: Annotated[str, Meta(min_length=1, max_length=300)]
    """host:port of the node that it is for, as the gateway dials it."""
    expires_unix_ms: Number


def write_delegation(delegation: Delegation, *, cluster_id: str, secret: bytes) -> str:
    """The Authorization header."""
    written = base64.urlsafe_b64encode(msgspec.json.encode(delegation))
    return f"{SCHEME}{written.decode()}.{_mac(written, cluster_id, secret)}"


def is_delegated(authorization: str) -> bool:
    """Whether an Authorization header is of this scheme."""
    return authorization.startswith(SCHEME)


def read_delegation(
    authorization: str,
    *,
    cluster_id: str,
    secrets: Sequence[bytes],
    now_unix_ms: int,
    addresses: Container[str] | None,
) -> Delegation:
    """What a gateway says in that header. UnauthenticatedError: no holder of one of the secrets has
    made it for one of `addresses`, or not for now.

    `addresses`: of this node; None: another one, which has proven to be a node, has checked that.
    """
    written, _, mac = authorization.removeprefix(SCHEME).partition(".")
    is_text = len(authorization) <= _LENGTH_MAX and authorization.isascii()
    macs = [_mac(written.encode(), cluster_id, each) for each in secrets] if is_text else []
    if not any([hmac.compare_digest(each, mac) for each in macs]):
        raise UnauthenticatedError(
            "no gateway of this cluster has made this delegation: it has another cluster secret, or"
            " has not heard yet of users and rights"
        )
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(written), type=Delegation)
    except (binascii.Error, msgspec.DecodeError) as error:
        raise UnauthenticatedError(f"the delegation is of another version: {error}") from error
    if addresses is not None and found.address not in addresses:
        raise UnauthenticatedError(
            f"a delegation for the node at {found.address} came to another one: a gateway's setting"
            " controllers must name them as the cluster does"
        )
    left_ms = found.expires_unix_ms - now_unix_ms
    if not -CLOCK_SKEW_MS <= left_ms <= LIFETIME_MS + CLOCK_SKEW_MS:
        raise UnauthenticatedError(
            f"by this node's clock the delegation ends in {left_ms} ms; it is an old one, or the"
            " clocks of gateway and node are apart: set them right"
        )
    return found


def _mac(written: bytes, cluster_id: str, secret: bytes) -> str:
    key = hmac.digest(secret, _LABEL + b"\n" + cluster_id.encode(), hashlib.sha256)
    return hmac.digest(key, written, hashlib.sha256).hex()
