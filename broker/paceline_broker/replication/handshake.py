"""Pure: the four JSON messages by which a replica joins its master, before any binary frame.

replica -> master   hello         who I am, my nonce
master -> replica   challenge     who I am, my nonce, my proof
replica -> master   introduction  my proof, my epoch, my log: end, confirm, epoch table
master -> replica   welcome       truncate to here; my epoch table
                    or, at any point, refused {code, detail}
"""

from typing import NewType

import msgspec

from paceline.types import PhysicalOffset
from paceline.wire.calls.request import Number
from paceline.wire.commands import Epoch, Replica, Start, Token
from paceline.wire.messages import Proof
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication.messages import Message, PeerChallenge, Position

ConnectionId = NewType("ConnectionId", int)
"""Number of one accepted replication connection of this process; never reused."""


class Challenge(PeerChallenge, frozen=True, kw_only=True):
    """The master names itself and its epoch and proves that it holds the cluster secret."""

    PROVER = "master"

    replica_id: Replica = msgspec.field(name="master_id")


class Introduction(Message, frozen=True, kw_only=True):
    """The replica's log as it stands, after recovery and with its adopted epoch fsynced (R2)."""

    replica_id: Replica
    store_id: Token
    incarnation: Start
    epoch: Epoch
    start: Position
    end: Position
    confirm: Position
    """Highest offset this replica knows as confirmed; it never truncates below it (R16)."""
    epochs: EpochTable


class ProvenIntroduction(Introduction, frozen=True, kw_only=True, tag="introduction"):
    """As it is sent. The master checks the proof before it looks at anything else."""

    proof: Proof


class Install(msgspec.Struct, frozen=True, kw_only=True):
    """The projection checkpoint that follows the welcome (install.py, R14)."""

    position: Position
    confirm: Position
    """Of the master: the checkpoint is at or below it."""
    size_bytes: Number


class Welcome(Message, frozen=True, kw_only=True):
    """The master's answer: cut the log here, durably, then acknowledge that position."""

    epoch: Epoch
    truncate_to: Position
    is_unclean: bool
    """The epoch began with an unclean election: a cut below confirm is expected (R16, R21)."""
    end: Position
    """Of the master's log now; with both epoch tables the replica checks `truncate_to`."""
    epochs: EpochTable
    install: Install | None = None
    """The log parts below the master's start: begin anew at `truncate_to`, which is that."""


def divergence_point(
    *,
    here: EpochTable,
    here_start: PhysicalOffset,
    here_end: PhysicalOffset,
    there: EpochTable,
    there_start: PhysicalOffset,
    there_end: PhysicalOffset,
) -> PhysicalOffset | None:
    """Up to where two logs are equal; both sides compute the same.

    Logs that both reach back to 0 share at least nothing: 0, even without a common epoch (a first
    master that wrote its start record and vanished). None otherwise: R5 says what then.
    """
    point = here.truncation_point(here_end, there, there_end)
    if point is None and here_start == there_start == 0:
        return PhysicalOffset(0)
    return point
