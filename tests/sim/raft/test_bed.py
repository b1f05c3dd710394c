"""The Raft bed: its seeds find nothing; `tests/sim/test_mutants.py` shows that they could."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from paceline_chaos.raft.plan import draw_plan
from paceline_chaos.raft.run import run_plan, run_seed

SEEDS = int(os.environ.get("PACELINE_RAFT_SEEDS", "16"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_and_all_nodes_agree(seed: int) -> None:
    """INV-10, R18, R22, R38."""
    result = run_seed(seed)

    assert result.is_good, result.violations
    assert result.counters["commands_acknowledged"] > 10
    assert result.counters["reads"] > 0


def digest_of(seed: int) -> str:
    return run_plan(draw_plan(seed)).digest


def test_a_run_depends_on_nothing_but_its_seed() -> None:
    script = "from tests.sim.raft.test_bed import digest_of; print(digest_of(3))"
    path = os.pathsep.join([".", *sys.path])

    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "777")
    }

    assert digests == {f"{digest_of(3)}\n"}


def test_a_plan_without_its_faults_is_calm() -> None:
    world = run_plan(replace(draw_plan(1), faults=()))

    assert world.judge.violations == []
    assert world.counters["terms"] == 1
    assert world.counters["unknown"] == world.counters["truncations"] == 0
