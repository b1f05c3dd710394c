"""The seams of a mastership: the role behind it, the connections before it, its settings."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from paceline.errors import PacelineError
from paceline.platform.ports import Buffer
from paceline.types import Incarnation, PhysicalOffset, ReplicaId
from paceline_broker.replication.handshake import ConnectionId, Welcome
from paceline_broker.replication.master.events import AlterSyncStateSet
from paceline_broker.replication.messages import Hello, PeerChallenge, Refused

Confirmed: TypeAlias = Callable[[PacelineError | None], None]
Propose: TypeAlias = Callable[[AlterSyncStateSet], None]
"""Sends a set change to the controllers with the session's (session, sequence), the same for the
same `proposal.sequence`; then it calls `proposal_refused` or `proposal_unknown`. A success needs no
call: the view brings it."""
Probe: TypeAlias = Callable[[ReplicaId, Incarnation], Awaitable[bool]]
"""Whether that start of a member is surely gone: its port refuses, or another one answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSettings:
    """Timing and bounds of the master's connections."""

    tick_ms: int = 100
    heartbeat_ms: int = 200
    """An idle replica hears confirm and echoes a round this often."""
    replica_idle_ms_max: int = 3000
    """A connection without an acknowledgement for this long is closed."""
    window_bytes: int = 8 * 1024 * 1024
    """Unacknowledged bytes on one connection (measured: datapath.md section 4)."""
    catch_up_frame_bytes: int = 256 * 1024
    """One callback reads and sends at most this: 0.2 ms."""
    live_frame_bytes_max: int = 4 * 1024 * 1024
    """A turn that wrote more goes through the catch-up path, which cuts at batches."""
    read_round_timeout_ms: int = 3000


class TermHooks(Protocol):
    """What the role gives to a mastership. Called on the loop, never to raise."""

    def confirmed(self, confirm: PhysicalOffset) -> None:
        """Confirm moved; the log knows. Called before the waiters' callbacks."""
        ...

    def opened(self) -> None:
        """The epoch-start record is confirmed: report it (R6), answer queries (R3)."""
        ...

    def fenced(self, reason: str, *, is_lossy: bool) -> None:
        """This mastership is over. A lossy one must not lead again (R16)."""
        ...

    def newest_checkpoint(self) -> tuple[PhysicalOffset, bytes] | None:
        """(position, content of the file) of the newest intact checkpoint; None: there is none."""
        ...


class Link(Protocol):
    """One connection, as the server has it."""

    def write(self, buffers: list[Buffer]) -> None:
        """Send without waiting; windows, or one request at a time, bound what piles up."""
        ...

    def refuse(self, refused: Refused) -> None:
        """Tell why and close."""
        ...

    def close(self) -> None: ...


class PeerLink(Link, Protocol):
    """One of a peer that is no replica, as the server gives it to a session."""

    def challenge(self, hello: Hello, challenge: PeerChallenge) -> None:
        """Answer a hello, proven; what follows is sealed. PeerError: the peer does not do that."""
        ...


class PeerSession(Protocol):
    """A conversation on the replication port that is not replication: a repair, or an escape."""

    @property
    def is_proven(self) -> bool:
        """The peer has shown that it holds the cluster's secret."""
        ...

    def begin(self, body: bytes) -> None:
        """The first message. PeerError and UnauthenticatedError close the connection."""
        ...

    def read(self, received: bytearray) -> None:
        """Take whole messages from the front; errors as for `begin`."""
        ...

    def closed(self) -> None: ...


class ReplicaLink(Link, Protocol):
    """A proven one of a replica, as the server gives it to the term."""

    @property
    def connection(self) -> ConnectionId: ...

    def send_welcome(self, welcome: Welcome, checkpoint: bytes | None) -> None:
        """`checkpoint`: what `welcome.install` names; it follows (install.py)."""
        ...
