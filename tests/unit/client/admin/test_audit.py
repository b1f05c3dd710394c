"""The audit is searched: what matches, each record once, the latest ones."""

from typing import Any

import msgspec
import orjson
import pytest
from tests.support.askers import PROOFS, proof_of
from tests.support.client.pins import a_master
from tests.support.http.door import Door

from paceline.admin.audit import LATE_MS_MAX, Wanted
from paceline.errors import TopicNotFoundError
from paceline.wire.calls.audit import AuditRecord
from paceline.wire.names import AUDIT_TOPIC
from paceline.wire.rights import Decision


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


async def test_each_record_is_found_once_however_often_it_was_sent() -> None:
    async with a_master() as (cluster, door, admin):
        for each in ("orders", AUDIT_TOPIC):
            cluster.add_topic(each, 1)
        door.service.view_changed(cluster.view)
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
    assert LATE_MS_MAX > 0


async def test_a_cluster_that_never_had_rights_has_no_audit() -> None:
    async with a_master() as (_, _, admin):
        with pytest.raises(TopicNotFoundError, match="when rights are switched on"):
            await admin.audit.search()
