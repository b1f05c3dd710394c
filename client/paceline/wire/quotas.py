"""Pure: quotas: what users, their clients, namespaces and topics may take.

A quota has a subject, written like a resource: `User:shop`, `User:shop/Client:till`,
`Namespace:shop`, `Topic:orders`. `*` in place of a name is for each user, or client, that has no
quota of its own. For one request counts the first that there is: of the client, of each client, of
the user, of each user (Kafka's order). Those of namespaces and topics count besides.
"""

from typing import Annotated, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from paceline.errors import BadRequestError
from paceline.wire.calls.request import matching

_USER = r"(?!\.+$)[A-Za-z0-9_.@-]{1,64}"
_CLIENT = r"[A-Za-z0-9._:@/-]{1,160}"
SUBJECT_PATTERN = (
    rf"User:(?:\*|{_USER})|User:{_USER.replace('$', '/')}/Client:(?:\*|{_CLIENT})"
    r"|Namespace:[A-Za-z0-9_.-]{1,127}|Topic:[A-Za-z0-9_.%|-]{1,240}"
)
EACH = "*"
QUOTAS_MAX = 5_000
HOUR_MS = 3_600_000

QuotaSubject: TypeAlias = Annotated[str, matching(SUBJECT_PATTERN)]
PerSecond: TypeAlias = Annotated[int, Meta(ge=1, le=2**40)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
Bytes: TypeAlias = Annotated[int, Meta(ge=1, le=2**60)]


class Quota(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Limits of one subject; None: as much as there is."""

    bytes_in_per_s: PerSecond | None = None
    """Of each node, like the next three."""
    bytes_out_per_s: PerSecond | None = None
    requests_per_s: PerSecond | None = None
    connections: Count | None = None
    """Open at the same time."""
    creations_per_hour: Count | None = None
    """New topics and consumer groups, of the cluster."""
    topics: Count | None = None
    """Of the cluster, like the next one."""
    groups: Count | None = None
    storage_bytes: Bytes | None = None
    """Of batches kept in each broker group, as they lie in the log."""


class Subject(NamedTuple):
    """A subject, split up."""

    kind: str
    """User, Client, Namespace, Topic."""
    name: str
    client_id: str = ""


_RATES = ("bytes_in_per_s", "bytes_out_per_s", "requests_per_s")
LIMITS_OF: dict[str, tuple[str, ...]] = {
    "User": (*_RATES, "connections", "creations_per_hour"),
    "Client": _RATES,
    "Namespace": ("bytes_in_per_s", "bytes_out_per_s", "topics", "groups", "storage_bytes"),
    "Topic": ("storage_bytes",),
}
"""What can be limited, by kind of subject."""


def parse_subject(text: str) -> Subject:
    """What `text` says, which matches SUBJECT_PATTERN."""
    kind, _, name = text.partition(":")
    if kind != "User":
        return Subject(kind, name)
    user, separator, client_id = name.partition("/Client:")
    return Subject("Client" if separator else "User", user, client_id)


def check_quota(subject: str, quota: Quota) -> None:
    """BadRequestError for a limit that means nothing for that kind of subject."""
    kind = parse_subject(subject).kind
    given = [name for name in quota.__struct_fields__ if getattr(quota, name) is not None]
    wrong = sorted(set(given) - set(LIMITS_OF[kind]))
    if wrong:
        raise BadRequestError(
            f"{subject} has no limit {wrong[0]}: it may have {', '.join(LIMITS_OF[kind])}",
            field=wrong[0],
        )
