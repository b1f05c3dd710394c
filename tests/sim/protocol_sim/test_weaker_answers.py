"""R37 under every fault that the core bed knows: unconfirmed answers may be lost, nothing else.

The same seeds with the group's switch off. The judge of each step and all checkers hold; how much
that was answered early is lost is counted, and must not be nothing.
"""

from collections import Counter
from typing import Any

import pytest

from paceline_chaos import checkers
from paceline_chaos.protocol_sim.run import run_world

SEEDS = 20
OFF: dict[str, Any] = {
    "all_ack_in_sync_state_set": False,
    "total_replicas": 3,
    "min_in_sync_replicas": 2,
    "enable_auto_in_sync_replicas": False,
}


@pytest.mark.parametrize(
    ("changes", "is_lost"),
    [
        ({**OFF, "in_sync_replicas": 1}, True),
        ({**OFF, "in_sync_replicas": 2}, True),
        ({**OFF, "in_sync_replicas": 3, "enable_auto_in_sync_replicas": True}, False),
    ],
    ids=["one", "two", "auto"],
)
def test_only_unconfirmed_answers_are_ever_lost(changes: dict[str, Any], is_lost: bool) -> None:
    counters: Counter[str] = Counter()
    for seed in range(SEEDS):
        world, violations = run_world(seed, changes=changes)
        assert not violations, (seed, changes, violations[:3])
        counters.update(checkers.judge(world.recorder.history, properties=("S1",)).counters)

    assert counters["acknowledged.unconfirmed"] > 0
    assert counters["acknowledged"] > counters["acknowledged.unconfirmed"]
    assert bool(counters["lost.unconfirmed"]) or not is_lost
