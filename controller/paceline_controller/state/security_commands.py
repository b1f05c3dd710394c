"""Pure: commands on users, access keys, policies and the mode, as HTTP handlers propose them."""

from paceline.wire.calls.request import Number
from paceline.wire.commands import Command
from paceline.wire.users import (
    AccessKey,
    DefaultNamespace,
    Entries,
    KeyId,
    Mode,
    Quota,
    QuotaSubject,
    UserName,
    UserType,
    check_quota,
)


class SecurityCommand(Command, frozen=True, kw_only=True):
    """One of those below."""


class PutUser(SecurityCommand, frozen=True, kw_only=True):
    """Make a user, or change one; what is None stays as it is."""

    user: UserName
    type: UserType | None = None
    is_enabled: bool | None = None
    password: str | None = None
    """Its hash. With a new one all logins end."""
    ends_logins: bool = False
    if_logins: Number | None = None
    """Refused unless `User.logins` is this: nobody has changed the password meanwhile."""
    namespace: DefaultNamespace | None = None
    is_new: bool = False
    """It must not exist."""


class DeleteUser(SecurityCommand, frozen=True, kw_only=True):
    """With its keys and its policy."""

    user: UserName


class PutAccessKey(SecurityCommand, frozen=True, kw_only=True):
    """Give a user an access key; the same once more changes nothing."""

    user: UserName
    access_key: KeyId
    key: AccessKey


class SealAccessKeys(SecurityCommand, frozen=True, kw_only=True):
    """Put what is sealed in place of what was, if it is still as it was read."""

    sealed: dict[KeyId, tuple[str, str]]
    """Access key -> before and after."""


class DeleteAccessKey(SecurityCommand, frozen=True, kw_only=True):
    """Revoke it."""

    user: UserName
    access_key: KeyId


class PutPolicy(SecurityCommand, frozen=True, kw_only=True):
    """The whole policy of a user, in place of the one of that revision; None: of any."""

    user: UserName
    custom: Entries
    default: Entries
    revision: Number | None = None

    def check(self) -> None:
        for entry in (*self.custom, *self.default):
            entry.check()


class PutQuota(SecurityCommand, frozen=True, kw_only=True):
    """In place of the one that there is; without limits: none."""

    subject: QuotaSubject
    quota: Quota

    def check(self) -> None:
        check_quota(self.subject, self.quota)


class SetSecurityMode(SecurityCommand, frozen=True, kw_only=True):
    """Switch rights on, off, or on for trial."""

    mode: Mode
