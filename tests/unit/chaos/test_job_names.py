"""Scenario files and topologies name jobs by a list that imports none of them."""

from paceline_chaos.world.jobs import names
from paceline_chaos.world.workload import JOBS


def test_every_job_has_its_name_once() -> None:
    assert sorted(names.JOBS) == sorted(JOBS)
