"""Pure: users, access keys, policies and quotas, as controllers replicate them, brokers know them.

Immutable: a change makes a new `Security` with a higher version. A secret key is never here in
clear, only its digest: a random text of 256 bits cannot be searched for.

A quota has a subject, written like a resource: `User:shop`, `User:shop/Client:till`,
`Namespace:shop`, `Topic:orders`. `*` in place of a name is for each user, or client, that has no
quota of its own. For one request counts the first that there is: of the client, of each client, of
the user, of each user (Kafka's order). Those of namespaces and topics count besides.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from paceline.errors import BadRequestError
from paceline.wire.calls.request import Number, matching
from paceline.wire.names import (
    AUDIT_TOPIC,
    NAMESPACE_BEFORE,
    NAMESPACE_LENGTH_MAX,
    NAMESPACE_PATTERN,
)
from paceline.wire.rights import Action, Decision, ResourceType

USER_PATTERN = r"(?!\.+$)[A-Za-z0-9_.@-]{1,64}"
LOGIN_PREFIX = "login-"
"""What is shown after a login begins so (`security.tokens`), and no access key may."""
KEY_ID_PATTERN = rf"(?!{LOGIN_PREFIX})[A-Za-z0-9_-]{{4,64}}"
SECRET_PATTERN = r"[A-Za-z0-9_-]{16,128}"
"""The length RocketMQ asks for is 6; ours are made at random."""
LOGIN_MS, LOGIN_MS_MAX = 12 * 3600 * 1000, 30 * 24 * 3600 * 1000
"""How long a login lasts, if nothing is said, and at most."""
PASSWORD_LENGTH_MIN, PASSWORD_LENGTH_MAX = 12, 128
"""NIST SP 800-63B asks for 8 at least, and for no rule of what stands in it."""
_NAME_PATTERN = r"[A-Za-z0-9_.-]{0,127}\*?"
RESOURCE_PATTERN = (
    rf"\*|Topic:{AUDIT_TOPIC}|Cluster:{_NAME_PATTERN}|Namespace:(?:\*|[A-Za-z0-9_.-]{{1,63}}\*?)"
    rf"|(?:Topic|Group):{NAMESPACE_BEFORE}{_NAME_PATTERN}"
)
ANONYMOUS = "anonymous"
"""Whoever has not said who he is: it can have a policy, but no key."""
NODE = "node"
"""A node of this cluster that has proven the cluster's secret: no user can be called so."""
USERS_MAX = 2_000
KEYS_MAX = 16
"""Of one user."""
ENTRIES_MAX = 256
"""Of one policy."""
SOURCES_MAX = 32
MAPPED_BITS = 96
"""Of an IPv4 address in the form of IPv6, ::ffff:10.1.2.3, those before it (RFC 4291)."""
IPV4_MASK = 2**32 - 1
ALL_KEYS_MAX = 5_000
ALL_ENTRIES_MAX = 10_000
"""Both bound the message that tells brokers of all."""

_CLIENT = r"[A-Za-z0-9._:@/-]{1,160}"
SUBJECT_PATTERN = (
    rf"User:(?:\*|{USER_PATTERN})|User:{USER_PATTERN.replace('$', '/')}/Client:(?:\*|{_CLIENT})"
    r"|Namespace:[A-Za-z0-9_.-]{1,127}|Topic:[A-Za-z0-9_.%|-]{1,240}"
)
EACH = "*"
QUOTAS_MAX = 5_000
HOUR_MS = 3_600_000

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
QuotaSubject: TypeAlias = Annotated[str, matching(SUBJECT_PATTERN)]
PerSecond: TypeAlias = Annotated[int, Meta(ge=1, le=2**40)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]
Bytes: TypeAlias = Annotated[int, Meta(ge=1, le=2**60)]
UserName: TypeAlias = Annotated[str, matching(USER_PATTERN)]
KeyId: TypeAlias = Annotated[str, matching(KEY_ID_PATTERN)]
SecretKey: TypeAlias = Annotated[str, matching(SECRET_PATTERN)]
Password: TypeAlias = Annotated[
    str, Meta(min_length=PASSWORD_LENGTH_MIN, max_length=PASSWORD_LENGTH_MAX)
]
ResourceText: TypeAlias = Annotated[str, matching(RESOURCE_PATTERN)]
DefaultNamespace: TypeAlias = Annotated[
    str, Meta(max_length=NAMESPACE_LENGTH_MAX, pattern=rf"^(?:{NAMESPACE_PATTERN})?$(?!\n)")
]
"""Empty: none."""


class UserType(StrEnum):
    """A super user may do everything."""

    SUPER = "Super"
    NORMAL = "Normal"


class Mode(StrEnum):
    """Whether rights are enforced."""

    OFF = "off"
    DRY_RUN = "dry-run"
    """Everybody may do everything, and what would be refused is logged and counted."""
    ON = "on"


class AccessKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a program shows to be known as its user."""

    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the secret key."""
    name: Annotated[str, Meta(max_length=64)] = ""
    """What it is for, in the words of whoever made it."""
    created_unix_ms: Number
    expires_unix_ms: Number | None = None
    sealed: str = ""
    """The secret key, encrypted (`security.sealed_keys`), if nodes must be able to read it: for
    requests that are signed with it."""

    def is_secret(self, secret: str) -> bool:
        """Whether that is the secret key, in constant time."""
        return hmac.compare_digest(self.digest, digest_of(secret))

    def is_expired(self, now_unix_ms: int) -> bool:
        return self.expires_unix_ms is not None and now_unix_ms >= self.expires_unix_ms


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


class User(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user."""

    type: UserType = UserType.NORMAL
    is_enabled: bool = True
    namespace: DefaultNamespace = ""
    """Where its programs' topics and groups are, if they name no namespace. It gives no right."""
    keys: dict[KeyId, AccessKey] = {}
    """Access key -> the rest of it."""
    password: str = ""
    """Its argon2id hash; empty: there is no login. Controllers alone have it."""
    logins: Number = 0
    """Rises when all that were logged in are logged out: a token names the number it was made
    at."""

    def has_way_in(self, now_unix_ms: int) -> bool:
        """It has a password, or an access key that has not expired."""
        return bool(self.password) or any(
            not key.is_expired(now_unix_ms) for key in self.keys.values()
        )


class PolicyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user may do, or may not, on some resources."""

    resource: ResourceText
    actions: Annotated[tuple[Action, ...], Meta(min_length=1, max_length=len(Action))]
    sources: Annotated[tuple[str, ...], Meta(max_length=SOURCES_MAX)] = ()
    """Addresses or networks that it is for; none: all."""
    decision: Decision = Decision.ALLOW

    def check(self) -> None:
        """BadRequestError for a source that is no address."""
        for source in self.sources:
            try:
                ipaddress.ip_network(source, strict=False)
            except ValueError as error:
                raise BadRequestError(
                    f"{source[:64]!r} is no address and no network (192.168.0.0/24)",
                    field="sources",
                ) from error

    def check_given(self) -> None:
        """As `check`; BadRequestError also for a source that nobody comes from. Of what is given
        now: a journal may have older entries."""
        self.check()
        for source in self.sources:
            text, _, length = source.partition("/")
            if _is_mapped(text) and int(length or MAPPED_BITS) < MAPPED_BITS:
                raise BadRequestError(
                    f"{source[:64]!r} is for nobody: of an IPv4 address in the form of IPv6 the"
                    f" first {MAPPED_BITS} bits are fixed; write the IPv4 network (10.1.0.0/16)",
                    field="sources",
                )


def network_of(source: str) -> Network:
    """The network, or address, that a checked text names. An IPv4 one in the form of IPv6 is the
    IPv4 one: so is the address of whoever comes from there."""
    network = ipaddress.ip_network(source, strict=False)
    if network.prefixlen < MAPPED_BITS or not _is_mapped(str(network.network_address)):
        return network
    address = int(network.network_address) & IPV4_MASK
    return ipaddress.IPv4Network((address, network.prefixlen - MAPPED_BITS))


def _is_mapped(address: str) -> bool:
    return getattr(ipaddress.ip_address(address), "ipv4_mapped", None) is not None


Entries: TypeAlias = Annotated[tuple[PolicyEntry, ...], Meta(max_length=ENTRIES_MAX)]


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The policy of a user. `default` counts where nothing in `custom` matches."""

    revision: Number = 0
    """Rises with each change: who changes it names the one he has read."""
    custom: Entries = ()
    default: Entries = ()

    @property
    def entries(self) -> tuple[PolicyEntry, ...]:
        return (*self.custom, *self.default)


class Security(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about rights, at one version. Version 0: nobody has ever set anything."""

    version: Number = 0
    mode: Mode = Mode.OFF
    cluster_id: str = ""
    """Of the cluster whose users these are."""
    cluster_name: str = ""
    """The name of the resource `Cluster:...`."""
    users: dict[UserName, User] = {}
    policies: dict[UserName, Policy] = {}
    quotas: dict[QuotaSubject, Quota] = {}

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    @classmethod
    def from_json(cls, document: object) -> "Security":
        """Raises BadRequestError."""
        try:
            return msgspec.convert(document, cls)
        except msgspec.ValidationError as error:
            raise BadRequestError(f"not the state of users and rights: {error}") from error

    def changed(self, **changes: Any) -> "Security":
        """With these fields, at the next version."""
        return msgspec.structs.replace(self, version=self.version + 1, **changes)

    def with_user(self, name: str, user: User) -> "Security":
        return self.changed(users={**self.users, name: user})

    def without_passwords(self) -> "Security":
        """As brokers are told: they check no password."""
        users = {
            name: msgspec.structs.replace(user, password="") if user.password else user
            for name, user in self.users.items()
        }
        return msgspec.structs.replace(self, users=users)

    def has_super_user(self, now_unix_ms: int) -> bool:
        """Somebody could still give rights."""
        return any(
            user.type is UserType.SUPER and user.is_enabled and user.has_way_in(now_unix_ms)
            for user in self.users.values()
        )


def digest_of(secret: str) -> str:
    """What is kept of a secret key. Any text has one: headers may have bytes that are no UTF-8."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class ParsedResource(msgspec.Struct, frozen=True):
    """A resource of a policy entry, split up."""

    type: ResourceType
    name: str
    is_prefix: bool
    """`name` is how names begin; empty: every name."""

    def has(self, name: str) -> bool:
        """Whether it is for what has that name, and its type."""
        return name.startswith(self.name) if self.is_prefix else name == self.name


def parse_resource(text: str) -> ParsedResource:
    """What `Topic:orders*` says; `text` matches RESOURCE_PATTERN."""
    if text == "*":
        return ParsedResource(ResourceType.ANY, "", True)
    kind, _, name = text.partition(":")
    return ParsedResource(ResourceType(kind), name.removesuffix("*"), name.endswith("*"))


def user_json(name: str, user: User, key_uses: Mapping[str, int]) -> dict[str, Any]:
    """For people: without digests, and with when each key was used last."""
    keys = [
        {
            "access_key": key_id,
            "name": key.name,
            "created_unix_ms": key.created_unix_ms,
            "expires_unix_ms": key.expires_unix_ms,
            "signs": bool(key.sealed),
            "used_unix_ms": key_uses.get(key_id),
        }
        for key_id, key in sorted(user.keys.items())
    ]
    return {
        "user": name,
        "type": user.type,
        "is_enabled": user.is_enabled,
        "has_password": bool(user.password),
        "namespace": user.namespace,
        "keys": keys,
    }
