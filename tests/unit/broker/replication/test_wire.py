"""Frames and handshake messages: exact bytes, and refusal of everything else."""

import struct
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace
from tests.support.replication.builders import TABLE, an_introduction

from paceline.errors import PeerError
from paceline.types import GroupName, Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline.wire.messages import NO_PROOF, Nonce, Proof
from paceline_broker.integrity.repair_wire import RepairHello
from paceline_broker.replication import frames, handshake, messages
from paceline_broker.service.escape.wire import EscapeHello

SECRET = b"s" * 32
HELLO = messages.Hello(
    cluster_id="c",
    group=GroupName("g1"),
    replica_id=ReplicaId(2),
    incarnation=Incarnation(7),
    nonce=Nonce(b"n" * 16),
)


def a_header(*, body_bytes: int = 100) -> bytes:
    return frames.encode_frame_header(
        body_bytes=body_bytes,
        epoch=MasterEpoch(3),
        position=PhysicalOffset(1 << 40),
        confirm=PhysicalOffset(77),
        round=9,
    )


def a_challenge(**changes: Any) -> handshake.Challenge:
    fields: dict[str, Any] = {
        "replica_id": ReplicaId(1),
        "incarnation": Incarnation(4),
        "epoch": MasterEpoch(3),
        "nonce": Nonce(b"m" * 16),
    }
    challenge = handshake.Challenge(**{"proof": NO_PROOF, **fields, **changes})
    return challenge.proven(SECRET, HELLO)


def a_welcome() -> handshake.Welcome:
    return handshake.Welcome(
        epoch=MasterEpoch(3),
        truncate_to=PhysicalOffset(48),
        is_unclean=True,
        end=PhysicalOffset(96),
        epochs=TABLE,
    )


def test_frame_header_is_read_back() -> None:
    assert tuple(frames.parse_frame_header(a_header())) == (140, 3, 1 << 40, 77, 9)


def test_frame_header_has_the_documented_bytes() -> None:
    size, _, epoch, flags, position, confirm, number = struct.unpack("<IIIIQQQ", a_header())

    assert (size, epoch, flags, position, confirm, number) == (140, 3, 0, 1 << 40, 77, 9)


def test_acknowledgement_is_read_back() -> None:
    for is_ready in (False, True):
        ack = frames.Acknowledgement(
            MasterEpoch(3), PhysicalOffset(500), PhysicalOffset(400), 12, is_ready
        )
        assert frames.parse_acknowledgement(frames.encode_acknowledgement(ack)) == ack


@given(at=st.integers(4, 39), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_header_is_found(at: int, bit: int) -> None:
    header = bytearray(a_header())
    header[at] ^= 1 << bit

    with pytest.raises(PeerError):
        frames.parse_frame_header(header)


def test_frame_over_the_limit_is_refused() -> None:
    header = a_header(body_bytes=frames.FRAME_BYTES_MAX)

    with pytest.raises(PeerError, match="over"):
        frames.parse_frame_header(header)


@given(st.binary(min_size=40, max_size=40))
def test_any_40_bytes_are_a_frame_or_a_peer_error(buffer: bytes) -> None:
    for parse in (frames.parse_frame_header, frames.parse_acknowledgement):
        with pytest.raises(PeerError):
            parse(buffer)


def _body(message: bytes) -> bytes:
    size = messages.parse_prefix(message, size_bytes_max=messages.MESSAGE_BYTES_MAX)
    assert size == len(message) - messages.PREFIX_BYTES
    return message[messages.PREFIX_BYTES :]


def test_handshake_messages_are_read_back() -> None:
    introduction = handshake.ProvenIntroduction(
        **asdict(an_introduction(2, end=96, confirm=48)), proof=Proof(b"p" * 32)
    )
    for message in (HELLO, a_challenge(), introduction, a_welcome()):
        assert messages.parse_message(_body(message.encode()), type(message)) == message
        assert messages.parse_answer(_body(message.encode()), type(message)) == message


def test_a_refusal_in_place_of_an_answer_is_raised() -> None:
    refused = messages.Refused(code="OLDER_EPOCH", detail="the master is in epoch 9")

    for kind in (handshake.Challenge, handshake.Welcome):
        with pytest.raises(PeerError, match="refused: OLDER_EPOCH: the master is in epoch 9"):
            messages.parse_answer(_body(refused.encode()), kind)


def test_messages_have_the_documented_json() -> None:
    challenge = orjson.loads(_body(a_challenge().encode()))
    welcome = orjson.loads(_body(a_welcome().encode()))

    assert challenge == {
        "kind": "challenge",
        "master_id": 1,
        "incarnation": 4,
        "epoch": 3,
        "nonce": "6d" * 16,
        "proof": a_challenge().proof.hex(),
    }
    assert welcome == {
        "kind": "welcome",
        "epoch": 3,
        "truncate_to": 48,
        "is_unclean": True,
        "end": 96,
        "epochs": TABLE.to_json(),
        "install": None,
    }


KINDS: list[type[messages.Message]] = [
    messages.Hello,
    handshake.Challenge,
    handshake.ProvenIntroduction,
    handshake.Welcome,
]

JSON_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.text(max_size=8)
    | st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3)
)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_peer_error(body: bytes) -> None:
    for kind in KINDS:
        with pytest.raises(PeerError):
            messages.parse_message(body, kind)


@given(
    st.sampled_from(["hello", "challenge", "introduction", "welcome", "refused"]),
    st.dictionaries(
        st.sampled_from(["nonce", "proof", "epoch", "epochs", "group", "replica_id", "code"]),
        JSON_VALUES,
    ),
)
def test_any_fields_are_a_message_or_a_peer_error(kind: str, fields: dict[str, Any]) -> None:
    body = _body(messages.frame({**fields, "kind": kind}))

    for expected in KINDS:
        try:
            messages.parse_message(body, expected)
        except PeerError:
            continue


def test_foreign_protocol_is_refused_at_its_first_bytes() -> None:
    for prefix in (b"GET / HT", b"PLR1\x00\x00\x00\x00", b"PLR1\xff\xff\xff\xff"):
        with pytest.raises(PeerError):
            messages.parse_prefix(prefix, size_bytes_max=messages.HELLO_BYTES_MAX)


def test_proofs_hold_only_for_their_identity_nonces_and_direction() -> None:
    challenge = a_challenge()
    proof = HELLO.proof(SECRET, challenge)

    assert challenge.proven_by([b"x" * 32, SECRET], HELLO) == SECRET
    assert HELLO.is_proven(proof, SECRET, peer_nonce=challenge.nonce)

    assert challenge.proven_by([b"x" * 32], HELLO) is None
    assert not HELLO.is_proven(proof, SECRET, peer_nonce=b"x" * 16)
    assert not HELLO.is_proven(challenge.proof, SECRET, peer_nonce=challenge.nonce)
    other = replace(challenge, epoch=MasterEpoch(4))
    assert other.proven_by([SECRET], HELLO) is None


def test_a_proof_says_whether_what_follows_is_sealed() -> None:
    sealed = replace(HELLO, is_sealed=True)
    challenge = a_challenge()

    assert challenge.proven_by([SECRET], sealed) is None
    assert HELLO.proof(SECRET, challenge) != sealed.proof(SECRET, challenge)


def test_a_proof_of_one_purpose_serves_for_no_other() -> None:
    challenge = a_challenge()
    hellos = [kind(**asdict(HELLO)) for kind in (messages.Hello, RepairHello, EscapeHello)]

    assert len({hello.proof(SECRET, challenge) for hello in hellos}) == 3
    found = [challenge.proven_by([SECRET], hello) for hello in hellos]
    assert found == [SECRET, None, None]
