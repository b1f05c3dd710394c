"""What retention must not touch, touched (R14, R26, R29); caught by the moments' script `kept`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.types import PhysicalOffset
from paceline_broker.controllers.clock_skew import ClockSkew, ClockTrust
from paceline_broker.log.epochs import EpochTable
from paceline_broker.projections.pins import Pin
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.timers import Timers
from paceline_broker.retention import cleaner as cleaner_module
from paceline_broker.retention.policy import Decision, RetentionSettings, Situation, decide
from paceline_broker.service.delays.rewrite import TimerRewriter
from paceline_broker.service.transactions.rewrite import HalfMessageRewriter
from paceline_broker.storage.checkpoints import ReceivedCheckpoint
from paceline_broker.storage.store import Store
from paceline_chaos.mutants.mutant import Mutant, Patch, of_moment


def _beyond_the_record() -> list[Patch]:
    """Whatever is confirmed and in a checkpoint may go; nobody has to have said so."""

    def let_segments_go(store: Store) -> None:
        bound = min(store.log.confirm, store.log.flushed, store._checkpoints.oldest_position())
        if bound > store.log.start and store.log.failure is None:
            store.log.let_go_below(bound)

    return [(Store, "let_segments_go", let_segments_go)]


def _pins_ignored() -> list[Patch]:
    nobody: Mapping[str, Pin] = {}

    def decide_without(situation: Situation, settings: RetentionSettings) -> Decision:
        return decide(replace(situation, pins=nobody), settings)

    return [(cleaner_module, "decide", decide_without)]


def _past_the_checkpoint() -> list[Patch]:
    """What is confirmed may go, whether the state that was made of it is saved or not."""

    def decide_past(situation: Situation, settings: RetentionSettings) -> Decision:
        return decide(replace(situation, ceiling=situation.end), settings)

    def let_segments_go(store: Store) -> None:
        record_end, log_start = store.projections.retained
        durable = min(store.log.confirm, store.log.flushed)
        if store.log.start < log_start and record_end <= durable and store.log.failure is None:
            store.log.let_go_below(log_start)

    return [
        (cleaner_module, "decide", decide_past),
        (Store, "let_segments_go", let_segments_go),
    ]


def _nothing_installed() -> list[Patch]:
    """A replica far below begins where its master's log does, with a state of nothing."""

    def install(
        store: Store, received: ReceivedCheckpoint, *, start: PhysicalOffset, epochs: EpochTable
    ) -> None:
        received.discard()
        store.log.begin_anew_at(start, epochs=epochs, base=start)
        store._checkpoints.drop_beyond(PhysicalOffset(0))
        store.projections = Projections()
        store.projections.position = start
        store._kept_end = PhysicalOffset(0)

    return [(Store, "install", install)]


def _any_clock() -> list[Patch]:
    return [(ClockSkew, "trust", lambda clocks, **of: ClockTrust.AGREES)]


def _halves_need_nothing() -> list[Patch]:
    """What halves need is not looked at."""
    return [(HalfMessageRewriter, "oldest", lambda needs: None)]


def _timers_need_nothing() -> list[Patch]:
    """What delayed messages need is not looked at."""
    return [(TimerRewriter, "oldest", lambda needs: None)]


def _origin_of_last_move() -> list[Patch]:
    """An entry that is stored again is known as what it was before, not as what it was at first."""
    move = Timers.move

    def move_once(timers: Timers, header: Any, dues: Any, sources: Any) -> None:
        for old in sources:
            timers._moved.pop(timers._origins.pop(old, old), None)
        move(timers, header, dues, sources)

    return [(Timers, "move", move_once)]


def _moves_not_saved() -> list[Patch]:
    """A checkpoint does not say where stored again entries came from."""
    restore = Timers.restore

    def forgetful(snapshot: memoryview) -> Timers:
        timers = restore(snapshot)
        timers._origins, timers._moved = {}, {}
        return timers

    return [(Timers, "restore", staticmethod(forgetful))]


_MOMENT = of_moment("kept")
_AGAIN = of_moment("stored-again")

RETENTION = (
    Mutant(
        rule="R26-halves",
        meaning="retention does not look at what open halves need",
        patches=_halves_need_nothing,
        **_AGAIN,
    ),
    Mutant(
        rule="R26-timers",
        meaning="retention does not look at what delayed messages need",
        patches=_timers_need_nothing,
        **_AGAIN,
    ),
    Mutant(
        rule="R28-origin",
        meaning="what was stored again twice is not found by its first place",
        patches=_origin_of_last_move,
        **_AGAIN,
    ),
    Mutant(
        rule="R14-origin",
        meaning="a checkpoint forgets where stored again messages came from",
        patches=_moves_not_saved,
        **_AGAIN,
    ),
    Mutant(
        rule="R26-beyond",
        meaning="files go that no retention record gave up",
        patches=_beyond_the_record,
        **_MOMENT,
    ),
    Mutant(
        rule="R26-pin",
        meaning="a pin holds nothing",
        patches=_pins_ignored,
        **_MOMENT,
    ),
    Mutant(
        rule="R14-retention",
        meaning="retention passes the newest durable checkpoint",
        patches=_past_the_checkpoint,
        **_MOMENT,
    ),
    Mutant(
        rule="R14-install",
        meaning="a replica below the log's start begins without the master's checkpoint",
        patches=_nothing_installed,
        **_MOMENT,
    ),
    Mutant(
        rule="R29-clock",
        meaning="a clock that differs from the controllers' is trusted",
        patches=_any_clock,
        **_MOMENT,
    ),
)
"""Each with the script of its rule."""
