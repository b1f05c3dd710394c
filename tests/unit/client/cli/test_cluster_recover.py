"""`paceline cluster recover` against a real controller and stores that wait."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import orjson
import pytest
from tests.support.controller.harness import Controllers
from tests.support.controller.recovery_sessions import OldBroker, old_brokers
from tests.unit.client.cli.conftest import Outcome, beside, run_command

from paceline.cli.cluster.status import _trouble


class Operator:
    """Runs `paceline cluster recover ...` beside the cluster's own thread."""

    def __init__(self, cluster: Controllers, brokers: list[OldBroker]) -> None:
        self.cluster = cluster
        self.stores = [broker.store_id for broker in brokers]

    def __call__(self, *arguments: str) -> Outcome:
        bootstrap = str(self.cluster.addresses[0])
        return run_command("cluster", "recover", *arguments, bootstrap=bootstrap)


@pytest.fixture
def operator() -> Iterator[Operator]:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Operator]:
        async with old_brokers() as (cluster, brokers):
            yield Operator(cluster, brokers)

    with beside(serve()) as served:
        yield served


def test_stores_that_wait_are_shown_with_what_choosing_them_means(operator: Operator) -> None:
    table = operator().stdout.splitlines()
    rows = [orjson.loads(line) for line in operator("g1", "--list", "--json").stdout.splitlines()]

    assert table[0].split()[:3] == ["GROUP", "STORE", "WAS"]
    assert table[1].endswith("nothing lost")
    assert len(table) == 4
    assert [row["store_id"] for row in rows] == operator.stores
    assert set(rows[0]) == {
        "group",
        "store_id",
        "from_cluster",
        "replica_id",
        "incarnation",
        "address",
        "epoch",
        "last_epoch",
        "start",
        "end",
        "confirm",
        "topics",
        "is_learner",
        "is_suspect",
        "is_damaged",
        "refusals",
        "losses",
    }
    assert operator("g9").stdout == "no store waits to be recovered\n"


def test_a_group_is_recovered_once_it_is_meant(operator: Operator) -> None:
    unasked = operator("g1", "--store", operator.stores[1])
    unnamed = operator("--store", operator.stores[1], "--yes")
    vague = operator("g1", "--store", "store-g1", "--yes")
    done = operator("g1", "--store", operator.stores[1], "--yes")
    again = operator("g1", "--store", operator.stores[1], "--yes", "--json")
    other = operator("g1", "--store", operator.stores[0], "--yes")

    assert "say --yes" in unasked.stderr
    assert (unasked.exit_code, unnamed.exit_code, vague.exit_code) == (2, 2, 2)
    assert "3 stores begin with store-g1" in vague.stderr
    assert done.stdout == (
        f"group g1: recovered from store {operator.stores[1]}, which is replica 2 of 1, 2, 3\n"
    )
    result = orjson.loads(again.stdout)
    assert {"replica_id", "replicas", "is_unclean", "sync_state_set"} <= set(result)
    assert (result["replica_id"], result["sync_state_set"]) == (2, [2])
    assert other.exit_code == 1
    assert "is on record" in other.stderr


def test_a_loss_is_shown_and_has_to_be_accepted(operator: Operator) -> None:
    forgotten = operator("--forget", operator.stores[2], "--yes", "--json")
    shown = operator().stdout
    refused = operator("g1", "--store", operator.stores[0], "--yes")
    accepted = operator("g1", "--store", operator.stores[0], "--give-up-missing", "--yes")

    assert orjson.loads(forgotten.stdout) == {"store_id": operator.stores[2], "forgotten": True}
    assert "may lose messages" in shown
    assert "- 2 of 3 replicas' stores presented themselves" in shown
    assert refused.exit_code == 1
    assert "2 of 3" in refused.stderr
    assert accepted.stdout.endswith("it counts as LOSSY\n")


def test_a_store_is_recovered_or_forgotten(operator: Operator) -> None:
    both = operator("g1", "--store", "a", "--forget", "b")

    assert both.exit_code == 2
    assert "exclude each other" in both.stderr


def test_the_status_of_a_group_that_has_not_begun_points_to_stores_that_wait() -> None:
    group = {"group": "g1", "epoch": 0, "is_open": False}

    said = _trouble({"controllers": [{"role": "leader"}], "groups": [group]})

    assert said.startswith("Group g1 has not begun")
    assert "paceline cluster recover" in said
