"""Any bytes are a message of ours or a PeerError; how they are sealed, test_seal.py has."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.raft.single import commands, no_op

from paceline.errors import PeerError
from paceline_controller.raft.log.snapshot import OutgoingChunk
from paceline_controller.raft.peers.frames import (
    Message,
    encode_message,
    is_sendable,
    parse_message,
)

APPEND: Message = {
    "type": "append_entries",
    "term": 4,
    "commit_index": 7,
    "prevLogIdx": 8,
    "prevLogTerm": 3,
    "entries": [no_op(9, 4), *commands(10, 12, term=4)],
}
MESSAGES: list[Message] = [
    APPEND,
    APPEND | {"entries": []},
    {"type": "append_entries", "term": 4, "commit_index": 7, "serialized": (b"abc", 0, 5)},
    {
        "type": "request_vote",
        "term": 2,
        "last_log_index": 5,
        "last_log_term": 1,
        "transfer": True,
    },
    {"type": "response_vote", "term": 9},
    {"type": "next_node_idx", "term": 3, "next_node_idx": 8, "reset": True, "success": False},
    {"type": "timeout_now", "term": 1},
    {"type": "pre_vote", "term": 2, "last_log_index": 5, "last_log_term": 1, "round": 77},
    {"type": "pre_vote_granted", "term": 2, "round": 77},
    {"type": "newer_term", "term": 12},
]


def encoded(message: Message) -> bytes:
    if "serialized" in message:
        chunk, offset, total = message["serialized"]
        message = message | {"serialized": OutgoingChunk((chunk, offset, False), total)}
    return encode_message(message)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message["type"]))
def test_every_message_arrives_as_it_was_sent(message: Message) -> None:
    assert parse_message(encoded(message)) == message


@settings(max_examples=300, deadline=None)
@given(payload=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error(payload: bytes) -> None:
    try:
        message = parse_message(payload)
    except PeerError:
        return
    assert message is None or is_sendable(message)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_changed_message_is_a_message_or_an_error(data: st.DataObject) -> None:
    payload = bytearray(encoded(data.draw(st.sampled_from(MESSAGES))))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))]

    try:
        message = parse_message(bytes(payload))
    except PeerError:
        return
    for entry in (message or {}).get("entries", []):
        assert entry[0] == b"\x01" or entry[0][:1] == b"\x00"


@pytest.mark.parametrize("kind", [b"\x02", b"\x03", b"\x04", b""])
def test_entries_that_the_library_would_unpickle_are_refused(kind: bytes) -> None:
    entry = (kind + pickle.dumps(("add", "c9")) if kind else b"", 9, 4)

    with pytest.raises(PeerError, match="unknown type"):
        parse_message(encode_message(APPEND | {"entries": [entry]}))


@pytest.mark.parametrize(
    "entries",
    [commands(10, 11, term=4), commands(9, 9, term=5), commands(9, 9, term=2)],
    ids=["gap", "term of the future", "term going back"],
)
def test_entries_out_of_place_are_refused(entries: list[tuple[bytes, int, int]]) -> None:
    with pytest.raises(PeerError, match="in place 9 of term 4"):
        parse_message(encode_message(APPEND | {"entries": entries}))


@pytest.mark.parametrize("kind", ["apply_command", "apply_command_response", "status", "readonly"])
def test_other_messages_of_the_library_have_no_encoding(kind: str) -> None:
    assert not is_sendable({"type": kind})
