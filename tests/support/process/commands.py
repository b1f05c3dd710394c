"""A cluster with rights on, and users of given policies who run `paceline` in this process."""

import asyncio
import contextlib
import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import pytest
from tests.support.process.harness import (
    RunningCluster,
    eventually,
    paceline_command,
    running_cluster,
)
from tests.unit.client.cli.conftest import Outcome, run_command

from paceline.admin.client import AdminClient
from paceline.net.connect import ConnectSettings, Credentials
from paceline.net.http import HttpClient
from paceline.net.stream_connection import StreamConnection
from paceline.types import GroupName
from paceline.wire.calls.messages import SendBack, SendBackRow
from paceline.wire.calls.request import Request, Route
from paceline.wire.calls.resources import RESOURCES
from paceline.wire.calls.table import CALLS
from paceline.wire.controller_calls.table import CALLS as CONTROLLER_CALLS
from paceline.wire.stream import Operation

PASSWORD = "the password of ana"
Words: TypeAlias = tuple[tuple[str, str], ...]
"""A policy: a resource and an action in each entry."""


class Asked:
    """What this process asks of nodes, by the names of `paceline.cli.needs`."""

    def __init__(self, brokers: set[str]) -> None:
        self.names: set[str] = set()
        self._brokers = brokers

    def listen(self, patch: pytest.MonkeyPatch) -> None:
        """From now on, until the patch is undone."""
        exchange, request = HttpClient._exchange, StreamConnection._request

        async def over_http(
            client: HttpClient, method: str, address: str, path: str, *rest: Any
        ) -> Any:
            self.names.add(self._name(method, address, path, rest[1]))
            return await exchange(client, method, address, path, *rest)

        def over_stream(
            stream: StreamConnection, operation: Operation, body: Any, *rest: Any, **options: Any
        ) -> int:
            is_call = operation is Operation.CALL
            called = orjson.loads(b"".join(map(bytes, body)))["call"] if is_call else ""
            self.names.add(called or operation.name)
            return request(stream, operation, body, *rest, **options)

        patch.setattr(HttpClient, "_exchange", over_http)
        patch.setattr(StreamConnection, "_request", over_stream)

    def _name(self, method: str, address: str, path: str, body: bytes | None) -> str:
        path = path.partition("?")[0]
        if path == "/v1/call":
            return str(orjson.loads(body or b"")["call"])
        calls: Mapping[str, type[Request[Any]]]
        calls = CALLS if address in self._brokers else CONTROLLER_CALLS
        routes = [(name, route) for name, call in calls.items() for route in call.routes]
        routes += [(name, Route(name.split(" ")[0], name.split(" ")[1])) for name in RESOURCES]
        for name, route in routes:
            pattern = re.sub(r"\{\w+\}", "[^/]+", route.path)
            if route.method == method and re.fullmatch(pattern, path):
                return name
        return f"{method} {path}"


class Site:
    """The cluster has topics `orders`, `static`, `later`, `paid`, the group `billing`, the group
    `reading` that has consumed `orders`, the user `ana`, and one for each policy."""

    def __init__(self, cluster: RunningCluster, folder: Path) -> None:
        self.asked = Asked({node["address"] for node in cluster.brokers()})
        self._bootstrap = cluster.bootstrap[0]
        self._folder = folder
        self._root: Credentials | None = None
        self._users: dict[Words, Credentials] = {}
        self._numbers = itertools.count(1)
        self._running: list[subprocess.Popen[bytes]] = []
        self._wiped = ""

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path, policies: Sequence[Words]) -> "Iterator[Site]":
        with (
            running_cluster(folder / "data", "--controllers", "1", "--brokers", "1") as cluster,
            pytest.MonkeyPatch.context() as patch,
        ):
            site = cls(cluster, folder)
            asyncio.run(site._prepare(policies))
            for line in (
                "topic create orders --queues 1",
                "topic create static --logical-queues 2",
                "topic create later --message-type delay",
                "topic create paid --message-type transaction",
                "group create billing",
                "send orders hello --key alice --tag red",
                "send static hello",
                "consume orders --group reading --idle-exit-ms 300",
            ):
                site.json(line)
            site.asked.listen(patch)
            patch.setattr("paceline.admin.dead_letters._POLL_MS", 300)
            yield site

    def run(self, line: str, *options: str, policy: Words | None, typed: str = "") -> Outcome:
        """A line of the test by a user of that policy, or by the super user."""
        words = re.sub(r"\{(\w+)\}", lambda name: self._made(name[1]), line)
        credentials = self._root if policy is None else self._users[policy]
        assert credentials is not None
        outcome = self._run(credentials, *shlex.split(words), *options, typed=typed)
        for process in self._running:
            process.kill()
            process.wait()
        self._running.clear()
        if line.startswith(("security ", "cluster wipe-write-perm")):
            self._as_before()
        return outcome

    def json(self, line: str, typed: str = "") -> list[Any]:
        """What the super user is answered."""
        assert self._root is not None
        outcome = self._run(self._root, *shlex.split(line), "--json", typed=typed)
        assert outcome.exit_code == 0, outcome
        return [orjson.loads(row) for row in outcome.stdout.splitlines()]

    # -- inside -----------------------------------------------------------------------------------

    def _run(self, credentials: Credentials, *words: str, typed: str) -> Outcome:
        environment = {
            **credentials.environment(),
            "PACELINE_CONFIG_DIR": str(self._folder / "profiles"),
        }
        return run_command(*words, stdin=typed, bootstrap=self._bootstrap, environment=environment)

    def _as_before(self) -> None:
        names = self.asked.names.copy()
        self.json("security enable")
        self.json("cluster add-write-perm g1")
        asyncio.run(self._known())
        self.asked.names = names

    async def _prepare(self, policies: Sequence[Words]) -> None:
        async with AdminClient(self._bootstrap) as admin:
            await admin.users.create("root", is_super=True)
            self._root = await admin.users.add_key("root")
            await admin.users.create("ana")
            await admin.users.set_password("ana", PASSWORD)
            for number, policy in enumerate(dict.fromkeys(policies)):
                name = f"u{number}"
                await admin.users.create(name)
                self._users[policy] = await admin.users.add_key(name)
                entries: dict[str, list[str]] = {}
                for resource, action in policy:
                    entries.setdefault(resource, []).append(action)
                await admin.policies.put(
                    name,
                    custom=[
                        {"resource": resource, "actions": sorted(set(actions))}
                        for resource, actions in entries.items()
                    ],
                )
            await admin.security.set("on")
        await self._known()
        root = ConnectSettings(self._bootstrap, self._root)
        async with AdminClient(root) as admin:

            async def is_audited() -> bool:
                return any(
                    topic.topic == "%SYS%AUDIT" for topic in await admin.topics.all(system=True)
                )

            await eventually(is_audited, what="the audit topic")

    async def _known(self) -> None:
        """The brokers have users and rights as they are."""
        async with AdminClient(ConnectSettings(self._bootstrap, self._root)) as admin:
            version = (await admin.security.get())["version"]

            async def is_known() -> bool:
                brokers = (await admin.cluster_status())["brokers"].values()
                return all(said and said["security"]["version"] >= version for said in brokers)

            await eventually(is_known, what="users at the brokers")

    def _made(self, what: str) -> str:
        """A word that stands in braces in a line."""
        names = self.asked.names.copy()
        try:
            return str(getattr(self, f"_make_{what}")(f"n{next(self._numbers)}"))
        finally:
            self.asked.names = names

    def _make_new(self, name: str) -> str:
        return name

    def _make_topic(self, name: str) -> str:
        self.json(f"topic create {name} --queues 1")
        return name

    def _make_group(self, name: str) -> str:
        self.json(f"group create {name}")
        return name

    def _make_user(self, name: str) -> str:
        self.json(f"user create {name}")
        self._made_user = name
        return name

    def _make_key(self, name: str) -> str:
        """Of the user that was made last."""
        return str(self.json(f"user add-key {self._made_user}")[0]["access_key"])

    def _make_recall(self, name: str) -> str:
        return str(self.json("send later tea --delay 1h")[0]["recall_handle"])

    def _make_message(self, name: str) -> str:
        return str(self.json("message find orders --key alice")[0]["message_id"])

    def _make_half(self, name: str) -> str:
        self.json(f"topic create {name} --queues 1 --message-type transaction")
        self.json(f"send {name} tea --transaction none")
        [found] = self.json(f"transaction list --topic {name}")
        return str(found["transactions"][0]["transaction_id"])

    def _make_receipt(self, name: str) -> str:
        self.json("send orders tea")
        return str(self.json("receive orders --group working --max 1")[0]["handle"])

    def _make_pinned(self, name: str) -> str:
        self.json(f"cluster pins add {name}")
        return name

    def _make_wiped(self, name: str) -> str:
        return "g1"

    def _make_asked(self, name: str) -> str:
        """A topic in which somebody waits for an answer."""
        self.json(f"topic create {name} --queues 1")
        assert self._root is not None
        words = ("request", name, "what?", "--timeout-ms", "20000", "--bootstrap", self._bootstrap)
        process = subprocess.Popen(
            paceline_command(*words),
            env={**self._root.environment(), "PACELINE_CONFIG_DIR": "/nowhere/of/anybody"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._running.append(process)
        return name

    def _make_dead(self, name: str) -> str:
        """A group with one dead letter."""
        self.json(f"group create {name}")
        [sent] = self.json("send orders bitter")
        asyncio.run(self._give_up(name, sent["queue"], sent["offset"]))
        return name

    async def _give_up(self, group: str, queue: int, offset: int) -> None:
        async with AdminClient(ConnectSettings(self._bootstrap, self._root)) as admin:
            row = SendBackRow(topic="orders", queue=queue, offset=offset, delay_level=-1)
            request = SendBack(group=group, messages=[row])
            await admin._requests.of_master(GroupName("g1"), request)
