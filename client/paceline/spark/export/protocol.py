"""Pure: what an export remembers: its intent before it writes, its manifests when it has.

    DIR/data/batch=00000001/...      what readers read: whole batches only, put there by one rename
    DIR/_paceline/intent.json        the range that is being written; a rerun writes just that
    DIR/_paceline/manifest-00000001.json   what a batch holds; the newest says where the next begins
    DIR/_staging/                    what is not finished; nobody reads it

Each file carries a CRC of its content: a manifest that was edited or torn is refused, not believed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson
from crc32c import crc32c

from paceline.errors import BadRequestError, CorruptLogError
from paceline.queues import QueueName
from paceline.spark.offsets import Offsets, described, offsets_from_json, offsets_to_json
from paceline.types import GroupName, QueueId, TopicName
from paceline.wire.fields import Fields

FORMAT_VERSION = 1
FORMATS = ("parquet", "json", "csv")
PARTITION_COLUMNS = ("dt", "hour", "topic", "broker_group", "queue_id", "tag")
"""dt and hour are those of stored_at, UTC."""
BODIES = ("binary", "base64", "text")
BATCHES_MAX = 99_999_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What all batches of one export have in common: it cannot change under a reader."""

    cluster_id: str
    topics: Mapping[str, int]
    """Topic name -> id: a topic that was deleted and made again is another one."""
    format: str
    partition_by: tuple[str, ...]
    body: str

    def to_json(self) -> dict[str, Any]:
        return {
            "cluster_id": self.cluster_id,
            "topics": dict(sorted(self.topics.items())),
            "format": self.format,
            "partition_by": list(self.partition_by),
            "body": self.body,
        }

    @classmethod
    def from_json(cls, document: object) -> "Layout":
        fields = Fields(document, name="layout")
        topics = fields.any("topics")
        partition_by = fields.any("partition_by")
        if not isinstance(topics, dict) or not isinstance(partition_by, list):
            raise BadRequestError("layout: topics and partition_by", field="layout")
        found = cls(
            cluster_id=fields.text("cluster_id"),
            topics={str(name): int(number) for name, number in topics.items()},
            format=fields.text("format"),
            partition_by=tuple(map(str, partition_by)),
            body=fields.text("body"),
        )
        fields.done()
        return found


class Lost(NamedTuple):
    """Offsets [start, end) that retention deleted before they were exported, and that the user has
    accepted to be without (`--accept-loss`)."""

    queue: QueueName
    start: int
    end: int

    def to_json(self) -> list[object]:
        queue = self.queue
        return [str(queue.topic), str(queue.group), int(queue.queue_id), self.start, self.end]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A batch that is to be written: number and range, fixed before the first byte."""

    number: int
    layout: Layout
    start: Offsets
    end: Offsets
    lost: tuple[Lost, ...] = ()
    """What lies between the batch before and this one."""

    @property
    def rows(self) -> int:
        return sum(self.end[queue] - self.start[queue] for queue in self.end)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": FORMAT_VERSION,
            "number": self.number,
            "layout": self.layout.to_json(),
            "start": offsets_to_json(self.start),
            "end": offsets_to_json(self.end),
            "lost": [one.to_json() for one in self.lost],
        }

    @classmethod
    def from_json(cls, document: object) -> "Intent":
        fields = Fields(document, name="intent")
        _check_version(fields)
        found = cls(
            number=fields.integer("number", low=1, high=BATCHES_MAX),
            layout=Layout.from_json(fields.any("layout")),
            start=offsets_from_json(fields.any("start"), name="start"),
            end=offsets_from_json(fields.any("end"), name="end"),
            lost=_lost_from_json(fields),
        )
        fields.done()
        _check_range(found.start, found.end)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A file of a batch, by its path below the batch's folder."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A batch that is there: what its intent said, and the files."""

    number: int
    first_number: int
    """The oldest batch that a compaction put into this one; its own number without any."""
    layout: Layout
    start: Offsets
    end: Offsets
    files: tuple[ExportedFile, ...]
    lost: tuple[Lost, ...] = ()
    """Before its start; of a compaction also within its range."""

    @property
    def rows(self) -> int:
        return sum(beyond - first for _, first, beyond in self.pieces())

    def pieces(self) -> Iterator[tuple[QueueName, int, int]]:
        """The ranges of offsets that are there: from start to end, without what was lost."""
        for queue, end in self.end.items():
            at = self.start[queue]
            for one in sorted(self.lost):
                if one.queue == queue and at <= one.start < end:
                    yield queue, at, one.start
                    at = one.end
            yield queue, at, end

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": FORMAT_VERSION,
            "number": self.number,
            "first_number": self.first_number,
            "layout": self.layout.to_json(),
            "start": offsets_to_json(self.start),
            "end": offsets_to_json(self.end),
            "files": [[file.path, file.size_bytes] for file in self.files],
            "lost": [one.to_json() for one in self.lost],
        }

    @classmethod
    def from_json(cls, document: object) -> "Manifest":
        fields = Fields(document, name="manifest")
        _check_version(fields)
        files = fields.any("files")
        are_files = isinstance(files, list) and all(
            isinstance(row, list) and len(row) == 2 and type(row[1]) is int for row in files
        )
        if not are_files:
            raise BadRequestError("manifest: files must be [[path, bytes]]", field="files")
        number = fields.integer("number", low=1, high=BATCHES_MAX)
        found = cls(
            number=number,
            first_number=fields.integer("first_number", low=1, high=number),
            layout=Layout.from_json(fields.any("layout")),
            start=offsets_from_json(fields.any("start"), name="start"),
            end=offsets_from_json(fields.any("end"), name="end"),
            files=tuple(ExportedFile(path=str(path), size_bytes=size) for path, size in files),
            lost=_lost_from_json(fields),
        )
        fields.done()
        _check_range(found.start, found.end)
        return found


def manifest_of(intent: Intent, files: tuple[ExportedFile, ...]) -> Manifest:
    """The manifest of a batch that was written as its intent said."""
    return Manifest(
        number=intent.number,
        first_number=intent.number,
        layout=intent.layout,
        start=intent.start,
        end=intent.end,
        files=files,
        lost=intent.lost,
    )


def merged(manifests: list[Manifest], files: tuple[ExportedFile, ...]) -> Manifest:
    """The manifest of the one batch that takes the place of several, oldest first."""
    start: Offsets = {}
    end: Offsets = {}
    for one in manifests:
        for queue, offset in one.start.items():
            start.setdefault(queue, offset)
            end[queue] = one.end[queue]
    return replace(
        manifests[-1],
        first_number=manifests[0].first_number,
        start=start,
        end=end,
        files=files,
        lost=tuple(lost for one in manifests for lost in one.lost),
    )


def check_chain(manifests: list[Manifest]) -> None:
    """Batches follow one another without overlap, and without a gap that nobody has accepted.

    Raises CorruptLogError: then rows would be missing or double, and nothing more is written.
    """
    for before, after in zip(manifests, manifests[1:], strict=False):
        if after.first_number != before.number + 1:
            raise CorruptLogError(
                f"the manifest of batch {before.number + 1} is missing: restore it, or export to an"
                " empty folder"
            )
    positions: Offsets = {}
    for one in manifests:
        skipped = {(lost.queue, lost.start): lost.end for lost in one.lost}
        for queue, offset in one.start.items():
            ended = positions.get(queue, offset)
            if skipped.get((queue, ended), ended) != offset:
                raise CorruptLogError(
                    f"batch {one.number} begins at {offset} in {described(queue)}, the batches"
                    f" before it end at {ended}"
                )
            positions[queue] = one.end[queue]


def next_offsets(manifests: list[Manifest]) -> Offsets:
    """Where each queue goes on after the newest batch that has it."""
    found: Offsets = {}
    for one in manifests:
        found.update(one.end)
    return found


def seal(document: Mapping[str, Any]) -> bytes:
    """A document with the CRC of itself."""
    content = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return orjson.dumps(
        {"crc32c": crc32c(content), "content": document},
        option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2,
    )


def unseal(raw: bytes, *, path: str) -> Any:
    """The document in a sealed file; CorruptLogError naming the file if it is not as written."""
    try:
        outer = orjson.loads(raw)
        content = outer["content"]
        known = outer["crc32c"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise CorruptLogError(
            f"{path} is broken: {error}; restore it from a copy", path=path
        ) from error
    if crc32c(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)) != known:
        raise CorruptLogError(
            f"{path} was changed since it was written: restore it from a copy", path=path
        )
    return content


def _check_version(fields: Fields) -> None:
    version = fields.integer("version")
    if version != FORMAT_VERSION:
        raise BadRequestError(
            f"this folder was written by another version of paceline (format {version})",
            field="version",
        )


def _lost_from_json(fields: Fields) -> tuple[Lost, ...]:
    rows = fields.any("lost") if fields.has("lost") else []
    kinds = [str, str, int, int, int]
    if not isinstance(rows, list) or any(
        not isinstance(row, list) or list(map(type, row)) != kinds for row in rows
    ):
        raise BadRequestError("lost must be [[topic, group, queue, start, end]]", field="lost")
    return tuple(
        Lost(QueueName(TopicName(topic), GroupName(group), QueueId(queue)), start, end)
        for topic, group, queue, start, end in rows
    )


def _check_range(start: Offsets, end: Offsets) -> None:
    if start.keys() != end.keys() or any(start[queue] > end[queue] for queue in start):
        raise BadRequestError("start and end do not make ranges", field="end")
