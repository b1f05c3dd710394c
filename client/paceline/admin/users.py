"""Users, access keys and policies, for `AdminClient`: who may do what, and whether that counts.

docs/features/rights.md says what they mean.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from paceline.admin.requests import AdminRequests
from paceline.errors import CommandRefusedError
from paceline.net.connect import Credentials
from paceline.wire.calls.request import Request, read_request
from paceline.wire.controller_calls import security as calls
from paceline.wire.users import Quota

Row = dict[str, Any]

FIRST_USER = "admin"
"""Name of the super user that is made where nobody could give rights."""
_ACCESS_KEY_BYTES, _SECRET_KEY_BYTES = 10, 32
_EDITS_MAX = 10
"""Of a policy that others change at the same time."""


class Users:
    """`AdminClient.users`."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def all(self) -> list[Row]:
        """All users by name: `user`, `type`, `is_enabled`, `keys`."""
        answer = await self._requests.read(calls.ListUsers(linearizable=True))
        rows: list[Row] = answer["users"]
        return rows

    async def get(self, user: str) -> Row:
        """One user. UserNotFoundError."""
        request = read_request(calls.GetUser, {"user": user, "linearizable": True})
        return await self._requests.read(request)

    async def create(
        self, user: str, *, is_super: bool = False, namespace: str | None = None
    ) -> None:
        """Make a user, who may do nothing yet; a super user may do everything. `namespace`: where
        the names are that its programs use. CommandRefusedError (USER_EXISTS)."""
        type_ = "Super" if is_super else "Normal"
        await self._write(calls.PutUser, user=user, type=type_, namespace=namespace, new=True)

    async def alter(
        self,
        user: str,
        *,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
        namespace: str | None = None,
    ) -> None:
        """Change what is given; `namespace` "": none. Programs that run keep the namespace they
        began with. UserNotFoundError; CommandRefusedError (NO_SUPER_USER): nobody could give rights
        any more."""
        type_ = None if is_super is None else "Super" if is_super else "Normal"
        await self._write(
            calls.PutUser, user=user, type=type_, enabled=is_enabled, namespace=namespace
        )

    async def delete(self, user: str) -> None:
        """Delete a user with its keys and its policy. UserNotFoundError, CommandRefusedError."""
        await self._write(calls.DeleteUser, user=user)

    async def add_key(
        self,
        user: str,
        *,
        name: str = "",
        expires_unix_ms: int | None = None,
        signs: bool = False,
        show: Callable[[Credentials], None] | None = None,
        chosen: Credentials | None = None,
    ) -> Credentials:
        """A new access key with its secret key, which nobody can tell again. `name`: what it is
        for; `signs`: clients sign requests with it, so nodes keep it, encrypted; `show`: is given
        the key before the cluster has it, so that no failure loses it; `chosen`: the key, in place
        of one made at random. To give a user a key again that it has changes nothing.
        UserNotFoundError, CommandRefusedError (KEY_EXISTS, TOO_MANY_KEYS)."""
        random = self._requests.cluster.random
        made = chosen or Credentials(
            access_key="pk" + random.token(_ACCESS_KEY_BYTES).hex(),
            secret_key="sk_" + random.token(_SECRET_KEY_BYTES).hex(),
        )
        if show is not None:
            show(made)
        await self._write(
            calls.PutAccessKey,
            user=user,
            access_key=made.access_key,
            secret_key=made.secret_key,
            name=name,
            expires_unix_ms=expires_unix_ms,
            signs=signs,
        )
        return made

    async def remove_key(self, user: str, access_key: str) -> None:
        """Revoke an access key: whoever shows it is refused from now on. UserNotFoundError."""
        await self._write(calls.DeleteAccessKey, user=user, access_key=access_key)

    async def set_password(self, user: str, password: str) -> None:
        """A password of 12 to 128 characters to log in with; all that were logged in as the user
        are logged out. UserNotFoundError."""
        await self._write(calls.PutPassword, user=user, password=password)

    async def change_password(
        self, user: str, present: str, password: str, *, allow_plaintext: bool = False
    ) -> None:
        """As `set_password`, by whoever knows the present one. LoginFailedError."""
        document = {"user": user, "present": present, "password": password}
        await self._requests.ask_as_stranger(
            read_request(calls.ChangePassword, document), allow_plaintext=allow_plaintext
        )

    async def end_logins(self, user: str) -> None:
        """Log out all that are logged in as the user; its access keys stay. UserNotFoundError."""
        await self._write(calls.EndLogins, user=user)

    async def _write(self, type_: type[Request[Any]], **fields: Any) -> None:
        await self._requests.once(read_request(type_, fields))


class Policies:
    """`AdminClient.policies`: what users may do."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def all(self) -> list[Row]:
        """All policies by user: `user`, `revision`, `custom`, `default`."""
        answer = await self._requests.read(calls.ListPolicies(linearizable=True))
        rows: list[Row] = answer["policies"]
        return rows

    async def get(self, user: str) -> Row:
        """The policy of a user; `revision` 0: there is none. UserNotFoundError."""
        request = read_request(calls.GetPolicy, {"user": user, "linearizable": True})
        return await self._requests.read(request)

    async def put(
        self,
        user: str,
        *,
        custom: Sequence[Row] = (),
        default: Sequence[Row] = (),
        revision: int | None = None,
    ) -> int:
        """Put a whole policy in place of the one of that revision, or of any; the new revision.

        An entry has `resource`, `actions`, and perhaps `sources` and `decision`.
        CommandRefusedError (STALE_REVISION): somebody has changed it since it was read.
        """
        document = {"user": user, "custom": list(custom), "default": list(default)}
        request = read_request(calls.PutPolicy, {**document, "revision": revision})
        answer = await self._requests.once(request)
        return int(answer["revision"])

    async def set_entry(
        self,
        user: str,
        resource: str,
        actions: Sequence[str],
        *,
        sources: Sequence[str] = (),
        decision: str = "Allow",
        is_default: bool = False,
    ) -> int:
        """Set what a user may do on a resource, in place of what its policy said of it."""
        entry = {
            "resource": resource,
            "actions": list(actions),
            "sources": list(sources),
            "decision": decision,
        }
        return await self.set_entries(user, [entry], is_default=is_default)

    async def set_entries(
        self, user: str, entries: Sequence[Row], *, is_default: bool = False
    ) -> int:
        """As `set_entry`, of several resources at once; entries as of `put`."""
        resources = {entry["resource"] for entry in entries}
        return await self._edit(user, resources, entries, is_default=is_default)

    async def remove_entry(self, user: str, resource: str, *, is_default: bool = False) -> int:
        """Take out what the policy of a user says of a resource."""
        return await self._edit(user, {resource}, [], is_default=is_default)

    async def explain(self, user: str, action: str, resource: str, *, source: str = "") -> Row:
        """`is_allowed`, `why`, and the `entry` that decides. UserNotFoundError."""
        document = {"user": user, "action": action, "resource": resource, "source": source}
        request = read_request(calls.Explain, {**document, "linearizable": True})
        return await self._requests.read(request)

    async def _edit(
        self, user: str, resources: Collection[str], entries: Sequence[Row], *, is_default: bool
    ) -> int:
        """Of some resources; repeated where somebody else was faster."""
        name = "default" if is_default else "custom"
        for turn in range(_EDITS_MAX):
            now = await self.get(user)
            kept = [entry for entry in now[name] if entry["resource"] not in resources]
            changed = {**now, name: [*kept, *entries]}
            try:
                return await self.put(
                    user,
                    custom=changed["custom"],
                    default=changed["default"],
                    revision=now["revision"],
                )
            except CommandRefusedError as error:
                if error.details.get("reason") != "STALE_REVISION" or turn == _EDITS_MAX - 1:
                    raise
        raise AssertionError("the last turn returns or raises")


class Quotas:
    """`AdminClient.quotas`: what users, their clients, namespaces and topics may take."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def all(self) -> list[Row]:
        """All quotas: `subject`, and `quota` with its limits."""
        answer = await self._requests.read(calls.ListQuotas(linearizable=True))
        rows: list[Row] = answer["quotas"]
        return rows

    async def set(self, subject: str, quota: Quota) -> None:
        """Set the quota of `User:shop`, `User:shop/Client:till`, `Namespace:shop` or
        `Topic:orders`; what is not given is not limited. UserNotFoundError."""
        document = {"subject": subject, "quota": structs.asdict(quota)}
        await self._requests.once(read_request(calls.PutQuota, document))

    async def delete(self, subject: str) -> None:
        """Take a quota away; also where there is none."""
        await self.set(subject, Quota())


class FirstKey(NamedTuple):
    """Of a super user, for whoever is let in first."""

    user: str
    credentials: Credentials


def _first_users() -> Iterator[str]:
    """Names for whoever is let in first."""
    yield FIRST_USER
    yield from (f"{FIRST_USER}-{number}" for number in itertools.count(2))


class SecurityMode:
    """`AdminClient.security`: whether rights are enforced, and who one is."""

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests
        self._users = Users(requests)

    async def enable(
        self,
        show: Callable[[FirstKey], None],
        *,
        keep: Callable[[FirstKey], None] | None = None,
        is_trial: bool = False,
        with_new_key: bool = False,
        purpose: str = "",
    ) -> FirstKey | None:
        """Have rights enforced, or tried, and let somebody in: where no super user has a password,
        or a key that has not expired, one is made with a key: `admin`, or `admin-2` and so on if
        there is another user of that name. None: no key was made, as one is there.

        `show` is given the key before the cluster has it, so no failure after that can lose the
        only one; `keep` once the cluster has it, before rights are on. What they raise ends it
        there. It may be repeated after any failure.

        `with_new_key`: make one in any case. `purpose`: the name of the key. CommandRefusedError.
        """
        if with_new_key or not (await self.get())["has_super_user"]:
            made = await self._let_in(show, purpose)
            if keep is not None:
                keep(made)
        else:
            made = None
        await self.set("dry-run" if is_trial else "on")
        return made

    async def _let_in(self, show: Callable[[FirstKey], None], purpose: str) -> FirstKey:
        """A super user with a new key. Nobody is raised or enabled again, with keys that somebody
        may still have."""
        users = {row["user"]: row for row in await self._users.all()}
        supers = {
            name for name, row in users.items() if row["type"] == "Super" and row["is_enabled"]
        }
        name = next(name for name in _first_users() if name in supers or name not in users)
        if name not in users:
            await self._users.create(name, is_super=True)
        made = await self._users.add_key(
            name, name=purpose, show=lambda key: show(FirstKey(name, key))
        )
        return FirstKey(name, made)

    async def get(self) -> Row:
        """`mode` ("off", "dry-run" or "on"), `version`, `users`, `super_users`, `has_super_user`:
        one of them can log in, or has a key that counts."""
        return await self._requests.read(calls.GetSecurity(linearizable=True))

    async def set(self, mode: str) -> None:
        """Switch rights on, off, or on for trial. CommandRefusedError (NO_SUPER_USER)."""
        await self._requests.once(read_request(calls.SetSecurityMode, {"mode": mode}))

    async def login(
        self,
        user: str,
        password: str,
        *,
        lifetime_ms: int | None = None,
        allow_plaintext: bool = False,
    ) -> Credentials:
        """Credentials that end by themselves, after 12 hours if nothing is said; `ConnectSettings`
        takes them as it takes an access key. `allow_plaintext`: as of `Credentials`.

        LoginFailedError; QuotaExceededError after too many tries that failed.
        """
        document = {"user": user, "password": password, "lifetime_ms": lifetime_ms}
        answer = await self._requests.ask_as_stranger(
            read_request(calls.Login, document), allow_plaintext=allow_plaintext
        )
        return Credentials(
            access_key=answer["access_key"],
            secret_key=answer["secret_key"],
            allow_plaintext=allow_plaintext,
        )

    async def seal_keys(self) -> Row:
        """Encrypt all keys that sign anew, with the newest cluster secret: how many were `sealed`,
        and which are `lost`."""
        count = 0
        while True:
            answer = await self._requests.once(calls.SealKeys())
            count += answer["sealed"]
            if not answer["sealed"]:
                return {"sealed": count, "lost": answer["lost"]}

    async def whoami(self) -> Row:
        """`user`, `access_key`, `type`, `namespace` (its default one), `mode`, `policy`."""
        return await self._requests.read_path("/v1/whoami")
