"""Pure: the messages of a repair connection, on the replication port (docs/protocol).

    requester -> source   repair_hello      who I am, my nonce
    source -> requester   repair_challenge  who I am, in which epoch, my nonce, my proof
    requester -> source   repair_claim      my proof, my epoch, where my log is damaged
    source -> requester   repair_offer      my epoch, my log: start, end, confirm, epoch table
    requester -> source   repair_range      from which position, how many bytes at most
    source -> requester   one replication frame of whole batches; empty: not to be had here

The last two repeat.
"""

from typing import Annotated

from msgspec import Meta

from paceline.wire.commands import Epoch
from paceline.wire.messages import Proof
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication.messages import Hello, Message, PeerChallenge, Position

RANGE_BYTES_MAX = 1024 * 1024
"""A range answers with at most this, or with one batch that is larger."""


class RepairHello(Hello, frozen=True, kw_only=True):
    """Of a member whose log is damaged."""

    PURPOSE = "repair"
    PROVER = "requester"


class RepairChallenge(PeerChallenge, frozen=True, kw_only=True):
    """A member of the group, not always its master, names itself and its epoch."""

    PROVER = "source"


class RepairClaim(Message, frozen=True, kw_only=True):
    """What the requester needs; a master takes such a member out of the set (R24)."""

    proof: Proof
    epoch: Epoch
    position: Position


class RepairOffer(Message, frozen=True, kw_only=True):
    """The source's log. Only what lies below its confirm is to be had (R24)."""

    epoch: Epoch
    is_master: bool
    start: Position
    end: Position
    confirm: Position
    epochs: EpochTable


class RepairRange(Message, frozen=True, kw_only=True):
    """A piece of the source's log that the requester wants."""

    position: Position
    size_bytes_max: Annotated[int, Meta(ge=1, le=RANGE_BYTES_MAX)]
