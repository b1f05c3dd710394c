"""Users and ACLs, as mqadmin makes and shows them (3001 to 3010): `paceline user`, `paceline acl`.

A user of RocketMQ signs with its name and its password. Here these are an access key that signs and
its secret key, which is called like the user; other keys of the user are not touched, and no
password is told. Whoever asks needs the rights that our own commands need, which the controllers
decide. Each command comes once for each broker group, so what is there already is no error.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from paceline.admin.users import Row, Users
from paceline.errors import BadRequestError, CommandRefusedError, UserNotFoundError
from paceline.net.connect import Credentials
from paceline.wire.rights import Action, Decision
from paceline.wire.users import KEY_ID_PATTERN, SECRET_PATTERN, UserType
from paceline_gateway.identity import Authenticator
from paceline_gateway.remoting.call import Call
from paceline_gateway.remoting.codec import fields
from paceline_gateway.remoting.codec.codes import RequestCode
from paceline_gateway.remoting.codec.frames import Command, lenient_json
from paceline_gateway.remoting.codec.routes import json_of

ValueT = TypeVar("ValueT")
ToldT = TypeVar("ToldT")

_KEY_NAME = "mqadmin"
_SUBJECT = "User:"
_TYPES = {each.lower(): each.value for each in UserType}
_STATUSES = {"enable": True, "disable": False}
_ACTIONS = {each.lower(): each.value for each in Action}
_DECISIONS = {each.lower(): each.value for each in Decision}
_POLICIES = {"custom": False, "default": True}
"""Whether it is the default policy."""


class _UserTold(msgspec.Struct, rename="camel"):
    """UserInfo."""

    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class _EntryTold(msgspec.Struct, rename="camel"):
    """PolicyEntryInfo."""

    resource: str
    actions: list[str]
    decision: str
    source_ips: list[str] | None = None


class _PolicyTold(msgspec.Struct, rename="camel"):
    """PolicyInfo."""

    policy_type: str | None = None
    entries: list[_EntryTold] | None = None


class _AclTold(msgspec.Struct):
    """AclInfo."""

    policies: list[_PolicyTold]


class Rights:
    """Handlers that know who may show a secret."""

    def __init__(self, encryption: Authenticator) -> None:
        self._encryption = encryption

    def handlers(self) -> Mapping[int, Callable[[Call], Awaitable[Command]]]:
        return {
            RequestCode.AUTH_CREATE_USER: self.create_user,
            RequestCode.AUTH_UPDATE_USER: self.update_user,
            RequestCode.AUTH_DELETE_USER: delete_user,
            RequestCode.AUTH_GET_USER: get_user,
            RequestCode.AUTH_LIST_USER: list_users,
            RequestCode.AUTH_CREATE_ACL: set_acl,
            RequestCode.AUTH_UPDATE_ACL: set_acl,
            RequestCode.AUTH_DELETE_ACL: delete_acl,
            RequestCode.AUTH_GET_ACL: get_acl,
            RequestCode.AUTH_LIST_ACL: list_acls,
        }

    async def create_user(self, call: Call) -> Command:
        """3001."""
        name, told = fields.text(call.request, "username"), _told(call, _UserTold)
        key = self._key(call, name, told.password or "")
        is_super = _word(told.user_type or "Normal", _TYPES, "userType") == UserType.SUPER
        is_enabled = _word(told.user_status or "enable", _STATUSES, "userStatus")
        users = call.user.cluster.admin.users
        is_new = await _created(users, name, is_super=is_super)
        try:
            if not is_enabled:  # copyUser says so; before anybody can sign
                await users.alter(name, is_enabled=False)
            await users.add_key(name, name=_KEY_NAME, signs=True, chosen=key)
        except CommandRefusedError:
            if is_new:  # without a key it could not be made again
                await users.delete(name)
            raise
        return call.ok()

    async def update_user(self, call: Call) -> Command:
        """3002: the password, the type, the status, or several of them."""
        name, told = fields.text(call.request, "username"), _told(call, _UserTold)
        users = call.user.cluster.admin.users
        type_ = _word(told.user_type, _TYPES, "userType") if told.user_type else None
        enabled = _word(told.user_status, _STATUSES, "userStatus") if told.user_status else None
        if told.password:
            await _replace_key(users, name, self._key(call, name, told.password))
        if type_ is not None or enabled is not None:
            is_super = None if type_ is None else type_ == UserType.SUPER
            await users.alter(name, is_super=is_super, is_enabled=enabled)
        return call.ok()

    def _key(self, call: Call, user: str, password: str) -> Credentials:
        peer = call.peer
        self._encryption.check_encrypted(
            peer.source, is_encrypted=peer.is_encrypted, what="a password"
        )
        if not (re.fullmatch(KEY_ID_PATTERN, user) and re.fullmatch(SECRET_PATTERN, password)):
            raise BadRequestError(
                "RocketMQ's programs sign with the user's name and this password: here the name has"
                " 4 to 64 of A-Z a-z 0-9 _ - then, and the password 16 to 128 of them, best made at"
                " random; or give another user a key: paceline user add-key USER --signs",
                field="password",
            )
        return Credentials(access_key=user, secret_key=password)


async def _created(users: Users, name: str, *, is_super: bool) -> bool:
    """False: it is there with a key of its name, as mqadmin asks each broker."""
    try:
        await users.create(name, is_super=is_super)
    except CommandRefusedError as error:
        if error.details.get("reason") != "USER_EXISTS":
            raise
        there = await users.get(name)
        if (there["type"] == UserType.SUPER) is not is_super or name not in _keys(there):
            raise
        return False
    return True


def _keys(user: Row) -> list[str]:
    return [key["access_key"] for key in user["keys"]]


async def _replace_key(users: Users, name: str, key: Credentials) -> None:
    """The key of that name; for a moment the user has none of it. UserNotFoundError."""
    try:
        await users.add_key(name, name=_KEY_NAME, signs=True, chosen=key)
    except CommandRefusedError as error:
        if error.details.get("reason") != "KEY_EXISTS" or name not in _keys(await users.get(name)):
            raise
        await users.remove_key(name, name)
        await users.add_key(name, name=_KEY_NAME, signs=True, chosen=key)


async def delete_user(call: Call) -> Command:
    """3003: with all keys and the policy."""
    try:
        await call.user.cluster.admin.users.delete(fields.text(call.request, "username"))
    except UserNotFoundError:
        return call.ok()  # another broker was asked before
    return call.ok()


async def get_user(call: Call) -> Command:
    """3004: nothing, if there is none."""
    try:
        found = await call.user.cluster.admin.users.get(fields.text(call.request, "username"))
    except UserNotFoundError:
        return call.ok()
    return call.ok(body=json_of(_user_row(found)))


async def list_users(call: Call) -> Command:
    """3005: those with the filter in their names."""
    wanted = call.request.fields.get("filter") or ""
    users = await call.user.cluster.admin.users.all()
    return call.ok(body=json_of([_user_row(each) for each in users if wanted in each["user"]]))


def _user_row(user: Row) -> Row:
    """UserInfo, without the password."""
    return {
        "username": user["user"],
        "userStatus": "enable" if user["is_enabled"] else "disable",
        "userType": user["type"],
    }


async def set_acl(call: Call) -> Command:
    """3006 and 3007: what a user may do on some resources, in place of what was said of these."""
    user, told = _subject(call), _told(call, _AclTold)
    policies = call.user.cluster.admin.policies
    for policy in told.policies:
        is_default = _word(policy.policy_type or "Custom", _POLICIES, "policyType")
        entries = [_entry(each) for each in policy.entries or ()]
        if entries:
            await policies.set_entries(user, entries, is_default=is_default)
    return call.ok()


def _entry(told: _EntryTold) -> Row:
    return {
        "resource": _resource(told.resource),
        "actions": [_word(each, _ACTIONS, "actions") for each in told.actions],
        "sources": told.source_ips or [],
        "decision": _word(told.decision, _DECISIONS, "decision"),
    }


def _resource(told: str) -> str:
    """As policies write it."""
    kind, separator, name = told.partition(":")
    return f"{kind.capitalize()}{separator}{name}"


async def delete_acl(call: Call) -> Command:
    """3008: what a policy says of a resource; without one, both policies of the user."""
    user, policies = _subject(call), call.user.cluster.admin.policies
    resource = call.request.fields.get("resource")
    if not resource:
        await policies.put(user)
        return call.ok()
    type_ = call.request.fields.get("policyType") or "Custom"
    is_default = _word(type_, _POLICIES, "policyType")
    await policies.remove_entry(user, _resource(resource), is_default=is_default)
    return call.ok()


async def get_acl(call: Call) -> Command:
    """3009: nothing, if there is none."""
    try:
        policy = await call.user.cluster.admin.policies.get(_subject(call))
    except UserNotFoundError:
        return call.ok()
    row = _acl_row(policy, "")
    return call.ok(body=b"" if row is None else json_of(row))


async def list_acls(call: Call) -> Command:
    """3010: of subjects and resources with the filters in them."""
    subject = call.request.fields.get("subjectFilter") or ""
    resource = call.request.fields.get("resourceFilter") or ""
    policies = await call.user.cluster.admin.policies.all()
    rows = [_acl_row(each, resource) for each in policies if subject in f"{_SUBJECT}{each['user']}"]
    return call.ok(body=json_of([row for row in rows if row is not None]))


def _acl_row(policy: Row, resource: str) -> Row | None:
    """AclInfo; None: it says nothing of such a resource."""
    policies = []
    for name in _POLICIES:
        entries = [
            {
                "actions": entry["actions"],
                "decision": entry["decision"],
                "resource": entry["resource"],
                "sourceIps": entry["sources"],
            }
            for entry in policy[name]
            if resource in entry["resource"]
        ]
        if entries:
            policies.append({"entries": entries, "policyType": name.capitalize()})
    if not policies:
        return None
    return {"policies": policies, "subject": f"{_SUBJECT}{policy['user']}"}


def _subject(call: Call) -> str:
    subject = fields.text(call.request, "subject")
    if not subject.startswith(_SUBJECT):
        raise BadRequestError(
            f"{subject[:64]} is no user: a subject reads User:NAME", field="subject"
        )
    return subject.removeprefix(_SUBJECT)


def _word(text: str, known: Mapping[str, ValueT], field: str) -> ValueT:
    """What a word of RocketMQ's, in whatever case, means here. BadRequestError."""
    found = known.get(text.lower())
    if found is None:
        raise BadRequestError(
            f"{field} {text[:32]!r} is none that is known here: {', '.join(known)}", field=field
        )
    return found


def _told(call: Call, kind: type[ToldT]) -> ToldT:
    """The body. BadRequestError, which has no value of it."""
    try:
        return msgspec.convert(lenient_json(bytes(call.request.body)), kind)
    except msgspec.ValidationError as error:
        raise BadRequestError(f"a body that cannot be read: {error}") from error
