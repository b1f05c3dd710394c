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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from paceline.errors import BadRequestError, CorruptLogError, PeerError
from paceline.ports import Buffer
from paceline.types import GroupName, Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire.fields import Fields, parse_object
from paceline.wire.proof import NONCE_BYTES, PROOF_BYTES, Statement
from paceline_broker.log.epochs import EpochTable
from paceline_broker.replication.handshake import MESSAGE_BYTES_MAX, Refused

PURPOSE = "repair"
RANGE_BYTES_MAX = 1024 * 1024
"""A range answers with at most this, or with one batch that is larger."""
NUMBER_MAX = 2**63 - 1

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairHello:
    """Nothing in it is believed yet."""

    cluster_id: str
    group: GroupName
    replica_id: ReplicaId
    incarnation: Incarnation
    nonce: bytes


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


def hello_document(hello: RepairHello) -> dict[str, Any]:
    return {
        "kind": "repair_hello",
        "cluster_id": hello.cluster_id,
        "group": hello.group,
        "replica_id": hello.replica_id,
        "incarnation": hello.incarnation,
        "nonce": hello.nonce.hex(),
    }


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


def is_repair_hello(body: Buffer) -> bool:
    """Whether the first message of a connection opens a repair; anything else is a handshake's."""
    return b'"repair_hello"' in bytes(body)


def parse_repair_hello(body: Buffer) -> RepairHello:
    fields = _fields(body, "repair_hello")
    return _read(
        lambda: RepairHello(
            cluster_id=fields.text("cluster_id"),
            group=GroupName(fields.text("group")),
            replica_id=ReplicaId(fields.integer("replica_id")),
            incarnation=Incarnation(fields.integer("incarnation")),
            nonce=fields.hexadecimal("nonce", size_bytes=NONCE_BYTES),
        )
    )


def parse_repair_challenge(body: Buffer) -> RepairChallenge | Refused:
    return _refused_or(
        body,
        "repair_challenge",
        lambda fields: RepairChallenge(
            replica_id=ReplicaId(fields.integer("replica_id")),
            incarnation=Incarnation(fields.integer("incarnation")),
            epoch=MasterEpoch(fields.integer("epoch")),
            nonce=fields.hexadecimal("nonce", size_bytes=NONCE_BYTES),
            proof=fields.hexadecimal("proof", size_bytes=PROOF_BYTES),
        ),
    )


def parse_repair_claim(body: Buffer) -> RepairClaim:
    fields = _fields(body, "repair_claim")
    return _read(
        lambda: RepairClaim(
            proof=fields.hexadecimal("proof", size_bytes=PROOF_BYTES),
            epoch=MasterEpoch(fields.integer("epoch")),
            position=PhysicalOffset(fields.integer("position", high=NUMBER_MAX)),
        )
    )


def parse_repair_offer(body: Buffer) -> RepairOffer | Refused:
    return _refused_or(
        body,
        "repair_offer",
        lambda fields: RepairOffer(
            epoch=MasterEpoch(fields.integer("epoch")),
            is_master=fields.flag("is_master"),
            start=PhysicalOffset(fields.integer("start", high=NUMBER_MAX)),
            end=PhysicalOffset(fields.integer("end", high=NUMBER_MAX)),
            confirm=PhysicalOffset(fields.integer("confirm", high=NUMBER_MAX)),
            epochs=EpochTable.from_json(fields.any("epochs")),
        ),
    )


def parse_repair_range(body: Buffer) -> RepairRange:
    fields = _fields(body, "repair_range")
    return _read(
        lambda: RepairRange(
            position=PhysicalOffset(fields.integer("position", high=NUMBER_MAX)),
            size_bytes_max=fields.integer("size_bytes_max", low=1, high=RANGE_BYTES_MAX),
        )
    )


def requester_proof(secret: bytes, hello: RepairHello, challenge: RepairChallenge) -> bytes:
    return _of_requester(hello, challenge.nonce).proof(secret)


def is_requester_proof(proof: bytes, secret: bytes, hello: RepairHello, nonce: bytes) -> bool:
    return _of_requester(hello, nonce).is_proven(proof, secret)


def make_challenge(
    secret: bytes,
    hello: RepairHello,
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


def is_source_proof(challenge: RepairChallenge, secret: bytes, hello: RepairHello) -> bool:
    return _of_source(challenge, hello).is_proven(challenge.proof, secret)


def _of_requester(hello: RepairHello, source_nonce: bytes) -> Statement:
    who = f"{hello.cluster_id}/{hello.group}/{hello.replica_id}/{hello.incarnation}"
    return Statement(
        purpose=PURPOSE, prover=f"requester:{who}", own_nonce=hello.nonce, peer_nonce=source_nonce
    )


def _of_source(challenge: RepairChallenge, hello: RepairHello) -> Statement:
    who = f"{hello.group}/{challenge.replica_id}/{challenge.incarnation}/{challenge.epoch}"
    return Statement(
        purpose=PURPOSE, prover=f"source:{who}", own_nonce=challenge.nonce, peer_nonce=hello.nonce
    )


def _document(body: Buffer) -> Mapping[str, Any]:
    return parse_object(bytes(body), size_bytes_max=MESSAGE_BYTES_MAX)


def _fields(body: Buffer, kind: str) -> Fields:
    def read() -> Fields:
        fields = Fields(_document(body), name=kind)
        if fields.text("kind") != kind:
            raise PeerError(f"expected a {kind}, got another message")
        return fields

    return _read(read)


def _refused_or(body: Buffer, kind: str, read: Callable[[Fields], Message]) -> Message | Refused:
    def parse() -> Message | Refused:
        fields = Fields(_document(body), name=kind)
        found = fields.text("kind")
        if found == "refused":
            return Refused(code=fields.text("code"), detail=fields.text("detail", length_max=1024))
        if found != kind:
            raise PeerError(f"expected a {kind}, got another message")
        return read(fields)

    return _read(parse)


def _read(read: Callable[[], Message]) -> Message:
    try:
        return read()
    except (BadRequestError, CorruptLogError) as error:
        raise PeerError(error.message) from error
