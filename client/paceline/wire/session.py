"""Pure: the messages of a broker's session with a controller (WebSocket, JSON text).

A broker holds a session to every controller: the leader takes its requests and judges it alive,
the others keep its heartbeats, so that a new leader knows it at once. Order on one connection:

    controller -> Challenge           broker -> Hello (proof)      controller -> Welcome | Refused
    broker -> Request, Heartbeat      controller -> Answer, View, Time, Leadership, ReportWanted,
              HandOverRefused                       HandOver

A `Request` carries (session, sequence), chosen by the broker: the session is 128 random bits, one
per process start, opened by its first request (`OpenSession`, sequence 0); sequences rise by one.
After an unknown outcome the broker repeats the same (session, sequence, command), at this or
another controller; the state machine applies it once and answers the same (R7). UNKNOWN_SESSION
says the session expired: that sequence never will be applied from now on, so the group's present
state tells its outcome (R38). `RegisterReplica` is sent once per incarnation (R9).
docs/protocol/controller.md has examples.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, TypeAlias

import orjson

from paceline.errors import BadRequestError, UnauthenticatedError
from paceline.types import ControllerId, GroupName, Incarnation, MasterEpoch, ReplicaId
from paceline.wire.calls.request import U32_MAX
from paceline.wire.cluster import ClusterView
from paceline.wire.commands import NAME_PATTERN, TOKEN_PATTERN
from paceline.wire.fields import Fields, parse_object
from paceline.wire.proof import NONCE_BYTES, PROOF_BYTES, Statement
from paceline.wire.session_commands import (
    AlterSyncStateSet,
    BrokerCommand,
    OpenActingLocks,
    OpenEpoch,
    OpenSession,
    PresentStore,
    QueueSealed,
    RaiseConfirmFloor,
    RegisterReplica,
    StepDown,
    read_command,
)
from paceline.wire.topic_commands import EnsureConsumerGroup, EnsureTopic

__all__ = [  # the requests, under the names their users import
    "AlterSyncStateSet",
    "BrokerCommand",
    "EnsureConsumerGroup",
    "EnsureTopic",
    "OpenActingLocks",
    "OpenEpoch",
    "OpenSession",
    "PresentStore",
    "QueueSealed",
    "RaiseConfirmFloor",
    "RegisterReplica",
    "StepDown",
    "read_command",
]

PATH = "/v1/session"
HEARTBEAT_INTERVAL_MS = 300
"""Five to a heartbeat timeout of 1500 ms: one late loop turn does not make a broker silent."""
REASON_LENGTH_MAX = 1024
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""A view of 10,000 topics and 2,500 consumer groups is about 2 MiB."""


class Role(Enum):
    """What a broker does now (DESIGN 7)."""

    STARTING = "STARTING"
    REPLICA = "REPLICA"
    MASTER = "MASTER"
    ACTING_MASTER = "ACTING_MASTER"
    FENCED = "FENCED"


# -- messages -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """First word of the controller."""

    controller_id: ControllerId
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who the broker is, and the proof that it holds the cluster secret."""

    cluster_id: str | None
    """None: the store belongs to no cluster yet."""
    group: GroupName
    store_id: str
    replica_id: ReplicaId | None
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The session stands. The broker checks `proof` (`check_welcome`) before it believes it."""

    cluster_id: str | None
    """None: the cluster is not founded yet (no controller has led so far)."""
    controller_id: ControllerId
    is_leader: bool
    leader_address: str | None
    session_timeout_ms: int
    """Silence after which the leader holds the broker for dead (heartbeat_timeout_ms)."""
    proof: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Another cluster, another secret, a bad message: the connection closes after it."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """Pushed when this controller begins or ceases to lead, or learns of another leader."""

    is_leader: bool
    leader_address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportWanted:
    """The broker sends a heartbeat at once: the leader is about to choose a master."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Answers a heartbeat, once a second: the controller's wall clock (R29)."""

    unix_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferOrder:
    """To the master of this epoch: stop intake, let all be confirmed, ask for your replacement.

    It answers with `StepDown`, or with `HandOverRefused`; one that does neither within a second is
    replaced all the same.
    """

    master_epoch: MasterEpoch
    preferred: ReplicaId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverRefused:
    """The broker goes on as it was, and why: it does not lead that epoch, or could not drain."""

    master_epoch: MasterEpoch
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Pushed on every change of version, by every controller, of what it has applied."""

    view: ClusterView


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A command; the answer has the same `id` (unique per connection)."""

    id: int
    session: str
    sequence: int
    command: BrokerCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Exactly one of `result` (the machine's word, definite) and `problem` (see from_problem)."""

    id: int
    result: Mapping[str, Any] | None = None
    problem: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A broker's state, each HEARTBEAT_INTERVAL_MS and at once on a change of role or health."""

    replica_id: ReplicaId
    incarnation: Incarnation
    role: Role
    epoch: MasterEpoch
    """The highest master epoch it has adopted."""
    end: int
    flushed: int
    confirm: int
    is_healthy: bool = True
    """False: its disk failed; a master is replaced (R22)."""
    is_stalled: bool = False
    """Its disk ends no sync while bytes wait; a master is replaced if another's does better."""
    sync_ms: int = 0
    """The longest wait for a sync in the last seconds."""
    waiting: int = 0
    """Work owed: sends and bytes that wait for confirm, sends refused for want of members (R6)."""
    view_version: int = 0
    """Of the newest view it had when it looked at its log; 0: none. What came before (R23)."""
    last_epoch: MasterEpoch = MasterEpoch(0)
    """Of the newest record in its log; 0: none, or a broker from before it was told."""


FromController: TypeAlias = (
    Challenge | Welcome | Refused | Leadership | ReportWanted | Time | TransferOrder | View | Answer
)
FromBroker: TypeAlias = Hello | Request | Heartbeat | HandOverRefused


def encode(message: FromController | FromBroker) -> str:
    """The JSON text of a message."""
    return orjson.dumps(_document(message)).decode()


def encode_view(view: Mapping[str, Any]) -> str:
    """The text of a `View` whose JSON form is at hand (made once for all sessions)."""
    return orjson.dumps({"type": "view", "view": view}).decode()


def parse_from_broker(text: bytes | str) -> FromBroker:
    """Raises BadRequestError (BadJsonError) on anything but a valid message of a broker."""
    fields = Fields(parse_object(text, size_bytes_max=MESSAGE_BYTES_MAX), name="message")
    message: FromBroker
    match fields.text("type"):
        case "hello":
            message = _read_hello(fields)
        case "request":
            message = Request(
                id=fields.integer("id"),
                session=fields.text("session", pattern=TOKEN_PATTERN),
                sequence=fields.integer("sequence"),
                command=read_command(fields.any("command")),
            )
        case "heartbeat":
            message = _read_heartbeat(fields)
        case "hand_over_refused":
            message = HandOverRefused(
                master_epoch=MasterEpoch(fields.integer("master_epoch", high=U32_MAX)),
                reason=fields.text("reason", length_max=REASON_LENGTH_MAX),
            )
        case other:
            raise BadRequestError(f"unknown message type {other!r}", field="type")
    fields.done()
    return message


def parse_from_controller(text: bytes | str) -> FromController:
    """Raises BadRequestError (BadJsonError) on anything but a valid message of a controller."""
    fields = Fields(parse_object(text, size_bytes_max=MESSAGE_BYTES_MAX), name="message")
    message: FromController
    match fields.text("type"):
        case "challenge":
            message = Challenge(
                controller_id=ControllerId(fields.text("controller_id", pattern=TOKEN_PATTERN)),
                nonce=fields.hexadecimal("nonce", size_bytes=NONCE_BYTES),
            )
        case "welcome":
            message = _read_welcome(fields)
        case "refused":
            message = Refused(
                code=fields.text("code"), detail=fields.text("detail", length_max=4096)
            )
        case "leadership":
            message = Leadership(
                is_leader=fields.flag("is_leader"), leader_address=_optional_address(fields)
            )
        case "report_wanted":
            message = ReportWanted()
        case "time":
            message = Time(unix_ms=fields.integer("unix_ms"))
        case "hand_over":
            message = TransferOrder(
                master_epoch=MasterEpoch(fields.integer("master_epoch", high=U32_MAX)),
                preferred=_optional_replica(fields, "preferred"),
            )
        case "view":
            message = View(view=ClusterView.from_json(fields.any("view")))
        case "answer":
            message = _read_answer(fields)
        case other:
            raise BadRequestError(f"unknown message type {other!r}", field="type")
    fields.done()
    return message


# -- proofs ---------------------------------------------------------------------------------------


def make_hello(
    challenge: Challenge,
    secret: bytes,
    *,
    cluster_id: str | None,
    group: GroupName,
    store_id: str,
    replica_id: ReplicaId | None,
    nonce: bytes,
) -> Hello:
    """The broker's answer to a challenge; `nonce` is NONCE_BYTES fresh random bytes."""
    said = _of_broker(group, store_id, nonce=nonce, challenge=challenge)
    return Hello(
        cluster_id=cluster_id,
        group=group,
        store_id=store_id,
        replica_id=replica_id,
        nonce=nonce,
        proof=said.proof(secret),
    )


def check_hello(hello: Hello, challenge: Challenge, secret: bytes) -> None:
    """Raises UnauthenticatedError if the broker does not hold our secret."""
    said = _of_broker(hello.group, hello.store_id, nonce=hello.nonce, challenge=challenge)
    if not said.is_proven(hello.proof, secret):
        raise UnauthenticatedError(
            f"broker {hello.group}/{hello.store_id} does not hold this cluster's secret"
        )


def welcome_proof(challenge: Challenge, hello: Hello, secret: bytes) -> bytes:
    """The controller's own proof."""
    return _of_controller(challenge, hello).proof(secret)


def check_welcome(welcome: Welcome, challenge: Challenge, hello: Hello, secret: bytes) -> None:
    """Raises UnauthenticatedError if the controller does not hold our secret."""
    is_same = welcome.controller_id == challenge.controller_id
    if not is_same or not _of_controller(challenge, hello).is_proven(welcome.proof, secret):
        raise UnauthenticatedError(
            f"controller {welcome.controller_id} does not hold this cluster's secret"
        )


def _of_broker(group: GroupName, store_id: str, *, nonce: bytes, challenge: Challenge) -> Statement:
    return Statement(
        purpose="session",
        prover=f"store:{group}/{store_id}",
        own_nonce=nonce,
        peer_nonce=challenge.nonce,
    )


def _of_controller(challenge: Challenge, hello: Hello) -> Statement:
    return Statement(
        purpose="session",
        prover=f"controller:{challenge.controller_id}",
        own_nonce=challenge.nonce,
        peer_nonce=hello.nonce,
    )


# -- readers and writers of single messages -------------------------------------------------------


def _document(message: FromController | FromBroker) -> dict[str, Any]:
    match message:
        case Challenge():
            return {
                "type": "challenge",
                "controller_id": message.controller_id,
                "nonce": message.nonce.hex(),
            }
        case Hello():
            document = asdict(message)
            return {
                "type": "hello",
                **document,
                "nonce": message.nonce.hex(),
                "proof": message.proof.hex(),
            }
        case Welcome():
            return {"type": "welcome", **asdict(message), "proof": message.proof.hex()}
        case Refused():
            return {"type": "refused", **asdict(message)}
        case Leadership():
            return {"type": "leadership", **asdict(message)}
        case ReportWanted():
            return {"type": "report_wanted"}
        case Time():
            return {"type": "time", "unix_ms": message.unix_ms}
        case TransferOrder():
            return {"type": "hand_over", **asdict(message)}
        case HandOverRefused():
            return {"type": "hand_over_refused", **asdict(message)}
        case View():
            return {"type": "view", "view": message.view.to_json()}
        case Request():
            return {
                "type": "request",
                "id": message.id,
                "session": message.session,
                "sequence": message.sequence,
                "command": message.command.to_json(),
            }
        case Answer():
            outcome = "result" if message.problem is None else "error"
            value = message.result if message.problem is None else message.problem
            return {"type": "answer", "id": message.id, outcome: value}
        case Heartbeat():
            return {"type": "heartbeat", **asdict(message), "role": message.role.value}


def _read_hello(fields: Fields) -> Hello:
    return Hello(
        cluster_id=_optional_token(fields, "cluster_id"),
        group=GroupName(fields.text("group", pattern=NAME_PATTERN)),
        store_id=fields.text("store_id", pattern=TOKEN_PATTERN),
        replica_id=_optional_replica(fields, "replica_id"),
        nonce=fields.hexadecimal("nonce", size_bytes=NONCE_BYTES),
        proof=fields.hexadecimal("proof", size_bytes=PROOF_BYTES),
    )


def _read_welcome(fields: Fields) -> Welcome:
    return Welcome(
        cluster_id=_optional_token(fields, "cluster_id"),
        controller_id=ControllerId(fields.text("controller_id", pattern=TOKEN_PATTERN)),
        is_leader=fields.flag("is_leader"),
        leader_address=_optional_address(fields),
        session_timeout_ms=fields.integer("session_timeout_ms", low=1),
        proof=fields.hexadecimal("proof", size_bytes=PROOF_BYTES),
    )


def _read_answer(fields: Fields) -> Answer:
    request_id = fields.integer("id")
    if fields.has("error"):
        problem = fields.any("error")
        if not isinstance(problem, dict):
            raise fields.wrong("error", "an object", problem)
        return Answer(id=request_id, problem=problem)
    result = fields.any("result")
    if not isinstance(result, dict) or not isinstance(result.get("ok"), bool):
        raise fields.wrong("result", "an object with ok", result)
    return Answer(id=request_id, result=result)


def _read_heartbeat(fields: Fields) -> Heartbeat:
    role = fields.text("role")
    if role not in Role.__members__:
        raise fields.wrong("role", "a role", role)
    return Heartbeat(
        replica_id=_replica(fields, "replica_id"),
        incarnation=Incarnation(fields.integer("incarnation", low=1, high=U32_MAX)),
        role=Role(role),
        epoch=MasterEpoch(fields.integer("epoch", high=U32_MAX)),
        end=fields.integer("end"),
        flushed=fields.integer("flushed"),
        confirm=fields.integer("confirm"),
        is_healthy=fields.flag("is_healthy"),
        is_stalled=fields.has("is_stalled") and fields.flag("is_stalled"),
        sync_ms=_number(fields, "sync_ms"),
        waiting=fields.integer("waiting"),
        view_version=fields.integer("view_version"),
        last_epoch=MasterEpoch(_number(fields, "last_epoch")),
    )


def _replica(fields: Fields, key: str) -> ReplicaId:
    return ReplicaId(fields.integer(key, low=1, high=U32_MAX))


def _optional_replica(fields: Fields, key: str) -> ReplicaId | None:
    return _replica(fields, key) if fields.has(key) else None


def _number(fields: Fields, key: str) -> int:
    """0 where it is missing: while a cluster is upgraded some brokers do not send it yet."""
    return fields.integer(key, high=U32_MAX) if fields.has(key) else 0


def _optional_token(fields: Fields, key: str) -> str | None:
    return fields.text(key, pattern=TOKEN_PATTERN) if fields.has(key) else None


def _optional_address(fields: Fields) -> str | None:
    return fields.address("leader_address") if fields.has("leader_address") else None
