"""What a deleted topic or group must take with it, left behind (R35); caught by moments."""

from paceline_broker.projections.offsets import Offsets
from paceline_broker.retention import cleaner
from paceline_broker.retention.cleaner import Cleaner
from paceline_broker.service.groups import lock_calls, offset_calls
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


def _never_logged() -> list[Patch]:
    """The deletion stays with the controllers."""
    return [(Cleaner, "forget_deleted_topics", lambda cleaner: None)]


def _commits_stay() -> list[Patch]:
    """The record is folded, and leaves what groups have committed."""
    return [(Offsets, "drop_topic", lambda offsets, topic_id: None)]


def _group_stays() -> list[Patch]:
    """The record is folded, and leaves what the group has committed."""
    return [(Offsets, "drop_group", lambda offsets, group: None)]


def _group_unknown() -> list[Patch]:
    """The log is never told by which topic a group goes."""
    return [
        (lock_calls, "knowing_group", lambda routes, group, refusal: refusal),
        (offset_calls, "knowing_group", lambda routes, group, refusal: refusal),
        (cleaner, "log_group", lambda *_, **__: None),
    ]


DELETION = (
    Mutant(
        rule="R35-record",
        meaning="the record of a deletion is never logged",
        patches=_never_logged,
        **of_moment("deleted"),
    ),
    Mutant(
        rule="R35-fold",
        meaning="commits outlive their topic",
        patches=_commits_stay,
        **of_moment("deleted"),
    ),
    Mutant(
        rule="R35-group",
        meaning="commits outlive their consumer group",
        patches=_group_stays,
        **of_moment("group-deleted"),
    ),
    Mutant(
        rule="R35-group-record",
        meaning="the log does not know which topic's deletion is a group's",
        patches=_group_unknown,
        **of_moment("group-deleted"),
    ),
)
"""Each with the script of its rule."""
