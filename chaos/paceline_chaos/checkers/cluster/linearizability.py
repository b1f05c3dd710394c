"""Pure: is a set of operations on one object linearizable? Wing and Gong's search with memory.

Operations are tried in order: any that no other precedes (x < y iff x was answered before y was
asked) may be next, if the model allows its answer. A state that was reached before with the same
operations done is not tried again (Lowe). Operations of unknown outcome may be done at any moment
after they were asked, or never. Worst case exponential in the number of operations that overlap;
for the small models here it is n log n plus the overlaps.
"""

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from paceline_chaos.history.model import Operation, Outcome

StateT = TypeVar("StateT", bound=Hashable)
OperationT = TypeVar("OperationT", bound=Operation)

_NEVER = 1 << 62


class Model(NamedTuple, Generic[StateT, OperationT]):
    """A sequential object."""

    initial: StateT
    step: Callable[[StateT, OperationT], StateT | None]
    """The state after an operation that ended as it did; None: it could not have ended so in this
    state. For an operation of unknown outcome: the state if it takes effect."""


def stuck_at(
    operations: Sequence[OperationT], model: Model[StateT, OperationT]
) -> OperationT | None:
    """None if linearizable; else an operation that fits nowhere (the furthest the search came)."""
    key = attrgetter("asked_us", "number")
    certain = sorted((one for one in operations if one.outcome is not Outcome.UNKNOWN), key=key)
    maybe = [one for one in operations if one.outcome is Outcome.UNKNOWN]
    # Bits of `done`: the certain ones in order, then the unknown ones.
    all_certain = (1 << len(certain)) - 1
    seen: set[tuple[int, StateT]] = {(0, model.initial)}
    todo: list[tuple[int, StateT]] = [(0, model.initial)]
    furthest = 0
    while todo:
        done, state = todo.pop()
        if done & all_certain == all_certain:
            return None
        furthest = max(furthest, done & all_certain, key=int.bit_count)
        indexes, limit_us = _next(done, certain)
        moves = [(index, model.step(state, certain[index])) for index in indexes]
        for index, one in enumerate(maybe, start=len(certain)):
            if not done >> index & 1 and one.asked_us <= limit_us:
                after = model.step(state, one)
                if after != state:  # without effect it may as well never happen
                    moves.append((index, after))
        for index, after in moves:
            if after is not None and (step := (done | 1 << index, after)) not in seen:
                seen.add(step)
                todo.append(step)
    missing = [one for index, one in enumerate(certain) if not furthest >> index & 1]
    return min(missing, key=attrgetter("answered_us", "number"))


def _next(done: int, certain: Sequence[Operation]) -> tuple[list[int], int]:
    """Which may come next: those asked before the first answer among all that are not done; and
    the time of that answer."""
    index = (~done & (done + 1)).bit_length() - 1  # the first that is not done
    candidates = []
    limit_us = _NEVER
    while index < len(certain) and certain[index].asked_us <= limit_us:
        if not done >> index & 1:
            candidates.append(index)
            limit_us = min(limit_us, certain[index].answered_us)
        index += 1
    return candidates, limit_us
