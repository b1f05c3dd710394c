"""Pure: requests about users, access keys, policies, and whether rights are enforced."""

from typing import Annotated, TypeAlias

from msgspec import Meta

from paceline.wire.calls.request import Answer, Number, Request, Route
from paceline.wire.controller_calls.base import Read, Written
from paceline.wire.rights import ANYBODY, CHANGE_CLUSTER, SEE_CLUSTER, Action
from paceline.wire.users import (
    LOGIN_MS,
    LOGIN_MS_MAX,
    PASSWORD_LENGTH_MAX,
    DefaultNamespace,
    Entries,
    KeyId,
    Mode,
    Password,
    PolicyEntry,
    Quota,
    QuotaSubject,
    ResourceText,
    SecretKey,
    UserName,
    UserType,
)

GivenPassword: TypeAlias = Annotated[str, Meta(max_length=PASSWORD_LENGTH_MAX)]
"""Of whoever logs in."""


class SecurityState(Answer, kw_only=True):
    """Whether rights are enforced."""

    mode: Mode
    version: int
    """Of users and rights. A broker that has applied it shows it at `/v1/status`."""
    users: int
    super_users: int
    has_super_user: bool
    """One of them is enabled and has a password, or an access key that has not expired."""


class GetSecurity(Read[SecurityState]):
    """Whether rights are enforced."""

    routes = (Route("GET", "/v1/security"),)
    needs = SEE_CLUSTER


class WrittenSecurity(Written, kw_only=True):
    """The command is committed."""

    security: int
    """Version of users and rights that shows it."""


class SetSecurityMode(Request[WrittenSecurity], kw_only=True):
    """Switch rights on, off, or on for trial: then everybody may do everything, and nodes log and
    count what would be refused. NO_SUPER_USER."""

    routes = (Route("PUT", "/v1/security"),)
    needs = CHANGE_CLUSTER
    mode: Mode


class KeyOfUser(Answer, kw_only=True):
    """An access key, without its secret."""

    access_key: str
    name: str
    created_unix_ms: int
    expires_unix_ms: int | None
    signs: bool = False
    used_unix_ms: int | None = None
    """When it was used last, to an hour; null: never, or before this was noted."""


class UserOf(Answer, kw_only=True):
    """A user."""

    user: str
    type: UserType
    is_enabled: bool
    namespace: str = ""
    """Its default namespace."""
    keys: list[KeyOfUser]
    has_password: bool = False


class UserList(Answer):
    """The users, by name."""

    users: list[UserOf]


class ListUsers(Read[UserList]):
    """All users."""

    routes = (Route("GET", "/v1/users"),)
    needs = SEE_CLUSTER


class GetUser(Read[UserOf], kw_only=True):
    """One user. USER_NOT_FOUND."""

    routes = (Route("GET", "/v1/users/{user}"),)
    needs = SEE_CLUSTER
    user: UserName


class PutUser(Request[WrittenSecurity], kw_only=True):
    """Make a user or change one; what is left out stays. USER_EXISTS, USER_NOT_FOUND."""

    routes = (Route("PUT", "/v1/users/{user}"),)
    needs = CHANGE_CLUSTER
    user: UserName
    type: UserType | None = None
    enabled: bool | None = None
    namespace: DefaultNamespace | None = None
    """Where its programs' topics and groups are, if they name none; "": in no namespace."""
    new: bool = False
    """It is made, and must not exist; otherwise it is changed, and must."""


class DeleteUser(Request[WrittenSecurity], kw_only=True):
    """Delete a user with its keys and its policy. USER_NOT_FOUND, NO_SUPER_USER."""

    routes = (Route("DELETE", "/v1/users/{user}"),)
    needs = CHANGE_CLUSTER
    user: UserName


class PutAccessKey(Request[WrittenSecurity], kw_only=True):
    """Give a user an access key. Whoever asks has made both parts at random; of the secret key its
    digest is kept, and if it `signs` the key itself, encrypted. KEY_EXISTS, TOO_MANY_KEYS."""

    routes = (Route("PUT", "/v1/users/{user}/keys/{access_key}"),)
    needs = CHANGE_CLUSTER
    user: UserName
    access_key: KeyId
    secret_key: SecretKey
    name: Annotated[str, Meta(max_length=64)] = ""
    expires_unix_ms: Number | None = None
    signs: bool = False
    """For clients that sign requests with it, in place of showing it."""


class SealedAnew(WrittenSecurity, kw_only=True):
    """What became of keys that sign."""

    sealed: int
    """So many were encrypted anew; where it is not 0, there may be more: ask again."""
    lost: list[str]
    """Access keys that no cluster secret opens any more: make others."""


class SealKeys(Request[SealedAnew]):
    """Encrypt all secret keys that are kept anew, with the first of the cluster secrets: afterwards
    the others are not needed any more."""

    routes = (Route("POST", "/v1/security/seal"),)
    needs = CHANGE_CLUSTER


class DeleteAccessKey(Request[WrittenSecurity], kw_only=True):
    """Revoke an access key: no node takes it any more. USER_NOT_FOUND."""

    routes = (Route("DELETE", "/v1/users/{user}/keys/{access_key}"),)
    needs = CHANGE_CLUSTER
    user: UserName
    access_key: KeyId


class PutPassword(Request[WrittenSecurity], kw_only=True):
    """Give a user a password to log in with, in place of the one it has; all that were logged in
    are logged out. USER_NOT_FOUND."""

    routes = (Route("PUT", "/v1/users/{user}/password"),)
    needs = CHANGE_CLUSTER
    user: UserName
    password: Password


class ChangePassword(Request[WrittenSecurity], kw_only=True):
    """As `put_password`, for whoever knows the present one. LOGIN_FAILED; QUOTA_EXCEEDED after
    too many that were wrong."""

    routes = (Route("POST", "/v1/users/{user}/password"),)
    needs = ANYBODY
    is_told = True
    user: UserName
    present: GivenPassword
    password: Password


class EndLogins(Request[WrittenSecurity], kw_only=True):
    """Log out all that are logged in as a user. Access keys stay. USER_NOT_FOUND."""

    routes = (Route("DELETE", "/v1/users/{user}/logins"),)
    needs = CHANGE_CLUSTER
    user: UserName


class LoggedIn(Answer, kw_only=True):
    """What to show from now on, as an access key and its secret key."""

    user: str
    access_key: str
    secret_key: str
    expires_unix_ms: int


class Login(Request[LoggedIn], kw_only=True):
    """Log in with a password. LOGIN_FAILED; QUOTA_EXCEEDED after too many that were wrong."""

    routes = (Route("POST", "/v1/login"),)
    needs = ANYBODY
    is_told = True
    user: UserName
    password: GivenPassword
    lifetime_ms: Annotated[int, Meta(ge=1_000, le=LOGIN_MS_MAX)] = LOGIN_MS
    """It ends by itself after that."""


class PolicyOf(Answer, kw_only=True):
    """A policy."""

    user: str
    revision: int
    custom: list[PolicyEntry]
    default: list[PolicyEntry]
    """Counts where nothing in `custom` matches."""


class PolicyList(Answer):
    """The policies, by user."""

    policies: list[PolicyOf]


class ListPolicies(Read[PolicyList]):
    """All policies."""

    routes = (Route("GET", "/v1/policies"),)
    needs = SEE_CLUSTER


class GetPolicy(Read[PolicyOf], kw_only=True):
    """The policy of a user; revision 0: it has none. USER_NOT_FOUND."""

    routes = (Route("GET", "/v1/users/{user}/policy"),)
    needs = SEE_CLUSTER
    user: UserName


class WrittenPolicy(WrittenSecurity, kw_only=True):
    """The policy as it is now."""

    revision: int


class PutPolicy(Request[WrittenPolicy], kw_only=True):
    """Put a whole policy in place of the one of that `revision`, or of any. STALE_REVISION: it was
    changed since it was read."""

    routes = (Route("PUT", "/v1/users/{user}/policy"),)
    needs = CHANGE_CLUSTER
    user: UserName
    custom: Entries = ()
    default: Entries = ()
    revision: Number | None = None


class QuotaOf(Answer, kw_only=True):
    """A quota."""

    subject: QuotaSubject
    quota: Quota


class QuotaList(Answer):
    """The quotas, by subject."""

    quotas: list[QuotaOf]


class ListQuotas(Read[QuotaList]):
    """All quotas."""

    routes = (Route("GET", "/v1/quotas"),)
    needs = SEE_CLUSTER


class PutQuota(Request[WrittenSecurity], kw_only=True):
    """Put the quota of a user, a client of a user, a namespace or a topic in place of the one that
    there is; one without limits takes it away. USER_NOT_FOUND, TOO_MANY_ENTRIES."""

    routes = (Route("PUT", "/v1/quotas"),)
    needs = CHANGE_CLUSTER
    subject: QuotaSubject
    """`User:shop`, `User:shop/Client:till`, `Namespace:shop`, `Topic:orders`."""
    quota: Quota = Quota()
    """All limits anew: what it leaves out is not limited."""


class Explained(Answer, kw_only=True):
    """What was decided, and by what."""

    is_allowed: bool
    why: str
    entry: PolicyEntry | None
    """What decided; null: no entry did."""


class Explain(Read[Explained], kw_only=True):
    """Whether a user may do something on a resource, and which entry of its policy says so."""

    routes = (Route("GET", "/v1/users/{user}/explain"),)
    needs = SEE_CLUSTER
    user: UserName
    action: Action
    resource: ResourceText
    """One resource: `Topic:orders`, `Group:billing`, `Cluster:`."""
    source: Annotated[str, Meta(max_length=64)] = ""
