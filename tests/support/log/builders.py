"""Batches and logs for the tests of the log."""

from crc32c import crc32c

from paceline.platform.disk_memory import MemoryDisk
from paceline.records.header import MAGIC, BatchHeader, Kind, pack_header
from paceline.types import PhysicalOffset
from paceline_broker.log.commit_log import CommitLog
from paceline_broker.log.recovery import RecoveryReport

FOLDER = "/broker/log"
SEGMENT_BYTES = 8192


def a_header(
    payload: bytes,
    *,
    position: int,
    epoch: int = 1,
    kind: Kind = Kind.NORMAL,
    store_unix_ms: int = 1000,
) -> bytes:
    """The stamped header of a batch whose payload nobody decodes."""
    assert len(payload) % 8 == 0
    return pack_header(
        BatchHeader(
            magic=MAGIC,
            size_bytes=96 + len(payload),
            header_crc32c=0,
            payload_crc32c=crc32c(payload),
            physical_offset=position,
            base_queue_offset=0,
            store_unix_ms=store_unix_ms,
            born_first_unix_ms=0,
            born_last_unix_ms=0,
            producer_id=0,
            master_epoch=epoch,
            topic_id=0,
            payload_raw_bytes=len(payload),
            base_sequence=-1,
            producer_epoch=0,
            queue_id=0,
            record_count=1,
            kind=kind,
            codec=0,
            columns=0,
            flags=0,
            reserved=0,
        )
    )


def a_payload(size: int, fill: int = 1) -> bytes:
    """`size` bytes, a multiple of 8, none of them zero."""
    return bytes([fill % 255 + 1]) * size


def a_batch(
    position: int, size: int = 200, *, epoch: int = 1, kind: Kind = Kind.NORMAL, fill: int = 1
) -> bytes:
    """A whole stamped batch with `size` bytes of payload."""
    payload = a_payload(size, fill)
    return a_header(payload, position=position, epoch=epoch, kind=kind) + payload


def open_log(
    disk: MemoryDisk, *, segment_size_bytes: int = SEGMENT_BYTES
) -> tuple[CommitLog, RecoveryReport]:
    return CommitLog.open(disk, FOLDER, segment_size_bytes=segment_size_bytes)


def append(log: CommitLog, size: int = 200, *, fill: int = 1) -> PhysicalOffset:
    """Append one normal batch of the log's epoch; returns the new end."""
    payload = a_payload(size, fill)
    header = a_header(
        payload,
        position=log.end,
        epoch=log.last_epoch,
        store_unix_ms=max(1000, log.last_store_unix_ms),
    )
    return log.append(header, payload)


def begin_epoch(log: CommitLog, epoch: int) -> PhysicalOffset:
    """Append an epoch-start record; returns the new end."""
    header = a_header(
        b"",
        position=log.end,
        epoch=epoch,
        kind=Kind.EPOCH_START,
        store_unix_ms=max(1000, log.last_store_unix_ms),
    )
    return log.append(header, b"")


def a_log(disk: MemoryDisk, *, batches: int = 0, size: int = 200) -> CommitLog:
    """An open log in epoch 1 with `batches` batches, all flushed."""
    log, _ = open_log(disk)
    begin_epoch(log, 1)
    for index in range(batches):
        append(log, size, fill=index)
    log.flush_now()
    return log


def content(log: CommitLog) -> bytes:
    """All written bytes of the log, in offset space."""
    return b"".join(bytes(batch) for _, batch in log.batches(log.start))


def segment_path(first: int) -> str:
    return f"{FOLDER}/{first:020d}.log"
