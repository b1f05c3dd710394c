"""Pure: what travels between controllers, as bytes. No pickle: structs for Raft, JSON to say hello.

A message is the library's own dictionary (its field names); only the kinds below exist on the wire,
each with one fixed layout that is checked field by field, so that nothing a peer sends reaches the
library unchecked. The library's utility, read-only, forwarding and membership messages have no
encoding at all. Layouts: docs/protocol/raft.md. Each message travels as a record of
`paceline.wire.seal`.
"""

import struct
from enum import IntEnum
from typing import Any, TypeAlias

from paceline.errors import PeerError
from paceline_controller.raft.log.entries import (
    COMMAND_ENTRY,
    MEMBERS_ENTRY,
    NO_OP_ENTRY,
    Entry,
)
from paceline_controller.raft.members import read_change
from paceline_controller.raft.settings import (
    COMMAND_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
)

Message: TypeAlias = dict[str, Any]  # the library's messages are untyped dictionaries

_INDEX_MAX = 1 << 62


class Kind(IntEnum):
    PING = 0
    REQUEST_VOTE = 1
    RESPONSE_VOTE = 2
    APPEND = 3
    SNAPSHOT = 4
    NEXT_INDEX = 5
    TIMEOUT_NOW = 6
    PRE_VOTE = 7
    PRE_VOTE_GRANTED = 8
    NEWER_TERM = 9
    DIGEST = 10


_KIND_OF_TYPE = {
    "request_vote": Kind.REQUEST_VOTE,
    "response_vote": Kind.RESPONSE_VOTE,
    "next_node_idx": Kind.NEXT_INDEX,
    "timeout_now": Kind.TIMEOUT_NOW,
    "pre_vote": Kind.PRE_VOTE,
    "pre_vote_granted": Kind.PRE_VOTE_GRANTED,
    "newer_term": Kind.NEWER_TERM,
}
_TYPE_OF_KIND = {kind: name for name, kind in _KIND_OF_TYPE.items()}

# Fields of the small messages in wire order: Q = u64, ? = one byte that is 0 or 1.
_FIELDS: dict[Kind, tuple[struct.Struct, tuple[str, ...]]] = {
    Kind.REQUEST_VOTE: (
        struct.Struct("<BQQQ?"),
        ("term", "last_log_index", "last_log_term", "transfer"),
    ),
    Kind.RESPONSE_VOTE: (struct.Struct("<BQ"), ("term",)),
    Kind.NEXT_INDEX: (struct.Struct("<BQQ??"), ("term", "next_node_idx", "reset", "success")),
    Kind.TIMEOUT_NOW: (struct.Struct("<BQ"), ("term",)),
    Kind.PRE_VOTE: (
        struct.Struct("<BQQQQ"),
        ("term", "last_log_index", "last_log_term", "round"),
    ),
    Kind.PRE_VOTE_GRANTED: (struct.Struct("<BQQ"), ("term", "round")),
    Kind.NEWER_TERM: (struct.Struct("<BQ"), ("term",)),
}
_APPEND = struct.Struct("<BQQQQI")  # kind, term, commit index, prev index, prev term, entries
_ENTRY = struct.Struct("<QQI")  # index, term, length
_SNAPSHOT = struct.Struct("<BQQQQ")  # kind, term, commit index, offset, total size

_DIGEST = struct.Struct("<BQ32s")  # kind, index, SHA-256 of the machine after it

PING = bytes([Kind.PING])


def is_sendable(message: Message) -> bool:
    """Whether the message has an encoding: forwarded commands and the like do not."""
    return message["type"] in _KIND_OF_TYPE or message["type"] == "append_entries"


def encode_message(message: Message) -> bytes:
    """Payload of one frame."""
    if message["type"] == "append_entries":
        return _encode_snapshot(message) if "serialized" in message else _encode_append(message)
    if message["type"] == "digest":
        return _DIGEST.pack(Kind.DIGEST, message["index"], message["digest"])
    kind = _KIND_OF_TYPE[message["type"]]
    layout, names = _FIELDS[kind]
    return layout.pack(kind, *(message[name] for name in names))


def _encode_append(message: Message) -> bytes:
    entries: list[Entry] = message["entries"]
    head = _APPEND.pack(
        Kind.APPEND,
        message["term"],
        message["commit_index"],
        message["prevLogIdx"],
        message["prevLogTerm"],
        len(entries),
    )
    parts = [head]
    for command, index, term in entries:
        parts.append(_ENTRY.pack(index, term, len(command)))
        parts.append(command)
    return b"".join(parts)


def _encode_snapshot(message: Message) -> bytes:
    chunk = message["serialized"]
    head = _SNAPSHOT.pack(
        Kind.SNAPSHOT, message["term"], message["commit_index"], chunk[1], chunk.total_bytes
    )
    return head + bytes(chunk[0])


def parse_message(payload: bytes) -> Message | None:
    """The message of a frame, None for a ping. Raises PeerError on any other bytes."""
    if not payload:
        raise PeerError("empty raft frame")
    kind = payload[0]
    if kind == Kind.PING and len(payload) == 1:
        return None
    if kind == Kind.APPEND:
        return _parse_append(payload)
    if kind == Kind.SNAPSHOT:
        return _parse_snapshot(payload)
    if kind == Kind.DIGEST and len(payload) == _DIGEST.size:
        _, index, digest = _DIGEST.unpack(payload)
        _check_numbers({"index": index})
        return {"type": "digest", "index": index, "digest": digest}
    if kind not in _TYPE_OF_KIND:
        raise PeerError(f"raft frame of unknown kind {kind}")
    layout, names = _FIELDS[Kind(kind)]
    if len(payload) != layout.size:
        raise PeerError(f"raft frame of kind {kind} has {len(payload)} bytes, not {layout.size}")
    message: Message = dict(zip(names, layout.unpack(payload)[1:], strict=True))
    _check_numbers(message)
    message["type"] = _TYPE_OF_KIND[Kind(kind)]
    return message


def _parse_append(payload: bytes) -> Message:
    if len(payload) < _APPEND.size:
        raise PeerError(f"append frame of {len(payload)} bytes")
    _, term, commit_index, prev_index, prev_term, count = _APPEND.unpack_from(payload)
    message = {
        "term": term,
        "commit_index": commit_index,
        "prevLogIdx": prev_index,
        "prevLogTerm": prev_term,
    }
    _check_numbers(message)
    entries: list[Entry] = []
    at, last_term = _APPEND.size, prev_term
    for index in range(prev_index + 1, prev_index + 1 + count):
        entry, at = _parse_entry(payload, at)
        if entry[1] != index or not last_term <= entry[2] <= term:
            raise PeerError(f"entry {entry[1]} of term {entry[2]} in place {index} of term {term}")
        last_term = entry[2]
        entries.append(entry)
    if at != len(payload) or prev_index < 1:
        raise PeerError(f"append frame: {len(payload) - at} bytes left, previous {prev_index}")
    return message | {"type": "append_entries", "entries": entries}


def _parse_entry(payload: bytes, at: int) -> tuple[Entry, int]:
    if len(payload) - at < _ENTRY.size:
        raise PeerError("append frame ends inside an entry")
    index, term, length = _ENTRY.unpack_from(payload, at)
    at += _ENTRY.size
    command = payload[at : at + length]
    if len(command) != length or length > COMMAND_BYTES_MAX:
        raise PeerError(f"entry {index} has a length of {length}")
    if command[:1] == MEMBERS_ENTRY:
        read_change(command[1:])
    elif command != NO_OP_ENTRY and command[:1] != COMMAND_ENTRY:
        # Other types of entries are pickles of the library: never accepted (F6).
        raise PeerError(f"entry {index} is of unknown type {command[:1].hex()!r}")
    return (command, index, term), at + length


def _parse_snapshot(payload: bytes) -> Message:
    if len(payload) < _SNAPSHOT.size:
        raise PeerError(f"snapshot frame of {len(payload)} bytes")
    _, term, commit_index, offset, total = _SNAPSHOT.unpack_from(payload)
    message = {"term": term, "commit_index": commit_index, "offset": offset, "total": total}
    _check_numbers(message)
    chunk = payload[_SNAPSHOT.size :]
    if total > SNAPSHOT_BYTES_MAX or not chunk or offset + len(chunk) > total:
        raise PeerError(f"snapshot chunk at {offset} of {len(chunk)} bytes in {total}")
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit_index,
        "serialized": (chunk, offset, total),
    }


def _check_numbers(message: Message) -> None:
    for name, value in message.items():
        if value > _INDEX_MAX:
            raise PeerError(f"raft frame: {name} is {value}")
