"""Keys and passwords at controllers: when they were used, logins, guesses, what is kept of them."""

import pytest
from tests.support.askers import proof_of
from tests.support.audit import on_disk
from tests.support.controller.harness import SECRET, eventually
from tests.support.controller.secured import secure, secured
from tests.support.controller.sessions import a_cluster
from tests.support.rights import SECRETS, bearer

from paceline.errors import NotLeaderError
from paceline.platform.runtime import SystemClock
from paceline.security import login_backoff
from paceline.security.audit import RECORDS_PER_S
from paceline.security.sealed_keys import open_key


async def test_it_is_told_when_keys_were_used_here_or_at_a_broker() -> None:
    async with a_cluster(1) as (cluster, brokers):
        secure(cluster)
        noted = SystemClock().unix_ms()
        await brokers[0].beat(key_uses={"key-ana": noted, "key-of-nobody": noted})
        leader = cluster.leader
        await eventually(lambda: "key-ana" in leader.access.key_uses.due(), "it has heard")
        users = await cluster.ask("GET", "/v1/users", headers=bearer("root"))
        await leader.supervisor._move_time()
        listed = (await cluster.ask("GET", "/v1/users", headers=bearer("root")))[1]["users"]

    assert {row["keys"][0]["used_unix_ms"] for row in users[1]["users"]} == {None}
    used = {row["user"]: row["keys"][0]["used_unix_ms"] for row in listed}
    assert used["ana"] == noted
    assert used["root"] >= noted
    assert used["bob"] is None


PASSWORD, OTHER_PASSWORD = "correct horse battery", "a quite different one"


async def test_a_password_logs_in_at_each_controller_until_it_is_changed() -> None:
    async with secured(3) as cluster:
        root = bearer("root")
        given = {"password": PASSWORD}
        assert (await cluster.ask("PUT", "/v1/users/bob/password", given, headers=root))[0] == 200
        login = {"user": "bob", **given}
        tokens = []
        for node in range(3):
            status, answer = await cluster.ask("POST", "/v1/login", login, node=node)
            assert status == 200, answer
            tokens.append(
                {"Authorization": f"Bearer {answer['access_key']}.{answer['secret_key']}"}
            )
        for node, token in enumerate(tokens):
            who = await cluster.ask("GET", "/v1/whoami", headers=token, node=node)
            assert who[1]["user"] == "bob"
            assert who[1]["access_key"].startswith("login-")
        listed = (await cluster.ask("GET", "/v1/users/bob", headers=root))[1]
        assert listed["has_password"]
        assert "argon2" not in str(listed)

        wrong = {"present": OTHER_PASSWORD, "password": OTHER_PASSWORD}
        refused = await cluster.ask("POST", "/v1/users/bob/password", wrong)
        right = {"present": PASSWORD, "password": OTHER_PASSWORD}
        changed = await cluster.ask("POST", "/v1/users/bob/password", right, node=1)
        after = await cluster.ask("GET", "/v1/whoami", headers=tokens[0])
        old = await cluster.ask("POST", "/v1/login", login)
        new = await cluster.ask("POST", "/v1/login", {**login, "password": OTHER_PASSWORD})
        key = await cluster.ask("GET", "/v1/whoami", headers=bearer("bob"))

    assert (refused[0], refused[1]["code"]) == (401, "LOGIN_FAILED")
    assert changed[0] == 200
    assert after[0] == 401, "all logins have ended"
    assert (old[0], new[0], key[0]) == (401, 200, 200)


async def test_who_guesses_waits_and_a_relayed_guess_counts_for_where_it_came_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(login_backoff, "WAIT_MS", login_backoff.WAIT_MS_MAX_OF_SOURCE)
    async with secured(2) as cluster:
        given = {"password": PASSWORD}
        await cluster.ask("PUT", "/v1/users/bob/password", given, headers=bearer("root"))
        codes = [
            (await cluster.ask("POST", "/v1/login", {"user": user, "password": "x"}, node=at % 2))[
                1
            ]["code"]
            for at, user in enumerate(("bob", "eve", "ana", "bob", "bob", "root", "bob"))
        ]
        late = await cluster.ask("POST", "/v1/login", {"user": "bob", **given})

    assert codes == ["LOGIN_FAILED"] * 5 + ["QUOTA_EXCEEDED"] * 2
    assert late[0] == 429, "also with the right password"
    assert late[1]["retry_after_ms"] > 0


async def test_a_leader_that_cannot_tell_counts_no_wrong_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with secured() as cluster:
        given = {"password": PASSWORD}
        await cluster.ask("PUT", "/v1/users/bob/password", given, headers=bearer("root"))

        async def moved(*, timeout_ms: int) -> None:
            raise NotLeaderError("another one leads")

        with monkeypatch.context() as patch:
            patch.setattr(cluster.leader.quorum, "read_barrier", moved)
            for _ in range(login_backoff.FREE_OF_SOURCE):
                refused = await cluster.ask("POST", "/v1/login", {"user": "bob", **given})
                assert refused[1]["code"] == NotLeaderError.code
        assert (await cluster.ask("POST", "/v1/login", {"user": "bob", **given}))[0] == 200


async def test_brokers_are_told_no_hash_of_a_password() -> None:
    async with secured() as cluster:
        given = {"password": PASSWORD}
        await cluster.ask("PUT", "/v1/users/bob/password", given, headers=bearer("root"))
        told = cluster.leader.security_text()
        kept = cluster.leader.machine.security.users["bob"].password

    assert kept.startswith("$argon2id$")
    assert "argon2" not in told
    assert '"logins":1' in told


async def test_keys_that_sign_are_kept_encrypted_and_sealed_anew_when_the_secret_changes() -> None:
    async with secured() as cluster:
        node, root = cluster.leader, bearer("root")
        for name, signs in (("key-eve", True), ("key-bob-2", False)):
            document = {"secret_key": SECRETS["ana"], "signs": signs}
            path = f"/v1/users/bob/keys/{name}"
            assert (await cluster.ask("PUT", path, document, headers=root))[0] == 200
        listed = (await cluster.ask("GET", "/v1/users/bob", headers=root))[1]["keys"]
        assert {row["access_key"]: row["signs"] for row in listed} == {
            "key-bob": False,
            "key-bob-2": False,
            "key-eve": True,
        }

        def opened() -> str | None:
            sealed = node.machine.security.users["bob"].keys["key-eve"].sealed
            cluster_id = node.machine.cluster_id
            return open_key(
                sealed, access_key="key-eve", cluster_id=cluster_id, secrets=node.secrets()
            )

        assert opened() == SECRETS["ana"]
        assert SECRETS["ana"] not in str(node.machine.snapshot())

        async def seal() -> tuple[int, list[str]]:
            answer = (await cluster.ask("POST", "/v1/security/seal", headers=root))[1]
            return answer["sealed"], answer["lost"]

        assert await seal() == (0, [])
        new = b"the new secret of the cluster"
        node.secrets = lambda: (new, SECRET)
        assert await seal() == (1, [])
        assert await seal() == (0, [])
        node.secrets = lambda: (new,)
        assert opened() == SECRETS["ana"]
        node.secrets = lambda: (b"yet another secret of the cluster",)
        assert await seal() == (0, ["key-eve"])


async def test_who_logs_in_and_who_tries_to_is_told_without_the_password() -> None:
    async with secured() as cluster:
        given = {"password": PASSWORD}
        await cluster.ask("PUT", "/v1/users/bob/password", given, headers=bearer("root"))
        for password in (PASSWORD, OTHER_PASSWORD):
            await cluster.ask("POST", "/v1/login", {"user": "bob", "password": password})
        change = {"present": PASSWORD, "password": OTHER_PASSWORD}
        await cluster.ask("POST", "/v1/users/bob/password", change)

    told = on_disk(cluster.disks[cluster.ids[0]], "unused/audit")
    assert [(row.call, row.about, row.decision, row.outcome) for row in told] == [
        ("put_password", "user=bob", "Allow", "OK"),
        ("login", "user=bob", "Allow", "OK"),
        ("login", "user=bob", "Deny", "LOGIN_FAILED"),
        ("change_password", "user=bob", "Allow", "OK"),
    ]
    assert not any(each in str(told) for each in (PASSWORD, OTHER_PASSWORD))


async def test_a_storm_of_logins_does_not_fill_the_audit() -> None:
    """What is refused after the first failures costs nothing, so nothing would stop it."""
    async with secured() as cluster:
        for _ in range(RECORDS_PER_S * 10):
            await cluster.ask("POST", "/v1/login", {"user": "bob", "password": "x"})
        bounded = on_disk(cluster.disks[cluster.ids[0]], "unused/audit")
        began_ms, ended_ms = bounded[0].unix_ms, SystemClock().unix_ms()
        assert cluster.leader.access.audit.dropped_count > 0

    assert len(bounded) <= RECORDS_PER_S * (2 + (ended_ms - began_ms) / 1000)


async def test_what_is_done_with_the_cluster_secret_is_told() -> None:
    async with secured() as cluster:
        body = b'{"type": "Super", "new": true}'
        proof = proof_of(
            cluster.leader.proofs, "PUT", "/v1/users/eve", body, address=str(cluster.addresses[0])
        )
        media = {"Content-Type": "application/json"}
        made = await cluster.ask("PUT", "/v1/users/eve", data=body, headers={**proof, **media})

    assert made[0] == 200
    told = on_disk(cluster.disks[cluster.ids[0]], "unused/audit")
    assert [(row.user, row.call, row.about) for row in told] == [("node", "put_user", "user=eve")]
