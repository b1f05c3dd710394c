"""Each request of the tables that changes something leaves one record in the audit, allowed and
refused, over HTTP and on streams; all others leave one when they are a sample.

What manages is listed here by hand: a new request that is in no list fails the first test.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from tests.support.audit import FOLDER, kept_by, on_disk
from tests.support.controller.harness import Controllers, controllers
from tests.support.http.door import Door, a_door
from tests.support.http.stream_client import RawStream
from tests.support.requests import ask_least_by_route, least, least_path
from tests.support.rights import SECRETS, a_security, bearer

from paceline.security.access import Access
from paceline.security.audit import is_change, may_change
from paceline.wire.calls.audit import AuditRecord
from paceline.wire.calls.request import Request
from paceline.wire.calls.table import CALLS
from paceline.wire.controller_calls.table import CALLS as CONTROLLER_CALLS
from paceline_broker.server.openapi import OTHERS

CHANGES = {"reset", "clone_offsets", "resend"}
OF_NODES = {"take_audit"}
"""What nodes do is not told; who is none is refused."""
MAKES = {"ensure_topic", "ensure_group"}
"""Whoever may send or receive may do it as well: told with the samples, each one."""
DATA = {
    *("commit", "offsets", "ends", "lag", "resets", "cuts", "times", "unread", "lock", "unlock"),
    *("heartbeat", "leave", "members", "client", "clients", "routes", "receive", "end_receive"),
    *("ack", "invisible", "filter", "send_back", "recall", "delays", "end_transactions"),
    *("transaction_checks", "transactions", "transaction", "message", "search", "track"),
}
CONTROLLER_CHANGES = {
    *("add_member", "remove_member", "transfer_leadership", "set_group_settings"),
    *("set_write_permission", "remove_replica", "remove_group", "elect", "transfer", "recover"),
    *("forget_store", "create_topic", "alter_topic", "delete_topic", "remap_queue"),
    *("create_consumer_group", "alter_consumer_group", "delete_consumer_group"),
    *("set_security_mode", "put_user", "delete_user", "put_access_key", "seal_keys"),
    *("delete_access_key", "put_password", "end_logins", "put_policy", "put_quota"),
}
BY_PASSWORD = {"change_password", "login"}
"""They need no right: whoever has the password may, and here nobody has one."""
CONTROLLER_READS = {
    *("get_cluster", "get_status", "list_members", "open_session", "list_groups", "get_group"),
    *("get_group_settings", "get_history", "get_heard", "list_stores", "list_topics", "get_topic"),
    *("list_consumer_groups", "get_consumer_group", "get_security", "list_users", "get_user"),
    *("list_policies", "get_policy", "list_quotas", "explain"),
}
JSON_TYPE = {"Content-Type": "application/json"}
WAITS = ("receive", "transaction_checks")
"""They wait for something that does not come."""


def test_each_request_is_in_one_list_and_is_told_as_that_says() -> None:
    assert set(CALLS) == CHANGES | OF_NODES | MAKES | DATA
    assert set(CONTROLLER_CALLS) == CONTROLLER_CHANGES | BY_PASSWORD | CONTROLLER_READS
    for name, call in {**CALLS, **CONTROLLER_CALLS}.items():
        needs = call.needs or ()
        is_told = is_change(needs) or call.is_told
        is_listed = name in CHANGES | OF_NODES | CONTROLLER_CHANGES | BY_PASSWORD
        assert is_told is is_listed, name
        assert (may_change(needs) and not is_told) is (name in MAKES), name


class Way(NamedTuple):
    """How a call is made, and the door and name that the audit must say."""

    ask: Callable[[str], Awaitable[object]]
    """By a user."""
    door: str
    call: str


class Walk:
    """Asks, and looks at what that leaves."""

    def __init__(self, access: Access, told: Callable[[], list[AuditRecord]]) -> None:
        self._access, self._told = access, told
        self.wrong: list[str] = []

    async def ask(self, way: Way, user: str, decision: str, *, has_right: bool = True) -> None:
        """One call leaves one record, with everything that a record has."""
        self._access.apply(a_security(version=self._access.version + 1))
        before = len(self._told())
        await way.ask(user)
        rows = self._told()[before:]
        where = f"{way.call} ({way.door}) by {user}"
        if len(rows) != 1:
            self.wrong.append(f"{where}: {len(rows)} records")
            return
        [row] = rows
        said = (row.user, row.access_key, row.source, row.door, row.call, row.decision)
        if said != (user, f"key-{user}", "127.0.0.1", way.door, way.call, decision):
            self.wrong.append(f"{where}: {said}")
        filled = {"rule": row.rule, "request id": row.request_id, "outcome": row.outcome}
        if has_right:
            filled |= {"action": row.action, "resource": row.resource}
        self.wrong += [f"{where}: no {name}" for name, value in filled.items() if not value]
        if (row.outcome in ("NOT_AUTHORIZED", "LOGIN_FAILED")) is not (decision == "Deny"):
            self.wrong.append(f"{where}: {decision} and {row.outcome}")
        if any(secret in str(row) for secret in (*SECRETS.values(), "sk_", "correct horse")):
            self.wrong.append(f"{where}: a secret")


def ways_of(door: Door, call: type[Request[Any]], **more: Any) -> Iterator[Way]:
    """By POST /v1/call, on a stream, and by each of its own routes."""
    name, document = call.call_name(), {**least(call), **more}

    async def post(user: str) -> object:
        headers = {**bearer(user), **JSON_TYPE}
        return await door.ask("POST", "/v1/call", {"call": name, **document}, headers=headers)

    async def stream(user: str) -> object:
        opened = await RawStream.open(door.port, bearer(user))
        try:
            return await opened.call(name, **document)
        finally:
            opened.close()

    yield Way(post, "http", name)
    yield Way(stream, "stream", name)
    for route in call.routes:
        body = {key: each for key, each in document.items() if f"{{{key}}}" not in route.path}

        async def by_route(
            user: str,
            method: str = route.method,
            path: str = least_path(route.path),
            body: dict[str, Any] = body,
        ) -> object:
            headers = {**bearer(user), **JSON_TYPE}
            return await door.ask(method, path, body, headers=headers)

        if route.has_body:
            yield Way(by_route, "http", name)


@pytest.fixture
def _is_unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every call came in a second of its own."""
    monkeypatch.setattr("paceline.security.quotas.Bucket.spend", lambda *_, **__: 0)


def a_walk(door: Door, *, sample_one_in: int = 0) -> Walk:
    access = door.service.access
    kept_by(access.audit, door.disk, sample_one_in=sample_one_in)
    return Walk(access, lambda: on_disk(door.disk, FOLDER))


@pytest.mark.usefixtures("_is_unbounded")
async def test_each_change_at_a_broker_leaves_one_record() -> None:
    async with a_door() as door:
        walk = a_walk(door)
        for name in sorted(CHANGES | MAKES):
            for way in ways_of(door, CALLS[name]):
                await walk.ask(way, "root", "Allow")
                await walk.ask(way, "bob", "Deny")
        for way in ways_of(door, CALLS["commit"], reset=True):
            await walk.ask(way, "root", "Allow")
            await walk.ask(way, "bob", "Deny")
        for way in ways_of(door, CALLS["take_audit"]):
            await walk.ask(way, "bob", "Deny")

    assert not walk.wrong, "\n".join(walk.wrong)


@pytest.mark.usefixtures("_is_unbounded")
async def test_each_route_of_a_broker_that_is_no_call_and_changes_something_leaves_one() -> None:
    changing = [each for each in OTHERS if may_change(each.needs)]
    assert {each.path for each in changing} == {"/v1/pins/{owner}"}
    async with a_door() as door:
        walk = a_walk(door)
        for each in changing:

            async def ask(user: str, method: str = each.method) -> object:
                headers = {**bearer(user), **JSON_TYPE}
                body = {"lease_ms": 60_000} if method == "PUT" else None
                return await door.ask(method, "/v1/pins/billing", body, headers=headers)

            way = Way(ask, "http", f"{each.method} {each.path}")
            await walk.ask(way, "root", "Allow")
            await walk.ask(way, "bob", "Deny")

    assert not walk.wrong, "\n".join(walk.wrong)


@pytest.mark.usefixtures("_is_unbounded")
@pytest.mark.parametrize("sample_one_in", [0, 1])
async def test_data_calls_are_told_by_sample_only(sample_one_in: int) -> None:
    async with a_door() as door:
        walk = a_walk(door, sample_one_in=sample_one_in)
        for name in sorted(DATA - set(WAITS)):
            call = CALLS[name]
            post, stream, *_ = ways_of(door, call)
            for way in (post, stream):
                if sample_one_in:
                    await walk.ask(way, "root", "Allow", has_right=_has_right(call))
                else:
                    await way.ask("root")
        left = on_disk(door.disk, FOLDER)

    assert not walk.wrong, "\n".join(walk.wrong)
    assert bool(left) is bool(sample_one_in)


def _has_right(call: type[Request[Any]]) -> bool:
    """Whether its least request is about something: else its record names no right."""
    document = least(call)
    return any(need.type == "Cluster" or document.get(need.field) for need in call.needs or ())


def _way(cluster: Controllers, call: type[Request[Any]]) -> Way:
    async def ask(user: str) -> object:
        base = f"http://{cluster.addresses[0]}"
        return await ask_least_by_route(
            cluster.http, base, call, headers=bearer(user), within_s=5.0
        )

    return Way(ask, "http", call.call_name())


@pytest.mark.usefixtures("_is_unbounded")
async def test_each_change_at_a_controller_leaves_one_record() -> None:
    calls: Mapping[str, type[Request[Any]]] = CONTROLLER_CALLS
    async with controllers() as cluster:
        access = cluster.leader.access
        access.apply(a_security())
        walk = Walk(access, lambda: on_disk(cluster.disks[cluster.ids[0]], "unused/audit"))
        for name in sorted(CONTROLLER_CHANGES):
            way = _way(cluster, calls[name])
            await walk.ask(way, "bob", "Deny")
            await walk.ask(way, "root", "Allow")
        for name in sorted(BY_PASSWORD):
            await walk.ask(_way(cluster, calls[name]), "root", "Deny", has_right=False)
        before = len(on_disk(cluster.disks[cluster.ids[0]], "unused/audit"))
        for name in sorted(CONTROLLER_READS):
            await _way(cluster, calls[name]).ask("root")
        after = len(on_disk(cluster.disks[cluster.ids[0]], "unused/audit"))

    assert not walk.wrong, "\n".join(walk.wrong)
    assert after == before, "what changes nothing is told by sample, 1 in 1000"
