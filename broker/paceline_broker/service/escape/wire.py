"""Pure: the messages of the escape bridge, on the replication port (docs/protocol/replication.md).

    sender -> receiver   escape_hello      who I am, my nonce
    receiver -> sender   escape_challenge  who I am, in which epoch, my nonce, my proof
    sender -> receiver   escape_proof      my proof
    receiver -> sender   escape_answer     nothing: go on
    then, one at a time:
    sender -> receiver   escape_messages   sizes of the record batches that follow at once
                         escape_told       what went elsewhere (to the master of the own group)
    receiver -> sender   escape_answer     for each batch null or the code of a definite refusal

Framing, limits and refusals are those of the replication handshake; proofs have a purpose of their
own. A receiver that does not know what became of a request closes the connection.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import PeerError
from paceline.platform.ports import Buffer
from paceline.records.header import BATCH_BYTES_MAX, HEADER_BYTES
from paceline.types import GroupName, Incarnation, MasterEpoch, ReplicaId
from paceline.wire.fields import Fields
from paceline.wire.proof import NONCE_BYTES, PROOF_BYTES, Statement
from paceline_broker.replication.handshake import Hello, Refused
from paceline_broker.replication.messages import parse_message, read_hello, read_refused
from paceline_broker.service.escape.notes import SentNote

ESCAPE_HELLO = "escape_hello"
"""The kind of the first message of an escape."""

PURPOSE = "escape"
BATCHES_MAX = 256
REQUEST_BYTES_MAX = BATCH_BYTES_MAX + 1024 * 1024
"""Batches of one request: one that is as large as can be, and some small ones."""
NOTES_MAX = 1000
"""In one `escape_told`."""
EPOCHS_MAX = 64
CODE_LENGTH_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EscapeChallenge:
    """The master names itself and its epoch, and proves that it holds the cluster secret."""

    group: GroupName
    replica_id: ReplicaId
    incarnation: Incarnation
    epoch: MasterEpoch
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What acting masters have sent elsewhere."""

    notes: tuple[SentNote, ...]
    epochs: tuple[int, ...]
    """Of appointments of the sender of which nothing is left to tell after this."""


def hello_document(hello: Hello) -> dict[str, Any]:
    return {"kind": ESCAPE_HELLO, **hello.to_json()}


def challenge_document(challenge: EscapeChallenge) -> dict[str, Any]:
    return {
        "kind": "escape_challenge",
        "group": challenge.group,
        "replica_id": challenge.replica_id,
        "incarnation": challenge.incarnation,
        "epoch": challenge.epoch,
        "nonce": challenge.nonce.hex(),
        "proof": challenge.proof.hex(),
    }


def proof_document(proof: bytes) -> dict[str, Any]:
    return {"kind": "escape_proof", "proof": proof.hex()}


def messages_document(batches: Sequence[Buffer]) -> dict[str, Any]:
    return {"kind": "escape_messages", "sizes_bytes": [len(batch) for batch in batches]}


def told_document(told: Told) -> dict[str, Any]:
    return {
        "kind": "escape_told",
        "notes": [list(note) for note in told.notes],
        "epochs": list(told.epochs),
    }


def answer_document(codes: Sequence[str | None]) -> dict[str, Any]:
    return {"kind": "escape_answer", "codes": list(codes)}


def parse_escape_hello(body: Buffer) -> Hello:
    return parse_message(body, {ESCAPE_HELLO: read_hello})


def parse_escape_challenge(body: Buffer) -> EscapeChallenge | Refused:
    def read(fields: Fields) -> EscapeChallenge | Refused:
        return EscapeChallenge(
            group=GroupName(fields.text("group")),
            replica_id=ReplicaId(fields.integer("replica_id")),
            incarnation=Incarnation(fields.integer("incarnation")),
            epoch=MasterEpoch(fields.integer("epoch")),
            nonce=fields.hexadecimal("nonce", size_bytes=NONCE_BYTES),
            proof=fields.hexadecimal("proof", size_bytes=PROOF_BYTES),
        )

    return parse_message(body, {"escape_challenge": read, "refused": read_refused})


def parse_escape_proof(body: Buffer) -> bytes:
    def read(fields: Fields) -> bytes:
        return fields.hexadecimal("proof", size_bytes=PROOF_BYTES)

    return parse_message(body, {"escape_proof": read})


def parse_request(body: Buffer) -> tuple[int, ...] | Told:
    """Sizes of the batches that follow, or what the sender tells."""

    def sizes(fields: Fields) -> tuple[int, ...] | Told:
        found = fields.any("sizes_bytes")
        if not _are_integers(found, HEADER_BYTES, BATCH_BYTES_MAX):
            raise PeerError("sizes_bytes is no list of sizes of batches")
        if not 0 < len(found) <= BATCHES_MAX or sum(found) > REQUEST_BYTES_MAX:
            raise PeerError(f"{len(found)} batches of {sum(found)} bytes at one time")
        return tuple(found)

    def told(fields: Fields) -> tuple[int, ...] | Told:
        rows, epochs = fields.any("notes"), fields.any("epochs")
        if not isinstance(rows, list) or len(rows) > NOTES_MAX:
            raise PeerError(f"notes is no list of at most {NOTES_MAX}")
        if not all(
            _are_integers(row, 0, 2**64 - 1) and len(row) == len(SentNote._fields) for row in rows
        ):
            raise PeerError("a note is a list of four numbers")
        if not _are_integers(epochs, 0, 2**32 - 1) or len(epochs) > EPOCHS_MAX:
            raise PeerError("epochs is no list of epochs")
        return Told(notes=tuple(SentNote(*row) for row in rows), epochs=tuple(epochs))

    return parse_message(body, {"escape_messages": sizes, "escape_told": told})


def parse_answer(body: Buffer) -> tuple[str | None, ...] | Refused:
    def read(fields: Fields) -> tuple[str | None, ...] | Refused:
        codes = fields.any("codes")
        if not isinstance(codes, list) or not all(
            code is None or (isinstance(code, str) and len(code) <= CODE_LENGTH_MAX)
            for code in codes
        ):
            raise PeerError("codes is no list of codes")
        return tuple(codes)

    return parse_message(body, {"escape_answer": read, "refused": read_refused})


def sender_proof(secret: bytes, hello: Hello, challenge: EscapeChallenge) -> bytes:
    return _of_sender(hello, challenge.nonce).proof(secret)


def is_sender_proof(proof: bytes, secret: bytes, hello: Hello, nonce: bytes) -> bool:
    return _of_sender(hello, nonce).is_proven(proof, secret)


def with_proof(challenge: EscapeChallenge, secret: bytes, hello: Hello) -> EscapeChallenge:
    """The challenge with the receiver's proof, over the epoch that it claims."""
    return replace(challenge, proof=_of_receiver(challenge, hello).proof(secret))


def is_receiver_proof(challenge: EscapeChallenge, secret: bytes, hello: Hello) -> bool:
    return _of_receiver(challenge, hello).is_proven(challenge.proof, secret)


def _of_sender(hello: Hello, receiver_nonce: bytes) -> Statement:
    return Statement(
        purpose=PURPOSE,
        prover=f"sender:{hello.who}",
        own_nonce=hello.nonce,
        peer_nonce=receiver_nonce,
    )


def _of_receiver(challenge: EscapeChallenge, hello: Hello) -> Statement:
    who = f"{challenge.group}/{challenge.replica_id}/{challenge.incarnation}/{challenge.epoch}"
    return Statement(
        purpose=PURPOSE,
        prover=f"receiver:{who}",
        own_nonce=challenge.nonce,
        peer_nonce=hello.nonce,
    )


def _are_integers(found: object, low: int, high: int) -> bool:
    if not isinstance(found, list):
        return False
    return all(type(number) is int and low <= number <= high for number in found)
