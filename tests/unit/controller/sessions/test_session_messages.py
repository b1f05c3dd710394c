"""The messages between brokers and controllers: round trips, proofs, strict reading."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from paceline.errors import BadJsonError, BadRequestError, UnauthenticatedError
from paceline.types import (
    ControllerId,
    GroupName,
    Incarnation,
    MasterEpoch,
    ReplicaId,
    SetEpoch,
)
from paceline.wire import session as wire
from paceline.wire.cluster import ClusterView
from paceline.wire.messages import Nonce

SECRET = b"s" * 32
G1 = GroupName("g1")
CHALLENGE = wire.Challenge(controller_id=ControllerId("c1"), nonce=Nonce(b"c" * 16))
MASTER: dict[str, Any] = {
    "group": G1,
    "master": ReplicaId(1),
    "master_incarnation": Incarnation(2),
    "master_epoch": MasterEpoch(3),
    "confirm": 4,
}


def a_hello(secret: bytes = SECRET, **changes: Any) -> wire.Hello:
    arguments = {
        "cluster_id": "abc",
        "group": G1,
        "store_id": "store",
        "replica_id": ReplicaId(1),
        "nonce": Nonce(b"b" * 16),
        "is_sealed": True,
        **changes,
    }
    return wire.make_hello(CHALLENGE, secret, **arguments)


def a_welcome(hello: wire.Hello, secret: bytes = SECRET) -> wire.Welcome:
    return wire.Welcome(
        cluster_id=None,
        controller_id=CHALLENGE.controller_id,
        is_leader=True,
        leader_address="127.0.0.1:7700",
        session_timeout_ms=1500,
        proof=wire.welcome_proof(CHALLENGE, hello, secret),
    )


COMMANDS: list[wire.BrokerCommand] = [
    wire.OpenSession(),
    wire.RegisterReplica(
        group=G1,
        store_id="store",
        replica_id=None,
        incarnation=Incarnation(1),
        client_address="localhost:1",
        replication_address="[::1]:2",
        end=3,
        confirm=2,
        last_epoch=MasterEpoch(1),
        is_empty=False,
        is_learner=False,
        is_unclean=False,
        is_suspect=False,
    ),
    wire.AlterSyncStateSet(
        **MASTER,
        set_epoch=SetEpoch(5),
        members={ReplicaId(2): Incarnation(1), ReplicaId(1): Incarnation(2)},
    ),
    wire.OpenEpoch(**MASTER),
    wire.RaiseConfirmFloor(**MASTER),
    wire.QueueSealed(**MASTER, topic_id=7, logical_queue=3, generation=2, end=70),
    wire.StepDown(**MASTER, preferred=ReplicaId(2)),
    wire.StepDown(**MASTER),
    wire.OpenActingLocks(
        group=G1,
        replica_id=ReplicaId(3),
        incarnation=Incarnation(2),
        master_epoch=MasterEpoch(4),
        leases_ms=70_000,
    ),
]
HEARTBEAT = wire.Heartbeat(
    replica_id=ReplicaId(1),
    incarnation=Incarnation(1),
    role=wire.Role.MASTER,
    epoch=MasterEpoch(1),
    end=3,
    flushed=2,
    confirm=1,
    is_healthy=True,
    waiting=0,
    view_version=7,
    last_epoch=MasterEpoch(1),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.kind)
def test_every_request_reads_back_as_it_was(command: wire.BrokerCommand) -> None:
    request = wire.Request(id=1, session="s", sequence=2, command=command.to_json())

    read = wire.parse_from_broker(wire.encode(request))

    assert read == request
    assert isinstance(read, wire.Request)
    assert wire.read_command(read.command) == command


def test_a_heartbeat_that_does_not_tell_the_last_epoch_is_of_an_older_broker() -> None:
    document = orjson.loads(wire.encode(HEARTBEAT))
    del document["last_epoch"]

    read = wire.parse_from_broker(orjson.dumps(document))

    assert read == replace(HEARTBEAT, last_epoch=MasterEpoch(0))


@pytest.mark.parametrize("message", [a_hello(), a_hello(cluster_id=None), HEARTBEAT])
def test_every_other_message_of_a_broker_reads_back(message: wire.FromBroker) -> None:
    assert wire.parse_from_broker(wire.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        CHALLENGE,
        a_welcome(a_hello()),
        wire.Refused(code="FORBIDDEN", detail="no"),
        wire.Leadership(is_leader=False, leader_address=None),
        wire.ReportWanted(),
        wire.View(view=ClusterView(cluster_id="abc", version=7).to_json()),
        wire.ViewChanged(changes={"since": 6, "cluster_id": "abc", "version": 7}),
        wire.Answer(id=1, result={"ok": True}),
        wire.Answer(id=1, problem={"code": "NOT_LEADER"}),
    ],
)
def test_every_message_of_a_controller_reads_back(message: wire.FromController) -> None:
    assert wire.parse_from_controller(wire.encode(message)) == message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group", "../g"),
        ("group", ""),
        ("group", 1),
        ("store_id", "a b"),
        ("incarnation", 0),
        ("incarnation", True),
        ("incarnation", 1.0),
        ("incarnation", 2**32),
        ("client_address", "no-port"),
        ("client_address", "h:0"),
        ("client_address", "h:70000"),
        ("end", -1),
        ("end", 2**63),
        ("is_empty", 1),
        ("replica_id", 0),
        ("color", "red"),
    ],
)
def test_a_wrong_field_is_refused_by_name(field: str, value: object) -> None:
    document = {**COMMANDS[1].to_json(), field: value}

    with pytest.raises(BadRequestError) as caught:
        wire.read_command(document)

    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    "members", [[[1, 1], [1, 2]], [[1]], [1], {"1": 1}, [[0, 1]], [[1, 1]] * 65]
)
def test_wrong_members_of_a_set_are_refused(members: object) -> None:
    with pytest.raises(BadRequestError):
        wire.read_command({**COMMANDS[2].to_json(), "members": members})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("role", "KING"),
        ("epoch", 2**32),
        ("is_healthy", 1),
        ("waiting", None),
        ("color", "red"),
        ("replica_id", 0),
    ],
)
def test_a_wrong_field_of_a_heartbeat_is_refused_by_name(field: str, value: object) -> None:
    document = orjson.loads(wire.encode(HEARTBEAT)) | {field: value}

    with pytest.raises(BadRequestError) as caught:
        wire.parse_from_broker(orjson.dumps(document))

    assert caught.value.details["field"] == field


@pytest.mark.parametrize("outcome", [{}, {"result": {}}, {"result": {"ok": 1}}, {"error": None}])
def test_an_answer_without_an_outcome_is_refused(outcome: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        wire.parse_from_controller(orjson.dumps({"type": "answer", "id": 1, **outcome}))


@given(st.text() | st.binary())
def test_any_text_is_a_message_or_a_bad_request(text: str | bytes) -> None:
    for parse in (wire.parse_from_broker, wire.parse_from_controller):
        with pytest.raises(BadRequestError):
            parse(text)


def test_an_oversized_message_is_refused_unread() -> None:
    with pytest.raises(BadJsonError):
        wire.parse_from_broker(b"{" * (wire.FROM_BROKER_BYTES_MAX + 1))


def test_both_sides_prove_that_they_hold_the_secret() -> None:
    hello = a_hello()

    wire.check_hello(hello, CHALLENGE, [SECRET])
    wire.check_welcome(a_welcome(hello), CHALLENGE, hello, SECRET)


def test_a_proof_with_another_secret_is_refused() -> None:
    with pytest.raises(UnauthenticatedError):
        wire.check_hello(a_hello(b"x" * 32), CHALLENGE, [SECRET])
    hello = a_hello()
    with pytest.raises(UnauthenticatedError):
        wire.check_welcome(a_welcome(hello, b"x" * 32), CHALLENGE, hello, SECRET)


def test_a_proof_does_not_serve_another_store_or_challenge() -> None:
    hello = a_hello()
    stolen = a_hello(store_id="other").__class__(
        cluster_id=None,
        group=G1,
        store_id="other",
        replica_id=None,
        nonce=hello.nonce,
        proof=hello.proof,
    )
    another = wire.Challenge(controller_id=ControllerId("c1"), nonce=Nonce(b"d" * 16))

    with pytest.raises(UnauthenticatedError):
        wire.check_hello(stolen, CHALLENGE, [SECRET])
    with pytest.raises(UnauthenticatedError):
        wire.check_hello(hello, another, [SECRET])


def test_a_brokers_proof_reflected_is_no_controllers_proof() -> None:
    hello = a_hello()
    reflected = wire.Welcome(
        cluster_id=None,
        controller_id=CHALLENGE.controller_id,
        is_leader=True,
        leader_address=None,
        session_timeout_ms=1,
        proof=hello.proof,
    )

    with pytest.raises(UnauthenticatedError):
        wire.check_welcome(reflected, CHALLENGE, hello, SECRET)


@pytest.mark.parametrize(
    "change",
    [
        {"is_sealed": False},
        {"cluster_id": "other"},
        {"cluster_id": None},
        {"replica_id": ReplicaId(2)},
        {"replica_id": None},
        {"group": GroupName("g2")},
        {"store_id": "other"},
        {"nonce": Nonce(b"x" * 16)},
    ],
    ids=lambda change: "-".join(change),
)
def test_a_hello_that_was_changed_on_the_way_proves_nothing(change: dict[str, Any]) -> None:
    changed = replace(a_hello(), **change)
    welcome = a_welcome(replace(a_hello(), is_sealed=False))

    with pytest.raises(UnauthenticatedError):
        wire.check_hello(changed, CHALLENGE, [SECRET])
    with pytest.raises(UnauthenticatedError):
        wire.check_welcome(welcome, CHALLENGE, a_hello(), SECRET)
