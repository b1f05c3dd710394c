"""Flaws of other brokers, each as a test of ours. docs/RELIABILITY.md says which test stands for
which record, also where an older one does, or where it cannot apply.
"""

import asyncio
import errno
import logging
import os
import re
import sys
from asyncio import selector_events
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from aiohttp import WSMsgType
from hypothesis import given
from hypothesis import strategies as st
from tests.support.askers import PROOFS, proof_of
from tests.support.controller.harness import Controllers, controllers
from tests.support.http.door import Door, a_door
from tests.support.requests import least, least_path
from tests.support.rights import a_security, bearer, entry
from tests.support.service.fakes import until

from paceline.platform.telemetry import JsonLineFormatter, Node
from paceline.security.decide import Rules
from paceline.types import GroupName
from paceline.wire import session as wire
from paceline.wire.calls.request import Request, names_in_path
from paceline.wire.calls.table import CALLS
from paceline.wire.controller_calls.table import CALLS as CONTROLLER_CALLS
from paceline.wire.messages import Nonce, Proof
from paceline.wire.rights import SUB, Action, Resource, ResourceType
from paceline.wire.users import RESOURCE_PATTERN
from paceline_broker.config import BrokerConfig
from paceline_broker.server.openapi import OTHERS
from paceline_controller.config import ControllerConfig
from paceline_controller.server.http_answers import JSON_BYTES_MAX

CANARY = "canary"
HOSTILE = (
    "$(touch canary)",
    "; touch canary #",
    "../../../../canary",
    "/canary",
    "canary:main",
    "file:///canary",
    "http://canary.invalid/canary",
    "{0.__class__}%s%n%(canary)d",
    "canary\r\nInjected: canary",
    "\x1b[2Jcanary\x00",
)
EVERYTHING = (entry("*", Action.ALL),)
_PATTERN = re.compile(RESOURCE_PATTERN)

# -- what a request can reach ----------------------------------------------------------------------


class Watched:
    """What the interpreter was told to do with a name that has the canary in it."""

    KINDS = ("compile", "ctypes", "exec", "import", "open", "os.", "shutil.", "socket.", "subproc")

    def __init__(self) -> None:
        self.found: list[str] = []
        self.is_on = False
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and event.startswith(self.KINDS) and CANARY in repr(arguments):
            self.found.append(f"{event} {arguments!r}")


WATCHED = Watched()
"""One for the process: an audit hook stays."""


@contextmanager
def watched() -> Iterator[list[str]]:
    WATCHED.found.clear()
    WATCHED.is_on = True
    try:
        yield WATCHED.found
    finally:
        WATCHED.is_on = False


def spoiled(document: Any) -> Iterator[Any]:
    """The document with a hostile text in place of each of its texts, one after the other."""
    if isinstance(document, str):
        yield from HOSTILE
    elif isinstance(document, dict):
        for name, value in document.items():
            for other in spoiled(value):
                yield {**document, name: other}
    elif isinstance(document, list):
        for index, value in enumerate(document):
            for other in spoiled(value):
                yield [*document[:index], other, *document[index + 1 :]]


def texts_of(call: type[Request[Any]]) -> dict[str, Any]:
    """The least request, and a text in each field that has none, as far as it takes one."""
    document = least(call)
    if "wait_ms" in call.__struct_fields__:
        document["wait_ms"] = 1
    for name in ("settings", "attributes"):
        if name in call.__struct_fields__:
            document[name] = {"retry_policy": "x", "x": "x"} if name == "settings" else {"x": "x"}
    return document


def test_the_watch_sees_what_it_is_for(tmp_path: Any) -> None:
    with watched() as found:
        (tmp_path / CANARY).write_text("")
        os.system(f": {CANARY}")

    assert {text.split(" ")[0] for text in found} >= {"open", "os.system"}


async def test_no_text_of_a_call_reaches_a_process_a_path_or_a_module() -> None:
    """CVE-2023-33246 (RocketMQ) and CVE-2023-25194 (Kafka), at brokers."""
    headers = {**bearer("root"), "Content-Type": "application/json"}
    async with a_door() as door:
        door.service.access.apply(a_security())
        with watched() as found:
            for name, call in CALLS.items():
                for document in spoiled(texts_of(call)):
                    body = orjson.dumps({**document, "call": name})
                    status, _ = await door.ask("POST", "/v1/call", data=body, headers=headers)
                    assert status < 500 or status in (503, 504), (name, document, status)

    assert not found


async def test_no_text_of_a_request_reaches_a_process_a_path_or_a_module() -> None:
    """CVE-2023-37582 (RocketMQ): the same, by another kind of node."""
    async with controllers() as cluster:
        for node in cluster.nodes.values():
            node.machine._state.security = a_security()
            node.access.apply(node.machine.security)
        with watched() as found:
            for name, call in CONTROLLER_CALLS.items():
                [route] = call.routes
                in_path = set(names_in_path(route.path))
                for document in spoiled(texts_of(call)):
                    body = {key: each for key, each in document.items() if key not in in_path}
                    path = route.path
                    for key in in_path & document.keys():
                        path = path.replace(f"{{{key}}}", quote(str(document[key]), safe=""))
                    status, _ = await cluster.ask(
                        route.method,
                        least_path(path),
                        body if route.method in ("POST", "PUT") else None,
                        headers=bearer("root"),
                    )
                    assert status < 500 or status in (503, 504), (name, document, status)

    assert not found


def test_no_request_changes_a_setting_of_a_node_that_names_something_of_the_machine() -> None:
    """CVE-2023-33246 (RocketMQ): the path of a script was a setting that requests could change."""
    asked = {
        name
        for calls in (CALLS, CONTROLLER_CALLS)
        for call in calls.values()
        for name in call.__struct_fields__
    }
    settings = {*BrokerConfig.__dataclass_fields__, *ControllerConfig.__dataclass_fields__}

    assert asked & settings <= {"controller_id", "group", *GROUP_SETTINGS}


GROUP_SETTINGS = {
    "total_replicas",
    "min_in_sync_replicas",
    "durability",
    "all_ack_in_sync_state_set",
    "in_sync_replicas",
    "enable_auto_in_sync_replicas",
    "enable_slave_acting_master",
    "enable_elect_unclean_master",
}
"""Numbers, switches, and one of two words."""

# -- who is a node ---------------------------------------------------------------------------------


@asynccontextmanager
async def open_to_strangers() -> AsyncIterator[Controllers]:
    """Controllers at which `anonymous` may do everything that a policy can allow."""
    async with controllers() as cluster:
        for node in cluster.nodes.values():
            node.machine._state.security = a_security(anonymous=EVERYTHING)
            node.access.apply(node.machine.security)
        yield cluster


@pytest.mark.parametrize("who", [None, "root"])
async def test_nobody_becomes_a_node_by_what_he_says(who: str | None) -> None:
    """CVE-2018-1288 (Kafka): a field made a broker of a client. GHSA-38x3-76xf-cq45 (NATS): a user
    for those who say nothing opened the port between servers."""
    headers = {} if who is None else bearer(who)
    async with open_to_strangers() as cluster:
        url = f"http://{cluster.addresses[0]}{wire.PATH}"
        async with cluster.http.ws_connect(url, headers=headers) as socket:
            challenge = wire.parse_from_controller(await socket.receive_str())
            assert isinstance(challenge, wire.Challenge)
            hello = wire.Hello(
                group=GroupName("g1"),
                store_id="store-1",
                cluster_id=cluster.leader.machine.cluster_id,
                nonce=Nonce(bytes(16)),
                is_sealed=True,
                proof=Proof(bytes(32)),
            )
            await socket.send_str(wire.encode(hello))
            answer = wire.parse_from_controller(await socket.receive_str())
            assert isinstance(answer, wire.Refused)
            assert answer.code == "UNAUTHENTICATED"
        assert not cluster.leader.hub.sessions


async def test_a_user_named_node_is_no_node_and_a_forged_proof_proves_nothing() -> None:
    """GHSA-38x3-76xf-cq45 (NATS)."""
    forged = {"Paceline-Node": f"controller:c1 here - {'00' * 16} {'00' * 32}"}
    relayed = {**forged, "Paceline-Source": "127.0.0.1 node"}
    async with open_to_strangers() as cluster:
        for headers in ({}, forged, relayed):
            status, said = await cluster.ask("GET", "/v1/whoami", headers=headers)
            assert (status, said["user"]) == (200, "anonymous")
    async with a_door() as door:
        door.service.access.apply(a_security())
        for headers in (forged, {**forged, "Paceline-Source": "127.0.0.1 root"}):
            assert (await door.ask("GET", "/v1/status", headers=headers))[0] == 401
        proven = proof_of(PROOFS, "GET", "/v1/status")
        assert (await door.ask("GET", "/v1/status", headers=proven))[0] == 200


# -- sizes before anything is held -----------------------------------------------------------------


def body_routes() -> list[tuple[str, str]]:
    return sorted(
        {(each.method, each.path) for each in OTHERS if each.method in ("POST", "PUT")}
        | {
            (route.method, route.path)
            for call in CALLS.values()
            for route in call.routes
            if route.method in ("POST", "PUT")
        }
    )


async def told_of_a_body(port: int, method: str, path: str, *, content_type: str) -> bytes:
    """The status for a body of a terabyte that is announced, and does not come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n"
    writer.write(f"{head}Content-Length: {2**40}\r\n\r\n".encode())
    async with asyncio.timeout(2):
        status = (await reader.readline()).split(b" ")[1]
    writer.transport.abort()
    return status


async def test_each_route_of_a_broker_refuses_a_body_of_any_size_unread() -> None:
    """CVE-2023-46118 (RabbitMQ): messages were published over HTTP without a limit of the body.
    CVE-2022-34917 (Kafka): memory was taken as a length field said, before anybody was known."""
    async with a_door() as door:
        for method, path in body_routes():
            statuses = {
                await told_of_a_body(door.port, method, least_path(path), content_type=kind)
                for kind in ("application/json", "application/vnd.paceline.batch")
            }
            assert b"413" in statuses, (method, path, statuses)
            assert statuses <= {b"413", b"415"}, (method, path, statuses)
            assert door.service.budget.used_bytes < 2**20


@pytest.mark.parametrize("node", [0, 1], ids=["leader", "follower"])
async def test_each_request_to_a_controller_refuses_a_body_over_the_limit(node: int) -> None:
    """CVE-2023-46118 (RabbitMQ), also where a follower relays."""
    body = b" " * (JSON_BYTES_MAX + 1)
    async with controllers(2) as cluster:
        for call in CONTROLLER_CALLS.values():
            [route] = call.routes
            if route.method not in ("POST", "PUT") or not call.__struct_fields__:
                continue  # whatever comes there is read by nobody
            path = least_path(route.path)
            status, problem = await cluster.ask(route.method, path, data=body, node=node)
            assert (status, problem["code"]) == (413, "TOO_LARGE"), path


async def test_a_compressed_message_before_the_proof_is_not_unpacked() -> None:
    """CVE-2026-27571 (NATS): a small compressed frame became large before anybody was known."""
    async with controllers() as cluster:
        url = f"http://{cluster.addresses[0]}{wire.PATH}"
        async with cluster.http.ws_connect(url, compress=15) as socket:
            assert not socket.compress, "it is not agreed to"
            await socket.receive_str()
            await socket.send_frame(b"x" * 2**20, WSMsgType.TEXT, compress=15)
            assert (await socket.receive()).type in (WSMsgType.CLOSE, WSMsgType.CLOSED)
        assert not cluster.leader.hub.sessions


# -- names and headers -----------------------------------------------------------------------------


@given(st.text(alphabet="ab.*+?|()[]{}$%^\\u", max_size=12))
def test_a_rule_is_taken_as_it_is_written(text: str) -> None:
    """CVE-2026-44838 (RabbitMQ): a client's name was put into a rule, and was read as a pattern."""
    if not _PATTERN.fullmatch(f"Topic:{text}"):
        return  # nobody can write it
    rules = Rules(a_security(ana=(entry(f"Topic:{text}", SUB),)))
    for name in ("a", "b", "ab", "ba", "aab", "a.b", "axb", text):
        is_meant = name.startswith(text[:-1]) if text.endswith("*") else name == text
        asked = Resource(ResourceType.TOPIC, name)
        assert rules.decide("ana", asked, (SUB,), source="").is_allowed is is_meant


@pytest.mark.parametrize("text", ["%u", "${user}", "{client_id}", "a.*b", "(a|b)", "a?", "**"])
def test_a_rule_has_no_variable_and_no_pattern_but_one_star_at_its_end(text: str) -> None:
    """CVE-2026-44838 (RabbitMQ)."""
    assert not _PATTERN.fullmatch(f"Topic:{text}")


HEADERS = ("Authorization", "Paceline-Node", "Paceline-Source", "Host", "Origin", "User-Agent")


async def test_no_header_is_a_format_or_a_second_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """CVE-2019-11287 (RabbitMQ)."""
    values = ("%s%n%d%(x)s", "{0.__class__}{}", "\x1b[2J\x07", "\u2028\x85", "a" * 4000, "%" * 99)
    async with a_door() as door:
        door.service.access.apply(a_security())
        with caplog.at_level(logging.DEBUG):
            for name in HEADERS:
                for value in values:
                    status = await status_of(door, name, value)
                    assert status in (400, 401, 403), (name, value, status)

    formatter = JsonLineFormatter(Node("broker:g1/1"))
    for record in caplog.records:
        line = formatter.format(record)
        assert record.levelno < logging.ERROR, line
        assert len(line.splitlines()) == 1, line
        assert "\x1b" not in line


async def status_of(door: Door, name: str, value: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    host = b"" if name == "Host" else b"Host: 127.0.0.1\r\n"
    said = f"{name}: {value}\r\n".encode()
    writer.write(b"GET /v1/status HTTP/1.1\r\n" + host + said + b"Connection: close\r\n\r\n")
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return int(answer.split(b" ")[1])


@pytest.mark.parametrize("name", ["Expect", "Upgrade"])
async def test_a_header_that_is_no_text_is_no_error_of_the_node(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by the fuzzers: each cost an error with a traceback in the log, of anybody."""
    said = f"Host: x\r\nConnection: Upgrade\r\n{name}: ".encode() + b"\xff\xfe\r\n"
    async with controllers() as cluster:
        for path in ("/healthz", wire.PATH):
            address = cluster.addresses[0]
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), said))
            async with asyncio.timeout(5):
                status = (await reader.readline()).split(b" ")[1]
            writer.transport.abort()
            assert status in (b"200", b"400"), (path, status)

    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_who_resets_a_connection_before_its_answer_is_no_error_of_the_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by the fuzzers, as above."""

    def is_reset(transport: object) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(selector_events._SelectorSocketTransport, "write_eof", is_reset)  # type: ignore[attr-defined]  # private
    async with a_door() as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(b"GET / HTTP/9.9\r\n\r\n")
        assert (await reader.readline()).endswith(b" 400 Bad Request\r\n")
        writer.transport.abort()
        await until(lambda: door.http.connections_count == 0)

    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
