"""Clients of RocketMQ's protocols in worlds, at gateways that die."""

import sys
from collections import Counter
from dataclasses import replace

import pytest

from paceline.errors import ConfigError
from paceline_chaos.cluster_sim.determinism import rerun
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

GRPC_SEED = 15
LOAD_MS = 6_000
MASTER_DIES = Fault(at_ms=2_000, kind="kill", target="master:g1", for_ms=1_500)
CLIENT_DIES = Fault(at_ms=3_000, kind="kill", target="client-1", for_ms=400)


def test_clients_of_grpc_do_everything_while_masters_gateways_and_they_themselves_die() -> None:
    only = (Client(name="client-1", jobs=("send", "grpc")), Client(name="client-2", jobs=("read",)))
    topology = replace(draw_topology(1, load_ms=LOAD_MS), clients=only)
    plan = Plan(faults=(MASTER_DIES, CLIENT_DIES))

    result = run_world(1, plan=plan, topology=topology)

    assert result.verdict.is_good, result.verdict.violations[:3]
    operations = [entry for entry in result.history.entries if isinstance(entry, Operation)]
    done = Counter(type(entry) for entry in operations if entry.outcome is Outcome.OK)
    kinds = (Send, BeginTransaction, EndTransaction, CheckTransaction, Pop, Ack)
    assert min(done[kind] for kind in kinds) > 0, done
    sends = [entry for entry in operations if isinstance(entry, Send) and "grpc" in entry.value]
    assert any(entry.key is not None for entry in sends)
    assert any(entry.delay_ms for entry in sends)
    assert any(not entry.is_idempotent for entry in sends), "nobody went to another gateway"


@pytest.mark.parametrize("seed", [GRPC_SEED, 39])
def test_seed_with_clients_of_grpc_is_good(seed: int) -> None:
    assert draw_topology(seed).has_grpc

    result = run_world(seed)

    assert result.verdict.is_good, (result.verdict.violations[:3], REPLAY.format(seed=seed))


def test_a_world_with_protobuf_is_the_same_in_another_way() -> None:
    assert rerun(GRPC_SEED, load_ms=2_000).is_same


def test_a_world_says_which_package_its_clients_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("paceline_chaos.cluster_sim.doo")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("paceline_gateway.grpc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)

    with pytest.raises(ConfigError, match=r"paceline\[grpc\]"):
        run_world(GRPC_SEED, load_ms=10)
