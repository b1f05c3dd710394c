"""Frames and handshake messages: exact bytes, and refusal of everything else."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.replication.builders import TABLE, an_introduction

from paceline.errors import PeerError
from paceline.types import GroupName, Incarnation, MasterEpoch, PhysicalOffset, ReplicaId
from paceline_broker.replication import frames, handshake

SECRET = b"s" * 32
HELLO = handshake.Hello(
    cluster_id="c",
    group=GroupName("g1"),
    replica_id=ReplicaId(2),
    incarnation=Incarnation(7),
    nonce=b"n" * 16,
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
        "master_id": ReplicaId(1),
        "incarnation": Incarnation(4),
        "epoch": MasterEpoch(3),
        "nonce": b"m" * 16,
    }
    return handshake.answer_hello(SECRET, HELLO, **{**fields, **changes})


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
    size = handshake.parse_prefix(message, size_bytes_max=handshake.MESSAGE_BYTES_MAX)
    assert size == len(message) - handshake.PREFIX_BYTES
    return message[handshake.PREFIX_BYTES :]


def test_handshake_messages_are_read_back() -> None:
    assert handshake.parse_hello(_body(handshake.encode_hello(HELLO))) == HELLO
    challenge = a_challenge()
    assert handshake.parse_challenge(_body(handshake.encode_challenge(challenge))) == challenge
    introduction = an_introduction(2, end=96, confirm=48)
    message = handshake.encode_introduction(introduction, proof=b"p" * 32)
    assert handshake.parse_introduction(_body(message)) == (introduction, b"p" * 32)
    welcome = handshake.Welcome(
        epoch=MasterEpoch(3),
        truncate_to=PhysicalOffset(48),
        is_unclean=True,
        end=PhysicalOffset(96),
        epochs=TABLE,
    )
    assert handshake.parse_welcome(_body(handshake.encode_welcome(welcome))) == welcome
    refused = handshake.Refused(code="OLDER_EPOCH", detail="the master is in epoch 9")
    assert handshake.parse_welcome(_body(handshake.encode_refused(refused))) == refused
    assert handshake.parse_challenge(_body(handshake.encode_refused(refused))) == refused


PARSERS: list[Callable[[bytes], object]] = [
    handshake.parse_hello,
    handshake.parse_challenge,
    handshake.parse_introduction,
    handshake.parse_welcome,
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
    for parse in PARSERS:
        with pytest.raises(PeerError):
            parse(body)


@given(
    st.sampled_from(["hello", "challenge", "introduction", "welcome", "refused"]),
    st.dictionaries(
        st.sampled_from(["nonce", "proof", "epoch", "epochs", "group", "replica_id", "code"]),
        JSON_VALUES,
    ),
)
def test_any_fields_are_a_message_or_a_peer_error(kind: str, fields: dict[str, Any]) -> None:
    body = _body(handshake.encode_message({**fields, "kind": kind}))

    for parse in PARSERS:
        try:
            parse(body)
        except PeerError:
            continue


def test_foreign_protocol_is_refused_at_its_first_bytes() -> None:
    for prefix in (b"GET / HT", b"PLR1\x00\x00\x00\x00", b"PLR1\xff\xff\xff\xff"):
        with pytest.raises(PeerError):
            handshake.parse_prefix(prefix, size_bytes_max=handshake.HELLO_BYTES_MAX)


def test_proofs_hold_only_for_their_identity_nonces_and_direction() -> None:
    challenge = a_challenge()
    proof = handshake.replica_proof(SECRET, HELLO, challenge)

    assert handshake.is_master_proof(challenge, SECRET, HELLO)
    assert handshake.is_replica_proof(proof, SECRET, HELLO, master_nonce=challenge.nonce)

    assert not handshake.is_master_proof(challenge, b"x" * 32, HELLO)
    assert not handshake.is_replica_proof(proof, SECRET, HELLO, master_nonce=b"x" * 16)
    assert not handshake.is_replica_proof(
        challenge.proof, SECRET, HELLO, master_nonce=challenge.nonce
    )
    other = handshake.Challenge(
        master_id=challenge.master_id,
        incarnation=challenge.incarnation,
        epoch=MasterEpoch(4),
        nonce=challenge.nonce,
        proof=challenge.proof,
    )
    assert not handshake.is_master_proof(other, SECRET, HELLO)
