"""`paceline cluster pins list|add|remove` against the real door of a broker."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from tests.support.client.pins import a_master
from tests.support.http.http import send
from tests.unit.client.cli.conftest import Outcome, beside, run_command


class Operator:
    """Runs `paceline cluster pins ...`; queue g1/0 of `orders` has three messages."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __call__(self, *arguments: str) -> Outcome:
        return run_command("cluster", "pins", *arguments, bootstrap=self._bootstrap)

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        outcome = self(*arguments, "--json")
        assert outcome.exit_code == 0, outcome.stderr
        return [orjson.loads(line) for line in outcome.stdout.splitlines()]


@pytest.fixture
def pins() -> Iterator[Operator]:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Operator]:
        async with a_master() as (cluster, door, _):
            for body in "abc":
                await send(door, body)
            yield Operator(cluster.controller)

    with beside(serve()) as served:
        yield served


def test_a_pin_is_added_listed_and_removed(pins: Operator) -> None:
    added = pins("add", "job-1", "--topic", "orders", "--queue", "g1/0", "--offset", "1")
    table = pins("list").stdout.splitlines()
    removed = pins("remove", "job-1")

    assert added.exit_code == 0, added.stderr
    assert added.stdout.startswith("group g1: job-1 keeps everything from position ")
    assert table[0] == "group g1: 1 pin, the log begins at 0"
    assert table[1].split() == ["OWNER", "KEEPS", "FROM", "ENDS", "(UTC)", "LEASE", "S"]
    assert (table[2].split()[0], table[2].split()[-1]) == ("job-1", "3600")
    assert removed.stdout == "job-1 has no pin any more in group g1\n"
    assert pins("list", "g1").stdout == "group g1: no pins, the log begins at 0\n"


def test_shapes_for_programs(pins: Operator) -> None:
    (whole,) = pins.json("add", "backup", "--lease-s", "60")
    (topic,) = pins.json("add", "job", "--group", "g1", "--topic", "orders")
    (listed,) = pins.json("list")
    (removed,) = pins.json("remove", "job", "--group", "g1")

    keys = {"group", "owner", "position", "expires_unix_ms", "lease_ms"}
    assert set(whole) == set(topic) == keys
    assert (whole["owner"], whole["position"], whole["lease_ms"]) == ("backup", 0, 60_000)
    assert topic["position"] > 0  # above the epoch's start
    assert listed == {
        "group": "g1",
        "log_start": 0,
        "pins": [
            {key: value for key, value in pin.items() if key != "group"} for pin in (whole, topic)
        ],
    }
    assert removed == {"owner": "job", "groups": ["g1"]}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        (["remove", "nobody"], 1, "nobody has no pin: none was set, or its lease has ended"),
        (["remove", "a", "--group", "g1"], 1, "a has no pin in group g1"),
        (["add", "job", "--topic", "none"], 1, "topic none does not exist"),
        (["add", "job", "--group", "g9"], 1, "there is no broker group g9; there is g1"),
        (["list", "g9"], 1, "there is no broker group g9"),
        (["add", "a/b"], 2, "owner must be 1 to 127 of"),
        (["add", "job", "--lease-s", "604801"], 2, "604801 is not in the range 1<=x<=604800"),
        (["add", "job", "--queue", "0"], 2, "--queue and --offset need --topic"),
        (["add", "job", "--topic", "orders", "--offset", "1"], 2, "--offset N needs --queue"),
        (["add", "job", "--topic", "orders", "--offset", "x"], 2, "'x' is no number"),
        (["add", "job", "--topic", "orders", "--queue", "7"], 1, "has no queue 7"),
        (["add", "job", "--topic", "orders", "--queue", "a/b/c"], 2, "is not like 3 or g1/3"),
        (
            ["add", "job", "--topic", "orders", "--queue", "0", "--offset", "7"],
            2,
            "group g1: offset 7 of orders g1/0 is beyond the end, 3",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    pins: Operator, arguments: list[str], exit_code: int, sentence: str
) -> None:
    outcome = pins(*arguments)

    assert (outcome.exit_code, outcome.stdout) == (exit_code, "")
    assert sentence in outcome.stderr
