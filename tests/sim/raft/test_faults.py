"""The quorum under faults from seeds, and mutants of its rules that the same runs must catch.

More seeds: PACELINE_RAFT_SEEDS=500 pytest tests/sim/raft/test_faults.py
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.sim.raft.faults import run_with_faults
from tests.sim.raft.world import World

from paceline.types import ControllerId
from paceline_controller.raft.core import RaftCore
from paceline_controller.raft.log.entries import Entry
from paceline_controller.raft.log.journal import Journal, SyncTicket
from paceline_controller.raft.overrides import SafeNode
from paceline_controller.raft.peers.frames import Message, is_sendable

SEEDS = int(os.environ.get("PACELINE_RAFT_SEEDS", "25"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_and_all_nodes_agree(seed: int) -> None:
    world = run_with_faults(f"three {seed}")

    assert len(world.acknowledged) > 50


@pytest.mark.parametrize("seed", range(max(1, SEEDS // 6)))
def test_five_nodes_lose_nothing_either(seed: int) -> None:
    run_with_faults(f"five {seed}", nodes=5)


def test_a_run_depends_on_nothing_but_its_seed() -> None:
    script = "from tests.sim.raft.test_faults import trace_digest; print(trace_digest('same', 4))"

    path = os.pathsep.join([".", *sys.path])
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1", "777")
    }

    assert len(digests) == 1


def trace_digest(seed: str, virtual_s: int) -> str:
    world = run_with_faults(seed, virtual_s=virtual_s)
    trace = repr((world.history, world.acknowledged, world.leaders, world.clock.now_ms))
    return hashlib.sha256(trace.encode()).hexdigest()


# -- without one rule ------------------------------------------------------------------------------


def _count_caught(limit: int = 40) -> int:
    """How many of the runs until the first one that fails; 0 = none failed."""
    for seed in range(limit):
        try:
            run_with_faults(f"three {seed}")
        except Exception:  # any: broken invariant, divergence, lost acknowledgement
            return seed + 1
    return 0


def test_runs_catch_a_node_that_speaks_before_it_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def send_at_once(self: RaftCore, peer: ControllerId, message: Message) -> bool:
        if not is_sendable(message):
            return False
        message.setdefault("transfer", False)
        message.setdefault("term", self.term)
        self._shell.send(peer, message)
        self._want_sync()
        return True

    monkeypatch.setattr(RaftCore, "hold", send_at_once)

    assert _count_caught(100)


def test_runs_catch_a_sync_that_counts_what_came_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[[Journal, SyncTicket], None] = Journal.finish_sync

    def finish_all(self: Journal, ticket: SyncTicket) -> None:
        original(self, ticket)
        self.durable = self.appended
        self._durable_index = self.last_index

    monkeypatch.setattr(Journal, "finish_sync", finish_all)

    assert _count_caught()


def test_runs_catch_a_start_that_drops_the_journal_for_its_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F2, as the library does it."""
    original = SafeNode.load_snapshot

    def load_snapshot(self: SafeNode) -> None:
        def holds_nothing(entry: Entry) -> bool:
            return False

        self._holds = holds_nothing  # type: ignore[method-assign]
        original(self)
        del self._holds

    monkeypatch.setattr(SafeNode, "load_snapshot", load_snapshot)

    assert _count_caught()


def test_runs_catch_a_part_of_a_snapshot_that_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """F1, as the library does it."""
    monkeypatch.setattr(SafeNode, "_without_commit", lambda _, message: message)

    assert _count_caught()


# -- single events ---------------------------------------------------------------------------------


def running(seed: str) -> World:
    world = World(seed)
    world.start_all()
    world.run_until(lambda: world.leader() is not None)
    return world


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_leader_is_replaced_in_half_a_second(seed: int) -> None:
    world = running(f"kill {seed}")
    killed = world.leader()
    assert killed is not None

    world.kill(killed.name)

    assert world.run_until(lambda: world.leader() not in (None, killed)) < 500


@pytest.mark.parametrize("seed", range(10))
def test_a_silent_leader_is_replaced_and_rejoins_without_another_election(seed: int) -> None:
    world = running(f"silent {seed}")
    silent = world.leader()
    assert silent is not None
    assert silent.core is not None

    world.isolate(silent.name)
    world.run_until(
        lambda: (new := world.leader()) is not None and new is not silent, limit_ms=2_500
    )
    term = max(world.leaders)
    world.run(5_000)
    world.heal()
    world.run(3_000)

    assert max(world.leaders) == term
    assert silent.core.term == term
    assert silent.core.leader == world.leaders[term][0]


def test_a_deposed_leader_acknowledges_nothing() -> None:
    world = running("deposed")
    old = world.leader()
    assert old is not None
    world.isolate(old.name)

    for number in range(20):
        world.propose_at(old, f"ghost {number}")
        world.run(100)

    assert world.acknowledged == []
    world.check_end()
    assert not [name for name in world.history if name.startswith("ghost")]


def test_a_quorum_starts_again_after_power_loss_everywhere() -> None:
    world = running("blackout")
    leader = world.leader()
    assert leader is not None
    for number in range(50):
        world.propose_at(leader, str(number))
        world.run(20)

    for name in world.nodes:
        world.kill(name, keep_page_cache=False)

    world.check_end()
    assert world.history[:50] == [str(number) for number in range(50)]
