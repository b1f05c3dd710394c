"""What filters promise, taken out (S39): all that is wanted is given, and nothing else."""

from collections.abc import Sequence
from typing import Any

from paceline.consumer.pull import PullConsumer
from paceline.filters import sql
from paceline.filters.filter import TagFilter
from paceline.filters.sql import SqlFilter
from paceline_broker.service.pop import filtering
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


def _shifted(kind: Any) -> list[Patch]:
    """The client takes what the filter says of the record before it."""
    mask = kind.mask

    def mask_of_neighbour(wanted: Any, view: Any, *some: Any) -> Sequence[bool] | None:
        found = mask(wanted, view, *some)
        return None if found is None else [*found[-1:], *found[:-1]]

    return [(kind, "mask", mask_of_neighbour)]


def _first_decides() -> list[Patch]:
    """The broker passes over a batch of which the first message is not wanted."""

    def wants_first(wanted: Any, view: Any, *some: Any) -> bool:
        found = wanted.mask(view)
        return found is None or bool(found[0])

    return [(kind, "wants_any", wants_first) for kind in (TagFilter, SqlFilter)]


def _position_of_the_fetch() -> list[Patch]:
    """A pull consumer says that it stands where its next fetch begins."""
    pop = PullConsumer._pop

    def pop_and_skip(consumer: PullConsumer, assigned: Any) -> None:
        pop(consumer, assigned)
        assigned.position = assigned.fetch.position

    return [(PullConsumer, "_pop", pop_and_skip)]


def _first_of_batch() -> list[Patch]:
    """A receiver is given the first wanted message of a batch, and the rest is passed over."""
    take = filtering._take

    def take_one(found: Any, view: Any, base: int, count_max: int, *what: Any) -> int:
        taken = take(found, view, base, min(1, count_max), *what)
        found.end = base + view.header.record_count
        return taken

    return [(filtering, "_take", take_one)]


def _open_ends() -> list[Patch]:
    """BETWEEN leaves its ends out."""
    at_least = sql._at_least

    def above(left: Any, right: Any) -> Any:
        return sql._negated(at_least(right, left))

    return [(sql, "_at_least", above)]


def _mutant(rule: str, meaning: str, patches: Any) -> Mutant:
    return Mutant(
        rule=rule,
        meaning=meaning,
        patches=patches,
        **of_moment("filters", "S39"),
    )


FILTERS = (
    _mutant("S39-tag", "a message is judged by another one's tag", lambda: _shifted(TagFilter)),
    _mutant("S39-row", "a message is judged by another one's row", lambda: _shifted(SqlFilter)),
    _mutant("S39-passed", "a batch is passed over for its first message", _first_decides),
    _mutant("S39-received", "a receive passes over the rest of a batch", _first_of_batch),
    _mutant("S39-between", "BETWEEN leaves its ends out", _open_ends),
    _mutant("S39-position", "a position passes over what was fetched", _position_of_the_fetch),
)
"""Judged by the script of groups with filters."""
