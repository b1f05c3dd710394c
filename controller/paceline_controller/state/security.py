"""Pure: users, access keys, policies, and whether they are enforced.

Whoever could lock everybody out is refused: while rights are on, the last super user that is
enabled and has an access key or a password stays so. Keys that have expired, by replicated time,
count for nothing. Where the last one has expired, changes are taken again: one of them lets
somebody in.
"""

from collections.abc import Mapping
from typing import assert_never

import msgspec

from paceline.types import TopicName
from paceline.wire.names import AUDIT_TOPIC
from paceline.wire.users import (
    ALL_ENTRIES_MAX,
    ALL_KEYS_MAX,
    ANONYMOUS,
    EACH,
    KEYS_MAX,
    NODE,
    QUOTAS_MAX,
    USERS_MAX,
    AccessKey,
    Mode,
    Policy,
    Quota,
    Security,
    User,
    UserType,
    parse_subject,
)
from paceline_controller.state import topics
from paceline_controller.state.model import State
from paceline_controller.state.outcome import Outcome, RefusedError
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

SECURITY_BYTES_MAX = 3 * 1024 * 1024
"""Below the limit of a session's message: brokers could not be told of more."""

AnySecurityCommand = (
    PutUser
    | DeleteUser
    | PutAccessKey
    | SealAccessKeys
    | DeleteAccessKey
    | PutPolicy
    | PutQuota
    | SetSecurityMode
)


def apply(state: State, command: AnySecurityCommand, outcome: Outcome) -> None:
    before = state.security
    match command:
        case PutUser():
            after = _put_user(before, command)
        case DeleteUser():
            after = _delete_user(before, command)
        case PutAccessKey():
            after = _put_key(before, command)
        case SealAccessKeys():
            after = _seal_keys(before, command)
        case DeleteAccessKey():
            after = _delete_key(before, command)
        case PutPolicy():
            after = _put_policy(before, command)
        case PutQuota():
            after = _put_quota(before, command)
        case SetSecurityMode():
            after = _set_mode(before, command)
        case _:
            assert_never(command)
    if after is not before:
        _check_not_locked_out(before, after, now_unix_ms=state.time_ms)
        if len(msgspec.json.encode(after)) > SECURITY_BYTES_MAX:
            raise RefusedError(
                "TOO_MANY_ENTRIES",
                f"all users and policies together may have {SECURITY_BYTES_MAX} bytes as JSON",
            )
        state.security = msgspec.structs.replace(
            after, cluster_id=state.cluster_id, cluster_name=state.cluster_name
        )
        outcome.note(command.kind, user=getattr(command, "user", None), security=after.version)
        outcome.publish_rights()
    if isinstance(command, SetSecurityMode) and command.mode is not Mode.OFF:
        topics.add_system(state, TopicName(AUDIT_TOPIC), queues=1, outcome=outcome)
    outcome.result["security"] = state.security.version
    if isinstance(command, PutPolicy):
        outcome.result["revision"] = state.security.policies[command.user].revision


def note_uses(state: State, uses: Mapping[str, int]) -> None:
    """When access keys were used; those that are revoked are forgotten."""
    for access_key, at in uses.items():
        used = min(at, state.time_ms)  # the clock of who has noted it may be ahead
        state.key_uses[access_key] = max(used, state.key_uses.get(access_key, 0))
    present = {each for user in state.security.users.values() for each in user.keys}
    for gone in state.key_uses.keys() - present:
        del state.key_uses[gone]


def _put_user(security: Security, command: PutUser) -> Security:
    present = security.users.get(command.user)
    if command.user == ANONYMOUS:
        raise RefusedError("BAD_USER", f"{ANONYMOUS} is whoever shows no key: only its policy is")
    if command.user == NODE:
        raise RefusedError("BAD_USER", f"{NODE} is what nodes of the cluster are called")
    if command.if_logins is not None and (present is None or present.logins != command.if_logins):
        raise RefusedError(
            "STALE_REVISION", f"the password of {command.user} was changed meanwhile: log in again"
        )
    if command.is_new and present is not None:
        raise RefusedError("USER_EXISTS", f"user {command.user} exists")
    if present is None:
        if not command.is_new:
            raise _unknown(command.user)
        if len(security.users) >= USERS_MAX:
            raise RefusedError("TOO_MANY_USERS", f"there are {USERS_MAX} users")
        # Tokens of a user of that name, who is deleted, are not his.
        present = User(logins=security.version + 1)
    user = msgspec.structs.replace(
        present,
        type=present.type if command.type is None else command.type,
        is_enabled=present.is_enabled if command.is_enabled is None else command.is_enabled,
        password=present.password if command.password is None else command.password,
        logins=present.logins + (command.ends_logins or command.password is not None),
        namespace=present.namespace if command.namespace is None else command.namespace,
    )
    if user == security.users.get(command.user):
        return security
    return security.with_user(command.user, user)


def _delete_user(security: Security, command: DeleteUser) -> Security:
    if command.user not in security.users and command.user not in security.policies:
        raise _unknown(command.user)
    users = {name: user for name, user in security.users.items() if name != command.user}
    policies = {name: each for name, each in security.policies.items() if name != command.user}
    quotas = {
        subject: quota
        for subject, quota in security.quotas.items()
        if _user_of(subject) != command.user
    }
    return security.changed(users=users, policies=policies, quotas=quotas)


def _put_key(security: Security, command: PutAccessKey) -> Security:
    user = security.users.get(command.user)
    if user is None:
        raise _unknown(command.user)
    present = user.keys.get(command.access_key)
    if present is not None and _is_same_key(present, command.key):
        return security
    for other in security.users.values():
        if command.access_key in other.keys:
            raise RefusedError("KEY_EXISTS", f"there is an access key {command.access_key} already")
    if len(user.keys) >= KEYS_MAX:
        raise RefusedError("TOO_MANY_KEYS", f"user {command.user} has {KEYS_MAX} access keys")
    if sum(len(each.keys) for each in security.users.values()) >= ALL_KEYS_MAX:
        raise RefusedError("TOO_MANY_KEYS", f"there are {ALL_KEYS_MAX} access keys")
    keys = {**user.keys, command.access_key: command.key}
    return security.with_user(command.user, msgspec.structs.replace(user, keys=keys))


def _is_same_key(one: AccessKey, other: AccessKey) -> bool:
    """Whether it was asked for in the same words: a repetition is sealed anew, at another time."""
    said = [(key.digest, key.name, key.expires_unix_ms, bool(key.sealed)) for key in (one, other)]
    return said[0] == said[1]


def _seal_keys(security: Security, command: SealAccessKeys) -> Security:
    def sealed(name: str, key: AccessKey) -> AccessKey:
        before, after = command.sealed.get(name, ("", ""))
        return msgspec.structs.replace(key, sealed=after) if before == key.sealed else key

    users = {
        name: msgspec.structs.replace(
            user, keys={each: sealed(each, key) for each, key in user.keys.items()}
        )
        for name, user in security.users.items()
    }
    return security if users == security.users else security.changed(users=users)


def _delete_key(security: Security, command: DeleteAccessKey) -> Security:
    user = security.users.get(command.user)
    if user is None:
        raise _unknown(command.user)
    if command.access_key not in user.keys:
        raise RefusedError(
            "USER_UNKNOWN", f"user {command.user} has no access key {command.access_key}"
        )
    keys = {name: key for name, key in user.keys.items() if name != command.access_key}
    return security.with_user(command.user, msgspec.structs.replace(user, keys=keys))


def _put_policy(security: Security, command: PutPolicy) -> Security:
    if command.user not in security.users and command.user != ANONYMOUS:
        raise _unknown(command.user)
    present = security.policies.get(command.user, Policy())
    is_same = (present.custom, present.default) == (command.custom, command.default)
    if is_same and command.user in security.policies:
        return security
    if command.revision is not None and command.revision != present.revision:
        raise RefusedError(
            "STALE_REVISION",
            f"the policy of {command.user} is at revision {present.revision}, not"
            f" {command.revision}: somebody has changed it; read it again",
        )
    others = sum(
        len(each.entries) for name, each in security.policies.items() if name != command.user
    )
    if others + len(command.custom) + len(command.default) > ALL_ENTRIES_MAX:
        raise RefusedError(
            "TOO_MANY_ENTRIES", f"all policies together have {ALL_ENTRIES_MAX} entries at most"
        )
    policy = Policy(revision=present.revision + 1, custom=command.custom, default=command.default)
    return security.changed(policies={**security.policies, command.user: policy})


def _put_quota(security: Security, command: PutQuota) -> Security:
    user = _user_of(command.subject)
    if user is not None and user not in (*security.users, ANONYMOUS, EACH):
        raise _unknown(user)
    if command.quota == security.quotas.get(command.subject, Quota()):
        return security
    quotas = {
        subject: quota for subject, quota in security.quotas.items() if subject != command.subject
    }
    if command.quota != Quota():
        if len(quotas) >= QUOTAS_MAX:
            raise RefusedError("TOO_MANY_ENTRIES", f"there are {QUOTAS_MAX} quotas")
        quotas[command.subject] = command.quota
    return security.changed(quotas=quotas)


def _user_of(subject: str) -> str | None:
    """The user of the subject of a quota; None: it is of something else."""
    parsed = parse_subject(subject)
    return parsed.name if parsed.kind in ("User", "Client") else None


def _set_mode(security: Security, command: SetSecurityMode) -> Security:
    if security.mode is command.mode:
        return security
    return security.changed(mode=command.mode)


def _check_not_locked_out(before: Security, after: Security, *, now_unix_ms: int) -> None:
    if after.mode is not Mode.ON or after.has_super_user(now_unix_ms):
        return
    if before.mode is not Mode.ON or before.has_super_user(now_unix_ms):
        raise RefusedError(
            "NO_SUPER_USER",
            "nobody could give rights any more: there must be a user of type"
            f" {UserType.SUPER} that is enabled and has a password or an access key that has not"
            " expired",
        )


def _unknown(user: str) -> RefusedError:
    return RefusedError("USER_UNKNOWN", f"there is no user {user}")
