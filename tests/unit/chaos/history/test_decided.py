"""Elections and changes of sets are counted once, however many controllers tell of them."""

from collections.abc import Iterable
from typing import Any

from paceline_chaos.history.decided import decided
from paceline_chaos.history.model import Decision, Entry


def applied(index: int, kind: str, *, by: Iterable[str] = ("c1", "c2"), **members: Any) -> Entry:
    (node, *_) = by
    return Decision(number=index, at_us=index, node=node, index=index, kind=kind, members=members)


def test_decision_that_several_controllers_applied_counts_once_and_first_masters_never() -> None:
    first = applied(1, "master_elected", group="g1", reason="first", sync_state_set=[1, 2, 3])
    second = applied(2, "master_elected", group="g1", reason="dead", sync_state_set=[2, 3])
    again = applied(2, "master_elected", by=["c2"], group="g1", reason="dead", sync_state_set=[3])

    found = decided([first, second, again])

    assert (found.elections, found.by_reason["dead"]) == (1, 1)
    assert (found.shrinks, found.grows) == (1, 0)


def test_every_member_that_leaves_or_comes_back_is_counted_in_its_group() -> None:
    entries = [
        applied(1, "set_changed", group="g1", sync_state_set={1, 2, 3}),
        applied(2, "set_changed", group="g2", sync_state_set={7}),
        applied(4, "set_changed", group="g1", sync_state_set={1, 2, 3}),
        applied(3, "set_changed", group="g1", sync_state_set={1}),
    ]

    found = decided(entries)

    assert (found.shrinks, found.grows, found.elections) == (2, 2, 0)


def test_two_events_of_one_command_are_two() -> None:
    entries = [
        applied(1, "set_changed", group="g1", sync_state_set=[1, 2]),
        applied(2, "replica_registered", group="g1"),
        applied(2, "set_changed", group="g1", sync_state_set=[1]),
    ]

    assert decided(entries).shrinks == 1
