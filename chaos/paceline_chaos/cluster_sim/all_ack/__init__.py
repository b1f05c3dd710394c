"""`all_ack_in_sync_state_set`, verified: a script for each rule of acknowledgement (DESIGN 5).

Every script breaks something at the moment that a rule is about, and afterwards says whether that
moment really came: a run in which it did not is as bad as a violation. The checkers judge what
became of the messages. `python -m paceline_chaos.cluster_sim.all_ack --seeds 20` runs them all.
"""

from collections.abc import Mapping

from paceline_chaos.cluster_sim.all_ack import deaths, minimum, sets, weaker
from paceline_chaos.cluster_sim.run import Result
from paceline_chaos.cluster_sim.scripted import Scripted, run_scripted


def run_all_ack(name: str, seed: int) -> tuple[Result, list[str]]:
    """The world of a script and a seed; and all that is wrong with it."""
    return run_scripted(SCENARIOS[name], seed)


SCENARIOS: Mapping[str, Scripted] = {
    "master-dies-between": Scripted(
        rule="INV-1: killed between append and acknowledgement, the master",
        script=deaths.kill_between("master"),
        unmet=deaths.killed_masters,
        load_ms=9_000,
    ),
    "replica-dies-between": Scripted(
        rule="INV-1, R10: the replica that has it dies before the slower one has",
        script=deaths.kill_between("replica"),
        unmet=deaths.killed_between,
        load_ms=9_000,
    ),
    "slowest-dies-between": Scripted(
        rule="INV-1, R8: the member that all wait for dies",
        script=deaths.kill_between("slowest"),
        unmet=deaths.killed_between,
        load_ms=9_000,
    ),
    "all-die-between": Scripted(
        rule="R11: everybody dies before the last one has it on its disk",
        script=deaths.kill_between("all"),
        unmet=deaths.killed_masters,
        load_ms=10_000,
    ),
    "shrink-unheard": Scripted(
        rule="R7: a committed shrink that the master has not heard of: both sets must acknowledge",
        script=sets.shrink_unheard(is_killed=False),
        unmet=sets.shrunk_unheard,
    ),
    "shrink-unheard-master-dies": Scripted(
        rule="R7, R15: the same, and the master dies",
        script=sets.shrink_unheard(is_killed=True),
        unmet=sets.shrunk_unheard,
        load_ms=8_000,
    ),
    "grow-master-dies": Scripted(
        rule="R10: the master dies as a replica comes back into the set",
        script=sets.grow_as_master_dies,
        unmet=sets.grew_as_master_died,
        load_ms=12_000,
    ),
    "old-master": Scripted(
        rule="R1, R5, S14: the old master behind a partition, with clients",
        script=deaths.old_master,
        unmet=deaths.old_master_is_silent,
        topology={"clients": deaths.MANY_SENDERS, "think_ms": 80.0},
        load_ms=8_000,
    ),
    "min-two": Scripted(
        rule="R8: min_in_sync_replicas = 2 of 3, two members dead",
        script=minimum.min_two,
        unmet=minimum.min_two_refuses,
    ),
    "min-one": Scripted(
        rule="R8, R18: min_in_sync_replicas = 1, the last member dies",
        script=minimum.min_one,
        unmet=minimum.min_one_goes_on,
        topology={"min_in_sync_replicas": 1},
        load_ms=9_000,
    ),
    "min-three": Scripted(
        rule="R8: min_in_sync_replicas = 3 of 3, one member dead",
        script=minimum.min_three,
        unmet=minimum.min_three_waits,
        topology={"min_in_sync_replicas": 3},
    ),
    "weak-one": Scripted(
        rule="R37: all_ack off, in_sync_replicas = 1: unconfirmed ones are lost",
        script=weaker.master_alone_dies,
        unmet=weaker.weak_loses,
        settings=weaker.WEAK,
        load_ms=9_000,
    ),
    "weak-one-off": Scripted(
        rule="INV-1: the same faults with the default: nothing is acknowledged, nothing is lost",
        script=weaker.master_alone_dies,
        unmet=weaker.strong_does_not,
        load_ms=9_000,
    ),
    "weak-two": Scripted(
        rule="R37: all_ack off, in_sync_replicas = 2: lost when both that counted die",
        script=weaker.two_of_three_die,
        unmet=weaker.weak_two_loses,
        settings=weaker.WEAK_TWO,
        load_ms=8_000,
    ),
    "weak-two-alone": Scripted(
        rule="R37, R8: all_ack off, in_sync_replicas = 2, min 1: two of three members are dead",
        script=minimum.min_two,
        unmet=minimum.min_two_refuses,
        topology={"min_in_sync_replicas": 1},
        settings=weaker.WEAK_TWO,
    ),
    "weak-auto": Scripted(
        rule="R37: enable_auto_in_sync_replicas answers by the members that keep up",
        script=weaker.auto_follows,
        unmet=weaker.auto_followed,
        settings=weaker.WEAK_AUTO,
        load_ms=8_000,
    ),
}
