"""The seams between the use-cases and the broker that runs them: log and role as protocols.

The role (role.py) owns the commit log, replication and the projections, and hands the service one
`Role`. Use-cases never keep a writer, a reader or projections over an `await`: mastership may have
gone meanwhile, so they ask the role again. Everything here is called on the event loop.

How an append goes (one synchronous step, R28): `role.writer()`, `ensure_can_append()`, decide on
the projections' state at `end`, append by `writer.appender`, `wait_confirmed(end)`. The role
appends the start of its epoch (R1) in the same way; a replica folds up to confirm.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

from paceline.errors import NoMasterError, NotMasterError, PacelineError
from paceline.types import GroupName, Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire.cluster import GroupView
from paceline_broker.acting.locks import ActingLocks
from paceline_broker.appender import Appender
from paceline_broker.projections.projections import Projections

Confirmed: TypeAlias = Callable[[PacelineError | None], None]
"""Called once, on the loop: None = confirm passed the position; else why that is not known."""


class LogWriter(Protocol):
    """The log of one mastership (epoch, incarnation). Once fenced, calls raise NotMasterError."""

    @property
    def epoch(self) -> MasterEpoch: ...

    @property
    def end(self) -> PhysicalOffset:
        """Where the next batch begins: the physical offset to stamp it with."""
        ...

    @property
    def confirm(self) -> PhysicalOffset: ...

    @property
    def appender(self) -> Appender:
        """Appends, after `ensure_can_append` in the same step."""
        ...

    @property
    def is_open(self) -> bool:
        """The epoch's start record is confirmed and folded (R3): queries may be answered."""
        ...

    @property
    def answers_early(self) -> bool:
        """R37, a weaker choice of the group: sends are answered by `wait_held`."""
        ...

    def ensure_can_append(self, *, is_freeing: bool = False) -> None:
        """Raise unless a batch may be appended now; nothing was appended then.

        DiskFullError unless `is_freeing`: what makes room is taken for as long as anything can be.

        NotMasterError (fenced), InSyncReplicasNotEnoughError (R8), OverloadedError with
        `retry_after_ms` (R27: more bytes wait for confirm than are confirmed in time),
        NotYetAvailableError (draining for a transfer, epoch start not yet appended).
        """
        ...

    def has_window(self, unanswered_bytes: int) -> bool:
        """Whether a connection that has so much unanswered should be read from (R27)."""
        ...

    def abandon(self, reason: str) -> None:
        """End this mastership, in this step: its state is not what its log says (R28).

        Whoever waits does not know; the projections are made anew from the log.
        """
        ...

    def wait_confirmed(
        self, position: PhysicalOffset, callback: Confirmed, *, timeout_ms: int
    ) -> None:
        """Call `callback` once confirm >= position (at once, inside this call, if it already is).

        Else with an indefinite error: FlushReplicaTimeoutError / FlushDiskTimeoutError after
        `timeout_ms`, OutcomeUnknownError when this mastership ends. Positions come in rising
        order (callers pass `end`), and callbacks are called in that order, in one sweep.
        """
        ...

    def wait_held(self, position: PhysicalOffset, callback: Confirmed, *, timeout_ms: int) -> None:
        """R37, where `answers_early`: as `wait_confirmed`, for the batch just appended, but None
        may come before confirm, when as many members hold it as the group has chosen.

        Whether confirm has passed it by then, `confirm` says. Never for what an answer tells of
        earlier batches (R30) or of other state (R28).
        """
        ...

    def read_round(self) -> Awaitable[None]:
        """Done when every other member has echoed a round begun after this call (R4).

        NotMasterError when the mastership ends first, DeadlineError when members stay silent.
        """
        ...


class LogReader(Protocol):
    """Confirmed bytes of the log of this broker, master or not."""

    @property
    def start(self) -> PhysicalOffset: ...

    @property
    def confirm(self) -> PhysicalOffset: ...

    @property
    def is_readable(self) -> bool:
        """False on a replica that no frame of its master has told confirm since it started (R3)."""
        ...

    def epochs(self) -> list[dict[str, int]]:
        """Which master epoch wrote which bytes: {epoch, start, end}, oldest first."""
        ...

    def read(self, start: PhysicalOffset, max_bytes: int) -> memoryview:
        """A view of [start, start + max_bytes), no copy, cut at its segment's end and at confirm.

        The caller names batch boundaries at both ends (from the consume queues), so nothing is
        walked. A segment holds whole batches, so the cut is a boundary too.
        """
        ...

    def is_damaged(self, start: PhysicalOffset, end: PhysicalOffset) -> bool:
        """Whether bytes of [start, end) are known to be wrong: nobody is given them (R24)."""
        ...

    def is_sound(self, view: memoryview, position: PhysicalOffset) -> bool:
        """Whether the whole batches of the view are what was written at `position`.

        If not, that is known from now on (`is_damaged`), and mended.
        """
        ...

    def is_cold(self, view: memoryview) -> bool:
        """Whether touching the view would wait for the disk."""
        ...

    def warm(self, view: memoryview) -> Awaitable[None]:
        """Bring the view into memory off the event loop."""
        ...

    def on_confirm(self, callback: Callable[[PhysicalOffset], None]) -> Callable[[], None]:
        """Call `callback(confirm)` after confirm moved and was folded; returns the cancel."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this broker is, for probes and answers (R19); None = not told yet."""

    cluster_id: str | None
    group: GroupName
    replica_id: ReplicaId | None
    incarnation: Incarnation


class RoleState(Enum):
    """What this broker is for its group (DESIGN 7)."""

    STARTING = "starting"
    REPLICA = "replica"
    MASTER = "master"
    ACTING_MASTER = "acting_master"
    FENCED = "fenced"


class Acting(Protocol):
    """One appointment as acting master (R36). There is no way from it to the log."""

    @property
    def epoch(self) -> MasterEpoch: ...

    @property
    def has_ended(self) -> bool:
        """A higher epoch has begun: nothing is taken or granted any more."""
        ...

    @property
    def locks(self) -> ActingLocks: ...

    @property
    def since_unix_ms(self) -> int: ...


class Role(Protocol):
    """The present role (role.py); on every change it calls `Service.role_changed()`."""

    @property
    def identity(self) -> Identity: ...

    @property
    def state(self) -> RoleState: ...

    @property
    def epoch(self) -> MasterEpoch:
        """The epoch to name in answers: the highest this broker has adopted."""
        ...

    @property
    def projections(self) -> Projections:
        """The fold: to `end` on a master, to confirm elsewhere. Another object after a demotion."""
        ...

    @property
    def reader(self) -> LogReader: ...

    @property
    def acting(self) -> Acting | None:
        """The appointment in force; None unless the state is ACTING_MASTER."""
        ...

    def writer(self) -> LogWriter:
        """The log writer; elsewhere what `no_writer` says."""
        ...

    def is_fit(self) -> bool:
        """Whether disk and log work, however slow (readiness; a failed fsync is for ever, R22)."""
        ...

    def status(self) -> dict[str, Any]:
        """JSON values for `/v1/status`: positions, set, replicas; shape free, keys snake_case."""
        ...


def no_writer(state: RoleState, group: GroupName, view: GroupView | None) -> PacelineError:
    """Why a broker that is no master takes nothing for the log, and who does.

    NotMasterError (details `master`: "host:port" or null, `acting` likewise). On the acting master
    itself NoMasterError: nobody does, and to send the client elsewhere would send it in circles.
    """
    if state is RoleState.ACTING_MASTER:
        return NoMasterError(
            f"group {group} has no master: this broker acts for it, serves reads and takes nothing "
            "that must be stored; nothing was stored",
            group=group,
        )
    master = None if view is None else view.master_view()
    acting = None if view is None or master is not None else view.serving_view()
    details = {} if acting is None else {"acting": acting.client_address}
    return NotMasterError(
        f"this broker is {state.value}, not master of group {group}",
        master=None if master is None else master.client_address,
        **details,
    )


def open_writer(role: Role) -> LogWriter | None:
    """The writer of a master whose epoch is open."""
    try:
        writer = role.writer()
    except (NotMasterError, NoMasterError):
        return None
    return writer if writer.is_open else None
