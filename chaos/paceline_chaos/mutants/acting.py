"""What an acting master must not do, done (R36); caught by the script `acting` of the moments."""

from collections.abc import Sequence
from typing import Any

from paceline_broker.acting.locks import ActingLocks
from paceline_broker.acting.offsets import Provisional
from paceline_broker.acting.withheld import WithheldWatch
from paceline_broker.projections.locks import Locks, Withheld
from paceline_broker.projections.projections import epoch_start_document
from paceline_broker.role import mastership as mastership_module
from paceline_broker.role.acting_handover import ActingHandover
from paceline_broker.service import rpc as rpc_module
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


def _locks_at_once() -> list[Patch]:
    """Locks without a lease's wait, and without the controllers' word."""

    def check_open(locks: ActingLocks, now_ms: int) -> None:
        return None

    return [(ActingLocks, "_check_open", check_open)]


def _nothing_withheld() -> list[Patch]:
    """The next master knows nothing of leases that run."""

    def document(*, withhold_locks_ms: int, **more: Any) -> dict[str, Any]:
        return epoch_start_document(withhold_locks_ms=0, **more)

    return [(mastership_module, "epoch_start_document", document)]


def _not_saved() -> list[Patch]:
    """A checkpoint does not say that locks are withheld."""
    from_json = Locks.from_json

    def without(rows: list[list[Any]], withheld: Sequence[int] = (0, 0)) -> Locks:
        return from_json(rows)

    return [(Locks, "from_json", staticmethod(without))]


def _not_renewed() -> list[Patch]:
    """Locks are withheld up to a log time, however that leaps with the next master's clock."""
    renew_all = Locks.renew_all

    def renew_locks(locks: Locks, **of: Any) -> None:
        withheld = locks._withheld
        renew_all(locks, **of)
        locks._withheld = withheld

    return [(Locks, "renew_all", renew_locks)]


def _nothing_is_left() -> list[Patch]:
    """Whoever begins the second epoch takes the leases for over."""

    def rest_ms(watch: WithheldWatch, withheld: Withheld, *, now_ms: int) -> int:
        return 0

    return [(WithheldWatch, "rest_ms", rest_ms)]


def _forgotten_offsets() -> list[Patch]:
    """What was committed meanwhile is dropped when a master is back."""

    async def ask(
        hand_over: ActingHandover, address: str, group: str, rows: list[tuple[int, Provisional]]
    ) -> dict[int, str | None]:
        return {key: None for key, _ in rows}

    return [(ActingHandover, "_ask", ask)]


def _unmarked() -> list[Patch]:
    """Its answers look like a master's."""
    return [(rpc_module, "MAYBE_STALE", {})]


_MOMENT = of_moment("acting")

ACTING = (
    Mutant(
        rule="R36-lease",
        meaning="an acting master grants locks at once",
        patches=_locks_at_once,
        **_MOMENT,
    ),
    Mutant(
        rule="R36-withhold",
        meaning="the next master grants locks while leases of an acting one run",
        patches=_nothing_withheld,
        **_MOMENT,
    ),
    Mutant(
        rule="R36-saved",
        meaning="whoever restores a checkpoint grants locks while leases of an acting one run",
        patches=_not_saved,
        **_MOMENT,
    ),
    Mutant(
        rule="R36-leap",
        meaning="a next master whose clock is ahead grants locks while leases of an acting one run",
        patches=_not_renewed,
        **_MOMENT,
    ),
    Mutant(
        rule="R36-rest",
        meaning="the second epoch after an acting master grants locks while its leases run",
        patches=_nothing_is_left,
        **_MOMENT,
    ),
    Mutant(
        rule="R36-offsets",
        meaning="provisional offsets are not handed over",
        patches=_forgotten_offsets,
        **_MOMENT,
    ),
    Mutant(
        rule="R36-mark",
        meaning="an acting master's answers do not say that they may be stale",
        patches=_unmarked,
        **_MOMENT,
    ),
)
"""Each with the script of its rule."""
