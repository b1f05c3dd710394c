"""`paceline client list` against the real door of a broker."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.support.client.pins import a_master
from tests.support.service.clients import CONSUMER, PRODUCER
from tests.unit.client.cli.conftest import beside, run_command


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A broker that one producer and three consumers are connected to."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        async with a_master() as (cluster, door, _):
            other = {**CONSUMER, "client_id": "c2", "filters": {}}
            alone = {**CONSUMER, "client_id": "c3", "group": "books"}
            for document in (PRODUCER, CONSUMER, other, alone):
                status, _ = await door.ask("POST", "/v1/call", {"call": "client", **document})
                assert status == 200
            yield cluster.controller

    with beside(serve()) as served:
        yield served


def test_everybody_is_shown_and_subscriptions_that_do_not_agree(bootstrap: str) -> None:
    outcome = run_command("client", "list", bootstrap=bootstrap)

    assert outcome.exit_code == 0, outcome.stderr
    rows = [line.split() for line in outcome.stdout.splitlines()]
    assert rows[0] == [
        "KIND", "GROUP", "CLIENT", "ADDRESS", "VERSION", "DOOR", "MODEL", "SINCE", "TOPICS",
    ]  # fmt: skip
    assert [row[:3] for row in rows[1:]] == [
        ["consumer", "audit", "c1"],
        ["consumer", "audit", "c2"],
        ["consumer", "books", "c3"],
        ["producer", "shop", "p1"],
    ]
    assert rows[1][3:8] == ["-", "python", "0.1.0", "-", "clustering/concurrent"]
    assert rows[1][9:] == ["orders", "(a", "||", "b)"]
    assert outcome.stderr == "not all members of audit subscribe to orders in the same way\n"


@pytest.mark.parametrize(
    ("narrowed", "clients"),
    [
        (["--producers"], ["p1"]),
        (["--consumers"], ["c1", "c2", "c3"]),
        (["--group", "books"], ["c3"]),
        (["--topic", "orders", "--producers"], ["p1"]),
        (["--group", "nobody"], []),
    ],
)
def test_the_list_can_be_narrowed(bootstrap: str, narrowed: list[str], clients: list[str]) -> None:
    outcome = run_command("client", "list", *narrowed, "--json", bootstrap=bootstrap)

    assert outcome.exit_code == 0, outcome.stderr
    rows: list[dict[str, Any]] = [orjson.loads(line) for line in outcome.stdout.splitlines()]
    assert [row["client_id"] for row in rows] == clients
    assert all(row["brokers"] == ["g1/1"] for row in rows)
    assert {row["client_id"] for row in rows if row["conflicts"]} <= {"c1", "c2"}


def test_that_nobody_is_there_is_said_and_a_topic_that_does_not_exist(bootstrap: str) -> None:
    nobody = run_command("client", "list", "--group", "nobody", bootstrap=bootstrap)
    no_topic = run_command("client", "list", "--topic", "refunds", bootstrap=bootstrap)

    assert (nobody.exit_code, nobody.stdout.split()[:2]) == (0, ["KIND", "GROUP"])
    assert len(nobody.stdout.splitlines()) == 1
    assert nobody.stderr.splitlines()[0] == "no such client is connected"
    assert (no_topic.exit_code, no_topic.stdout) == (1, "")
    assert no_topic.stderr.startswith("paceline: topic refunds does not exist, and no client")


def test_a_group_that_can_be_none_is_refused(bootstrap: str) -> None:
    outcome = run_command("client", "list", "--group", "a/b", bootstrap=bootstrap)
    assert outcome.exit_code == 2
    assert "group must be" in outcome.stderr
