"""How much a seed was worth is counted alike for all beds; a late catch does not count."""

import pytest
from tests.support.chaos.hand import SECOND, Hand

from paceline_chaos import verify_jobs
from paceline_chaos.history.model import FaultEvent, Phase
from paceline_chaos.seeds import size_of
from paceline_chaos.verify_jobs import Job, run_job


def test_fault_is_counted_once_and_an_exit_is_none() -> None:
    hand = Hand()
    hand.send("a", 0, (1, 2))
    hand.add(FaultEvent, at_us=3, kind="kill", target="g1-b1", is_begin=True, detail="")
    hand.add(FaultEvent, at_us=4, kind="exit", target="g1-b1", is_begin=True, detail="")
    hand.add(FaultEvent, at_us=5, kind="kill", target="g1-b1", is_begin=False, detail="")
    hand.add(Phase, at_us=SECOND, name="end")

    assert size_of(hand.history) == (1, 1, SECOND)


def test_mutant_that_is_caught_after_its_minute_is_not_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify_jobs, "MUTANT_CPU_S_MAX", -1.0)  # clocks of CPU tick

    done = run_job(Job(bed="core", start=0, end=20, mutant="R10"))

    assert done.caught_by is None
