"""Users, access keys, policies and the mode in the controllers' state."""

from typing import Any

import msgspec
import orjson
import pytest
from tests.support.controller.builders import Driver, a_group, reason
from tests.support.rights import entry

from paceline.errors import BadRequestError
from paceline.types import TopicName
from paceline.wire.names import AUDIT_TOPIC
from paceline.wire.rights import PUB, SUB
from paceline.wire.session import FROM_CONTROLLER_BYTES_MAX
from paceline.wire.users import AccessKey, Mode, PolicyEntry, UserType, digest_of
from paceline_controller.state import Machine, security
from paceline_controller.state.commands import Tick
from paceline_controller.state.security_commands import (
    DeleteAccessKey,
    DeleteUser,
    PutAccessKey,
    PutPolicy,
    PutUser,
    SetSecurityMode,
)

SECRET = "sk_a-secret-of-a-test-123"


def put_key(
    driver: Driver,
    user: str,
    access_key: str,
    secret: str = SECRET,
    *,
    expires_unix_ms: int | None = None,
) -> dict[str, Any]:
    key = AccessKey(
        digest=digest_of(secret), created_unix_ms=driver.now, expires_unix_ms=expires_unix_ms
    )
    return driver.do(PutAccessKey(user=user, access_key=access_key, key=key))


def put_policy(
    driver: Driver, user: str, *entries: PolicyEntry, revision: int | None = None
) -> dict[str, Any]:
    return driver.do(PutPolicy(user=user, custom=entries, default=(), revision=revision))


def with_root() -> Driver:
    driver = a_group()
    driver.do(PutUser(user="root", type=UserType.SUPER, is_new=True))
    put_key(driver, "root", "key-root")
    return driver


def test_a_cluster_that_never_used_it_has_the_snapshot_of_before() -> None:
    assert "security" not in orjson.loads(a_group().machine.snapshot())


def test_users_keys_and_policies_survive_a_snapshot() -> None:
    driver = with_root()
    driver.do(PutUser(user="ana", is_new=True))
    put_policy(driver, "ana", entry("Topic:orders*", PUB, sources=("10.0.0.0/8",)))
    driver.do(SetSecurityMode(mode=Mode.ON))

    other = Machine()
    other.restore(driver.machine.snapshot())

    assert other.security == driver.machine.security
    assert other.digest() == driver.machine.digest()
    assert other.security.mode is Mode.ON
    assert SECRET.encode() not in driver.machine.snapshot()


def test_a_user_made_again_is_not_who_was_logged_in_before() -> None:
    driver = with_root()
    logins = []
    for _ in range(3):
        driver.do(PutUser(user="ana", is_new=True))
        driver.do(PutUser(user="ana", password="a hash"))
        logins.append(driver.machine.security.users["ana"].logins)
        driver.do(DeleteUser(user="ana"))

    assert len(set(logins)) == 3


def test_a_password_is_changed_only_by_whoever_has_seen_the_last_one() -> None:
    driver = with_root()
    driver.do(PutUser(user="ana", is_new=True))
    seen = driver.machine.security.users["ana"].logins
    driver.do(PutUser(user="ana", password="of the operator"))

    late = driver.do(PutUser(user="ana", password="of a thief", if_logins=seen))
    assert reason(late) == "STALE_REVISION"
    assert driver.machine.security.users["ana"].password == "of the operator"


def test_the_same_secret_with_another_end_is_another_key() -> None:
    driver = with_root()
    key = AccessKey(digest=digest_of(SECRET), created_unix_ms=1)
    driver.do(PutAccessKey(user="root", access_key="key-2", key=key))
    again = msgspec.structs.replace(key, created_unix_ms=2)
    ends = msgspec.structs.replace(key, expires_unix_ms=5)

    assert driver.do(PutAccessKey(user="root", access_key="key-2", key=again))["ok"]
    late = driver.do(PutAccessKey(user="root", access_key="key-2", key=ends))
    assert reason(late) == "KEY_EXISTS"


def test_no_user_is_called_like_a_node() -> None:
    assert reason(with_root().do(PutUser(user="node", is_new=True))) == "BAD_USER"


def test_when_keys_were_used_is_noted_and_forgotten_with_the_key() -> None:
    driver = with_root()
    version = driver.machine.security.version
    driver.do(Tick(alive=(), key_uses={"key-root": 50, "key-of-nobody": 70}))
    driver.do(Tick(alive=(), key_uses={"key-root": 40}))

    again = Machine()
    again.restore(driver.machine.snapshot())
    assert again.key_uses == driver.machine.key_uses == {"key-root": 50}
    assert again.security.version == version, "nobody decides anew for it"


def test_a_use_that_a_clock_ahead_has_noted_is_of_now() -> None:
    """Else the key would look used for years, and no later use would be noted."""
    driver = with_root()
    driver.do(Tick(alive=(), key_uses={"key-root": 2**60}))
    noted = driver.machine.key_uses["key-root"]
    driver.now += 50
    driver.do(Tick(alive=(), key_uses={"key-root": 2**60}))

    assert noted < 2**60
    assert driver.machine.key_uses == {"key-root": noted + 50}


def test_the_topic_of_the_audit_is_made_when_rights_are_switched_on_and_stays() -> None:
    driver = a_group()
    name = TopicName(AUDIT_TOPIC)

    assert reason(driver.do(SetSecurityMode(mode=Mode.ON))) == "NO_SUPER_USER"
    assert driver.do(SetSecurityMode(mode=Mode.OFF))["ok"]
    assert name not in driver.machine.topics
    driver.do(SetSecurityMode(mode=Mode.DRY_RUN))
    made = driver.machine.topics[name]
    assert (made.is_system, made.write_queues) == (True, {"g1": 1})
    version = driver.machine.version
    driver.do(SetSecurityMode(mode=Mode.DRY_RUN))
    assert driver.machine.version == version
    driver.do(SetSecurityMode(mode=Mode.OFF))
    assert driver.machine.topics[name].topic_id == made.topic_id


def test_each_change_is_a_version_and_a_repetition_is_none() -> None:
    driver = with_root()
    before = driver.machine.security.version, driver.machine.version

    assert put_key(driver, "root", "key-root")["ok"]
    assert driver.do(PutUser(user="root", type=UserType.SUPER))["ok"]
    assert (driver.machine.security.version, driver.machine.version) == before
    result = driver.do(PutUser(user="ana", is_new=True))
    assert result["security"] == before[0] + 1
    assert driver.machine.version == before[1] + 1, "it is published, so views follow"


def test_nobody_can_lock_everybody_out() -> None:
    driver = a_group()
    assert reason(driver.do(SetSecurityMode(mode=Mode.ON))) == "NO_SUPER_USER"
    assert driver.do(SetSecurityMode(mode=Mode.DRY_RUN))["ok"], "there nobody is refused"
    driver = with_root()
    driver.do(SetSecurityMode(mode=Mode.ON))

    for command in (
        DeleteUser(user="root"),
        DeleteAccessKey(user="root", access_key="key-root"),
        PutUser(user="root", is_enabled=False),
        PutUser(user="root", type=UserType.NORMAL),
    ):
        assert reason(driver.do(command)) == "NO_SUPER_USER", command
    driver.do(PutUser(user="deputy", type=UserType.SUPER, is_new=True))
    put_key(driver, "deputy", "key-deputy")
    assert driver.do(DeleteUser(user="root"))["ok"]


def test_a_key_that_has_expired_lets_nobody_in() -> None:
    driver = a_group()
    driver.do(PutUser(user="root", type=UserType.SUPER, is_new=True))
    put_key(driver, "root", "key-ends", expires_unix_ms=driver.now + 1_000)
    assert driver.do(SetSecurityMode(mode=Mode.ON))["ok"], "it counts still"
    driver.do(SetSecurityMode(mode=Mode.OFF))
    driver.now += 1_000
    assert reason(driver.do(SetSecurityMode(mode=Mode.ON))) == "NO_SUPER_USER"

    put_key(driver, "root", "key-root")
    assert driver.do(SetSecurityMode(mode=Mode.ON))["ok"]
    for command in (
        DeleteAccessKey(user="root", access_key="key-root"),
        PutUser(user="root", is_enabled=False),
    ):
        assert reason(driver.do(command)) == "NO_SUPER_USER", command
    driver.do(PutUser(user="root", password="a hash"))
    assert driver.do(DeleteAccessKey(user="root", access_key="key-root"))["ok"]


def test_where_the_last_key_has_expired_somebody_can_be_let_in_again() -> None:
    """By whoever holds the cluster's secret: a user comes before its key."""
    driver = a_group()
    driver.do(PutUser(user="root", type=UserType.SUPER, is_new=True))
    put_key(driver, "root", "key-ends", expires_unix_ms=driver.now + 1_000)
    driver.do(SetSecurityMode(mode=Mode.ON))
    driver.now += 1_000

    assert driver.do(PutUser(user="deputy", type=UserType.SUPER, is_new=True))["ok"]
    assert put_key(driver, "deputy", "key-deputy")["ok"]
    assert driver.do(DeleteUser(user="root"))["ok"]
    assert reason(driver.do(DeleteUser(user="deputy"))) == "NO_SUPER_USER"


def test_a_policy_is_put_in_place_of_the_one_that_was_read() -> None:
    driver = with_root()
    driver.do(PutUser(user="ana", is_new=True))

    assert put_policy(driver, "ana", entry("*", PUB), revision=0)["revision"] == 1
    assert reason(put_policy(driver, "ana", entry("*", SUB), revision=0)) == "STALE_REVISION"
    assert driver.machine.security.policies["ana"].custom == (entry("*", PUB),)
    assert put_policy(driver, "ana", entry("*", SUB), revision=1)["revision"] == 2
    assert put_policy(driver, "ana")["revision"] == 3, "without a revision: of any"


def test_what_does_not_fit_is_refused_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = with_root()
    driver.do(PutUser(user="ana", is_new=True))
    monkeypatch.setattr(security, "USERS_MAX", 2)
    monkeypatch.setattr(security, "KEYS_MAX", 1)
    monkeypatch.setattr(security, "ALL_ENTRIES_MAX", 1)
    before = driver.machine.security

    assert reason(driver.do(PutUser(user="ana", is_new=True))) == "USER_EXISTS"
    assert reason(driver.do(PutUser(user="eve"))) == "USER_UNKNOWN"
    assert reason(driver.do(PutUser(user="eve", is_new=True))) == "TOO_MANY_USERS"
    assert reason(driver.do(PutUser(user="anonymous", is_new=True))) == "BAD_USER"
    assert reason(driver.do(DeleteUser(user="eve"))) == "USER_UNKNOWN"
    assert reason(put_key(driver, "eve", "key-eve-1")) == "USER_UNKNOWN"
    assert reason(put_key(driver, "ana", "key-root", "sk_another-secret-123")) == "KEY_EXISTS"
    assert reason(put_key(driver, "root", "key-root-2")) == "TOO_MANY_KEYS"
    assert reason(driver.do(DeleteAccessKey(user="ana", access_key="key-ana-1"))) == "USER_UNKNOWN"
    assert reason(put_policy(driver, "eve", entry("*", PUB))) == "USER_UNKNOWN"
    two = (entry("Topic:a", PUB), entry("Topic:b", PUB))
    assert reason(put_policy(driver, "ana", *two)) == "TOO_MANY_ENTRIES"
    assert driver.machine.security == before


def test_what_brokers_could_not_be_told_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert security.SECURITY_BYTES_MAX < FROM_CONTROLLER_BYTES_MAX
    driver = with_root()
    monkeypatch.setattr(security, "SECURITY_BYTES_MAX", 1_000)
    many = [entry(f"Topic:orders-{number}", PUB) for number in range(20)]

    assert reason(put_policy(driver, "anonymous", *many)) == "TOO_MANY_ENTRIES"
    assert put_policy(driver, "anonymous", many[0])["ok"]


def test_anonymous_can_have_a_policy() -> None:
    driver = with_root()

    assert put_policy(driver, "anonymous", entry("Topic:news", SUB))["ok"]


@pytest.mark.parametrize(
    "change",
    [
        {"custom": [{"resource": "orders", "actions": ["Pub"]}]},
        {"custom": [{"resource": "Topic:a/b", "actions": ["Pub"]}]},
        {"custom": [{"resource": "Topic:a*b", "actions": ["Pub"]}]},
        {"custom": [{"resource": "Topic:a", "actions": []}]},
        {"custom": [{"resource": "Topic:a", "actions": ["pub"]}]},
        {"custom": [{"resource": "Topic:a", "actions": ["Pub"], "sources": ["here"]}]},
        {"custom": [{"resource": "Topic:a", "actions": ["Pub"], "decision": "Maybe"}]},
        {"custom": [{"resource": "Topic:a", "actions": ["Pub"], "more": 1}]},
        {"user": "a b"},
        {"user": ".."},
        {"revision": -1},
    ],
)
def test_a_policy_of_another_form_is_no_command(change: dict[str, Any]) -> None:
    document = {"user": "ana", "custom": [], "default": [], **change}

    with pytest.raises(BadRequestError):
        PutPolicy.read({"kind": "put_policy", **document})
