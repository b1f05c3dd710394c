"""Real processes: what users have done, and were refused, is found after nodes have died."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.process.harness import (
    RunningCluster,
    end_with_parent,
    eventually,
    paceline_command,
    running_cluster,
)

from paceline.admin.client import AdminClient
from paceline.errors import NotAuthorizedError, TopicNotFoundError, UnauthenticatedError
from paceline.message import Message
from paceline.net.connect import ConnectSettings, Credentials
from paceline.producer.producer import Producer

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

GUESSED = "a-secret-that-is-guessed"
FAILOVER_MS = 30_000
SENDS = 1_050
"""More than the setting `audit_sample_one_in`."""


def master_name(cluster: RunningCluster, address: str) -> str:
    [name] = [node["name"] for node in cluster.brokers() if node["address"] == address]
    return str(name)


async def searched(connect: ConnectSettings, *options: str) -> list[dict[str, Any]]:
    """What `paceline audit search` prints."""
    command = paceline_command(*_at(connect), "--json", *options)
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        env=_environment(connect),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [orjson.loads(line) for line in done.stdout.splitlines()]


def _at(connect: ConnectSettings) -> list[str]:
    return ["audit", "search", "--bootstrap", ",".join(connect.bootstrap)]


def _environment(connect: ConnectSettings) -> Mapping[str, str]:
    assert isinstance(connect.credentials, Credentials)
    return {
        **os.environ,
        "PACELINE_ACCESS_KEY": connect.credentials.access_key,
        "PACELINE_SECRET_KEY": connect.credentials.secret_key,
    }


async def test_what_users_did_is_found_after_the_master_was_killed(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.topics.create("orders", queues=1)
            await admin.users.create("root", is_super=True)
            root_key = await admin.users.add_key("root")
            root = ConnectSettings(cluster.bootstrap, root_key)
            await admin.users.create("shop")
            shop_key = await admin.users.add_key("shop")
            shop = ConnectSettings(cluster.bootstrap, shop_key)
            await admin.policies.set_entry("shop", "Topic:*", ["All"])
            await admin.policies.set_entry("shop", "Topic:secret*", ["All"], decision="Deny")
            await admin.security.set("on")
        async with AdminClient(root) as admin:
            await admin.topics.create("secret", queues=1)
            async with Producer(shop) as producer:
                for _ in range(SENDS):
                    await producer.send(Message("orders", b"the body of a message"))
            async with AdminClient(shop) as trying:
                with pytest.raises(NotAuthorizedError) as refused:
                    await trying.users.delete("root")
                with pytest.raises(NotAuthorizedError):
                    await trying.topics.delete("secret")
                with pytest.raises(TopicNotFoundError, match="by name"):
                    await trying.audit.search()  # Topic:* does not name it
            wrong = Credentials(access_key=shop_key.access_key, secret_key=GUESSED)
            async with AdminClient(ConnectSettings(cluster.bootstrap, wrong)) as guessing:
                with pytest.raises(UnauthenticatedError):
                    await guessing.users.all()
            await kill_the_master(cluster, admin)

            async def is_complete() -> bool:
                calls = {row["call"] for row in await admin.audit.search()}
                return {"create_topic", "delete_user", "delete_topic", "produce"} <= calls

            await eventually(is_complete, within_ms=FAILOVER_MS, what="the audit is there")
            rows = await searched(root)
            by_user = await searched(root, "--user", "shop", "--decision", "Deny")
            await admin.policies.set_entry("shop", "Topic:%SYS%AUDIT", ["Sub"])
            assert await searched(shop, "--limit", "1")
            [named] = await searched(root, "--request-id", str(refused.value.details["request_id"]))
        check(rows)
        assert {row["call"] for row in by_user} >= {"delete_user", "delete_topic"}
        assert (named["call"], named["about"], named["outcome"]) == (
            "delete_user",
            "user=root",
            "NOT_AUTHORIZED",
        )
        assert named["source"] == "127.0.0.1"
        assert named["access_key"] == shop_key.access_key
        texts = [path.read_bytes() for path in tmp_path.rglob("audit/*.jsonl")]
    secrets = [root_key.secret_key, shop_key.secret_key]
    assert texts
    for text in (*texts, orjson.dumps(rows)):
        for secret in (*secrets, GUESSED, "the body of a message"):
            assert secret.encode() not in text


def check(rows: list[dict[str, Any]]) -> None:
    """Each call is there once, with what was decided."""
    assert "open_session" not in {row["call"] for row in rows}, "it changes nothing"
    told = [(row["user"], row["call"], row["decision"], row["outcome"]) for row in rows]
    for one in (
        ("anonymous", "set_security_mode", "Allow", "OK"),
        ("root", "create_topic", "Allow", "OK"),
        ("shop", "delete_topic", "Deny", "NOT_AUTHORIZED"),
    ):
        assert told.count(one) == 1, (one, told)
    assert ("shop", "produce", "Allow", "OK") in told
    assert ("anonymous", "GET /v1/watch", "Deny", "UNAUTHENTICATED") in told


async def test_clusters_without_a_broker_are_administered_and_the_audit_comes_later(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.users.create("root", is_super=True)
            root = ConnectSettings(cluster.bootstrap, await admin.users.add_key("root"))
            await admin.security.set("on")
        async with AdminClient(root) as admin:
            names = [node["name"] for node in cluster.brokers()]
            for name in names:
                cluster.send_signal(name, signal.SIGSTOP)
            try:
                for number in range(20):
                    await admin.users.create(f"user-{number}")
            finally:
                for name in names:
                    cluster.send_signal(name, signal.SIGCONT)

            async def made() -> bool:
                rows = await admin.audit.search(action="put_user", user="root")
                return {row["about"] for row in rows} >= {f"user=user-{n}" for n in range(20)}

            await eventually(made, within_ms=FAILOVER_MS, what="all are told")


# -- while things break ---------------------------------------------------------------------------


class Follower:
    """`paceline audit search --follow --json` as a process."""

    def __init__(self, connect: ConnectSettings) -> None:
        self.process = subprocess.Popen(
            paceline_command(*_at(connect), "--json", "--follow"),
            env=_environment(connect),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=end_with_parent,
        )
        self.rows: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.rows.append(orjson.loads(line))

    def names(self) -> list[str]:
        return [row["about"] for row in self.rows if row["call"] == "put_user"]

    async def has(self, *names: str) -> None:
        async def are_there() -> bool:
            return set(self.names()) >= {f"user={name}" for name in names}

        await eventually(are_there, within_ms=FAILOVER_MS, what=f"{names} are shown")

    def end(self) -> tuple[int, str]:
        """As Ctrl-C does: exit code and stderr."""
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=20)
        self._thread.join(timeout=20)
        return self.process.returncode, said.decode()


async def test_what_is_followed_survives_a_failover_and_a_search_works_without_a_master(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path) as cluster:
        async with AdminClient(cluster.bootstrap) as admin:
            await admin.users.create("root", is_super=True)
            root = ConnectSettings(cluster.bootstrap, await admin.users.add_key("root"))
            await admin.security.set("on")
        async with AdminClient(root) as admin:
            follower = Follower(root)
            try:
                await first_seen(follower, admin)
                await strangers_are_told(cluster, follower)
                await kill_the_master(cluster, admin)
                for number in range(10):
                    await admin.users.create(f"during-{number}")
                await follower.has(*(f"during-{number}" for number in range(10)))
                names = [name for name in follower.names() if "during" in name]
                assert sorted(names) == [f"user=during-{number}" for number in range(10)]
                await two_of_three_are_gone(cluster, admin, root)
            finally:
                code, said = follower.end()
    assert (code, "Traceback" in said) == (130, False), said


async def first_seen(follower: Follower, admin: AdminClient) -> None:
    """It follows from now on, whenever that is: make users until it shows one."""
    made = itertools.count()

    async def is_following() -> bool:
        await admin.users.create(f"first-{next(made)}")
        return bool(follower.rows)

    await eventually(is_following, within_ms=FAILOVER_MS, what="it has begun")


async def strangers_are_told(cluster: RunningCluster, follower: Follower) -> None:
    """Who knocks at the ports where nodes meet."""
    for name, setting in (("c1", "peers"), ("g1-b1", "replication_listen")):
        settings = tomllib.loads((cluster.data_dir / f"{name}.toml").read_text())
        found = settings[setting]
        address = found if isinstance(found, str) else found[0].partition("=")[2]
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            stranger.recv(1000)

    def doors() -> dict[str, dict[str, Any]]:
        return {row["door"]: row for row in follower.rows if row["decision"] == "Deny"}

    async def are_told() -> bool:
        return {"raft", "replication"} <= doors().keys()

    await eventually(are_told, within_ms=FAILOVER_MS, what="both doors are told of")
    assert doors()["raft"]["source"] == doors()["replication"]["source"] == "127.0.0.1"
    assert doors()["replication"]["rule"]


async def kill_the_master(cluster: RunningCluster, admin: AdminClient) -> None:
    [group] = (await admin.view()).groups.values()
    master = group.master_view()
    assert master is not None
    cluster.send_signal(master_name(cluster, master.client_address), signal.SIGKILL)


async def two_of_three_are_gone(
    cluster: RunningCluster, admin: AdminClient, root: ConnectSettings
) -> None:
    """Nobody may be master: a search says what the last replica has, and that it may be old."""
    await kill_the_master(cluster, admin)

    rows = await searched(root, "--limit", "1000")
    assert rows[-1] == {"missing": {}, "maybe_stale": ["g1"]}
    assert "user=during-0" in {row.get("about") for row in rows}
