"""Users and rights that tests share: who may do what, and how to come as whom."""

from paceline.wire.rights import Action, Decision
from paceline.wire.users import (
    AccessKey,
    Mode,
    Policy,
    PolicyEntry,
    Security,
    User,
    UserType,
    digest_of,
)

SECRETS = {
    "root": "sk_secret-of-root-0123456789",
    "ana": "sk_secret-of-ana-0123456789",
    "bob": "sk_secret-of-bob-0123456789",
}
"""User -> secret of its only access key, which is called `key-NAME`."""


def bearer(user: str) -> dict[str, str]:
    """The header that shows the key of a user."""
    return {"Authorization": f"Bearer key-{user}.{SECRETS[user]}"}


def entry(
    resource: str, *actions: Action, deny: bool = False, sources: tuple[str, ...] = ()
) -> PolicyEntry:
    decision = Decision.DENY if deny else Decision.ALLOW
    return PolicyEntry(resource=resource, actions=actions, sources=sources, decision=decision)


def a_security(
    *,
    version: int = 1,
    mode: Mode = Mode.ON,
    ana: tuple[PolicyEntry, ...] = (),
    anonymous: tuple[PolicyEntry, ...] = (),
) -> Security:
    """`root` may do everything; `ana` what her policy says; `bob` nothing."""
    users = {
        name: User(
            type=UserType.SUPER if name == "root" else UserType.NORMAL,
            keys={f"key-{name}": AccessKey(digest=digest_of(secret), created_unix_ms=0)},
        )
        for name, secret in SECRETS.items()
    }
    return Security(
        version=version,
        mode=mode,
        cluster_name="paceline",
        users=users,
        policies={
            name: Policy(revision=1, custom=each)
            for name, each in (("ana", ana), ("anonymous", anonymous))
            if each
        },
    )
