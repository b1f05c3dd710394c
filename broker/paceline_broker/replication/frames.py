"""Pure: the binary frames of replication, after the handshake (docs/protocol/replication.md).

Master to replica, a 40-byte header and whole record batches (none: heartbeat, confirm or round):

    offset size field
    0      4    size_bytes  u32 LE, whole frame with this header
    4      4    crc32c      of bytes 8..40; the batches carry their own
    8      4    epoch       u32, the master's
    12     4    flags       u32, 0
    16     8    position    u64, physical offset of the first byte of the batches
    24     8    confirm     u64, the master's confirm offset
    32     8    round       u64, to be echoed (R4)

Replica to master, always 40 bytes, the same layout: appended, flushed and round in the last three
fields, flags bit 0 = the replica's projections are ready (R10), bit 1 = its disk is full (R26).

The header carries a CRC of its own because confirm and the acknowledged positions decide what may
be answered, and TCP's 16-bit checksum lets one damaged segment in 65,536 through.
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

from paceline.errors import PeerError
from paceline.platform.ports import Buffer
from paceline.types import MasterEpoch, PhysicalOffset

FRAME_HEADER_BYTES = 40
ACKNOWLEDGEMENT_BYTES = 40
FRAME_BYTES_MAX = 16 * 1024 * 1024 + FRAME_HEADER_BYTES
"""One batch of the largest size still fits."""

FLAG_READY = 1
FLAG_DISK_FULL = 2

_LAYOUT = struct.Struct("<IIIIQQQ")
_CHECKED = struct.Struct("<IIQQQ")  # the part the CRC covers
_PREFIX = struct.Struct("<II")
_PREFIX_BYTES = 8


class Frame(NamedTuple):
    """Header of a frame; `size_bytes` counts the whole frame."""

    size_bytes: int
    epoch: MasterEpoch
    position: PhysicalOffset
    confirm: PhysicalOffset
    round: int


class Acknowledgement(NamedTuple):
    """What a replica has of its master's log; positions are ends (half-open)."""

    epoch: MasterEpoch
    appended: PhysicalOffset
    flushed: PhysicalOffset
    round: int
    is_ready: bool
    has_room: bool = True
    """False: its disk is nearly full (R26)."""


def encode_frame_header(
    *,
    body_bytes: int,
    epoch: MasterEpoch,
    position: PhysicalOffset,
    confirm: PhysicalOffset,
    round: int,
) -> bytes:
    """The 40 bytes before `body_bytes` of whole batches that start at `position`."""
    checked = _CHECKED.pack(epoch, 0, position, confirm, round)
    return _PREFIX.pack(FRAME_HEADER_BYTES + body_bytes, crc32c(checked)) + checked


def parse_frame_header(buffer: Buffer, at: int = 0) -> Frame:
    """Check and read a frame header; `buffer` holds at least 40 bytes from `at`.

    Raises PeerError if the CRC, the size or the flags are not what a master sends.
    """
    size, crc, epoch, flags, position, confirm, round_number = _LAYOUT.unpack_from(buffer, at)
    if crc32c(memoryview(buffer)[at + _PREFIX_BYTES : at + FRAME_HEADER_BYTES]) != crc:
        raise PeerError("a replication frame's header fails its CRC")
    if not FRAME_HEADER_BYTES <= size <= FRAME_BYTES_MAX:
        raise PeerError(f"a replication frame of {size} bytes is over {FRAME_BYTES_MAX}")
    if flags != 0:
        raise PeerError(f"a replication frame with unknown flags {flags:#x}")
    return Frame(size, epoch, position, confirm, round_number)


def encode_acknowledgement(ack: Acknowledgement) -> bytes:
    """The 40 bytes of an acknowledgement."""
    flags = (FLAG_READY if ack.is_ready else 0) | (0 if ack.has_room else FLAG_DISK_FULL)
    checked = _CHECKED.pack(ack.epoch, flags, ack.appended, ack.flushed, ack.round)
    return _PREFIX.pack(ACKNOWLEDGEMENT_BYTES, crc32c(checked)) + checked


def parse_acknowledgement(buffer: Buffer, at: int = 0) -> Acknowledgement:
    """Check and read 40 bytes from `at`; raises PeerError if they are no acknowledgement."""
    size, crc, epoch, flags, appended, flushed, round_number = _LAYOUT.unpack_from(buffer, at)
    if size != ACKNOWLEDGEMENT_BYTES:
        raise PeerError(f"an acknowledgement of {size} bytes instead of {ACKNOWLEDGEMENT_BYTES}")
    if crc32c(memoryview(buffer)[at + _PREFIX_BYTES : at + ACKNOWLEDGEMENT_BYTES]) != crc:
        raise PeerError("an acknowledgement fails its CRC")
    if flags & ~(FLAG_READY | FLAG_DISK_FULL):
        raise PeerError(f"an acknowledgement with unknown flags {flags:#x}")
    is_ready, has_room = bool(flags & FLAG_READY), not flags & FLAG_DISK_FULL
    return Acknowledgement(epoch, appended, flushed, round_number, is_ready, has_room)
