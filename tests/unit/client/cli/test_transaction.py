"""`paceline transaction` and `paceline send --transaction` against the real door of a broker."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
from tests.support.client.fake_broker import CLUSTER_ID
from tests.support.client.pins import a_master
from tests.unit.client.cli.conftest import Outcome, beside, run_command

from paceline.wire.message_ids import OffsetMessageId, make_handle


class Operator:
    """Runs `paceline ...`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __call__(self, *arguments: str) -> Outcome:
        return run_command(*arguments, bootstrap=self._bootstrap)

    def json(self, *arguments: str) -> Any:
        outcome = self(*arguments, "--json")
        assert outcome.exit_code == 0, outcome.stderr
        return orjson.loads(outcome.stdout)


@pytest.fixture
def paceline() -> Iterator[Operator]:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Operator]:
        async with a_master() as (cluster, door, _):
            door.role.identity = replace(door.role.identity, cluster_id=CLUSTER_ID)
            yield Operator(cluster.controller)

    with beside(serve()) as served:
        yield served


def test_a_half_is_sent_listed_shown_and_ended(paceline: Operator) -> None:
    sent = paceline.json("send", "orders", "pay", "--transaction", "none")
    text = sent["transaction_id"]
    assert sent["outcome"] == "OPEN"

    listed = paceline("transaction", "list", "--topic", "orders").stdout.splitlines()
    assert listed[0] == "group g1: 1 open"
    assert listed[1].split() == ["TRANSACTION", "TOPIC", "QUEUE", "STORED", "(UTC)", "CHECKS"]
    assert listed[2].split()[:2] == [text, "orders"]
    assert paceline("transaction", "show", text).stdout.startswith("OPEN: for topic orders, queue")
    assert paceline("transaction", "commit", text).stdout == f"{text} is committed\n"
    assert paceline.json("transaction", "commit", text)["outcome"] == "COMMITTED"
    assert paceline.json("transaction", "show", text)["outcome"] == "COMMITTED"
    refused = paceline("transaction", "rollback", text)
    assert refused.exit_code == 1
    assert "has been committed before" in refused.stderr
    assert paceline.json("transaction", "list")["open"] == 0


@pytest.mark.parametrize(("end", "said"), [("commit", "committed"), ("rollback", "rolled back")])
def test_send_ends_its_transaction(paceline: Operator, end: str, said: str) -> None:
    outcome = paceline("send", "orders", "pay", "--transaction", end)

    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.endswith(f": {said}\n")
    assert paceline.json("transaction", "list")["open"] == 0


def test_what_is_refused(paceline: Operator) -> None:
    assert paceline("send", "orders", "--transaction", "commit").exit_code == 2
    assert paceline("transaction", "commit", "garbage").exit_code == 2
    unknown = make_handle("tx", OffsetMessageId("g1", 8, 0))
    outcome = paceline("transaction", "rollback", unknown, "--json")
    assert orjson.loads(outcome.stderr)["code"] == "TRANSACTION_NOT_FOUND"
