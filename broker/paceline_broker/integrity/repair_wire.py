"""Pure: the messages of a repair connection, on the replication port (docs/protocol).

    requester -> source   repair_hello      who I am, my nonce
    source -> requester   repair_challenge  who I am, in which epoch, my nonce, my proof
    requester -> source   repair_claim      my proof, my epoch, where my log is damaged
    source -> requester   repair_offer      my epoch, my log: start, end, confirm, epoch table
    requester -> source   repair_range      from which position, how many bytes at most
    source -> requester   one replication frame of whole batches; empty: not to be had here

The last two repeat. Framing, limits and refusals are those of the handshake; proofs have a purpose
of their own, so none of replication serves here.
"""

from dataclasses import dataclass, replace
from typing import Any

from paceline.platform.ports import Buffer
from paceline.types import Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire.fields import Fields
from paceline.wire.proof import NONCE_BYTES, PROOF_BYTES, Statement
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication.handshake import Hello, Refused
from paceline_broker.replication.messages import parse_message, read_hello, read_refused

REPAIR_HELLO = "repair_hello"
"""The kind of the first message of a repair."""

PURPOSE = "repair"
RANGE_BYTES_MAX = 1024 * 1024
"""A range answers with at most this, or with one batch that is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairChallenge:
    """A member of the group, not always its master, names itself and its epoch."""

    replica_id: ReplicaId
    incarnation: Incarnation
    epoch: MasterEpoch
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairClaim:
    """What the requester needs; a master takes such a member out of the set (R24)."""

    proof: bytes
    epoch: MasterEpoch
    position: PhysicalOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOffer:
    """The source's log. Only what lies below its confirm is to be had (R24)."""

    epoch: MasterEpoch
    is_master: bool
    start: PhysicalOffset
    end: PhysicalOffset
    confirm: PhysicalOffset
    epochs: EpochTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRange:
    position: PhysicalOffset
    size_bytes_max: int


def hello_document(hello: Hello) -> dict[str, Any]:
    return {"kind": REPAIR_HELLO, **hello.to_json()}


def challenge_document(challenge: RepairChallenge) -> dict[str, Any]:
    return {
        "kind": "repair_challenge",
        "replica_id": challenge.replica_id,
        "incarnation": challenge.incarnation,
        "epoch": challenge.epoch,
        "nonce": challenge.nonce.hex(),
        "proof": challenge.proof.hex(),
    }


def claim_document(claim: RepairClaim) -> dict[str, Any]:
    return {
        "kind": "repair_claim",
        "proof": claim.proof.hex(),
        "epoch": claim.epoch,
        "position": claim.position,
    }


def offer_document(offer: RepairOffer) -> dict[str, Any]:
    return {
        "kind": "repair_offer",
        "epoch": offer.epoch,
        "is_master": offer.is_master,
        "start": offer.start,
        "end": offer.end,
        "confirm": offer.confirm,
        "epochs": offer.epochs.to_json(),
    }


def range_document(wanted: RepairRange) -> dict[str, Any]:
    return {
        "kind": "repair_range",
        "position": wanted.position,
        "size_bytes_max": wanted.size_bytes_max,
    }


def parse_repair_hello(body: Buffer) -> Hello:
    return parse_message(body, {REPAIR_HELLO: read_hello})


def parse_repair_challenge(body: Buffer) -> RepairChallenge | Refused:
    def read(fields: Fields) -> RepairChallenge | Refused:
        return RepairChallenge(
            replica_id=ReplicaId(fields.integer("replica_id")),
            incarnation=Incarnation(fields.integer("incarnation")),
            epoch=MasterEpoch(fields.integer("epoch")),
            nonce=fields.hexadecimal("nonce", size_bytes=NONCE_BYTES),
            proof=fields.hexadecimal("proof", size_bytes=PROOF_BYTES),
        )

    return parse_message(body, {"repair_challenge": read, "refused": read_refused})


def parse_repair_claim(body: Buffer) -> RepairClaim:
    def read(fields: Fields) -> RepairClaim:
        return RepairClaim(
            proof=fields.hexadecimal("proof", size_bytes=PROOF_BYTES),
            epoch=MasterEpoch(fields.integer("epoch")),
            position=PhysicalOffset(fields.integer("position")),
        )

    return parse_message(body, {"repair_claim": read})


def parse_repair_offer(body: Buffer) -> RepairOffer | Refused:
    def read(fields: Fields) -> RepairOffer | Refused:
        return RepairOffer(
            epoch=MasterEpoch(fields.integer("epoch")),
            is_master=fields.flag("is_master"),
            start=PhysicalOffset(fields.integer("start")),
            end=PhysicalOffset(fields.integer("end")),
            confirm=PhysicalOffset(fields.integer("confirm")),
            epochs=EpochTable.from_json(fields.any("epochs")),
        )

    return parse_message(body, {"repair_offer": read, "refused": read_refused})


def parse_repair_range(body: Buffer) -> RepairRange:
    def read(fields: Fields) -> RepairRange:
        return RepairRange(
            position=PhysicalOffset(fields.integer("position")),
            size_bytes_max=fields.integer("size_bytes_max", low=1, high=RANGE_BYTES_MAX),
        )

    return parse_message(body, {"repair_range": read})


def requester_proof(secret: bytes, hello: Hello, challenge: RepairChallenge) -> bytes:
    return _of_requester(hello, challenge.nonce).proof(secret)


def is_requester_proof(proof: bytes, secret: bytes, hello: Hello, nonce: bytes) -> bool:
    return _of_requester(hello, nonce).is_proven(proof, secret)


def make_challenge(
    secret: bytes,
    hello: Hello,
    *,
    replica_id: ReplicaId,
    incarnation: Incarnation,
    epoch: MasterEpoch,
    nonce: bytes,
) -> RepairChallenge:
    """The source's challenge, with its proof over the epoch that it claims."""
    unproven = RepairChallenge(
        replica_id=replica_id, incarnation=incarnation, epoch=epoch, nonce=nonce, proof=b""
    )
    return replace(unproven, proof=_of_source(unproven, hello).proof(secret))


def is_source_proof(challenge: RepairChallenge, secret: bytes, hello: Hello) -> bool:
    return _of_source(challenge, hello).is_proven(challenge.proof, secret)


def _of_requester(hello: Hello, source_nonce: bytes) -> Statement:
    return Statement(
        purpose=PURPOSE,
        prover=f"requester:{hello.who}",
        own_nonce=hello.nonce,
        peer_nonce=source_nonce,
    )


def _of_source(challenge: RepairChallenge, hello: Hello) -> Statement:
    who = f"{hello.group}/{challenge.replica_id}/{challenge.incarnation}/{challenge.epoch}"
    return Statement(
        purpose=PURPOSE, prover=f"source:{who}", own_nonce=challenge.nonce, peer_nonce=hello.nonce
    )
