"""Budgets of bytes, connections and work, taken out (ADR 18). Caught by the script with a flood."""

from collections.abc import Callable

from paceline.server.byte_budget import ByteBudget, ByteHolder
from paceline.server.connections import Connection, Connections
from paceline.server.turns import Turns
from paceline_broker.service import long_work
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


def _never_over() -> list[Patch]:
    """Everybody is given what he asks for."""
    return [(ByteBudget, "_has_room", lambda budget, holder, size_bytes: True)]


def _no_shares() -> list[Patch]:
    """There is one limit for all together, and whoever comes first has it."""

    def has_room(budget: ByteBudget, holder: ByteHolder, size_bytes: int) -> bool:
        return budget.used_bytes + size_bytes <= budget.limit_bytes

    return [(ByteBudget, "_has_room", has_room)]


def _unpacks_at_once() -> list[Patch]:
    """What comes in one read is unpacked in one turn of the loop, however much it is."""
    return [(long_work, "TURN_BYTES", 1 << 60)]


def _takes_all() -> list[Patch]:
    """Whatever many ask at one moment is begun in that turn of the loop."""

    def take(turns: Turns) -> bool:
        turns.spend(1)
        return True

    return [(Turns, "take", take)]


def _first_come() -> list[Patch]:
    """A listener takes connections until it is full, and then none."""

    def open_if_free(
        connections: Connections, address: str
    ) -> tuple[Connection | None, Connection | None]:
        if connections.count >= connections.limit:
            connections.refused += 1
            return None, None
        return connections._add(address), None

    return [(Connections, "open", open_if_free)]


def _mutant(rule: str, meaning: str, patches: Callable[[], list[Patch]]) -> Mutant:
    return Mutant(rule=rule, meaning=meaning, patches=patches, **of_moment("flood"))


FLOODING = (
    _mutant("ADR18-work", "a turn of the loop unpacks all that has come", _unpacks_at_once),
    _mutant("ADR18-turns", "a turn of the loop begins all that is asked", _takes_all),
    _mutant("ADR18-bytes", "nobody is ever over the budget of bytes", _never_over),
    _mutant("ADR18-shares", "one client may hold the whole budget of bytes", _no_shares),
    _mutant("ADR18-places", "who comes first keeps all places for connections", _first_come),
)
