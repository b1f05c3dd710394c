"""`paceline cluster sync-state-set|elect|history|epochs|clean` against real controllers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import orjson
import pytest
from tests.support.controller.harness import Controllers, TalkingBroker, eventually
from tests.support.controller.sessions import a_cluster, master_of
from tests.unit.client.cli.conftest import Outcome, beside, run_command


class Operator:
    """Runs `paceline cluster ...` against one controller and three brokers in another thread."""

    def __init__(
        self,
        cluster: Controllers,
        brokers: list[TalkingBroker],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self._loop = loop

    def __call__(self, *arguments: str) -> Outcome:
        return run_command("cluster", *arguments, bootstrap=str(self.cluster.addresses[0]))

    def json(self, *arguments: str) -> list[dict[str, object]]:
        outcome = self(*arguments, "--json")
        assert outcome.exit_code == 0, outcome.stderr
        return [orjson.loads(line) for line in outcome.stdout.splitlines()]

    def take_up_mastership(self, number: int) -> None:
        """The broker works as the master; one that is elected and does not is replaced."""

        async def run() -> None:
            broker = self.brokers[number - 1]
            await eventually(lambda: master_of(broker) == number, f"{number} is told that it leads")
            await broker.beat()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def kill(self, number: int) -> None:
        """As kill -9, and the leader has noticed."""

        async def run() -> None:
            await self.brokers[number - 1].kill()
            leader = self.cluster.leader
            await eventually(
                lambda: not leader.http.context.is_alive("g1", number), f"{number} is known dead"
            )

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)


@pytest.fixture
def operator() -> Iterator[Operator]:
    @asynccontextmanager
    async def serve() -> AsyncIterator[Operator]:
        async with a_cluster() as (cluster, brokers):
            yield Operator(cluster, brokers, asyncio.get_running_loop())

    with beside(serve()) as served:
        yield served


def test_the_sync_state_set_is_shown(operator: Operator) -> None:
    (document,) = operator.json("sync-state-set", "g1")
    table = operator("sync-state-set").stdout.splitlines()

    assert document["sync_state_set"] == [1, 2, 3]
    assert document["replicas"][0]["standing"] == "healthy"  # type: ignore[index]
    assert table[0].startswith("group g1: master 1 in epoch 1, set epoch 1, at least 2")
    assert table[1].split()[:4] == ["REPLICA", "IN", "SYNC", "STANDING"]
    assert table[1].split()[5:8] == ["LAST", "EPOCH", "END"]
    assert document["replicas"][0]["last_epoch"] == 0  # type: ignore[index]
    assert len(table) == 5


def test_an_operator_elects_and_the_history_tells_it(operator: Operator) -> None:
    elected = operator("elect", "g1", "--to", "3")
    entries = operator.json("history", "g1", "--limit", "1")

    assert elected.stdout == "group g1: replica 3 is master of epoch 2, in sync 1, 2, 3\n"
    assert (entries[0]["kind"], entries[0]["reason"]) == ("master_elected", "operator")
    assert "reason operator" in operator("history", "g1").stdout


def test_what_cannot_be_elected_is_refused_with_the_reason(operator: Operator) -> None:
    outcome = operator("elect", "g1", "--to", "9")

    assert outcome.exit_code == 1
    assert outcome.stderr == "paceline: replica 9 is not a healthy member\n"
    assert operator("elect", "g1", "--unclean").exit_code == 2
    assert "say --yes" in operator("elect", "g1", "--unclean", "--to", "2").stderr
    assert operator("elect", "nobody").exit_code == 1


def test_the_master_is_not_elected_again(operator: Operator) -> None:
    outcome = operator("elect", "g1", "--to", "1")

    assert outcome.exit_code == 1
    assert outcome.stderr == (
        "paceline: replica 1 is the master already, of epoch 1: there is nothing to elect\n"
    )
    (document,) = operator.json("sync-state-set", "g1")
    assert (document["master_epoch"], document["set_epoch"]) == (1, 1)


def test_an_unclean_election_is_remembered(operator: Operator) -> None:
    (result,) = operator.json("elect", "g1", "--unclean", "--to", "2", "--yes")

    assert (result["master"], result["sync_state_set"]) == (2, [2])
    assert "LOSSY" in operator("sync-state-set", "g1").stdout


def test_epochs_of_brokers_that_do_not_answer(operator: Operator) -> None:
    rows = operator.json("epochs", "g1")

    assert rows[0] == {
        "group": "g1",
        "replica_id": 1,
        "role": None,
        "epoch": None,
        "confirm": None,
        "epochs": None,
    }
    assert "no answer" in operator("epochs", "g1").stdout
    assert operator("epochs", "g9").exit_code == 1


def test_a_replica_is_cleaned_when_it_is_dead_and_forced_when_it_is_a_member(
    operator: Operator,
) -> None:
    alive = operator("clean", "g1", "--replica", "3")
    operator.kill(3)
    member = operator("clean", "g1", "--replica", "3")
    forced = operator.json("clean", "g1", "--replica", "3", "--force")
    again = operator("clean", "g1", "--replica", "3")

    assert (alive.exit_code, "is alive: stop it first" in alive.stderr) == (1, True)
    assert (member.exit_code, "in the sync state set" in member.stderr) == (1, True)
    assert forced == [{"group": "g1", "replica_id": 3, "forgotten": True}]
    assert (again.exit_code, "has no replica 3" in again.stderr) == (1, True)
    (document,) = operator.json("sync-state-set", "g1")
    assert document["sync_state_set"] == [1, 2]


def test_a_master_that_lives_is_not_cleaned_even_by_force(operator: Operator) -> None:
    outcome = operator("clean", "g1", "--replica", "1", "--force")

    assert outcome.exit_code == 1
    assert outcome.stderr == "paceline: replica 1 of group g1 is alive: stop it first\n"


def test_a_whole_group_is_cleaned_when_all_of_it_is_dead(operator: Operator) -> None:
    alive = operator("clean", "g1", "--yes")
    for number in (1, 2, 3):
        operator.kill(number)
    unasked = operator("clean", "g1")
    cleaned = operator("clean", "g1", "--yes")

    assert (alive.exit_code, "replicas 1, 2, 3 of group g1 are alive" in alive.stderr) == (1, True)
    assert unasked.exit_code == 2
    assert cleaned.stdout == "group g1 forgotten\n"
    assert operator.json("sync-state-set") == []


def test_a_transfer_says_whether_the_master_did_it(operator: Operator) -> None:
    graceful = operator("transfer", "g1", "--to", "2")
    operator.take_up_mastership(2)
    operator.brokers[1].answers_orders = False
    (ignored,) = operator.json("transfer", "g1", "--to", "3")
    refused = operator("transfer", "g1", "--to", str(ignored["master"]))

    assert graceful.stdout.startswith("group g1: replica 2 is master of epoch 2, in sync ")
    assert ignored["is_graceful"] is False
    assert (refused.exit_code, "is the master" in refused.stderr) == (1, True)


def test_write_permission_is_wiped_and_given_back(operator: Operator) -> None:
    wiped = operator("wipe-write-perm", "g1")
    status = orjson.loads(operator("status", "--json").stdout)
    [back] = operator.json("add-write-perm", "g1")
    unknown = operator("wipe-write-perm", "g9")

    assert (wiped.exit_code, wiped.stdout) == (0, "group g1 takes no messages any more\n")
    assert [group["is_write_wiped"] for group in status["groups"]] == [True]
    assert back == {"group": "g1", "writable": True}
    assert unknown.exit_code == 1
    assert "no such broker group" in unknown.stderr or "no broker group" in unknown.stderr
