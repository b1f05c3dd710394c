"""The audit is searched: what matches, each record once, the latest ones; and followed."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import orjson
import pytest
from tests.support.askers import PROOFS, proof_of
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.pins import a_master, lead
from tests.support.controller.harness import eventually
from tests.support.http.door import Door, a_door

from paceline import BlockingAdminClient
from paceline.admin import audit, audit_following
from paceline.admin.audit_pages import Wanted
from paceline.admin.client import AdminClient
from paceline.errors import TopicNotFoundError
from paceline.platform.runtime import cancel_and_wait, spawn
from paceline.types import GroupName
from paceline.wire.calls.audit import AuditRecord
from paceline.wire.calls.messages import Results, Search
from paceline.wire.names import AUDIT_TOPIC
from paceline.wire.rights import Decision
from paceline_broker.service.queries.calls import QueryCalls


def a_record(sequence: int, **fields: Any) -> AuditRecord:
    values: dict[str, Any] = {
        "unix_ms": 1_700_000_000_000 + sequence,
        "node": "c1",
        "user": "root",
        "door": "http",
        "call": "put_user",
        "decision": Decision.ALLOW,
        "outcome": "OK",
        **fields,
    }
    return AuditRecord(sequence=sequence, **values)


async def store(door: Door, *records: AuditRecord) -> None:
    body = orjson.dumps({"records": [msgspec.to_builtins(record) for record in records]})
    headers = {"Content-Type": "application/json", **proof_of(PROOFS, "POST", "/v1/audit", body)}
    status, answer = await door.ask("POST", "/v1/audit", data=body, headers=headers)
    assert status == 200, answer


@pytest.mark.parametrize(
    ("asked", "is_found"),
    [
        ({}, True),
        ({"user": "ana"}, True),
        ({"user": "an"}, False),
        ({"action": "Sub"}, True),
        ({"action": "Get"}, True),
        ({"action": "members"}, True),
        ({"action": "Pub"}, False),
        ({"resource": "Group:g1"}, True),
        ({"resource": "Group:g"}, False),
        ({"resource": "Group:g*"}, True),
        ({"resource": "group=g1"}, True),
        ({"resource": "topic=t*"}, True),
        ({"resource": "Topic:*"}, False),
        ({"decision": "Deny"}, True),
        ({"decision": "Allow"}, False),
        ({"source": "10.0.0.1"}, True),
        ({"source": "10.0.0.2"}, False),
        ({"request_id": "r-1"}, True),
        ({"request_id": "r-2"}, False),
        ({"since_unix_ms": 100, "until_unix_ms": 100}, True),
        ({"since_unix_ms": 101}, False),
        ({"until_unix_ms": 99}, False),
    ],
)
def test_records_match_by_all_that_was_asked(asked: dict[str, Any], is_found: bool) -> None:
    record = a_record(
        1,
        unix_ms=100,
        user="ana",
        call="members",
        about="topic=t1 group=g1",
        action="Sub or Get",
        resource="Group:g1",
        decision=Decision.DENY,
        source="10.0.0.1",
        request_id="r-1",
    )

    assert Wanted(**asked).matches(record) is is_found


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "LOOK_MS", 1)
    monkeypatch.setattr(audit_following, "LOOK_AGAIN_MS_MAX", 20)
    monkeypatch.setattr(audit_following, "LOOK_MS", 1)
    monkeypatch.setattr(audit, "PATIENCE_MS", 200)


SEARCHES: Counter[str] = Counter()
"""How often a broker was asked, by its group."""


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    search = QueryCalls.search

    async def counted(self: QueryCalls, asked: Search) -> Results:
        SEARCHES[self._role.identity.group] += 1
        return await search(self, asked)

    SEARCHES.clear()
    monkeypatch.setattr(QueryCalls, "search", counted)


@asynccontextmanager
async def an_audit(*, groups: int = 1) -> AsyncIterator[tuple[FakeCluster, Door, AdminClient]]:
    """A door that leads g1 has the topic; other groups have brokers that know nothing of it."""
    async with a_master(groups=groups) as (cluster, door, admin):
        cluster.add_topic(AUDIT_TOPIC, 1)
        door.service.view_changed(cluster.view)
        yield cluster, door, admin


def sequences(rows: list[dict[str, Any]]) -> list[int]:
    return [row["sequence"] for row in rows]


async def test_each_record_is_found_once_however_often_it_was_sent() -> None:
    async with an_audit() as (_, door, admin):
        one, two = a_record(1), a_record(2, user="ana", decision=Decision.DENY)
        other = a_record(1, node="b1")
        await store(door, one, two)
        await store(door, one, two, other, a_record(3))

        rows = await admin.audit.search()
        of_ana = await admin.audit.search(user="ana")
        latest = await admin.audit.search(limit=2)
        late = await admin.audit.search(until_unix_ms=one.unix_ms)

    assert [(row["node"], row["sequence"]) for row in rows] == [
        ("b1", 1),
        ("c1", 1),
        ("c1", 2),
        ("c1", 3),
    ]
    assert [(row["user"], row["decision"]) for row in of_ana] == [("ana", "Deny")]
    assert [row["sequence"] for row in latest] == [2, 3]
    assert {row["sequence"] for row in late} == {1}
    assert (rows.missing, rows.maybe_stale) == ({}, frozenset())


async def test_a_record_that_its_node_could_send_only_days_later_is_found_by_its_own_time() -> None:
    """`--until` went by the time of storing, up to 24 h after it: what came later was not found."""
    day_ms = 24 * 3600 * 1000
    async with an_audit() as (_, door, admin):
        told_ms = door.clock.unix_ms()
        await store(door, a_record(1, unix_ms=told_ms))
        door.clock.advance(5 * day_ms)
        late = a_record(2, unix_ms=told_ms + 1_000, node="cut-off")
        await store(door, a_record(3, unix_ms=door.clock.unix_ms()), late)

        rows = await admin.audit.search(
            since_unix_ms=told_ms - 1_000, until_unix_ms=told_ms + 2_000
        )
        since = await admin.audit.search(since_unix_ms=told_ms + 2_000)

    assert sequences(rows) == [1, 2]
    assert sequences(since) == [3]


# -- while things break ---------------------------------------------------------------------------


async def test_without_a_master_a_replica_answers_and_the_search_says_so() -> None:
    async with an_audit() as (cluster, door, admin):
        await store(door, a_record(1))
        door.role.become_replica()
        cluster.elect("g1", None)

        rows = await admin.audit.search()

    assert sequences(rows) == [1]
    assert (rows.missing, rows.maybe_stale) == ({}, frozenset({"g1"}))


async def test_a_master_that_cannot_know_what_was_acknowledged_answers_with_what_it_has() -> None:
    """Its members are gone (R4). Nobody else of the group is there to ask."""
    async with an_audit() as (_, door, admin):
        await store(door, a_record(1))
        door.role.begin_epoch(9)
        door.writer.is_open = False

        rows = await admin.audit.search()

    assert (sequences(rows), rows.maybe_stale) == ([1], frozenset({"g1"}))


async def test_a_group_of_which_nobody_answers_does_not_hide_the_others() -> None:
    async with an_audit(groups=2) as (cluster, door, admin):
        await store(door, a_record(1))
        cluster.elect("g2", None)

        rows = await admin.audit.search()

    assert sequences(rows) == [1]
    assert list(rows.missing) == ["g2"]
    assert rows.missing["g2"]
    assert rows.maybe_stale == frozenset()


async def test_a_failover_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PATIENCE_MS", 30_000)
    async with an_audit() as (cluster, door, admin):
        await store(door, a_record(1))
        door.role.become_replica()
        cluster.elect("g1", None)

        def has_begun() -> bool:
            view = admin._cluster.view
            return view is not None and view.groups[GroupName("g1")].master is None

        async def elect() -> None:
            await eventually(has_begun, "it knows that there is no master")
            door.role.begin_epoch(9)
            cluster.elect("g1", 1)

        rows, _ = await asyncio.gather(admin.audit.search(), elect())

    assert (sequences(rows), rows.maybe_stale) == ([1], frozenset())


# -- follow ---------------------------------------------------------------------------------------


class Follower:
    """Reads `admin.audit.follow` in a task."""

    def __init__(self, admin: AdminClient, **wanted: Any) -> None:
        self.rows: list[dict[str, Any]] = []
        self._task = spawn(self._run(admin, wanted), name="follow")

    async def _run(self, admin: AdminClient, wanted: dict[str, Any]) -> None:
        async for row in admin.audit.follow(**wanted):
            self.rows.append(row)

    async def has(self, *wanted: int) -> None:
        """As many have come, and they are these: what came twice would push one out."""
        await eventually(lambda: len(self.rows) >= len(wanted), f"{wanted} have come")
        assert sequences(self.rows) == list(wanted)

    async def stop(self) -> None:
        await cancel_and_wait(self._task)


@asynccontextmanager
async def following(admin: AdminClient, **wanted: Any) -> AsyncIterator[Follower]:
    follower = Follower(admin, **wanted)
    try:
        yield follower
    finally:
        await follower.stop()


async def test_what_comes_is_followed_from_now_on_each_record_once() -> None:
    async with an_audit() as (_, door, admin):
        await store(door, a_record(1))
        async with following(admin) as all_of_them, following(admin, user="ana") as of_ana:
            await eventually(lambda: SEARCHES["g1"] >= 2, "both have begun")
            await store(door, a_record(2), a_record(3, user="ana"))
            await all_of_them.has(2, 3)
            await store(door, a_record(2), a_record(3, user="ana"), a_record(4, user="ana"))
            await all_of_them.has(2, 3, 4)
            await of_ana.has(3, 4)


async def test_what_was_told_since_some_time_comes_first() -> None:
    async with an_audit() as (_, door, admin):
        await store(door, *(a_record(number) for number in range(1, 150)))
        since = a_record(10).unix_ms
        async with following(admin, since_unix_ms=since) as follower:
            await follower.has(*range(10, 150))
            await store(door, a_record(150))
            await follower.has(*range(10, 151))


async def test_a_failover_loses_and_repeats_nothing_that_is_followed() -> None:
    async with an_audit() as (cluster, door, admin), following(admin) as follower:
        await eventually(lambda: SEARCHES["g1"] >= 1, "it has begun")
        await store(door, a_record(1))
        await follower.has(1)
        door.role.become_replica()
        cluster.elect("g1", None)
        asked = SEARCHES["g1"]
        await eventually(lambda: SEARCHES["g1"] > asked + 2, "it reads the replica")
        door.role.begin_epoch(9)
        cluster.elect("g1", 1)
        await store(door, a_record(1), a_record(2))
        await follower.has(1, 2)


async def test_a_group_that_is_away_is_read_on_when_it_is_back_and_the_others_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        an_audit(groups=2) as (cluster, door, admin),
        a_door(group=GroupName("g2")) as other,
    ):
        lead(cluster, other, "g2")
        other.service.view_changed(cluster.view)
        async with following(admin) as follower:
            await eventually(lambda: len(SEARCHES) == 2, "it has begun")
            await store(other, a_record(1))
            await follower.has(1)
            other.log.is_readable = False
            other.role.become_replica()
            cluster.elect("g2", None)
            await eventually(lambda: "audit_not_read" in caplog.messages, "it says so")
            await store(door, a_record(2))
            await follower.has(1, 2)
            other.log.is_readable = True
            other.role.begin_epoch(9)
            cluster.elect("g2", 1)
            await store(other, a_record(2), a_record(3))
            await follower.has(1, 2, 3)
    assert caplog.messages.count("audit_not_read") == 1


async def test_the_blocking_twin_follows_too() -> None:
    def read(bootstrap: str) -> list[int]:
        with BlockingAdminClient(bootstrap) as admin:
            rows = admin.audit.follow(since_unix_ms=0)
            found = [next(rows), next(rows)]
            rows.close()  # type: ignore[attr-defined]
            return sequences(found)

    async with an_audit() as (cluster, door, _):
        await store(door, a_record(1), a_record(2))
        assert await asyncio.to_thread(read, cluster.controller) == [1, 2]


async def test_a_cluster_that_never_had_rights_has_no_audit() -> None:
    async with a_master() as (_, _, admin):
        with pytest.raises(TopicNotFoundError, match="when rights are switched on"):
            await admin.audit.search()
        with pytest.raises(TopicNotFoundError, match="when rights are switched on"):
            await anext(aiter(admin.audit.follow()))
