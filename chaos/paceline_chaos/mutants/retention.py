"""What retention must not touch, touched (R14, R26, R29); caught by the moments' script `kept`."""

from collections.abc import Mapping
from dataclasses import replace

from paceline.types import PhysicalOffset
from paceline_broker import cleaner as cleaner_module
from paceline_broker.checkpoints import ReceivedCheckpoint
from paceline_broker.clocks import Clocks, Trust
from paceline_broker.log.epochs import EpochTable
from paceline_broker.projections.pins import Pin
from paceline_broker.projections.projections import Projections
from paceline_broker.retention import Decision, RetentionSettings, Situation, decide
from paceline_broker.store import Store
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
    return [(Clocks, "trust", lambda clocks, **of: Trust.AGREES)]


_MOMENT = of_moment("kept")

RETENTION = (
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
