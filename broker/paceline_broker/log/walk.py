"""Walking over stored batches: what makes a batch the right next one. Pure.

A batch is right at a position if its header and payload CRCs hold, its physical offset is that
position, and its epoch is the one before it or, for an epoch-start record, a higher one (R2, R25).
Everything that enters a log from outside (a master's bytes, a file after a crash) passes here.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from paceline.errors import CorruptLogError
from paceline.platform.ports import Buffer
from paceline.records.header import HEADER_BYTES, BatchHeader, Kind, parse_header
from paceline.types import MasterEpoch, PhysicalOffset
from paceline_broker.log.epochs import EpochTable

_EPOCH_START = int(Kind.EPOCH_START)  # a plain int: this compares once per batch
_MAGIC_AND_SIZE = struct.Struct("<II")
STAMP = struct.Struct("<4xI8xQ8xq24xI18xB")
"""Size, physical offset, store time, master epoch, kind: what an append looks at in a header."""


class Walk(NamedTuple):
    """What a walk found. `fault` None: it ended at the stop or where only zeros follow a batch."""

    end: PhysicalOffset
    epochs: EpochTable
    last_store_unix_ms: int
    batches_count: int
    fault: str | None


def check_batch_at(buffer: Buffer, at: int, stop: int, *, position: int, epoch: int) -> BatchHeader:
    """As `check_alone_at`, and the batch may follow one of `epoch`. Raises CorruptLogError."""
    header = check_alone_at(buffer, at, stop, position=position)
    if header.master_epoch != epoch or header.kind == _EPOCH_START:
        _check_epoch_start(header, epoch)
    return header


def check_alone_at(buffer: Buffer, at: int, stop: int, *, position: int) -> BatchHeader:
    """The header of the whole batch at byte `at` of `buffer`, whose log position is `position`,
    judged by its own bytes: what comes before is not asked.

    `stop` is the end of the usable bytes. Raises CorruptLogError.
    """
    if stop - at < HEADER_BYTES:
        raise CorruptLogError(f"{stop - at} bytes at {position} are no batch", offset=position)
    header = parse_header(buffer, at)
    size = header.size_bytes
    if size > stop - at:
        raise CorruptLogError(
            f"the batch at {position} has {size} bytes, {stop - at} are here", offset=position
        )
    if header.physical_offset != position:
        raise CorruptLogError(
            f"a batch made for {header.physical_offset} stands at {position}", offset=position
        )
    if crc32c(memoryview(buffer)[at + HEADER_BYTES : at + size]) != header.payload_crc32c:
        raise CorruptLogError(f"payload CRC differs in the batch at {position}", offset=position)
    if header.master_epoch == 0:
        raise CorruptLogError(f"the batch at {position} is of no epoch", offset=position)
    return header


def _check_epoch_start(header: BatchHeader, epoch: int) -> None:
    if header.kind != _EPOCH_START:
        raise CorruptLogError(
            f"epoch {header.master_epoch} follows {epoch} at {header.physical_offset}"
            " without an epoch-start record",
            offset=header.physical_offset,
        )
    if header.master_epoch <= epoch:
        raise CorruptLogError(
            f"epoch {header.master_epoch} starts at {header.physical_offset} after epoch {epoch}",
            offset=header.physical_offset,
        )


def walk_batches(
    buffer: memoryview, *, position: PhysicalOffset, stop: int, epochs: EpochTable
) -> Walk:
    """Verify the batches in `buffer[:stop]`, the first at log position `position`."""
    at, batches_count, last_ms = 0, 0, 0
    epoch = int(epochs.last_epoch)
    fault = None
    while at < stop:
        try:
            header = check_batch_at(buffer, at, stop, position=position + at, epoch=epoch)
        except CorruptLogError as error:
            is_unused = buffer[at : min(at + HEADER_BYTES, stop)] == bytes(
                min(HEADER_BYTES, stop - at)
            )
            fault = None if is_unused else error.message
            break
        if header.kind == _EPOCH_START:
            epoch = header.master_epoch
            epochs = epochs.with_entry(MasterEpoch(epoch), PhysicalOffset(position + at))
        last_ms = max(last_ms, header.store_unix_ms)
        batches_count += 1
        at += header.size_bytes
    return Walk(PhysicalOffset(position + at), epochs, last_ms, batches_count, fault)


def whole_batches(buffer: memoryview, size_max: int) -> int:
    """Bytes of the whole batches at the start of `buffer` that fit in `size_max`; at least one.

    0 if the first batch is not whole. Reads sizes only: for bytes that were verified before.
    """
    at, stop = 0, len(buffer)
    unpack = _MAGIC_AND_SIZE.unpack_from
    while at + HEADER_BYTES <= stop:
        end = at + unpack(buffer, at)[1]
        if end > stop or end <= at or (end > size_max and at > 0):
            break
        at = end
    return at


def iter_headers(buffer: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """(at, header) of the whole batches in `buffer`; header CRCs are checked, payloads are not."""
    at, stop = 0, len(buffer)
    while at < stop:
        header = parse_header(buffer, at)
        yield at, header
        at += header.size_bytes
