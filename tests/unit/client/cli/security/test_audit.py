"""`paceline audit search` against the real door of a broker."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.support.askers import PROOFS, proof_of
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.pins import a_master
from tests.support.http.door import Door
from tests.unit.client.cli.conftest import Outcome, beside, run_command

from paceline.admin import audit as admin_audit
from paceline.admin.audit import Audit
from paceline.types import GroupName
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
        "times": 7,
    },
]


class Auditor:
    """Runs `paceline audit search`; there are two records."""

    def __init__(self, cluster: FakeCluster, door: Door, loop: asyncio.AbstractEventLoop) -> None:
        self._bootstrap, self._loop = cluster.controller, loop
        self._cluster, self._door = cluster, door

    def without_master(self, group: str) -> None:
        async def run() -> None:
            if group == "g1":
                self._door.role.become_replica()
            self._cluster.elect(group, None)

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def also_in(self, group: str) -> None:
        """The topic has a queue there too."""

        async def run() -> None:
            self._cluster.alter_topic(AUDIT_TOPIC, queues={GroupName("g1"): 1, GroupName(group): 1})

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

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
        async with a_master(groups=2) as (cluster, door, _):
            cluster.add_topic(AUDIT_TOPIC, 1, groups=["g1"])
            door.service.view_changed(cluster.view)
            body = orjson.dumps({"records": ROWS})
            proof = proof_of(PROOFS, "POST", "/v1/audit", body)
            headers = {"Content-Type": "application/json", **proof}
            assert (await door.ask("POST", "/v1/audit", data=body, headers=headers))[0] == 200
            yield Auditor(cluster, door, asyncio.get_running_loop())

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
    assert "NOT_AUTHORIZED x7" in lines[2]
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


# -- what cannot be read -------------------------------------------------------------------------


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_audit, "PATIENCE_MS", 0)


@pytest.mark.usefixtures("_impatient")
def test_a_replica_that_answered_is_told_and_the_search_succeeds(audit: Auditor) -> None:
    audit.without_master("g1")

    text, lines = audit(), audit("--json")

    assert (text.exit_code, lines.exit_code) == (0, 0), (text, lines)
    assert "produce" in text.stdout
    assert "another replica did: the latest records may be missing" in text.stderr
    *records, last = [orjson.loads(line) for line in lines.stdout.splitlines()]
    assert [row["sequence"] for row in records] == [1, 2]
    assert last == {"missing": {}, "maybe_stale": ["g1"]}


@pytest.mark.usefixtures("_impatient")
def test_a_group_that_nobody_answers_for_is_named_and_the_exit_code_says_so(
    audit: Auditor,
) -> None:
    audit.also_in("g2")
    audit.without_master("g2")

    text, lines = audit(), audit("--json")

    assert (text.exit_code, lines.exit_code) == (1, 1)
    assert "produce" in text.stdout, "the other group's records are shown"
    assert "no broker of group g2 answers: records that are there are missing" in text.stderr
    *records, last = [orjson.loads(line) for line in lines.stdout.splitlines()]
    assert [row["sequence"] for row in records] == [1, 2]
    assert (list(last["missing"]), last["maybe_stale"]) == (["g2"], [])


# -- --follow -------------------------------------------------------------------------------------


@pytest.fixture
def _ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after the second record."""
    follow = Audit.follow

    async def two(self: Audit, **wanted: Any) -> AsyncIterator[dict[str, Any]]:
        count = 0
        async for row in follow(self, **wanted):
            yield row
            count += 1
            if count == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(Audit, "follow", two)


@pytest.mark.usefixtures("_ends")
def test_follow_shows_what_comes_until_ctrl_c(audit: Auditor) -> None:
    text = audit("--follow", "--since", "2023-01-01")
    lines = audit("--follow", "--since", "2023-01-01", "--json")

    assert (text.exit_code, lines.exit_code) == (130, 130)
    head, first, second = text.stdout.splitlines()
    assert head.split()[:3] == ["TIME", "(UTC)", "USER"]
    assert first.split()[:5] == ["2023-11-14", "22:13:20.000", "root", "10.0.0.1", "put_user"]
    assert "\x1b" not in second
    assert [orjson.loads(line)["sequence"] for line in lines.stdout.splitlines()] == [1, 2]


@pytest.mark.parametrize("option", ["--until=2030-01-01", "--limit=5"])
def test_follow_has_no_end(option: str, audit: Auditor) -> None:
    wrong = audit("--follow", option)

    assert (wrong.exit_code, "--follow has no end" in wrong.stderr) == (2, True)
