"""Pure: the replica's side of one replication connection: truncation, frames, acknowledgements.

It decides what may be cut (R16), which frame may be appended (R2), when something is worth an
acknowledgement, and what this replica knows as confirmed (R10). One instance serves one connection
and is thrown away with it; nothing of an older connection can reach it. Owner: the replication
client of the broker.

After the welcome: cut the log durably -> `Truncated` -> the first acknowledgement -> frames. After
each frame the shell appends its batches and answers with `Appended`; `Flushed` follows from the
disk. Acknowledgements leave when the position that counts (flushed with fsync durability, else
appended) or the round has moved.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, assert_never

from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.replication.frames import Acknowledgement
from paceline_broker.replication.handshake import Install, Introduction, Welcome, divergence_point


class Welcomed(NamedTuple):
    """The master's answer to our introduction."""

    welcome: Welcome


class Truncated(NamedTuple):
    """The log was cut durably, or did not need to be."""

    end: PhysicalOffset
    flushed: PhysicalOffset


class FrameReceived(NamedTuple):
    """A whole frame with `body_bytes` of batches arrived."""

    epoch: MasterEpoch
    position: PhysicalOffset
    confirm: PhysicalOffset
    round: int
    body_bytes: int


class ReplicaAppended(NamedTuple):
    """The batches are checked and written to the file (R13)."""

    end: PhysicalOffset


class ReplicaFlushed(NamedTuple):
    flushed: PhysicalOffset


@dataclass(frozen=True, slots=True)
class ProjectionsReady:
    """The projections have reached confirm, from a durable checkpoint or the log's start (R10)."""

    is_ready: bool


@dataclass(frozen=True, slots=True)
class RoomChanged:
    """The disk is nearly full, or is no longer (R26)."""

    has_room: bool


ReplicaEvent: TypeAlias = (
    Welcomed
    | Truncated
    | FrameReceived
    | ReplicaAppended
    | ReplicaFlushed
    | ProjectionsReady
    | RoomChanged
)


class ReplicaReady(NamedTuple):
    """What to do after a step, in this order."""

    stop: str | None = None
    """Never to be repaired by itself: stop replicating and alarm the operator (R16)."""
    close: str | None = None
    """The master broke the protocol: close this connection, connect anew."""
    truncate_to: PhysicalOffset | None = None
    """Cut the log here, durably, then step `Truncated`."""
    installs: bool = False
    """Install the checkpoint that follows and begin anew at `truncate_to` instead (R14)."""
    append: bool = False
    """Append the frame's batches, then step `ReplicaAppended`."""
    confirm: PhysicalOffset | None = None
    """This replica now knows this offset as confirmed; never above what it has itself."""
    acknowledge: Acknowledgement | None = None


NOTHING = ReplicaReady()
APPEND = ReplicaReady(append=True)


class ReplicaReplication:
    """One connection to the master of one epoch. Only `step` changes it."""

    def __init__(
        self,
        *,
        introduction: Introduction,
        flushed: PhysicalOffset,
        counts_flushed: bool,
        is_ready: bool,
    ) -> None:
        """`introduction` is what was sent to the master; `counts_flushed`: fsync durability."""
        assert flushed <= introduction.end, (flushed, introduction.end)  # INV-2
        self.epoch = introduction.epoch
        self.confirm = introduction.confirm
        self._introduction = introduction
        self._counts_flushed = counts_flushed
        self._end = introduction.end
        self._flushed = flushed
        self._is_ready = is_ready
        self.has_room = True
        self._is_welcomed = False
        self._is_joined = False
        self._master_confirm = PhysicalOffset(0)
        self._round = 0
        self._acknowledged: Acknowledgement | None = None

    @property
    def has_confirm(self) -> bool:
        """Whether the master has told confirm on this connection: reads may begin (DESIGN 7)."""
        return self._master_confirm > 0

    def step(self, event: ReplicaEvent) -> ReplicaReady:
        match event:
            case FrameReceived():
                return self._on_frame(event)
            case ReplicaAppended(end):
                assert end >= self._end, (end, self._end)
                self._end = end
                return self._moved()
            case ReplicaFlushed(flushed):
                assert self._flushed <= flushed <= self._end, (self._flushed, flushed, self._end)
                self._flushed = flushed
                return self._moved()
            case Welcomed(welcome):
                return self._on_welcomed(welcome)
            case Truncated(end, flushed):
                return self._on_truncated(end, flushed)
            case ProjectionsReady(is_ready):
                self._is_ready = is_ready
                return self._moved()
            case RoomChanged(has_room):
                self.has_room = has_room
                return self._moved()
            case _:
                assert_never(event)

    def _on_welcomed(self, welcome: Welcome) -> ReplicaReady:
        if self._is_welcomed:
            return ReplicaReady(close="a second welcome")
        if welcome.epoch != self.epoch:
            return ReplicaReady(close=f"a welcome of epoch {welcome.epoch}, not {self.epoch}")
        own = self._introduction
        expected = divergence_point(
            here=own.epochs,
            here_start=own.start,
            here_end=own.end,
            there=welcome.epochs,
            # The master's log start does not change the point, only whether there is one.
            there_start=own.start,
            there_end=welcome.end,
        )
        if welcome.install is not None:
            return self._on_install(welcome, welcome.install, expected)
        if welcome.truncate_to != expected:  # before bytes are destroyed, both must agree
            return ReplicaReady(close=f"truncation to {welcome.truncate_to}, not {expected}")
        if welcome.truncate_to < self.confirm and not welcome.is_unclean:
            return ReplicaReady(
                stop=f"the master of epoch {self.epoch} wants truncation to "
                f"{welcome.truncate_to}, below confirm {self.confirm}"
            )
        self._is_welcomed = True
        self.confirm = min(self.confirm, welcome.truncate_to)
        return ReplicaReady(truncate_to=welcome.truncate_to)

    def _on_install(
        self, welcome: Welcome, install: Install, expected: PhysicalOffset | None
    ) -> ReplicaReady:
        """The log here parts from the master's below its start: nothing here is of use (R14)."""
        start = welcome.truncate_to
        if expected is not None and expected >= start:
            return ReplicaReady(close=f"an install at {start}, the logs part at {expected}")
        if not start <= install.position <= install.confirm:
            return ReplicaReady(close=f"a checkpoint of {install.position} outside [{start}, ...]")
        if expected is not None and expected < self.confirm and not welcome.is_unclean:
            return ReplicaReady(
                stop=f"the log of the master of epoch {self.epoch} parts at {expected}, "
                f"below confirm {self.confirm}"
            )
        self._is_welcomed = True
        self.confirm = start
        return ReplicaReady(truncate_to=start, installs=True)

    def _on_truncated(self, end: PhysicalOffset, flushed: PhysicalOffset) -> ReplicaReady:
        assert self._is_welcomed
        assert flushed <= end, (flushed, end)  # INV-2
        self._end, self._flushed = end, flushed
        self._is_joined = True
        return self._moved()

    def _on_frame(self, frame: FrameReceived) -> ReplicaReady:
        if not self._is_joined:
            return ReplicaReady(close="a frame before the handshake was over")
        if frame.epoch != self.epoch:  # R2
            return ReplicaReady(close=f"a frame of epoch {frame.epoch}, not {self.epoch}")
        if frame.position != self._end:
            return ReplicaReady(close=f"a frame at {frame.position}, the log ends at {self._end}")
        if frame.confirm < self._master_confirm or frame.round < self._round:
            return ReplicaReady(close="a frame that takes back confirm or its round")
        is_first = not self.has_confirm
        self._master_confirm = frame.confirm
        self._round = frame.round
        if frame.body_bytes:
            return APPEND
        ready = self._moved()
        if is_first and self.has_confirm and ready.confirm is None:
            return ready._replace(confirm=self.confirm)  # nothing new, but now it is certain
        return ready

    def _moved(self) -> ReplicaReady:
        if not self._is_joined:
            return NOTHING
        position = self._flushed if self._counts_flushed else self._end
        confirm: PhysicalOffset | None = min(self._master_confirm, position)  # R10
        assert confirm is not None
        if confirm > self.confirm:
            self.confirm = confirm
        else:
            confirm = None
        last = self._acknowledged
        if (
            last is not None
            and last.round == self._round
            and last.is_ready == self._is_ready
            and last.has_room == self.has_room
            and (last.flushed if self._counts_flushed else last.appended) == position
        ):
            return NOTHING if confirm is None else ReplicaReady(confirm=confirm)
        self._acknowledged = Acknowledgement(
            self.epoch, self._end, self._flushed, self._round, self._is_ready, self.has_room
        )
        return ReplicaReady(confirm=confirm, acknowledge=self._acknowledged)
