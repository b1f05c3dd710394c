"""`paceline audit search` against the real door of a broker."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.support.askers import PROOFS, proof_of
from tests.support.client.pins import a_master
from tests.unit.client.cli.conftest import Outcome, beside, run_command

from paceline.wire.names import AUDIT_TOPIC

COMMON: dict[str, Any] = {"node": "c1", "door": "http", "source": "10.0.0.1", "outcome": "OK"}
ROWS = [
    {
        **COMMON,
        "unix_ms": 1_700_000_000_000,
        "sequence": 1,
        "user": "root",
        "call": "put_user",
        "about": "user=eve",
        "decision": "Allow",
        "request_id": "r-1",
    },
    {
        **COMMON,
        "unix_ms": 1_700_000_060_000,
        "sequence": 2,
        "user": "ana",
        "call": "produce\x1b[1m",
        "action": "Pub",
        "resource": "Topic:orders",
        "decision": "Deny",
        "outcome": "NOT_AUTHORIZED",
    },
]


class Auditor:
    """Runs `paceline audit search`; there are two records."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __call__(self, *arguments: str) -> Outcome:
        return run_command("audit", "search", *arguments, bootstrap=self._bootstrap)

    def sequences(self, *arguments: str) -> list[int]:
        outcome = self("--json", *arguments)
        assert outcome.exit_code == 0, outcome.stderr
        return [orjson.loads(line)["sequence"] for line in outcome.stdout.splitlines()]


@pytest.fixture
def audit() -> Iterator[Auditor]:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Auditor]:
        async with a_master() as (cluster, door, _):
            cluster.add_topic(AUDIT_TOPIC, 1)
            door.service.view_changed(cluster.view)
            body = orjson.dumps({"records": ROWS})
            proof = proof_of(PROOFS, "POST", "/v1/audit", body)
            headers = {"Content-Type": "application/json", **proof}
            assert (await door.ask("POST", "/v1/audit", data=body, headers=headers))[0] == 200
            yield Auditor(cluster.controller)

    with beside(serve()) as served:
        yield served


def test_records_are_shown_by_time_and_without_escape_sequences(audit: Auditor) -> None:
    shown = audit()

    assert shown.exit_code == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[1].split() == [
        *("2023-11-14", "22:13:20.000", "root", "10.0.0.1", "put_user", "user=eve"),
        *("Allow", "OK", "r-1"),
    ]
    assert "Topic:orders" in lines[2]
    assert "\x1b" not in shown.stdout


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], [1, 2]),
        (["--user", "ana"], [2]),
        (["--action", "Pub"], [2]),
        (["--action", "put_user"], [1]),
        (["--resource", "Topic:ord*"], [2]),
        (["--decision", "Allow"], [1]),
        (["--source", "10.0.0.9"], []),
        (["--request-id", "r-1"], [1]),
        (["--since", "2023-11-14T22:13:30"], [2]),
        (["--until", "1700000000000"], [1]),
        (["--limit", "1"], [2]),
    ],
)
def test_each_option_narrows_it(audit: Auditor, options: list[str], found: list[int]) -> None:
    assert audit.sequences(*options) == found


def test_nothing_found_and_wrong_times_are_told(audit: Auditor) -> None:
    nothing, wrong = audit("--user", "eve"), audit("--since", "yesterday")

    assert (nothing.exit_code, nothing.stderr) == (0, "no such record\n")
    assert (wrong.exit_code, "--since 'yesterday' is no time" in wrong.stderr) == (2, True)
