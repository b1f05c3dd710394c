"""Users, access keys, policies: list, make, change, delete, explain."""

from typing import Any

import msgspec

from paceline.errors import BadRequestError, ForbiddenError, UserNotFoundError
from paceline.security.decide import Rules
from paceline.security.passwords import Passwords
from paceline.security.sealed_keys import is_current, open_key, seal_key
from paceline.wire.commands import Once
from paceline.wire.controller_calls import security as calls
from paceline.wire.rights import Resource
from paceline.wire.users import (
    ANONYMOUS,
    AccessKey,
    Mode,
    Policy,
    Security,
    UserType,
    check_quota,
    digest_of,
    parse_resource,
    user_json,
)
from paceline_controller.server.call_context import CallContext, Handlers
from paceline_controller.state.security_commands import (
    DeleteAccessKey,
    DeleteUser,
    PutAccessKey,
    PutPolicy,
    PutQuota,
    PutUser,
    SealAccessKeys,
    SetSecurityMode,
)

SEALED_MAX = 500
"""By one command."""


class SecurityCalls:
    """Handlers."""

    def __init__(self, context: CallContext, passwords: Passwords) -> None:
        self._context = context
        self._passwords = passwords

    def handlers(self) -> Handlers:
        return {
            calls.GetSecurity: self._get,
            calls.SetSecurityMode: self._set_mode,
            calls.ListUsers: self._list_users,
            calls.GetUser: self._get_user,
            calls.PutUser: self._put_user,
            calls.DeleteUser: self._delete_user,
            calls.PutPassword: self._put_password,
            calls.EndLogins: self._end_logins,
            calls.PutAccessKey: self._put_key,
            calls.SealKeys: self._seal_keys,
            calls.DeleteAccessKey: self._delete_key,
            calls.ListPolicies: self._list_policies,
            calls.GetPolicy: self._get_policy,
            calls.PutPolicy: self._put_policy,
            calls.ListQuotas: self._list_quotas,
            calls.PutQuota: self._put_quota,
            calls.Explain: self._explain,
        }

    @property
    def _security(self) -> Security:
        return self._context.node.machine.security

    async def _get(self, call: calls.GetSecurity, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        security = self._security
        types = [user.type for user in security.users.values()]
        return {
            "mode": self._context.node.access.mode,
            "version": security.version,
            "users": len(types),
            "super_users": types.count(UserType.SUPER),
            "has_super_user": security.has_super_user(self._context.clock.unix_ms()),
        }

    async def _set_mode(self, call: calls.SetSecurityMode, once: Once | None) -> dict[str, Any]:
        if self._context.node.access.is_closed and call.mode is not Mode.ON:
            raise ForbiddenError(
                "machines elsewhere reach this controller, so rights stay on; to have them off,"
                " set insecure = true on all nodes and restart them"
            )
        return await self._write(SetSecurityMode(mode=call.mode), once)

    # -- users ------------------------------------------------------------------------------------

    async def _list_users(self, call: calls.ListUsers, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        users, uses = self._security.users, self._context.node.machine.key_uses
        return {"users": [user_json(name, users[name], uses) for name in sorted(users)]}

    async def _get_user(self, call: calls.GetUser, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        user = self._security.users.get(call.user)
        if user is None:
            raise _unknown(call.user)
        return user_json(call.user, user, self._context.node.machine.key_uses)

    async def _put_user(self, call: calls.PutUser, once: Once | None) -> dict[str, Any]:
        command = PutUser(
            user=call.user,
            type=call.type,
            is_enabled=call.enabled,
            namespace=call.namespace,
            is_new=call.new,
        )
        return await self._write(command, once)

    async def _delete_user(self, call: calls.DeleteUser, once: Once | None) -> dict[str, Any]:
        return await self._write(DeleteUser(user=call.user), once)

    async def _put_password(self, call: calls.PutPassword, once: Once | None) -> dict[str, Any]:
        hashed = await self._passwords.hash(call.password)
        return await self._write(PutUser(user=call.user, password=hashed), once)

    async def _end_logins(self, call: calls.EndLogins, once: Once | None) -> dict[str, Any]:
        return await self._write(PutUser(user=call.user, ends_logins=True), once)

    async def _put_key(self, call: calls.PutAccessKey, once: Once | None) -> dict[str, Any]:
        now_unix_ms = self._context.clock.unix_ms()
        if call.expires_unix_ms is not None and call.expires_unix_ms <= now_unix_ms:
            raise BadRequestError("expires_unix_ms has passed already", field="expires_unix_ms")
        key = AccessKey(
            digest=digest_of(call.secret_key),
            name=call.name,
            created_unix_ms=now_unix_ms,
            expires_unix_ms=call.expires_unix_ms,
            sealed=self._sealed(call.access_key, call.secret_key) if call.signs else "",
        )
        command = PutAccessKey(user=call.user, access_key=call.access_key, key=key)
        return await self._write(command, once)

    def _sealed(self, access_key: str, secret_key: str) -> str:
        node = self._context.node
        return seal_key(
            secret_key,
            access_key=access_key,
            cluster_id=node.machine.cluster_id,
            secrets=node.secrets(),
            random=node.random,
        )

    async def _seal_keys(self, call: calls.SealKeys, once: Once | None) -> dict[str, Any]:
        await self._context.read_barrier()
        node = self._context.node
        secrets, cluster_id = node.secrets(), node.machine.cluster_id
        sealed: dict[str, tuple[str, str]] = {}
        lost = []
        keys = [each for user in self._security.users.values() for each in user.keys.items()]
        for access_key, key in keys:
            if not key.sealed or is_current(key.sealed, secrets) or len(sealed) >= SEALED_MAX:
                continue
            found = open_key(
                key.sealed, access_key=access_key, cluster_id=cluster_id, secrets=secrets
            )
            if found is None:
                lost.append(access_key)
            else:
                sealed[access_key] = (key.sealed, self._sealed(access_key, found))
        answer = await self._write(SealAccessKeys(sealed=sealed), once)
        return {**answer, "sealed": len(sealed), "lost": lost}

    async def _delete_key(self, call: calls.DeleteAccessKey, once: Once | None) -> dict[str, Any]:
        command = DeleteAccessKey(user=call.user, access_key=call.access_key)
        return await self._write(command, once)

    # -- policies ---------------------------------------------------------------------------------

    async def _list_policies(self, call: calls.ListPolicies, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        policies = self._security.policies
        return {"policies": [_policy_json(name, policies[name]) for name in sorted(policies)]}

    async def _get_policy(self, call: calls.GetPolicy, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        self._check_user(call.user)
        return _policy_json(call.user, self._security.policies.get(call.user, Policy()))

    async def _put_policy(self, call: calls.PutPolicy, once: Once | None) -> dict[str, Any]:
        for entry in (*call.custom, *call.default):
            entry.check_given()
        command = PutPolicy(
            user=call.user, custom=call.custom, default=call.default, revision=call.revision
        )
        result = await self._context.write(command, once)
        return {**_answer(result), "revision": result["revision"]}

    async def _list_quotas(self, call: calls.ListQuotas, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        quotas = self._security.quotas
        rows = [
            {"subject": subject, "quota": msgspec.to_builtins(quotas[subject])}
            for subject in sorted(quotas)
        ]
        return {"quotas": rows}

    async def _put_quota(self, call: calls.PutQuota, once: Once | None) -> dict[str, Any]:
        check_quota(call.subject, call.quota)
        return await self._write(PutQuota(subject=call.subject, quota=call.quota), once)

    async def _explain(self, call: calls.Explain, _: Once | None) -> dict[str, Any]:
        await self._context.read_point(call)
        self._check_user(call.user)
        parsed = parse_resource(call.resource)
        if parsed.is_prefix:
            raise BadRequestError(
                f"{call.resource} names many resources; name one of them", field="resource"
            )
        verdict = Rules(self._security).decide(
            call.user, Resource(parsed.type, parsed.name), (call.action,), source=call.source
        )
        return {
            "is_allowed": verdict.is_allowed,
            "why": verdict.why,
            "entry": None if verdict.entry is None else msgspec.to_builtins(verdict.entry),
        }

    def _check_user(self, name: str) -> None:
        if name not in self._security.users and name != ANONYMOUS:
            raise _unknown(name)

    async def _write(self, command: Any, once: Once | None) -> dict[str, Any]:
        return _answer(await self._context.write(command, once))


def _answer(result: dict[str, Any]) -> dict[str, Any]:
    return {"version": result["version"], "security": result["security"]}


def _policy_json(name: str, policy: Policy) -> dict[str, Any]:
    return {
        "user": name,
        "revision": policy.revision,
        "custom": msgspec.to_builtins(policy.custom),
        "default": msgspec.to_builtins(policy.default),
    }


def _unknown(name: str) -> UserNotFoundError:
    return UserNotFoundError(f"there is no user {name}", user=name)
