"""`all_ack_in_sync_state_set`, verified: a script for each rule of acknowledgement (DESIGN 5).

Every script breaks something at the moment that a rule is about, and afterwards says whether that
moment really came: a run in which it did not is as bad as a violation. The checkers judge what
became of the messages. `python -m paceline_chaos.world.all_ack --seeds 20` runs them all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_chaos.world.all_ack import deaths, minimum, sets, weaker
from paceline_chaos.world.plan import Plan
from paceline_chaos.world.run import Result, run_world
from paceline_chaos.world.script import Script, stock_topology


@dataclass(frozen=True, slots=True, kw_only=True)
class AllAck:
    """One rule put to the test."""

    rule: str
    script: Script
    unmet: Callable[[Result], list[str]]
    """What should have happened in the run and did not."""
    load_ms: int = 7_000
    topology: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def run_all_ack(name: str, seed: int, *, keep_log: bool = False) -> tuple[Result, list[str]]:
    """The world of a scenario and a seed; and all that is wrong with it."""
    scenario = SCENARIOS[name]
    result = run_world(
        seed,
        plan=Plan(faults=()),
        topology=stock_topology(seed, load_ms=scenario.load_ms, **scenario.topology),
        settings=scenario.settings,
        script=scenario.script,
        keep_log=keep_log,
    )
    wrong = [f"{one.property}: {one.sentence}" for one in result.verdict.violations[:5]]
    assert result.notes is not None
    wrong += result.notes.wrong
    if not result.notes.is_done:
        wrong.append(f"the script stopped after {result.notes.steps_count} steps")
    else:
        wrong += scenario.unmet(result)
    return result, wrong


SCENARIOS: Mapping[str, AllAck] = {
    "master-dies-between": AllAck(
        rule="INV-1: killed between append and acknowledgement, the master",
        script=deaths.kill_between("master"),
        unmet=deaths.killed_masters,
        load_ms=9_000,
    ),
    "replica-dies-between": AllAck(
        rule="INV-1, R10: the replica that has it dies before the slower one has",
        script=deaths.kill_between("replica"),
        unmet=deaths.killed_between,
        load_ms=9_000,
    ),
    "slowest-dies-between": AllAck(
        rule="INV-1, R8: the member that all wait for dies",
        script=deaths.kill_between("slowest"),
        unmet=deaths.killed_between,
        load_ms=9_000,
    ),
    "all-die-between": AllAck(
        rule="R11: everybody dies before the last one has it on its disk",
        script=deaths.kill_between("all"),
        unmet=deaths.killed_masters,
        load_ms=10_000,
    ),
    "shrink-unheard": AllAck(
        rule="R7: a committed shrink that the master has not heard of: both sets must acknowledge",
        script=sets.shrink_unheard(is_killed=False),
        unmet=sets.shrunk_unheard,
    ),
    "shrink-unheard-master-dies": AllAck(
        rule="R7, R15: the same, and the master dies",
        script=sets.shrink_unheard(is_killed=True),
        unmet=sets.shrunk_unheard,
        load_ms=8_000,
    ),
    "grow-master-dies": AllAck(
        rule="R10: the master dies as a replica comes back into the set",
        script=sets.grow_as_master_dies,
        unmet=sets.grew_as_master_died,
        load_ms=12_000,
    ),
    "old-master": AllAck(
        rule="R1, R5, S14: the old master behind a partition, with clients",
        script=deaths.old_master,
        unmet=deaths.old_master_is_silent,
        topology={"clients": deaths.MANY_SENDERS, "think_ms": 80.0},
        load_ms=8_000,
    ),
    "min-two": AllAck(
        rule="R8: min_in_sync_replicas = 2 of 3, two members dead",
        script=minimum.min_two,
        unmet=minimum.min_two_refuses,
    ),
    "min-one": AllAck(
        rule="R8, R18: min_in_sync_replicas = 1, the last member dies",
        script=minimum.min_one,
        unmet=minimum.min_one_goes_on,
        topology={"min_in_sync_replicas": 1},
        load_ms=9_000,
    ),
    "min-three": AllAck(
        rule="R8: min_in_sync_replicas = 3 of 3, one member dead",
        script=minimum.min_three,
        unmet=minimum.min_three_waits,
        topology={"min_in_sync_replicas": 3},
    ),
    "weak-one": AllAck(
        rule="R37: all_ack off, in_sync_replicas = 1: unconfirmed ones are lost",
        script=weaker.master_alone_dies,
        unmet=weaker.weak_loses,
        settings=weaker.WEAK,
        load_ms=9_000,
    ),
    "weak-one-off": AllAck(
        rule="INV-1: the same faults with the default: nothing is acknowledged, nothing is lost",
        script=weaker.master_alone_dies,
        unmet=weaker.strong_does_not,
        load_ms=9_000,
    ),
    "weak-two": AllAck(
        rule="R37: all_ack off, in_sync_replicas = 2: lost when both that counted die",
        script=weaker.two_of_three_die,
        unmet=weaker.weak_two_loses,
        settings=weaker.WEAK_TWO,
        load_ms=8_000,
    ),
    "weak-auto": AllAck(
        rule="R37: enable_auto_in_sync_replicas answers by the members that keep up",
        script=weaker.auto_follows,
        unmet=weaker.auto_followed,
        settings=weaker.WEAK_AUTO,
        load_ms=8_000,
    ),
}
