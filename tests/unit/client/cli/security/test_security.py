"""`paceline security|user|acl|login|whoami` against a real controller."""

import re
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.controller.harness import SECRET
from tests.support.controller.sessions import a_cluster
from tests.unit.client.cli.conftest import Outcome, beside, run_command

from paceline.admin.users import SecurityMode, Users
from paceline.cli.profiles import Profile, read_profiles, write_profile
from paceline.errors import OutcomeUnknownError
from paceline.wire.controller_calls.security import PutAccessKey
from paceline.wire.users import AccessKey, User, UserType


class Person:
    """Runs commands at one cluster, with a folder of profiles."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.folder = folder

    def __call__(self, *arguments: str, stdin: str = "", **environment: str) -> Outcome:
        given = {"PACELINE_CONFIG_DIR": str(self.folder), **environment}
        return run_command(*arguments, stdin=stdin, bootstrap=self.bootstrap, environment=given)

    def json(self, *arguments: str, **environment: str) -> Any:
        outcome = self(*arguments, "--json", **environment)
        assert outcome.exit_code == 0, outcome.stderr
        rows = [orjson.loads(line) for line in outcome.stdout.splitlines()]
        return rows[0] if len(rows) == 1 else rows


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Person]:
        async with a_cluster() as (cluster, _):
            yield Person(str(cluster.addresses[0]), tmp_path / "config")

    with beside(serve()) as served:
        yield served


def test_rights_are_switched_on_and_the_key_of_the_first_user_is_kept(person: Person) -> None:
    assert person("security", "status").stdout == "rights are off; 0 users, 0 of them super users\n"

    enabled = person("security", "enable")

    assert enabled.exit_code == 0, enabled.stderr
    access_key, secret_key = (line.split()[-1] for line in enabled.stdout.splitlines()[:2])
    assert enabled.stdout.endswith("rights are on\n")
    file = person.folder / "profiles.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret_key in file.read_text()
    assert person("whoami").stdout == "admin, a super user; rights are on\n"
    again = person("security", "enable")
    assert secret_key not in again.stdout
    nobody = person("security", "status", PACELINE_CONFIG_DIR="/nowhere")
    assert (nobody.exit_code, nobody.stdout) == (1, "")
    assert "this cluster has users and rights" in nobody.stderr
    keyed = {"PACELINE_ACCESS_KEY": access_key, "PACELINE_SECRET_KEY": secret_key}
    assert person("whoami", PACELINE_CONFIG_DIR="/nowhere", **keyed).exit_code == 0
    half = person("whoami", PACELINE_ACCESS_KEY=access_key)
    assert (half.exit_code, "PACELINE_SECRET_KEY is missing" in half.stderr) == (2, True)
    assert person("security", "disable").stdout == "rights are off\n"


def test_whoever_holds_the_clusters_secret_lets_the_first_user_in(tmp_path: Path) -> None:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Person]:
        async with a_cluster(3) as (cluster, _):
            for node in cluster.nodes.values():
                node.access.is_closed = True
            yield Person(str(cluster.addresses[0]), tmp_path / "config")

    files = {"right": SECRET, "wrong": b"another secret, long enough"}
    for name, secret in files.items():
        (tmp_path / name).write_bytes(secret)
        (tmp_path / name).chmod(0o600)
    given = {name: ("--cluster-secret", str(tmp_path / name)) for name in files}
    with beside(serve()) as person:
        assert "this cluster has users and rights" in person("security", "enable").stderr
        assert person("security", "enable", *given["wrong"]).exit_code == 1
        first = person("security", "enable", *given["right"])
        assert (first.exit_code, first.stdout[:10]) == (0, "access key"), first.stderr
        assert person("whoami").stdout == "admin, a super user; rights are on\n"
        assert person("security", "enable", *given["right"]).stdout == "rights are on\n"
        again = person("security", "enable", "--new-key", *given["right"])
        assert again.stdout.startswith("access key")
        assert len(person.json("user", "list")["keys"]) == 2
        assert "rights stay on" in person("security", "disable").stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_first_key_is_shown_where_it_can_be_kept_nowhere(
    person: Person, tmp_path: Path, options: tuple[str, ...]
) -> None:
    folder = tmp_path / "config"
    folder.symlink_to(tmp_path / "no" / "folder")

    enabled = person("security", "enable", *options)

    assert enabled.exit_code == 0, enabled.stderr
    assert str(folder) in enabled.stderr
    assert "keep what is shown above yourself" in enabled.stderr
    access_key = re.findall(r"\bpk[0-9a-f]{20}\b", enabled.stdout)[0]
    secret_key = re.findall(r"\bsk_[0-9a-f]{64}\b", enabled.stdout)[0]
    keyed = {"PACELINE_ACCESS_KEY": access_key, "PACELINE_SECRET_KEY": secret_key}
    assert person("whoami", **keyed).stdout == "admin, a super user; rights are on\n"


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("step", ["create", "add_key", "set"])
def test_whatever_fails_the_first_key_was_shown_and_a_repetition_ends_it(
    person: Person, monkeypatch: pytest.MonkeyPatch, step: str, is_done: bool
) -> None:
    """Each step of it with an unknown outcome."""
    owner = SecurityMode if step == "set" else Users
    real = getattr(owner, step if step != "add_key" else "_write")

    async def fails(self: Any, *arguments: Any, **given: Any) -> Any:
        if step == "add_key" and arguments[0] is not PutAccessKey:
            return await real(self, *arguments, **given)
        if is_done:
            await real(self, *arguments, **given)
        raise OutcomeUnknownError("no controller answered")

    with monkeypatch.context() as patch:
        patch.setattr(owner, real.__name__, fails)
        failed = person("security", "enable")
    shown = [line.split()[-1] for line in failed.stdout.splitlines()]
    again = person("security", "enable")

    assert (failed.exit_code, len(shown)) == (1, 0 if step == "create" else 2)
    assert again.exit_code == 0, again.stderr
    new = [line.split()[-1] for line in again.stdout.splitlines()[:-1]]
    access_key, secret_key = new or shown
    keyed = {"PACELINE_ACCESS_KEY": access_key, "PACELINE_SECRET_KEY": secret_key}
    assert person("whoami", **keyed).stdout == "admin, a super user; rights are on\n"
    assert len(person.json("user", "list", **keyed)["keys"]) == 1


def test_keys_that_have_expired_are_no_way_in(tmp_path: Path) -> None:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Person]:
        async with a_cluster() as (cluster, _):
            key = AccessKey(digest="0" * 64, created_unix_ms=0, expires_unix_ms=1)
            admin = User(type=UserType.SUPER, keys={"key-old": key})
            state = cluster.leader.machine._state
            state.security = state.security.with_user("admin", admin)
            yield Person(str(cluster.addresses[0]), tmp_path / "config")

    with beside(serve()) as person:
        enabled = person("security", "enable")
        assert enabled.stdout.startswith("access key"), enabled.stderr
        assert person("whoami").stdout == "admin, a super user; rights are on\n"


def test_whoever_is_let_in_first_is_nobody_that_was_there(person: Person) -> None:
    """Somebody may still have the keys of a user that was disabled."""
    person("user", "create", "admin")
    old = person.json("user", "add-key", "admin")
    person("user", "alter", "admin", "--disable")

    enabled = person.json("security", "enable")
    assert enabled["user"] == "admin-2"
    assert person("whoami").stdout.startswith("admin-2, a super user")
    users = {row["user"]: row for row in person.json("user", "list")}
    assert (users["admin"]["type"], users["admin"]["is_enabled"]) == ("Normal", False)
    keyed = {"PACELINE_ACCESS_KEY": old["access_key"], "PACELINE_SECRET_KEY": old["secret_key"]}
    assert person("whoami", **keyed).exit_code == 1


def test_users_keys_and_policies(person: Person) -> None:
    assert person("user", "create", "shop").exit_code == 0
    assert "exists" in person("user", "create", "shop").stderr
    key = person.json("user", "add-key", "shop", "--for", "the shop", "--days", "1")
    person("acl", "set", "shop", "--resource", "Topic:orders*", "--actions", "pub,Sub")
    person("acl", "set", "shop", "--resource", "Topic:orders-1", "--actions", "Pub", "--deny")
    person("acl", "set", "shop", "--resource", "*", "--actions", "Get", "--default")

    users = person("user", "list").stdout.splitlines()
    head = ["USER", "TYPE", "ENABLED", "ACCESS", "KEY", "FOR", "EXPIRES", "USED"]
    assert users[0].split() == head
    assert users[1].split()[:4] == ["shop", "Normal", "yes", key["access_key"]]
    policy = person.json("acl", "list", "shop")
    assert [entry["resource"] for entry in policy["custom"]] == ["Topic:orders*", "Topic:orders-1"]
    assert policy["default"][0]["actions"] == ["Get"]
    rows = [line.split() for line in person("acl", "list").stdout.splitlines()]
    assert rows[1] == ["shop", "custom", "Topic:orders*", "Allow", "Pub,Sub", "all"]

    yes = person("acl", "explain", "shop", "Pub", "Topic:orders-2")
    assert (yes.exit_code, yes.stdout) == (
        0,
        "allowed: the custom policy of shop allows it: Allow Pub,Sub on Topic:orders*\n",
    )
    no = person("acl", "explain", "shop", "Pub", "Topic:orders-1")
    assert (no.exit_code, no.stdout[:8]) == (1, "refused:")
    assert person("acl", "lint").exit_code == 0
    person("acl", "set", "shop", "--resource", "Topic:*", "--actions", "All", "--deny")
    lint = person("acl", "lint")
    assert (lint.exit_code, lint.stdout.count("counts more than")) == (1, 1)

    person("acl", "remove", "shop", "--resource", "Topic:orders*")
    assert len(person.json("acl", "list", "shop")["custom"]) == 2
    assert person("user", "remove-key", "shop", key["access_key"]).exit_code == 0
    assert person("user", "alter", "shop", "--disable").exit_code == 0
    assert person("user", "alter", "shop", "--default-namespace", "shop").exit_code == 0
    assert person.json("user", "list")["namespace"] == "shop"
    person("user", "alter", "shop", "--enable", "--default-namespace", "")
    assert person.json("user", "list")["namespace"] == ""
    person("acl", "set", "shop", "--resource", "Namespace:shop", "--actions", "Sub")
    why = person("acl", "explain", "shop", "Sub", "Group:shop%billing").stdout
    assert why == "allowed: the custom policy of shop allows it: Allow Sub on Namespace:shop\n"
    assert person("user", "alter", "shop").exit_code == 2
    assert person("user", "delete", "shop").exit_code == 0
    assert "there is no user shop" in person("user", "delete", "shop").stderr


def test_quotas_are_set_listed_and_taken_away(person: Person) -> None:
    person("user", "create", "shop")
    assert person("quota", "list").stderr.startswith("no quotas")
    limits = ("--bytes-in", "1000", "--requests", "5", "--connections", "9", "--creations", "3")
    assert person("quota", "set", "User:shop", *limits).exit_code == 0
    assert person.json("quota", "list") == {
        "subject": "User:shop",
        "quota": {
            "bytes_in_per_s": 1000,
            "requests_per_s": 5,
            "connections": 9,
            "creations_per_hour": 3,
        },
    }
    assert "bytes_in_per_s 1000, requests_per_s 5" in person("quota", "list").stdout
    wrong = person("quota", "set", "User:shop", "--topics", "5")
    assert (wrong.exit_code, "User:shop has no limit topics" in wrong.stderr) == (2, True)
    assert "no user eve" in person("quota", "set", "User:eve", "--requests", "5").stderr
    assert person.json("quota", "delete", "User:shop") == {"ok": True, "subject": "User:shop"}
    assert person("quota", "list").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["acl", "set", "shop", "--resource", "orders", "--actions", "Pub"], "resource"),
        (["acl", "set", "shop", "--resource", "Topic:a", "--actions", "Fly"], "no action 'Fly'"),
        (
            ["acl", "set", "shop", "--resource", "*", "--actions", "Pub", "--source", "here"],
            "'here' is no address",
        ),
        (["acl", "explain", "shop", "Pub", "Topic:*"], "name one of them"),
        (["user", "create", "a b"], "user"),
        (["user", "create", "b", "--default-namespace", "a%b"], "namespace"),
        (["user", "create", "anonymous"], "anonymous"),
    ],
)
def test_wrong_input_is_told(person: Person, arguments: list[str], said: str) -> None:
    person("user", "create", "shop")

    outcome = person(*arguments)

    assert outcome.exit_code == 2
    assert said in outcome.stderr


def test_a_key_is_tried_before_it_is_kept(person: Person) -> None:
    off = person("login", "--access-key", "pk-1234", stdin="sk_0123456789abcdef\n")
    assert "rights are off" in off.stderr
    person("security", "enable")
    person("user", "create", "shop")
    key = person.json("user", "add-key", "shop")
    person("logout")

    wrong = person("login", "--access-key", key["access_key"], stdin="sk_wrong-wrong-wrong\n")
    assert (wrong.exit_code, read_profiles(person.folder)) == (1, {})
    right = person(
        "login",
        "--access-key",
        key["access_key"],
        stdin=f"{key['secret_key']}\n",
        PACELINE_PROFILE="till",
    )
    assert right.stdout.startswith("you are shop at ")
    assert person("whoami", PACELINE_PROFILE="till").stdout.startswith("shop, a normal user")
    assert person("whoami").exit_code == 1
    elsewhere = person("whoami", "--bootstrap", "127.0.0.1:1", PACELINE_PROFILE="till")
    assert "no controller answers" in elsewhere.stderr, "the key is for its own cluster only"
    assert person("logout", PACELINE_PROFILE="till").stdout == "profile till removed\n"
    assert person("logout", PACELINE_PROFILE="till").stdout == "profile till is not there\n"


def test_a_password_is_exchanged_for_a_login_that_can_be_ended(person: Person) -> None:
    first, second = "correct horse battery", "a quite different one"
    person("security", "enable")
    person("user", "create", "ana")
    assert person("user", "set-password", "ana", stdin=first + "\n").exit_code == 0
    short = person("user", "set-password", "ana", stdin="short\n")
    assert (short.exit_code, "password" in short.stderr) == (2, True)

    wrong = person("login", "--user", "ana", stdin=second + "\n", PACELINE_PROFILE="ana")
    assert (wrong.exit_code, "is disabled or has no password" in wrong.stderr) == (1, True)
    both = person("login", "--user", "ana", "--access-key", "k-1234", stdin=first + "\n")
    assert both.exit_code == 2
    right = person("login", "--user", "ana", stdin=first + "\n", PACELINE_PROFILE="ana")
    assert right.stdout.startswith("you are ana at "), right.stderr
    assert first not in (person.folder / "profiles.json").read_text()
    assert person("whoami", PACELINE_PROFILE="ana").stdout.startswith("ana, a normal user")

    both_lines = f"{first}\n{second}\n"
    nobody = {"PACELINE_PROFILE": "nobody"}
    changed = person("user", "set-password", "ana", "--change", stdin=both_lines, **nobody)
    assert changed.stdout == "password of ana set\n", changed.stderr
    ended = person("whoami", PACELINE_PROFILE="ana")
    assert (ended.exit_code, "all logins of ana were ended" in ended.stderr) == (1, True)
    person("login", "--user", "ana", stdin=second + "\n", PACELINE_PROFILE="ana")
    assert person("whoami", PACELINE_PROFILE="ana").exit_code == 0
    assert person("user", "end-logins", "ana").exit_code == 0
    assert person("whoami", PACELINE_PROFILE="ana").exit_code == 1


def test_the_key_for_another_cluster_stays_in_its_profile(person: Person) -> None:
    """It may be the only copy."""
    prod = Profile(bootstrap="prod1:7700", access_key="pk-prod", secret_key="sk_" + "a" * 40)
    write_profile(person.folder, "default", prod)

    enabled = person("security", "enable")
    assert "PACELINE_PROFILE=default-2" in enabled.stderr
    profiles = read_profiles(person.folder)
    assert profiles["default"] == prod
    assert profiles["default-2"].bootstrap == person.bootstrap
    mine = person("whoami", PACELINE_PROFILE="default-2")
    assert mine.stdout == "admin, a super user; rights are on\n"
    key = profiles["default-2"]
    again = person("login", "--access-key", key.access_key, stdin=key.secret_key + "\n")
    assert (again.exit_code, "PACELINE_PROFILE=default-2" in again.stderr) == (0, True)
    assert set(read_profiles(person.folder)) == {"default", "default-2"}
