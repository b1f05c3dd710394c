"""Reads the commit logs of stopped brokers from their files: no paceline server involved."""

import re
from dataclasses import dataclass
from pathlib import Path

import orjson

from paceline.records.decode import BatchView
from paceline.records.header import HEADER_BYTES, Kind, parse_header

_SEGMENT = re.compile(r"(\d{20})\.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """One message of the log."""

    topic_id: int
    queue_id: int
    queue_offset: int
    body: bytes
    key: str | None


def log_bytes(broker_folder: Path, end: int) -> bytes:
    """The bytes [0, end) of a broker's log, segments joined."""
    parts: list[bytes] = []
    segments = sorted(
        (int(match[1]), path)
        for path in (broker_folder / "log").iterdir()
        if (match := _SEGMENT.fullmatch(path.name))
    )
    assert segments[0][0] == 0, segments
    for index, (first, path) in enumerate(segments):
        stop = segments[index + 1][0] if index + 1 < len(segments) else end
        stop = min(stop, end)
        if first >= end:
            break
        with path.open("rb") as file:
            parts.append(file.read(stop - first))
    content = b"".join(parts)
    assert len(content) == end, (len(content), end)
    return content


def confirmed_end(broker_folder: Path) -> int:
    """The confirm that a cleanly stopped broker wrote down."""
    document = orjson.loads((broker_folder / "log" / "checkpoint.json").read_bytes())
    confirm: int = document["confirm"]
    return confirm


def stored_records(content: bytes) -> list[StoredRecord]:
    """Every message in log order; checks CRCs and that offsets are dense on the way."""
    records: list[StoredRecord] = []
    next_offset: dict[tuple[int, int], int] = {}
    at = 0
    while at < len(content):
        header = parse_header(content, at)
        assert header.physical_offset == at, (header.physical_offset, at)
        if header.kind == Kind.NORMAL:
            queue = (header.topic_id, header.queue_id)
            assert header.base_queue_offset == next_offset.get(queue, 0), (queue, header)  # INV-7
            next_offset[queue] = header.base_queue_offset + header.record_count
            view = BatchView(content[at : at + header.size_bytes])
            view.verify()
            for index, (body, key) in enumerate(zip(view.bodies(), view.keys(), strict=True)):
                records.append(
                    StoredRecord(
                        topic_id=header.topic_id,
                        queue_id=header.queue_id,
                        queue_offset=header.base_queue_offset + index,
                        body=bytes(body),
                        key=key,
                    )
                )
        at += header.size_bytes
    assert at == len(content), (at, len(content))
    assert HEADER_BYTES == 96
    return records
