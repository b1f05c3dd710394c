"""What is left on the disks of stopped nodes, for the checkers: read without any server.

The logs of brokers are walked here from byte 0 to the first place where no batch is, with every
CRC checked; recovery, checkpoints and indexes of the product have no say. The state of a controller
is made anew from its snapshot and its journal. Works on any Disk: the simulated one or `RealDisk`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from crc32c import crc32c

from paceline.errors import CorruptLogError, StorageError
from paceline.platform.ports import Disk, read_whole
from paceline.records.decode import BatchView
from paceline.records.header import HEADER_BYTES, Cause, Kind, parse_header
from paceline.wire.names import AUDIT_TOPIC
from paceline.wire.properties import ESCAPED_FROM
from paceline_chaos.cluster_sim.bodies import crc_of, value_of
from paceline_chaos.history.entering import given_up
from paceline_chaos.history.model import SKIPPED, Queue, StoredBatch
from paceline_controller.raft.log.entries import COMMAND_ENTRY
from paceline_controller.raft.log.journal import Journal
from paceline_controller.raft.log.snapshot import SnapshotStore
from paceline_controller.state import Machine

_SEGMENT = re.compile(r"(\d{20})\.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDump:
    """One broker's log as its files have it."""

    start: int
    end: int
    """Where the walk stopped."""
    confirm: int
    """As the log's checkpoint has it: a lower bound; exact after a clean stop."""
    batches: tuple[StoredBatch, ...]
    damage: str | None
    """Why the walk stopped, if not at zeros."""
    segments_count: int


def dump_log(disk: Disk, folder: str, *, group: str, topics: Mapping[int, str]) -> LogDump:
    """The log in the data folder of a broker of `group`; `topics` names topic ids."""
    log = f"{folder}/log"
    files = _segments(disk, log) if _has(disk, log) else []
    start = files[0][0] if files else 0
    batches: list[StoredBatch] = []
    end, damage = start, None
    for first, content in files:
        if first != end:
            damage = f"the segment at {first} follows position {end}"
            break
        found, damage = _walk(content, first, group=group, topics=topics)
        batches += found
        end = batches[-1].position + batches[-1].size if batches else end
        if damage is not None:
            break
    return LogDump(
        start=start,
        end=end,
        confirm=_confirm(disk, log),
        batches=tuple(batches),
        damage=damage,
        segments_count=len(files),
    )


def _has(disk: Disk, folder: str) -> bool:
    try:
        return bool(disk.list(folder))
    except StorageError:  # a folder that was never made is an empty log
        return False


def _segments(disk: Disk, folder: str) -> list[tuple[int, bytes]]:
    """First position and content of each segment, in order."""
    firsts = sorted(int(match[1]) for name in disk.list(folder) if (match := _SEGMENT.match(name)))
    return [(first, read_whole(disk, f"{folder}/{first:020d}.log")) for first in firsts]


def _confirm(disk: Disk, folder: str) -> int:
    if not _has(disk, folder) or not disk.exists(f"{folder}/checkpoint.json"):
        return 0
    document: dict[str, Any] = orjson.loads(read_whole(disk, f"{folder}/checkpoint.json"))
    return int(document["confirm"])


def _walk(
    content: bytes, first: int, *, group: str, topics: Mapping[int, str]
) -> tuple[list[StoredBatch], str | None]:
    """All whole batches of a segment, and why there are no more, if not for zeros."""
    batches: list[StoredBatch] = []
    at = 0
    while at + HEADER_BYTES <= len(content):
        try:
            header = parse_header(content, at)
            if header.physical_offset != first + at:
                raise CorruptLogError(f"offset {header.physical_offset} stands at {first + at}")
            view = BatchView(content[at : at + header.size_bytes])
            view.verify()
        except CorruptLogError as error:
            is_tail = not content[at : at + HEADER_BYTES].strip(b"\0")
            return batches, None if is_tail else f"at {first + at}: {error.message}"
        batches.append(_stored(view, group=group, topics=topics))
        at += header.size_bytes
    return batches, None


def _stored(view: BatchView, *, group: str, topics: Mapping[int, str]) -> StoredBatch:
    header = view.header
    # What nodes tell in the audit was sent by no client: to checkers it is bytes like all others.
    is_audit = topics.get(header.topic_id) == AUDIT_TOPIC
    is_normal = header.kind == Kind.NORMAL and not is_audit
    skipped = _skipped(view)
    queue = None
    if is_normal:
        topic = topics.get(header.topic_id, f"#{header.topic_id}")
        queue = Queue(topic, group, header.queue_id)
    return StoredBatch(
        position=header.physical_offset,
        size=header.size_bytes,
        epoch=header.master_epoch,
        kind=Kind(header.kind).name,
        crc=crc32c(view.raw),
        queue=queue,
        base_offset=header.base_queue_offset if is_normal else 0,
        messages=tuple(_messages(view)) if is_normal else (),
        log_start=given_up(view),
        cause=SKIPPED if skipped else Cause(header.cause).name if header.is_of_broker else "",
        sources=tuple(view.sources()) if header.is_derived else skipped,
        target=topics.get(header.topic_id, f"#{header.topic_id}") if header.is_derived else "",
        marks=_marks(view),
    )


def _marks(view: BatchView) -> tuple[str, ...]:
    if view.header.cause != Cause.ESCAPED:
        return ()
    return tuple(row.get(ESCAPED_FROM, "") for row in view.properties())


def _skipped(view: BatchView) -> tuple[int, ...]:
    """What an operation says that another group has."""
    if view.header.kind != Kind.OPERATION:
        return ()
    return tuple(view.document().get("timers", {}).get("escaped", ()))


def _messages(view: BatchView) -> Iterator[tuple[str, int]]:
    for body in view.bodies():
        yield value_of(body), crc_of(body)


def replayed_digest(disk: Disk, folder: str, *, controller_id: str, until_index: int) -> str | None:
    """Digest of a fresh machine after snapshot and journal, up to `until_index` (S32).

    None if the files do not reach so far: a follower applies what others have durable. Raises
    CorruptLogError. The disk must not be in use.
    """
    machine = Machine()
    snapshot = SnapshotStore(disk, f"{folder}/raft/snapshot").load()
    applied = 0
    if snapshot is not None and snapshot.index <= until_index:
        machine.restore(snapshot.machine)
        applied = snapshot.index
    journal = Journal(disk, f"{folder}/raft", controller_id=controller_id)
    try:
        if journal.last_index < until_index and applied < until_index:
            return None
        for command, index, _ in journal[:]:
            if applied < index <= until_index and command[:1] == COMMAND_ENTRY:
                inner = orjson.loads(command[1:])["command"]
                if inner is not None:  # a read barrier changes nothing
                    machine.apply(inner, index=index)
    finally:
        journal.close()
    return machine.digest()
