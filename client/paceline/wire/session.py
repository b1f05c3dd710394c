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

What follows a `Hello` that is sealed is not text but binary messages, each a tag and the JSON
(`wire.seal`); only a `Refused` in place of the `Welcome` is text, since it proves nothing.
docs/protocol/controller.md has examples.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, TypeAlias

import msgspec
import orjson
from msgspec import Meta

from paceline.errors import UnauthenticatedError
from paceline.platform.ports import Buffer
from paceline.types import ControllerId, GroupName, MasterEpoch, ReplicaId
from paceline.wire.calls.request import U32_MAX, Number, Text, matching, snake_case
from paceline.wire.commands import TOKEN_PATTERN, Address, Epoch, Group, Replica, Start, Token
from paceline.wire.messages import NO_PROOF, Nonce, Proof, message_json, read_message
from paceline.wire.proof import Statement
from paceline.wire.seal import Seals
from paceline.wire.session_commands import (
    AlterSyncStateSet,
    BrokerCommand,
    OpenActingLocks,
    OpenEpoch,
    OpenSession,
    PresentStore,
    PresentTopics,
    QueueSealed,
    RaiseConfirmFloor,
    RegisterReplica,
    StepDown,
    read_command,
)
from paceline.wire.topic_commands import EnsureConsumerGroup, EnsureTopic
from paceline.wire.users import KeyId, Security

__all__ = [  # the requests, under the names their users import
    "AlterSyncStateSet",
    "BrokerCommand",
    "EnsureConsumerGroup",
    "EnsureTopic",
    "OpenActingLocks",
    "OpenEpoch",
    "OpenSession",
    "PresentStore",
    "PresentTopics",
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
FROM_BROKER_BYTES_MAX = 4 * 1024 * 1024
FROM_CONTROLLER_BYTES_MAX = 64 * 1024 * 1024
"""A view of 10,000 topics and 2,500 consumer groups is about 2 MiB, of 100,000 about 18 MiB."""

KEY_USES_MAX = 200
"""Access keys in one message."""
KeyUsesTold: TypeAlias = Annotated[dict[KeyId, Number], Meta(max_length=KEY_USES_MAX)]
"""Access key -> when it was used last, Unix time in ms."""


class Role(Enum):
    """What a broker does now (DESIGN 7)."""

    STARTING = "STARTING"
    REPLICA = "REPLICA"
    MASTER = "MASTER"
    ACTING_MASTER = "ACTING_MASTER"
    FENCED = "FENCED"


# -- messages -------------------------------------------------------------------------------------


class Message(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag=snake_case,
):
    """One message. Its type is the class's name in lower case, words joined by "_"."""


class Challenge(Message, frozen=True, kw_only=True):
    """First word of the controller."""

    controller_id: Annotated[ControllerId, matching(TOKEN_PATTERN)]
    nonce: Nonce


class Hello(Message, frozen=True, kw_only=True):
    """Who the broker is, and the proof that it holds the cluster secret."""

    cluster_id: Token | None = None
    """None: the store belongs to no cluster yet."""
    group: Group
    store_id: Token
    replica_id: Replica | None = None
    nonce: Nonce
    is_sealed: bool = False
    """What follows is sealed, in both directions; true unless the session is inside TLS."""
    proof: Proof

    @property
    def purpose(self) -> str:
        """Of the proofs: they say how the session goes on, so nobody can talk it down."""
        return "session-sealed" if self.is_sealed else "session"

    def seals(self, secret: bytes, challenge: Challenge, *, is_dialer: bool) -> Seals | None:
        """How the session goes on; None: as it is, inside TLS."""
        if not self.is_sealed:
            return None
        return Seals(
            secret,
            purpose="session",
            is_dialer=is_dialer,
            dialer_nonce=self.nonce,
            listener_nonce=challenge.nonce,
        )


class Welcome(Message, frozen=True, kw_only=True):
    """The session stands. The broker checks `proof` (`check_welcome`) before it believes it."""

    cluster_id: Token | None = None
    """None: the cluster is not founded yet (no controller has led so far)."""
    controller_id: Annotated[ControllerId, matching(TOKEN_PATTERN)]
    is_leader: bool
    leader_address: Address | None = None
    session_timeout_ms: Annotated[int, Meta(ge=1)]
    """Silence after which the leader holds the broker for dead (heartbeat_timeout_ms)."""
    proof: Proof


class Refused(Message, frozen=True, kw_only=True):
    """Another cluster, another secret, a bad message: the connection closes after it."""

    code: Text
    detail: Annotated[str, Meta(min_length=1, max_length=4096)]


class Leadership(Message, frozen=True, kw_only=True):
    """Pushed when this controller begins or ceases to lead, or learns of another leader."""

    is_leader: bool
    leader_address: Address | None = None


class ReportWanted(Message, frozen=True, kw_only=True):
    """The broker sends a heartbeat at once: the leader is about to choose a master."""


class Time(Message, frozen=True, kw_only=True):
    """Answers a heartbeat, once a second: the controller's wall clock (R29)."""

    unix_ms: Number


class TransferOrder(Message, frozen=True, kw_only=True, tag="hand_over"):
    """To the master of this epoch: stop intake, let all be confirmed, ask for your replacement.

    It answers with `StepDown`, or with `HandOverRefused`; one that does neither within a second is
    replaced all the same.
    """

    master_epoch: Epoch
    preferred: Replica | None = None


class HandOverRefused(Message, frozen=True, kw_only=True):
    """The broker goes on as it was, and why: it does not lead that epoch, or could not drain."""

    master_epoch: Epoch
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_LENGTH_MAX)]


class View(Message, frozen=True, kw_only=True):
    """Pushed on every change of version, by every controller, of what it has applied."""

    view: dict[str, Any]
    """As `ClusterView.to_json` gives it: made once for all sessions."""


class ViewChanged(Message, frozen=True, kw_only=True, tag="view_changes"):
    """In place of a `View`, to a broker that asked for it (`?changes=true`): what leads to the
    newest one from that which it was sent last in this session."""

    changes: dict[str, Any]
    """As `ViewChanges.to_json` gives it."""


class SecurityView(Message, frozen=True, kw_only=True):
    """Users and rights: pushed when the session begins, before the view, and on every change. Not
    sent as long as nobody has ever set anything."""

    security: Security


class Request(Message, frozen=True, kw_only=True):
    """A command; the answer has the same `id` (unique per connection)."""

    id: Number
    session: Token
    sequence: Number
    command: dict[str, Any]
    """As `Command.to_json` gives it; `read_command` checks it."""


class Answer(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one of `result` (the machine's word, definite) and `problem` (see from_problem)."""

    id: Number
    result: Mapping[str, Any] | None = None
    problem: Mapping[str, Any] | None = msgspec.field(default=None, name="error")

    def __post_init__(self) -> None:
        """ValueError: it is no answer."""
        if self.problem is None and not isinstance((self.result or {}).get("ok"), bool):
            raise ValueError("expected an error, or a result with ok")


class Heartbeat(Message, frozen=True, kw_only=True):
    """A broker's state, each HEARTBEAT_INTERVAL_MS and at once on a change of role or health."""

    replica_id: Replica
    incarnation: Start
    role: Role
    epoch: Epoch
    """The highest master epoch it has adopted."""
    end: Number
    flushed: Number
    confirm: Number
    is_healthy: bool
    """False: its disk failed; a master is replaced (R22)."""
    is_stalled: bool = False
    """Its disk ends no sync while bytes wait; a master is replaced if another's does better."""
    sync_ms: Annotated[int, Meta(ge=0, le=U32_MAX)] = 0
    """The longest wait for a sync in the last seconds."""
    waiting: Number
    """Work owed: sends and bytes that wait for confirm, sends refused for want of members (R6)."""
    view_version: Number
    """Of the newest view it had when it looked at its log; 0: none. What came before (R23)."""
    last_epoch: Epoch = MasterEpoch(0)
    """Of the newest record in its log; 0: none, or a broker from before it was told."""
    key_uses: KeyUsesTold = {}
    """Access keys that were used since it last told of them, or an hour after."""


FromController: TypeAlias = (
    Challenge
    | Welcome
    | Refused
    | Leadership
    | ReportWanted
    | Time
    | TransferOrder
    | View
    | ViewChanged
    | SecurityView
    | Answer
)
FromBroker: TypeAlias = Hello | Request | Heartbeat | HandOverRefused


def encode(message: FromController | FromBroker) -> str:
    """The JSON text of a message."""
    return orjson.dumps(message_json(message)).decode()


def view_message(view: bytes) -> str:
    """The text of a `View` whose JSON text is at hand (made once for all sessions)."""
    return orjson.dumps({"type": "view", "view": orjson.Fragment(view)}).decode()


def view_changes_message(changes: bytes) -> str:
    """The text of a `ViewChanged`, as `view_message`."""
    return orjson.dumps({"type": "view_changes", "changes": orjson.Fragment(changes)}).decode()


def parse_from_broker(text: Buffer | str) -> FromBroker:
    """Raises BadRequestError (BadJsonError) on anything but a valid message of a broker."""
    kinds: Any = FromBroker
    found: FromBroker = read_message(text, kinds, size_bytes_max=FROM_BROKER_BYTES_MAX)
    return found


def parse_from_controller(text: Buffer | str) -> FromController:
    """Raises BadRequestError (BadJsonError) on anything but a valid message of a controller."""
    kinds: Any = FromController
    found: FromController = read_message(text, kinds, size_bytes_max=FROM_CONTROLLER_BYTES_MAX)
    return found


# -- proofs ---------------------------------------------------------------------------------------


def make_hello(
    challenge: Challenge,
    secret: bytes,
    *,
    cluster_id: str | None,
    group: GroupName,
    store_id: str,
    replica_id: ReplicaId | None,
    nonce: Nonce,
    is_sealed: bool,
) -> Hello:
    """The broker's answer to a challenge."""
    hello = Hello(
        cluster_id=cluster_id,
        group=group,
        store_id=store_id,
        replica_id=replica_id,
        nonce=nonce,
        is_sealed=is_sealed,
        proof=NO_PROOF,
    )
    proof = Proof(_of_broker(hello, challenge).proof(secret))
    return msgspec.structs.replace(hello, proof=proof)


def check_hello(hello: Hello, challenge: Challenge, secrets: Iterable[bytes]) -> bytes:
    """The one of our secrets that the broker has proven: the session goes on with it.

    Raises UnauthenticatedError if it holds none of them.
    """
    secret = _of_broker(hello, challenge).proven_by(hello.proof, secrets)
    if secret is None:
        raise UnauthenticatedError(
            f"broker {hello.group}/{hello.store_id} does not hold this cluster's secret"
        )
    return secret


def welcome_proof(challenge: Challenge, hello: Hello, secret: bytes) -> Proof:
    """The controller's own proof."""
    return Proof(_of_controller(challenge, hello).proof(secret))


def check_welcome(welcome: Welcome, challenge: Challenge, hello: Hello, secret: bytes) -> None:
    """Raises UnauthenticatedError if the controller does not hold our secret."""
    is_same = welcome.controller_id == challenge.controller_id
    if not is_same or not _of_controller(challenge, hello).is_proven(welcome.proof, secret):
        raise UnauthenticatedError(
            f"controller {welcome.controller_id} does not hold this cluster's secret"
        )


def _of_broker(hello: Hello, challenge: Challenge) -> Statement:
    who = f"{hello.group}/{hello.store_id}"
    if hello.is_sealed:  # all that it says of itself; TLS covers that by itself
        who += f"/{hello.cluster_id or ''}/{hello.replica_id or ''}"
    return Statement(
        purpose=hello.purpose,
        prover=f"store:{who}",
        own_nonce=hello.nonce,
        peer_nonce=challenge.nonce,
    )


def _of_controller(challenge: Challenge, hello: Hello) -> Statement:
    return Statement(
        purpose=hello.purpose,
        prover=f"controller:{challenge.controller_id}",
        own_nonce=challenge.nonce,
        peer_nonce=hello.nonce,
    )
