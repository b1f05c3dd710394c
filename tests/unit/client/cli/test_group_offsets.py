"""`paceline group lag|members|reset|clone` against the real door of a broker."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import click
import orjson
import pytest
from tests.support.client.pins import a_master
from tests.support.client.static_consumers import segments
from tests.support.http.http import send
from tests.unit.client.cli.conftest import Outcome, beside, run_command

from paceline.admin.consumer_groups import ConsumerGroups
from paceline.cli.group.offsets import parse_target
from paceline.types import ConsumerGroupName
from paceline.wire.consumer_groups import ConsumerGroupView
from paceline.wire.static_topics import LogicalQueue

NOW_MS = 1_800_000_000_000


class Operator:
    """Runs `paceline group ...`; queue g1/0 of `orders` has three messages."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __call__(self, *arguments: str) -> Outcome:
        return run_command("group", *arguments, bootstrap=self._bootstrap)

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        outcome = self(*arguments, "--json")
        assert outcome.exit_code == 0, outcome.stderr
        return [orjson.loads(line) for line in outcome.stdout.splitlines()]


@pytest.fixture
def groups() -> Iterator[Operator]:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Operator]:
        async with a_master() as (cluster, door, _):
            for body in "abc":
                await send(door, body)
            audit = ConsumerGroupView(group=ConsumerGroupName("audit"))
            cluster.publish(consumer_groups={audit.group: audit})
            yield Operator(cluster.controller)

    with beside(serve()) as served:
        yield served


def test_a_group_is_moved_and_its_lag_shows_it(groups: Operator) -> None:
    moved = groups("reset", "audit", "orders", "--to", "1")
    lag = groups("lag", "audit")

    assert moved.exit_code == 0, moved.stderr
    table = moved.stdout.splitlines()
    assert table[0].split() == ["QUEUE", "BEFORE", "NOW"]
    assert table[1].split() == ["g1/0", "-", "1"]
    assert table[-1].startswith("group audit moved on ")
    rows = [line.split() for line in lag.stdout.splitlines()]
    assert rows[0] == ["TOPIC", "QUEUE", "OFFSET", "END", "LAG", "BEHIND", "IN", "FLIGHT"]
    assert rows[1][:5] == ["orders", "g1/0", "1", "3", "2"]
    assert lag.stdout.splitlines()[-1] == "2 messages behind"


def test_a_segment_that_is_not_begun_has_no_offset() -> None:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Operator]:
        async with a_master() as (cluster, door, _):
            await send(door, "a", "b", queue=1)
            offsets = [{"topic": "orders", "queue": 0, "offset": 0}]
            call = {"call": "commit", "group": "audit", "offsets": offsets}
            await door.ask("POST", "/v1/call", call)
            moved = LogicalQueue(segments=tuple(segments(0)))
            cluster.alter_topic("orders", logical_queues=(moved,))
            yield Operator(cluster.controller)

    with beside(serve()) as groups:
        lag = groups("lag", "audit")
        rows = groups.json("lag", "audit")

    table = [line.split()[:5] for line in lag.stdout.splitlines()]
    assert table[1:3] == [["orders", "g1/0", "0", "0", "0"], ["orders", "g1/1", "-", "2", "2"]]
    assert lag.stdout.splitlines()[-1] == "2 messages behind"
    assert [row["offset"] for row in rows] == [0, None]


def test_shapes_for_programs(groups: Operator) -> None:
    first = groups.json("reset", "audit", "orders", "--to", "last")[0]
    back = groups.json("reset", "audit", "orders", "--to", "first", "--back-only")
    cloned = groups.json("clone", "copy", "orders", "--from", "audit")[0]
    lag = groups.json("lag", "audit")[0]
    [members] = groups.json("members", "audit")

    assert first == {
        "topic": "orders", "group": "g1", "topic_id": 1, "queue": 0, "before": None, "offset": 3,
        "generation": 1, "code": None,
    }  # fmt: skip
    assert [(row["queue"], row["before"], row["offset"]) for row in back] == [(0, 3, 0)]
    assert (cloned["before"], cloned["offset"]) == (None, 0)
    assert lag["lag"] == 3
    assert lag["behind_ms"] >= 0
    assert members["members"] == []
    assert members["inconsistent_topics"] == []


def test_what_cannot_be_is_told_and_moves_nothing(groups: Operator) -> None:
    no_topic = groups("reset", "audit", "nothing", "--to", "first")
    no_time = groups("reset", "audit", "orders", "--to", "yesterday")
    no_name = groups("clone", "audit", "orders", "--from", "a/b")

    assert (no_topic.exit_code, no_time.exit_code, no_name.exit_code) == (1, 2, 2)
    assert "topic nothing does not exist" in no_topic.stderr
    assert "neither" in no_time.stderr
    assert groups.json("lag", "audit") == []
    assert groups("lag", "audit").stderr == "consumer group audit has committed nothing yet\n"
    assert groups("members", "audit").stderr == "nobody consumes in group audit now\n"


def test_a_misspelt_group_is_told_and_is_none_afterwards(groups: Operator) -> None:
    reset = groups("reset", "typo", "orders", "--to", "first")
    cloned = groups("clone", "audit", "orders", "--from", "typo")
    lag = groups("lag", "typo")
    members = groups("members", "typo", "--json")
    committed = groups.json("clone", "copy", "orders", "--from", "audit")
    groups("reset", "audit", "orders", "--to", "last")
    groups("clone", "copy", "orders", "--from", "audit")
    known = groups.json("reset", "copy", "orders", "--to", "first")
    offsets = groups.json("lag", "copy")

    for outcome in (reset, cloned, lag, members):
        assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert orjson.loads(members.stderr)["code"] == "GROUP_NOT_FOUND"
    for outcome in (reset, cloned, lag):
        assert outcome.stderr == (
            "paceline: consumer group typo does not exist: it is not on record, has committed"
            " nothing and has no members; make it with `paceline group create typo`\n"
        )
    assert committed == []
    assert [row["offset"] for row in known if row["queue"] == 0] == [0], "it is not on record"
    assert [row["offset"] for row in offsets if row["queue"] == 0] == [0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("first", {"to": "first"}),
        ("last", {"to": "last"}),
        ("120", {"offset": 120}),
        ("-90m", {"unix_ms": NOW_MS - 90 * 60_000}),
        ("-2d", {"unix_ms": NOW_MS - 2 * 86_400_000}),
        ("2026-01-31T12:00", {"unix_ms": 1_769_860_800_000}),
        ("2026-01-31T13:00+01:00", {"unix_ms": 1_769_860_800_000}),
    ],
)
def test_targets_are_ends_offsets_times_and_ages(text: str, expected: dict[str, Any]) -> None:
    assert parse_target(text, now_ms=NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "middle", "-90", "-90w", "12:00", "99-99-99"])
def test_other_targets_are_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_target(text, now_ms=NOW_MS)


@pytest.mark.parametrize(("modes", "is_told"), [("oc", True), ("oo", False), ("cs", False)])
def test_members_that_do_not_agree_about_order_are_told(
    groups: Operator, modes: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"o": "ordered", "c": "concurrent", "s": "simple"}

    async def found(_: ConsumerGroups, group: str) -> dict[str, Any]:
        members = [
            {"client_id": f"m{at}", "mode": names[mode], "owned": [], "topics": ["orders"]}
            for at, mode in enumerate(modes)
        ]
        return {"members": members, "inconsistent_topics": []}

    monkeypatch.setattr(ConsumerGroups, "members", found)
    outcome = groups("members", "audit")

    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.splitlines()[1].split()[:3] == ["m0", "-", names[modes[0]]]
    assert ("some members of audit consume in order and some do not" in outcome.stderr) is is_told
