"""Pure: what the controllers decided, counted: elections, members that left their set or came back.

Every controller enters what it applies, so one decision is there several times: it counts once.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from paceline_chaos.history.model import Decision, Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Of all groups."""

    by_reason: Counter[str]
    """Elections, the first of each group not counted, by what the controllers gave as reason."""
    shrinks: int
    """Members that left a sync state set."""
    grows: int
    """Members that came back."""

    @property
    def elections(self) -> int:
        """Besides those that new settings of a group ask for: the harness itself makes them."""
        return self.by_reason.total() - self.by_reason["settings"]


def decided(entries: Iterable[Entry]) -> Decided:
    """Count. O(decisions * log)."""
    by_reason: Counter[str] = Counter()
    sets: dict[str, set[int]] = {}
    shrinks = grows = 0
    for decision in _once(entries):
        members = decision.members
        group = str(members.get("group"))
        after = members.get("sync_state_set")
        if isinstance(after, list | tuple | set | frozenset):
            before = sets.get(group, set(after))
            shrinks += len(before.difference(after))
            grows += len(set(after).difference(before))
            sets[group] = set(after)
        if decision.kind == "master_elected" and not _is_first(decision):
            by_reason[str(members.get("reason", "unknown"))] += 1
    return Decided(by_reason=by_reason, shrinks=shrinks, grows=grows)


def _once(entries: Iterable[Entry]) -> list[Decision]:
    """Each decision once, in the order of the controllers' log."""
    first: dict[tuple[int, str, str], Decision] = {}
    for entry in entries:
        if isinstance(entry, Decision):
            key = (entry.index, entry.kind, str(entry.members.get("group")))
            first.setdefault(key, entry)
    return sorted(first.values(), key=lambda decision: (decision.index, decision.number))


def _is_first(decision: Decision) -> bool:
    reason = decision.members.get("reason")
    return reason == "first" or (reason is None and decision.members.get("master_epoch") == 1)
