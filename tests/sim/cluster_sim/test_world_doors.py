"""Clients of RocketMQ's protocols in worlds, at gateways that die."""

import sys
from collections import Counter
from dataclasses import replace

import pytest

from paceline.errors import ConfigError
from paceline_chaos.cluster_sim.determinism import rerun
from paceline_chaos.cluster_sim.doors.fifo import FIFO_TOPICS
from paceline_chaos.cluster_sim.faults.plan import Plan
from paceline_chaos.cluster_sim.run import REPLAY, run_world
from paceline_chaos.cluster_sim.topology import Client, draw_topology
from paceline_chaos.faults.plan import Fault
from paceline_chaos.history.model import (
    Ack,
    BeginTransaction,
    CheckTransaction,
    EndTransaction,
    Operation,
    Outcome,
    Pop,
    Send,
)

GRPC_SEED, REMOTING_SEED = 23, 15
LOAD_MS = 6_000
MASTER_DIES = Fault(at_ms=2_000, kind="kill", target="master:g1", for_ms=1_500)
CLIENT_DIES = Fault(at_ms=3_000, kind="kill", target="client-1", for_ms=400)


def test_clients_of_grpc_do_everything_while_masters_gateways_and_they_themselves_die() -> None:
    only = (Client(name="client-1", jobs=("send", "grpc")), Client(name="client-2", jobs=("read",)))
    topology = replace(draw_topology(5, load_ms=LOAD_MS), clients=only)
    plan = Plan(faults=(MASTER_DIES, CLIENT_DIES))

    result = run_world(5, plan=plan, topology=topology)

    assert result.verdict.is_good, result.verdict.violations[:3]
    operations = [entry for entry in result.history.entries if isinstance(entry, Operation)]
    done = Counter(type(entry) for entry in operations if entry.outcome is Outcome.OK)
    kinds = (Send, BeginTransaction, EndTransaction, CheckTransaction, Pop, Ack)
    assert min(done[kind] for kind in kinds) > 0, done
    sends = [entry for entry in operations if isinstance(entry, Send) and "grpc" in entry.value]
    assert any(entry.key is not None for entry in sends)
    assert any(entry.delay_ms for entry in sends)
    assert any(not entry.is_idempotent for entry in sends), "nobody went to another gateway"
    given = [entry for entry in operations if isinstance(entry, Pop) and entry.is_ordered]
    assert {entry.queue.topic for entry in given} == set(FIFO_TOPICS)
    assert len({entry.member for entry in given}) > 2, "no client took another one's place"


@pytest.mark.parametrize("seed", [GRPC_SEED, REMOTING_SEED])
def test_seed_with_doors_is_good(seed: int) -> None:
    """What clients of the remoting protocol do while masters die: script "doors" of the moments."""
    jobs = {job for client in draw_topology(seed).clients for job in client.jobs}
    assert ("remoting" if seed == REMOTING_SEED else "grpc") in jobs

    result = run_world(seed)

    assert result.verdict.is_good, (result.verdict.violations[:3], REPLAY.format(seed=seed))


@pytest.mark.parametrize("seed", [GRPC_SEED, REMOTING_SEED])
def test_a_world_with_doors_is_the_same_in_another_way(seed: int) -> None:
    assert rerun(seed, load_ms=2_000).is_same


def test_a_world_says_which_package_its_clients_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("paceline_chaos.cluster_sim.doo")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("paceline_gateway.grpc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)

    with pytest.raises(ConfigError, match=r"paceline\[grpc\]"):
        run_world(GRPC_SEED, load_ms=10)
