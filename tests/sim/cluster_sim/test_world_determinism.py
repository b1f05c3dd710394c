"""The same seed is the same run, whatever hash seed, heap or world before (`make determinism`)."""

from paceline_chaos.cluster_sim.determinism import WAYS, digests_of, rerun
from paceline_chaos.cluster_sim.run import run_world


def test_a_world_has_one_digest_in_every_way_of_running_it() -> None:
    digests = digests_of(3, load_ms=3_000)

    assert len(digests) == len(WAYS)
    assert len(set(digests.values())) == 1, digests


def test_another_seed_is_another_run() -> None:
    one, other = run_world(5, load_ms=1_000), run_world(6, load_ms=1_000)

    assert one.digest != other.digest


def test_a_second_run_in_another_way_has_the_same_trace() -> None:
    """Seed 7 runs again after another world."""
    found = rerun(7, load_ms=1_000)

    assert found.is_same, found
    assert "after" in found.way
    assert found.operations > 0


HASHED = """
from dataclasses import replace
from paceline_chaos.cluster_sim import run
draw = run.draw_plan
def by_hash(topology):
    plan = draw(topology)
    late = lambda fault: replace(fault, at_ms=fault.at_ms + hash(fault.kind) % 8)
    return replace(plan, faults=tuple(map(late, plan.faults)))
run.draw_plan = by_hash
"""


def test_a_world_that_depends_on_the_hash_seed_is_noticed() -> None:
    """Only by milliseconds at which faults begin, as if a hash of their kind were in them."""
    found = rerun(4, load_ms=6_000, prelude=HASHED)

    assert found.digest != found.digest_again
    assert "" not in (found.digest, found.digest_again)


def test_a_harness_that_breaks_in_both_runs_is_not_the_same_run() -> None:
    assert not rerun(2, load_ms=1, prelude="raise SystemExit(1)").is_same
