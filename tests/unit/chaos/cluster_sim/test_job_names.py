"""Scenario files and topologies name jobs by a list that imports none of them."""

from paceline_chaos.cluster_sim.jobs import names
from paceline_chaos.cluster_sim.workload import JOBS


def test_every_job_has_its_name_once() -> None:
    assert sorted(names.JOBS) == sorted(JOBS)
