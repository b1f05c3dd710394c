"""Pure: the four JSON messages by which a replica joins its master, before any binary frame.

    replica -> master   hello         who I am, my nonce
    master -> replica   challenge     who I am, my nonce, my proof
    replica -> master   introduction  my proof, my epoch, my log: end, confirm, epoch table
    master -> replica   welcome       truncate to here; my epoch table
                        or, at any point, refused {code, detail}

Each travels as u32 LE magic "PLR1", u32 LE size, then that many bytes of JSON. Any byte string
decodes to a message or to PeerError; nothing about the log is said before the proof.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NewType, TypeVar

import orjson

from paceline.errors import CorruptLogError, PeerError
from paceline.platform.ports import Buffer
from paceline.types import GroupName, Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire.proof import NONCE_BYTES, PROOF_BYTES, Statement
from paceline_broker.log.epochs import EpochTable

MAGIC = 0x31524C50  # "PLR1", also the version of the protocol
PREFIX_BYTES = 8
HELLO_BYTES_MAX = 4096
"""Bound of what an unproven peer may send."""
MESSAGE_BYTES_MAX = 1024 * 1024
"""An epoch table of 20,000 entries still fits."""
PURPOSE = "replication"

_PREFIX = struct.Struct("<II")

ConnectionId = NewType("ConnectionId", int)
"""Number of one accepted replication connection of this process; never reused."""

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First message of whoever connects; nothing in it is believed yet."""

    cluster_id: str
    group: GroupName
    replica_id: ReplicaId
    incarnation: Incarnation
    nonce: bytes

    @property
    def who(self) -> str:
        """As it is proven."""
        return f"{self.cluster_id}/{self.group}/{self.replica_id}/{self.incarnation}"

    def to_json(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "group": self.group,
            "replica_id": self.replica_id,
            "incarnation": self.incarnation,
            "nonce": self.nonce.hex(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The master names itself and its epoch and proves that it holds the cluster secret."""

    master_id: ReplicaId
    incarnation: Incarnation
    epoch: MasterEpoch
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """The replica's log as it stands, after recovery and with its adopted epoch fsynced (R2)."""

    replica_id: ReplicaId
    store_id: str
    incarnation: Incarnation
    epoch: MasterEpoch
    start: PhysicalOffset
    end: PhysicalOffset
    confirm: PhysicalOffset
    """Highest offset this replica knows as confirmed; it never truncates below it (R16)."""
    epochs: EpochTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """The projection checkpoint that follows the welcome (install.py, R14)."""

    position: PhysicalOffset
    confirm: PhysicalOffset
    """Of the master: the checkpoint is at or below it."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The master's answer: cut the log here, durably, then acknowledge that position."""

    epoch: MasterEpoch
    truncate_to: PhysicalOffset
    is_unclean: bool
    """The epoch began with an unclean election: a cut below confirm is expected (R16, R21)."""
    end: PhysicalOffset
    """Of the master's log now; with both epoch tables the replica checks `truncate_to`."""
    epochs: EpochTable
    install: Install | None = None
    """The log parts below the master's start: begin anew at `truncate_to`, which is that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why the other side closes; `code` is one of docs/protocol/replication.md."""

    code: str
    detail: str


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


def encode_message(document: Mapping[str, Any]) -> bytes:
    """One handshake message with its prefix."""
    body = orjson.dumps(dict(document))
    return _PREFIX.pack(MAGIC, len(body)) + body


def parse_prefix(buffer: Buffer, *, size_bytes_max: int) -> int:
    """Size of the JSON that follows the 8 bytes of `buffer`; PeerError on a foreign peer."""
    magic, size = _PREFIX.unpack_from(buffer)
    if magic != MAGIC:
        raise PeerError(f"not a paceline replication peer (magic {magic:#010x})")
    if not 0 < size <= size_bytes_max:
        raise PeerError(f"a handshake message of {size} bytes is over {size_bytes_max}")
    return int(size)


def take_message(received: bytearray, *, size_bytes_max: int) -> bytes | None:
    """Take the JSON of a whole message from the front; None: it is not all there."""
    if len(received) < PREFIX_BYTES:
        return None
    end = PREFIX_BYTES + parse_prefix(received, size_bytes_max=size_bytes_max)
    if len(received) < end:
        return None
    body = bytes(received[PREFIX_BYTES:end])
    del received[:end]
    return body


def encode_hello(hello: Hello) -> bytes:
    return encode_message({"kind": "hello", **hello.to_json()})


def parse_hello(body: Buffer) -> Hello:
    return _parse(
        body,
        "hello",
        lambda fields: Hello(
            cluster_id=_text(fields, "cluster_id"),
            group=GroupName(_text(fields, "group")),
            replica_id=ReplicaId(_number(fields, "replica_id")),
            incarnation=Incarnation(_number(fields, "incarnation")),
            nonce=_bytes(fields, "nonce", NONCE_BYTES),
        ),
    )


def encode_challenge(challenge: Challenge) -> bytes:
    return encode_message(
        {
            "kind": "challenge",
            "master_id": challenge.master_id,
            "incarnation": challenge.incarnation,
            "epoch": challenge.epoch,
            "nonce": challenge.nonce.hex(),
            "proof": challenge.proof.hex(),
        }
    )


def parse_challenge(body: Buffer) -> Challenge | Refused:
    return _parse_or_refused(
        body,
        "challenge",
        lambda fields: Challenge(
            master_id=ReplicaId(_number(fields, "master_id")),
            incarnation=Incarnation(_number(fields, "incarnation")),
            epoch=MasterEpoch(_number(fields, "epoch")),
            nonce=_bytes(fields, "nonce", NONCE_BYTES),
            proof=_bytes(fields, "proof", PROOF_BYTES),
        ),
    )


def encode_introduction(introduction: Introduction, *, proof: bytes) -> bytes:
    return encode_message(
        {
            "kind": "introduction",
            "proof": proof.hex(),
            "replica_id": introduction.replica_id,
            "store_id": introduction.store_id,
            "incarnation": introduction.incarnation,
            "epoch": introduction.epoch,
            "start": introduction.start,
            "end": introduction.end,
            "confirm": introduction.confirm,
            "epochs": introduction.epochs.to_json(),
        }
    )


def parse_introduction(body: Buffer) -> tuple[Introduction, bytes]:
    """The introduction and the proof, which the caller checks before it reads anything else."""
    return _parse(
        body,
        "introduction",
        lambda fields: (
            Introduction(
                replica_id=ReplicaId(_number(fields, "replica_id")),
                store_id=_text(fields, "store_id"),
                incarnation=Incarnation(_number(fields, "incarnation")),
                epoch=MasterEpoch(_number(fields, "epoch")),
                start=PhysicalOffset(_number(fields, "start")),
                end=PhysicalOffset(_number(fields, "end")),
                confirm=PhysicalOffset(_number(fields, "confirm")),
                epochs=_epochs(fields),
            ),
            _bytes(fields, "proof", PROOF_BYTES),
        ),
    )


def encode_welcome(welcome: Welcome) -> bytes:
    return encode_message(
        {
            "kind": "welcome",
            "epoch": welcome.epoch,
            "truncate_to": welcome.truncate_to,
            "is_unclean": welcome.is_unclean,
            "end": welcome.end,
            "epochs": welcome.epochs.to_json(),
            "install": None if welcome.install is None else asdict(welcome.install),
        }
    )


def parse_welcome(body: Buffer) -> Welcome | Refused:
    return _parse_or_refused(
        body,
        "welcome",
        lambda fields: Welcome(
            epoch=MasterEpoch(_number(fields, "epoch")),
            truncate_to=PhysicalOffset(_number(fields, "truncate_to")),
            is_unclean=_truth(fields, "is_unclean"),
            end=PhysicalOffset(_number(fields, "end")),
            epochs=_epochs(fields),
            install=_install(fields.get("install")),
        ),
    )


def encode_refused(refused: Refused) -> bytes:
    return encode_message({"kind": "refused", "code": refused.code, "detail": refused.detail})


def replica_proof(secret: bytes, hello: Hello, challenge: Challenge) -> bytes:
    """Proof of the replica, over its identity and both nonces."""
    return _of_replica(hello, challenge.nonce).proof(secret)


def is_replica_proof(proof: bytes, secret: bytes, hello: Hello, *, master_nonce: bytes) -> bool:
    return _of_replica(hello, master_nonce).is_proven(proof, secret)


def answer_hello(
    secret: bytes,
    hello: Hello,
    *,
    master_id: ReplicaId,
    incarnation: Incarnation,
    epoch: MasterEpoch,
    nonce: bytes,
) -> Challenge:
    """The challenge of a master, with its proof."""
    unproven = Challenge(
        master_id=master_id, incarnation=incarnation, epoch=epoch, nonce=nonce, proof=b""
    )
    return replace(unproven, proof=_of_master(unproven, hello).proof(secret))


def is_master_proof(challenge: Challenge, secret: bytes, hello: Hello) -> bool:
    return _of_master(challenge, hello).is_proven(challenge.proof, secret)


def _of_replica(hello: Hello, master_nonce: bytes) -> Statement:
    return Statement(
        purpose=PURPOSE,
        prover=f"replica:{hello.who}",
        own_nonce=hello.nonce,
        peer_nonce=master_nonce,
    )


def _of_master(challenge: Challenge, hello: Hello) -> Statement:
    who = f"{hello.group}/{challenge.master_id}/{challenge.incarnation}/{challenge.epoch}"
    return Statement(
        purpose=PURPOSE, prover=f"master:{who}", own_nonce=challenge.nonce, peer_nonce=hello.nonce
    )


# -- strict reading of JSON -----------------------------------------------------------------------

_U64_END = 1 << 64


def _parse(body: Buffer, kind: str, read: Callable[[dict[str, Any]], Message]) -> Message:
    fields = _fields(body, kind)
    if fields.get("kind") != kind:
        raise PeerError(f"expected a {kind}, got {fields.get('kind')!r:.40}")
    return read(fields)


def _parse_or_refused(
    body: Buffer, kind: str, read: Callable[[dict[str, Any]], Message]
) -> Message | Refused:
    fields = _fields(body, kind)
    if fields.get("kind") == "refused":
        return Refused(code=_text(fields, "code"), detail=_text(fields, "detail"))
    return _parse(body, kind, read)


def _fields(body: Buffer, kind: str) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise PeerError(f"a {kind} that is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise PeerError(f"a {kind} that is no JSON object")
    return fields


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > 1024:
        raise PeerError(f"field {name} is no text of at most 1024 characters")
    return value


def _install(value: Any) -> Install | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise PeerError("field install is no object")
    return Install(
        position=PhysicalOffset(_number(value, "position")),
        confirm=PhysicalOffset(_number(value, "confirm")),
        size_bytes=_number(value, "size_bytes"),
    )


def _number(fields: dict[str, Any], name: str) -> int:
    return _checked_number(fields.get(name), name)


def _checked_number(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < _U64_END:
        raise PeerError(f"field {name} is no unsigned number")
    return value


def _truth(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool):
        raise PeerError(f"field {name} is neither true nor false")
    return value


def _bytes(fields: dict[str, Any], name: str, size_bytes: int) -> bytes:
    try:
        value = bytes.fromhex(_text(fields, name))
    except ValueError as error:
        raise PeerError(f"field {name} is not hexadecimal") from error
    if len(value) != size_bytes:
        raise PeerError(f"field {name} holds {len(value)} bytes instead of {size_bytes}")
    return value


def _epochs(fields: dict[str, Any]) -> EpochTable:
    try:
        return EpochTable.from_json(fields.get("epochs"))
    except CorruptLogError as error:
        raise PeerError(f"field epochs: {error.message}") from error
