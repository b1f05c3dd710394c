"""Pure: what a message is called by people and queries.

An *offset message id* says where a message lies: broker group, position of its batch in that
group's log, number in the batch. A *unique key* says who sent it and stays the same when a broker
puts it somewhere else (a retry, a delivery, a commit): it is made of the producer's sequence, or is
the offset message id of the first storing where the producer has none. A *handle* is such an id
with a checksum: what a client must give back to act upon a message, so that garbage is refused.
"""

import re
from typing import NamedTuple

from crc32c import crc32c

from paceline.errors import BadRequestError
from paceline.records.header import RECORDS_MAX, SEQUENCE_MAX, SOURCE_POSITION_MAX, BatchHeader

_OFFSET_ID = re.compile(r"([A-Za-z0-9._-]{1,127}):([0-9a-f]{1,12}):([0-9]{1,5})")
_UNIQUE_KEY = re.compile(r"([0-9a-f]{16}):([0-9]{1,5}):([0-9]{1,10}):([0-9]{1,5}):([0-9]{1,10})")
_HANDLE = re.compile(r"([a-z]+)\.(.{1,200})\.([0-9a-f]{8})")


RECALL = "recall"
"""Kind of the handles of delayed messages."""


class OffsetMessageId(NamedTuple):
    """Where a message lies."""

    group: str
    position: int
    number: int
    """Of the record in its batch, from 0."""

    def __str__(self) -> str:
        return f"{self.group}:{self.position:x}:{self.number}"


def parse_offset_id(text: str) -> OffsetMessageId:
    """The id that `str` gave; BadRequestError for any other text."""
    found = _OFFSET_ID.fullmatch(text)
    if found is None:
        raise BadRequestError(
            "a message id reads GROUP:POSITION:NUMBER, for example g1:1a40:0", field="id"
        )
    group, position, number = found[1], int(found[2], 16), int(found[3])
    if position > SOURCE_POSITION_MAX or number >= RECORDS_MAX:
        raise BadRequestError(f"message id {text} names a place that no log has", field="id")
    return OffsetMessageId(group, position, number)


class UniqueKey(NamedTuple):
    """Which record of which producer: where it was sent to first, and as its how manieth there."""

    producer_id: int
    producer_epoch: int
    topic_id: int
    queue_id: int
    sequence: int


def parse_unique_key(text: str) -> UniqueKey | OffsetMessageId:
    """What `unique_key` gave; BadRequestError for any other text."""
    found = _UNIQUE_KEY.fullmatch(text)
    if found is None:
        return parse_offset_id(text)
    return UniqueKey(int(found[1], 16), *map(int, found.groups()[1:]))


def unique_key(header: BatchHeader, index: int, group: str) -> str:
    """The unique key of record `index` of a stored batch that a client sent."""
    if not header.producer_id:
        return str(OffsetMessageId(group, header.physical_offset, index))
    sequence = (header.base_sequence + index) & SEQUENCE_MAX
    producer = f"{header.producer_id:016x}:{header.producer_epoch}"
    return f"{producer}:{header.topic_id}:{header.queue_id}:{sequence}"


def make_handle(kind: str, message_id: OffsetMessageId) -> str:
    """A handle of that kind, a short lower-case word: "tx", "recall"."""
    text = f"{kind}.{message_id}"
    return f"{text}.{crc32c(text.encode()):08x}"


def parse_handle(kind: str, handle: str) -> OffsetMessageId:
    """What `make_handle` made; BadRequestError for anything else and for other kinds."""
    found = _HANDLE.fullmatch(handle)
    if (
        found is None
        or found[1] != kind
        or found[3] != f"{crc32c(f'{kind}.{found[2]}'.encode()):08x}"
    ):
        raise BadRequestError(
            f"this is no handle of kind {kind}: it was cut or made up", field="id"
        )
    return parse_offset_id(found[2])
