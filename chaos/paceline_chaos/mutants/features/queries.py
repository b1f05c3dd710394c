"""What queries promise, taken out (S40, L7): what is found is true, and all that is there is."""

from collections.abc import Sequence
from typing import Any

from paceline_broker.service.queries import calls
from paceline_broker.service.queries import queries as queries_module
from paceline_broker.service.queries.queries import Finder, Matches
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment

_MOMENT = "queries"


def _first_decides() -> list[Patch]:
    """A batch of which the first message has another key is passed over."""
    by_key = queries_module.by_key

    def of_first(key: str) -> Matches:
        matches = by_key(key)

        def numbers(view: Any, *some: int) -> Sequence[int]:
            return matches.numbers(view, *some) if next(iter(view.keys())) == key else ()

        return matches._replace(numbers=numbers)

    return [(calls, "by_key", of_first)]


def _batch_is_enough() -> list[Patch]:
    """All messages of a batch in which the bytes of the key occur have it."""
    by_key = queries_module.by_key

    def of_batch(key: str) -> Matches:
        matches = by_key(key)

        def numbers(view: Any, first: int, end: int) -> Sequence[int]:
            return range(first, end) if matches.numbers(view, first, end) else ()

        return matches._replace(numbers=numbers)

    return [(calls, "by_key", of_batch)]


def _full_is_all() -> list[Patch]:
    """An answer that is full does not say where to go on."""
    search = Finder.search

    async def one_answer(finder: Finder, *of: Any, **named: Any) -> Any:
        rows, after = await search(finder, *of, **named)
        return rows, None if len(rows) == named["count_max"] else after

    return [(Finder, "search", one_answer)]


def _own_epoch_only() -> list[Patch]:
    """After a failover nothing is found of what earlier masters stored."""
    view_of = Finder._view

    async def view(finder: Finder, place: Any) -> Any:
        found = await view_of(finder, place)
        epoch = max(row["epoch"] for row in finder._role.reader.epochs())
        return found if found is not None and found.header.master_epoch == epoch else None

    return [(Finder, "_view", view)]


def _next_number() -> list[Patch]:
    """The number of a message in its batch is taken for that of its neighbour."""
    of_number = queries_module._number_of

    def neighbour(header: Any, *of: Any) -> int | None:
        number = of_number(header, *of)
        return None if number is None else (number + 1) % header.record_count

    return [(queries_module, "_number_of", neighbour)]


QUERIES = (
    Mutant(
        rule="L7-first",
        meaning="a batch is passed over for the key of its first message",
        patches=_first_decides,
        **of_moment(_MOMENT, "L7"),
    ),
    Mutant(
        rule="S40-key",
        meaning="a message is found by the key of another one in its batch",
        patches=_batch_is_enough,
        **of_moment(_MOMENT, "S40"),
    ),
    Mutant(
        rule="L7-full",
        meaning="what one answer does not hold is not found",
        patches=_full_is_all,
        **of_moment(_MOMENT, "L7"),
    ),
    Mutant(
        rule="L7-epoch",
        meaning="a new master finds nothing of what earlier ones stored",
        patches=_own_epoch_only,
        **of_moment(_MOMENT, "L7", "S40"),
    ),
    Mutant(
        rule="S40-unique",
        meaning="a unique key finds the message beside",
        patches=_next_number,
        **of_moment(_MOMENT, "S40"),
    ),
)
"""Judged by the script of queries."""
