"""Pure: record batches to Arrow and back, column by column, without a loop over records.

The columns of a batch are laid out as Arrow wants them (32-bit offsets and a blob), so bodies and
keys become Arrow arrays that point into the bytes that the broker sent. Everything that a wrong
offset could make Arrow read beyond a buffer is checked (`validate(full=True)`, in C).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from paceline.errors import CorruptLogError
from paceline.records.decode import BatchView
from paceline.records.header import (
    COLUMN_BODY,
    COLUMN_BORN,
    COLUMN_KEY,
    COLUMN_PROPERTY,
    COLUMN_TAG,
    Section,
)

_ARROW_TYPES: dict[str, Any] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)),
}
_ZERO = pa.scalar(0, pa.int32())
_NO_TEXT = pa.scalar(None, pa.string())
COLUMN_BYTES_MAX = 1024 * 1024 * 1024
"""Arrow's 32-bit offsets end at 2 GiB; an output batch is closed well before."""


class Piece(NamedTuple):
    """Records [first, beyond) of one batch of a queue."""

    view: BatchView
    first: int
    beyond: int
    topic: str
    group: str


def arrow_columns(piece: Piece, names: Sequence[str]) -> list[Any]:
    """The named columns of a piece as Arrow arrays. Raises CorruptLogError."""
    count = piece.beyond - piece.first
    found = []
    for name in names:
        try:
            array = _MAKERS[name](piece, count)
        except (pa.ArrowInvalid, ValueError, IndexError) as error:
            raise CorruptLogError(
                f"column {name} of a batch is not well formed: {error}"
            ) from error
        found.append(array)
    return found


class Gatherer:
    """Collects pieces until a record batch of about `batch_bytes` is together.

    Few small batches of a queue cost as much as one large one in Spark, so they are joined (a copy
    in C); a large one passes as it is.
    """

    def __init__(self, schema: Any, *, batch_bytes: int) -> None:
        self._schema = schema
        self._names = [field.name for field in schema]
        self._batch_bytes = min(batch_bytes, COLUMN_BYTES_MAX)
        self._parts: list[Any] = []
        self._held = 0

    def add(self, piece: Piece, mask: Any = None) -> Iterator[Any]:
        """Take a piece, `mask` choosing its records; yields what is full."""
        part = pa.RecordBatch.from_arrays(arrow_columns(piece, self._names), schema=self._schema)
        if mask is not None:
            part = part.filter(mask)
        size_bytes = part.nbytes
        if self._parts and self._held + size_bytes > self._batch_bytes:
            yield from self.flush()
        if part.num_rows:
            self._parts.append(part)
            self._held += size_bytes
        if self._held >= self._batch_bytes:
            yield from self.flush()

    def flush(self) -> Iterator[Any]:
        """What is left."""
        parts, self._parts, self._held = self._parts, [], 0
        if len(parts) == 1:
            yield parts[0]
        elif parts:
            yield pa.concat_batches(parts)


def tag_mask(piece: Piece, tags: frozenset[str]) -> Any:
    """Which records of a piece have one of the tags; None where all do, False where none does."""
    names = piece.view.tag_names()
    wanted = [number for number, name in enumerate(["", *names]) if name in tags]
    if not wanted:
        return False
    if not piece.view.header.columns & COLUMN_TAG:
        return None  # "" was asked for, and no record has a tag
    ids = _tag_ids(piece)
    mask = pc.is_in(ids, value_set=pa.array(wanted, pa.uint16()))
    if not mask.true_count:
        return False
    return None if mask.true_count == len(mask) else mask


def key_mask(piece: Piece, keys: frozenset[str]) -> Any:
    """Which records of a piece have one of the keys; None and False as `tag_mask`."""
    if not piece.view.header.columns & COLUMN_KEY:
        return False
    [found] = arrow_columns(piece, ["key"])
    mask = pc.is_in(found, value_set=_wanted(keys))
    if not mask.true_count:
        return False
    return None if mask.true_count == len(mask) else mask


def mask_of(piece: Piece, *, tags: frozenset[str] | None, keys: frozenset[str] | None) -> Any:
    """Which records of a piece a read wants; None and False as `tag_mask`."""
    by_tag = None if tags is None else tag_mask(piece, tags)
    if by_tag is False or keys is None:
        return by_tag
    by_key = key_mask(piece, keys)
    if by_key is False or by_tag is None:
        return by_key
    return by_tag if by_key is None else pc.and_(by_tag, by_key)


@lru_cache(maxsize=16)
def _wanted(texts: frozenset[str]) -> Any:
    return pa.array(sorted(texts), pa.string())


def _repeated(value: Any, kind: Any, count: int) -> Any:
    return pa.repeat(pa.scalar(value, kind), count)


def _same(value: Any, type_name: str, count: int) -> Any:
    """A column of one text or map. Arrow builds these value by value, so a longer one is kept."""
    return _kept(value, type_name, max(1024, 1 << (count - 1).bit_length())).slice(0, count)


@lru_cache(maxsize=256)
def _kept(value: Any, type_name: str, count: int) -> Any:
    return _repeated(value, _ARROW_TYPES[type_name], count)


@lru_cache(maxsize=256)
def _texts(names: tuple[str, ...]) -> Any:
    """Null, then the names: what tag ids point into."""
    return pa.array([None, *names], pa.string())


def _topic(piece: Piece, count: int) -> Any:
    return _same(piece.topic, "string", count)


def _group(piece: Piece, count: int) -> Any:
    return _same(piece.group, "string", count)


def _queue_id(piece: Piece, count: int) -> Any:
    return _repeated(piece.view.header.queue_id, pa.int32(), count)


def _offset(piece: Piece, count: int) -> Any:
    first = piece.view.header.base_queue_offset + piece.first
    return pa.arange(first, first + count)


def _stored_at(piece: Piece, count: int) -> Any:
    return _repeated(piece.view.header.store_unix_ms * 1000, _ARROW_TYPES["timestamp"], count)


def _born_at(piece: Piece, count: int) -> Any:
    header = piece.view.header
    if not header.columns & COLUMN_BORN:
        return _repeated(header.born_first_unix_ms * 1000, _ARROW_TYPES["timestamp"], count)
    raw = piece.view.section(Section.BORN)
    milliseconds = pa.Array.from_buffers(
        pa.int64(), header.record_count, [None, pa.py_buffer(raw)]
    ).slice(piece.first, count)
    return pc.multiply_checked(milliseconds, 1000).cast(_ARROW_TYPES["timestamp"])


def _blob(piece: Piece, offsets: Section, blob: Section, kind: Any) -> Any:
    """A column of offsets and bytes, in place."""
    count = piece.view.header.record_count
    buffers = [piece.view.section(offsets), piece.view.section(blob)]
    array = pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, buffers)])
    array.validate(full=True)
    return array.slice(piece.first, piece.beyond - piece.first)


def _body(piece: Piece, count: int) -> Any:
    if not piece.view.header.columns & COLUMN_BODY:
        return _repeated(b"", pa.binary(), count)
    return _blob(piece, Section.BODY_OFFSETS, Section.BODY_BLOB, pa.binary())


def _key(piece: Piece, count: int) -> Any:
    if not piece.view.header.columns & COLUMN_KEY:
        return pa.nulls(count, pa.string())
    keys = _blob(piece, Section.KEY_OFFSETS, Section.KEY_BLOB, pa.string())
    is_none = pc.equal(pc.binary_length(keys), _ZERO)
    return pc.if_else(is_none, _NO_TEXT, keys) if is_none.true_count else keys


def _tag_ids(piece: Piece) -> Any:
    raw = piece.view.section(Section.TAG_IDS)
    count = piece.view.header.record_count
    ids = pa.Array.from_buffers(pa.uint16(), count, [None, pa.py_buffer(raw)])
    return ids.slice(piece.first, piece.beyond - piece.first)


def _tag(piece: Piece, count: int) -> Any:
    if not piece.view.header.columns & COLUMN_TAG:
        return pa.nulls(count, pa.string())
    return _texts(tuple(piece.view.tag_names())).take(_tag_ids(piece))


def _properties(piece: Piece, count: int) -> Any:
    """Each record's properties are one JSON object; all of a batch are parsed in one call."""
    kind = _ARROW_TYPES["map<string,string>"]
    if not piece.view.header.columns & COLUMN_PROPERTY:
        return _same((), "map<string,string>", count)
    documents = _blob(piece, Section.PROPERTY_OFFSETS, Section.PROPERTY_BLOB, pa.binary())
    texts = pc.if_else(pc.equal(pc.binary_length(documents), 0), b"{}", documents)
    joined = pc.binary_join(pa.ListArray.from_arrays([0, count], texts), b",")[0].as_py()
    objects = orjson.loads(b"[" + joined + b"]")
    offsets = pa.array(accumulate(map(len, objects), initial=0), pa.int32())
    keys = pa.array(chain.from_iterable(objects), pa.string())
    values = pa.array(chain.from_iterable(map(dict.values, objects)), pa.string())
    if len(objects) != count:
        raise ValueError(f"{len(objects)} objects for {count} records")
    return pa.MapArray.from_arrays(offsets, keys, values, type=kind)


_MAKERS: Mapping[str, Any] = {
    "topic": _topic,
    "broker_group": _group,
    "queue_id": _queue_id,
    "offset": _offset,
    "key": _key,
    "tag": _tag,
    "body": _body,
    "properties": _properties,
    "born_at": _born_at,
    "stored_at": _stored_at,
}


def arrow_schema(columns: Iterable[Any]) -> Any:
    """The Arrow schema of `columns`; equal to what Spark makes of the same schema."""
    return pa.schema(
        [pa.field(column.name, _ARROW_TYPES[column.type], column.is_nullable) for column in columns]
    )
