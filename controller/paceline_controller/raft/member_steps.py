"""Pure: what the leader does next about a change of members that has begun.

The wish (a learner, somebody who is leaving) stands in the member list itself, so whoever leads
carries it on. Safety does not hang on any of this: every step is one voter, and `core.py` appends
it only after the last one is committed. What is decided here is when a step is *wise*.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from paceline.types import ControllerId
from paceline_controller.raft.members import Members

LEARNER_LAG_MAX = 100
"""Entries a learner may lack when it becomes a voter: what is under way in a busy moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How the others stand, as the leader sees it."""

    last_index: int
    changed_at: int
    """Index of the entry of the generation in force."""
    matched: Mapping[ControllerId, int]
    """The index up to which each is known to hold this leader's log, on its disk."""
    fresh: Set[ControllerId]
    """Those that answered within the election timeout."""
    stores: Mapping[ControllerId, str]
    """The data folder met under each id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next generation, or a hand-over of leadership; and why neither comes yet."""

    members: Members | None = None
    is_hand_over: bool = False
    waits_for: str = ""


def next_step(members: Members, own: ControllerId, progress: Progress) -> Step:
    """What the leader `own` does about the generation in force, which is committed."""
    for learner in sorted(members.learners):
        behind = progress.last_index - progress.matched.get(learner, 0)
        holds_own_entry = progress.matched.get(learner, 0) >= progress.changed_at
        if learner not in progress.fresh or not progress.stores.get(learner):
            return Step(waits_for=f"{learner} does not answer yet: start it")
        if behind > LEARNER_LAG_MAX or not holds_own_entry:
            return Step(waits_for=f"{learner} catches up: {behind} entries to go")
        return Step(members=members.promoted(learner, progress.stores[learner]))
    if members.leaving is None:
        return Step()
    if members.leaving == own:
        return Step(is_hand_over=True, waits_for=f"{own} leads and hands over first")
    missing = missing_after_removal(members, members.leaving, own, progress.fresh)
    if missing:
        return Step(waits_for=missing)
    return Step(members=members.without_leaving())


def missing_after_removal(
    members: Members, leaving: ControllerId, own: ControllerId, fresh: Set[ControllerId]
) -> str:
    """Why the rest could not go on without `leaving`, "" if it can."""
    rest = [name for name in sorted(members.voters) if name != leaving]
    answering = [name for name in rest if name == own or name in fresh]
    if len(answering) > len(rest) / 2:
        return ""
    silent = ", ".join(name for name in rest if name not in answering)
    return f"without {leaving} there is no majority while {silent} does not answer"
