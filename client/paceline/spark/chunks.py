"""Pure: rows to batches, the same batches for the same rows.

Sequences are tied to rows by where batches begin and end, so nothing here may depend on how the
rows arrived: not on the sizes of Arrow batches, not on time (docs/SPARK.md, "Each row once").
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from paceline.queues import index_of_key
from paceline.wire.properties import without_brokers

Row = tuple[bytes, bytes | None, str | None, Mapping[str, str] | None]
"""Body, key, tag, properties."""


class Chunk(NamedTuple):
    """Rows of one topic that are sent together, one batch for each queue."""

    number: int
    topic: str
    rows: list[Row]
    is_complete: bool
    """False: the rows ended here, and it is not known whether by themselves."""


@dataclass(slots=True)
class QueueRows:
    """Rows of one chunk that go to one queue, in order."""

    bodies: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    tags: list[str | None] = field(default_factory=list)
    properties: list[Mapping[str, str] | None] = field(default_factory=list)

    def add(self, row: Row) -> None:
        body, key, tag, properties = row
        self.bodies.append(body)
        self.keys.append(key)
        self.tags.append(tag)
        self.properties.append(properties)


def producer_id(name: str) -> int:
    """The first 8 bytes of the SHA-256 of a name (DESIGN 5); 0 means none, so it is not given."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "little") or 1


def chunks(rows: Iterable[tuple[str, Row]], *, records_max: int, bytes_max: int) -> Iterator[Chunk]:
    """Rows in order: a chunk ends where the topic changes or a limit is reached."""
    open_topic, held_bytes, number = "", 0, 0
    held: list[Row] = []
    for topic, row in rows:
        size_bytes = len(row[0]) + len(row[1] or b"")
        is_full = len(held) >= records_max or held_bytes + size_bytes > bytes_max
        if held and (topic != open_topic or is_full):
            yield Chunk(number, open_topic, held, True)
            held, held_bytes, number = [], 0, number + 1
        open_topic = topic
        held.append(row)
        held_bytes += size_bytes
    if held:
        yield Chunk(number, open_topic, held, False)


def by_queue(rows: Sequence[Row], *, queues_count: int, turn: int) -> dict[int, QueueRows]:
    """Rows by index of their queue: by key, as every producer has it; the others by `turn`."""
    found: dict[int, QueueRows] = {}
    keyless = turn % queues_count
    for row in rows:
        key = row[1]
        index = index_of_key(key, queues_count) if key else keyless
        found.setdefault(index, QueueRows()).add(row)
    return found


def rows_of(columns: Mapping[str, Sequence[Any]], topic: str | None) -> Iterator[tuple[str, Row]]:
    """Rows of parallel columns: `body` and, where there, `key`, `tag`, `properties`, `topic`.

    What brokers had added to messages that were read is left out: these are new messages.
    """
    bodies = columns["body"]
    nothing: Sequence[None] = [None] * len(bodies)
    rows = zip(
        columns.get("topic", nothing),
        bodies,
        columns.get("key", nothing),
        columns.get("tag", nothing),
        columns.get("properties", nothing),
        strict=True,
    )
    for named, body, key, tag, properties in rows:
        raw = body.encode() if isinstance(body, str) else body
        raw_key = key.encode() if isinstance(key, str) else key
        pairs = None if properties is None else without_brokers(dict(properties))
        yield topic or named, (raw, raw_key or None, tag or None, pairs)
