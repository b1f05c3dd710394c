"""Pure: frames of the stream protocol, the fast path between client and broker.

docs/protocol/stream.md holds the full contract. Every frame, either way:

    offset size field
    0      4    size_bytes   u32 LE, whole frame with this header
    4      4    request_id   u32 LE, chosen by the client, echoed by the broker
    8      1    operation    `Operation`
    9      1    status       requests: 0; answers: 0 = OK, 1 = error (body is a problem document)
    10     2    reserved     0
    12     ..   body
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from paceline.platform.ports import Buffer

FRAME_HEADER = struct.Struct("<IIBBH")
FRAME_HEADER_BYTES = 12
FRAME_BYTES_MAX = 16 * 1024 * 1024 + 4096
"""A batch of at most 16 MiB and room for headers."""

UPGRADE_TOKEN = "paceline-stream/1"
STATUS_OK = 0
STATUS_ERROR = 1


class Operation(IntEnum):
    HELLO = 0
    """Broker -> client, first frame: JSON (docs/protocol/stream.md)."""
    PRODUCE = 1
    """Body: one record batch with topic id and queue id set. Answer body: `PRODUCE_ANSWER`."""
    FETCH = 2
    """Body: `FETCH_HEADER`, n `FETCH_QUEUE`. Answer: `FETCH_ANSWER`, n `FETCH_PART`, batches."""
    CALL = 3
    """Body: JSON {"call": name, ...}; answer: JSON. Offsets, locks, members, routes."""
    FOLLOW = 4
    """A step of the stream's fetch session. Body: `FOLLOW_HEADER`, n `FETCH_QUEUE` that changed.
    Answer: `FOLLOW_ANSWER`, then as of a fetch, with parts of queues that have something."""


PRODUCE_ANSWER = struct.Struct("<IIQQqQ")
"""master epoch, record count, base queue offset, confirm (physical), store unix ms, and in one
number flags (the lowest 8 bits) and above them the physical offset of the batch, 0: not known."""
PRODUCE_FLAG_DUPLICATE = 1  # the batch was stored before; the offset is the original's
PRODUCE_FLAG_UNCONFIRMED = 2  # the answer left before confirm (R37)
PRODUCE_FLAG_OFFSET_UNKNOWN = 4  # a duplicate older than the window: no base queue offset


class ProduceAnswer(NamedTuple):
    master_epoch: int
    record_count: int
    base_queue_offset: int
    confirm: int
    store_unix_ms: int
    flags: int
    position: int
    """Physical offset of the batch; 0: not known, as of a duplicate."""

    def packed(self) -> tuple[int, int, int, int, int, int]:
        """The fields of `PRODUCE_ANSWER`."""
        epoch, count, base, confirm, store_unix_ms, flags, position = self
        return epoch, count, base, confirm, store_unix_ms, flags | position << 8

    @classmethod
    def unpack(cls, body: Buffer) -> "ProduceAnswer":
        """The answer in a body of `PRODUCE_ANSWER`."""
        epoch, count, base, confirm, store_unix_ms, rest = PRODUCE_ANSWER.unpack(body)
        return cls(epoch, count, base, confirm, store_unix_ms, rest & 0xFF, rest >> 8)


FETCH_HEADER = struct.Struct("<IIII")
"""wait ms, max bytes in total, min bytes to answer before wait is over, count of queues."""
FETCH_QUEUE = struct.Struct("<IHxxQII")
"""topic id, queue id, queue offset, max bytes of this queue, filter id."""


class FetchQueue(NamedTuple):
    topic_id: int
    queue_id: int
    offset: int
    max_bytes: int
    filter_id: int = 0
    """Of the call "filter" on this broker: batches in which nothing is wanted are passed over."""


FOLLOW_HEADER = struct.Struct("<QIII")
"""sequence (1 begins a session), wait ms, max bytes in total, count of queues that changed.

A queue with max bytes 0 is asked for no more."""
FOLLOW_ANSWER = struct.Struct("<Q")
"""sequence of the last request that this answer knows of; `FETCH_ANSWER` and the rest follow."""
FOLLOW_QUEUES_MAX = 8192
"""Queues of one request."""


FETCH_ANSWER = struct.Struct("<IIQ")
"""master epoch, count of parts, confirm (physical)."""
FETCH_PART = struct.Struct("<IHHQQIIQ")
"""topic id, queue id, code (`FetchCode`), queue start, confirmed queue end, size of batches, flags,
offset up to which a filter has looked (0 without one).

The batches of the part follow in order of parts, after all parts. The first batch may begin below
the asked offset (whole batches only): the client skips those records.
"""


FETCH_FLAG_ACTING = 1  # an acting master's answer, which may be stale (R36)
FETCH_SUGGESTION_SHIFT = 8
"""Above the flags: the replica id to read on from, as the queue lags far behind; 0 = the master."""


class FetchCode(IntEnum):
    OK = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_QUEUE = 2
    NOT_YET_AVAILABLE = 3
    NO_PERMISSION = 4
    UNKNOWN_FILTER = 5
    """The filter id is not known here (any more): call "filter" again."""


class FetchPart(NamedTuple):
    topic_id: int
    queue_id: int
    code: int
    start: int
    end: int
    size: int
    flags: int = 0
    next_offset: int = 0


def encode_frame(request_id: int, operation: int, body: bytes, *, status: int = STATUS_OK) -> bytes:
    """A whole frame. `body` is copied: for large bodies send header and body as two buffers."""
    size = FRAME_HEADER_BYTES + len(body)
    return FRAME_HEADER.pack(size, request_id, operation, status, 0) + body
