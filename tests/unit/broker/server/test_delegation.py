"""A gateway acts for users: a broker decides, ends and audits as if they had come themselves."""

from typing import Any

import pytest
from tests.support.audit import on_disk
from tests.support.delegations import delegated
from tests.support.http.door import a_batch, a_door
from tests.support.http.stream import a_fetch
from tests.support.http.stream_client import RawStream
from tests.support.rights import a_security, entry
from tests.support.service.fakes import until

from paceline.security.audit_files import AuditFiles
from paceline.wire.rights import PUB, SUB
from paceline.wire.stream import Operation
from paceline.wire.users import Mode, User

FOLDER = "/data/audit"
OFFICE = entry("Topic:orders", PUB, SUB, sources=("10.0.0.0/8",))


async def test_a_stream_on_behalf_of_a_user_may_what_he_may_from_where_he_is() -> None:
    async with a_door() as door:
        access = door.service.access
        access.apply(a_security(ana=(OFFICE,)))
        access.audit.keep(
            AuditFiles(door.disk, FOLDER), node="b1", sample_one_in=1, on_record=lambda: None
        )
        for source, outcome in (("10.1.2.3", 0), ("192.0.2.1", 1)):
            shown = delegated("ana", source=source, access_key="key-ana", door="remoting")
            stream = await RawStream.open(door.port, shown)
            stream.ask(1, Operation.PRODUCE, a_batch(b"one"))
            assert (await stream.answer())[2] == outcome
            stream.close()
        _, whoami = await door.ask("GET", "/v1/status", headers=delegated("ana"))

    rows = on_disk(door.disk, FOLDER)
    assert [(row.user, row.source, row.access_key, row.door, row.outcome) for row in rows] == [
        ("ana", "10.1.2.3", "key-ana", "remoting", "OK"),
        ("ana", "192.0.2.1", "key-ana", "remoting", "NOT_AUTHORIZED"),
        ("ana", "10.0.0.1", "", "grpc", "NOT_AUTHORIZED"),
    ]
    assert whoami["code"] == "NOT_AUTHORIZED"
    assert "key-ana" in access.key_uses.due()


@pytest.mark.parametrize("change", ["disabled", "key"])
async def test_it_ends_when_its_user_or_key_counts_no_more(change: str) -> None:
    async with a_door() as door:
        access = door.service.access
        access.apply(a_security(ana=(OFFICE,)))
        stream = await RawStream.open(door.port, delegated("ana", access_key="key-ana"))
        stream.ask(2, Operation.FETCH, a_fetch((1, 0, 0), wait_ms=20_000))
        await until(lambda: door.service.fetcher.waiting_count > 0)

        user = access.security.users["ana"]
        left = User(keys=user.keys, is_enabled=False) if change == "disabled" else User()
        access.apply(access.security.with_user("ana", left))

        assert await stream.ended() == b""


@pytest.mark.parametrize(
    "made",
    [
        {"user": "root", "secret": b"a secret that somebody has made up"},
        {"user": "root", "cluster_id": "another cluster"},
        {"user": "nobody-knows-him"},
        {"user": "root", "access_key": "key-ana"},
        {"user": "node"},
    ],
    ids=["secret", "cluster", "user", "key of another", "node"],
)
async def test_what_no_gateway_has_shown_lets_nobody_in(made: dict[str, Any]) -> None:
    shown = delegated(**made)
    async with a_door() as door:
        door.service.access.apply(a_security())
        status, problem = await door.ask("GET", "/v1/status", headers=shown)
        door.service.access.apply(a_security(version=2, mode=Mode.OFF))
        open_to_all, _ = await door.ask("GET", "/v1/status", headers=shown)

    assert (status, problem["code"]) == (401, "UNAUTHENTICATED")
    assert open_to_all == 200
    assert door.service.access.unauthenticated_count == 1


async def test_it_may_be_for_whoever_has_said_nothing() -> None:
    """Who is asked by the address of his program, not by the gateway's."""
    near = entry("Topic:orders", PUB, sources=("127.0.0.1",))
    async with a_door() as door:
        door.service.access.apply(a_security(anonymous=(near,)))
        told = {}
        for source in ("127.0.0.1", "10.0.0.1"):
            stream = await RawStream.open(door.port, delegated("anonymous", source=source))
            stream.ask(1, Operation.PRODUCE, a_batch(b"one"))
            told[source] = (await stream.answer())[2]
            stream.close()

    assert told == {"127.0.0.1": 0, "10.0.0.1": 1}
