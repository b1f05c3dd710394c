"""What a deleted topic must take with it, left behind (R35); caught by the moments' `deleted`."""

from paceline_broker.cleaner import Cleaner
from paceline_broker.projections.offsets import Offsets
from paceline_chaos.mutants.mutant import Mutant, Patch

_CAUGHT = frozenset({"moments:deleted"})


def _never_logged() -> list[Patch]:
    """The deletion stays with the controllers."""
    return [(Cleaner, "forget_deleted_topics", lambda cleaner: None)]


def _commits_stay() -> list[Patch]:
    """The record is folded, and leaves what groups have committed."""
    return [(Offsets, "drop_topic", lambda offsets, topic_id: None)]


DELETION = (
    Mutant(
        rule="R35-record",
        meaning="the record of a deletion is never logged",
        patches=_never_logged,
        bed="moments",
        script="deleted",
        caught_by=_CAUGHT,
    ),
    Mutant(
        rule="R35-fold",
        meaning="commits outlive their topic",
        patches=_commits_stay,
        bed="moments",
        script="deleted",
        caught_by=_CAUGHT,
    ),
)
"""Each with the script of its rule."""
