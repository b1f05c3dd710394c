"""Pure: a producer's messages to a record batch, once; nobody after it encodes them again.

A column that would be all empty is left out, and a column costs a few C-level passes over the
records. A batch of one body alone takes a path of its own. The payload is built and summed in the
buffer that is returned, so a 1 MiB batch is copied once.
"""

import io
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import orjson
from crc32c import crc32c

from paceline.errors import BadRequestError, TooLargeError
from paceline.platform.ports import Buffer
from paceline.records.compression import FASTEST, compress
from paceline.records.header import (
    BATCH_BYTES_MAX,
    CAUSE_MASK,
    COLUMN_BODY,
    DERIVED_PROPERTIES_BYTES_MAX,
    HEADER_BYTES,
    HEADER_PREFIX,
    HEADER_REST,
    KEY_BYTES_MAX,
    MAGIC,
    MESSAGE_BYTES_MAX,
    PROPERTIES_BYTES_MAX,
    RECORDS_MAX,
    SEQUENCE_MAX,
    TAG_BYTES_MAX,
    Codec,
    Kind,
    Section,
)

_PADDING = tuple(bytes(count) for count in range(8))
_NO_HEADER = bytes(HEADER_BYTES)
# A payload of one body: a directory of two sections (16 bytes), the offsets [0, length], the body.
_ONE_BODY = struct.Struct("<IIIIII")
_ONE_OFFSETS_AT = 16
_ONE_BODY_AT = 24
# Above this a second copy of the body costs more than the general path.
_ONE_BODY_BYTES_MAX = 64 * 1024
_rest = HEADER_REST.pack
_prefix = HEADER_PREFIX.pack


class _Part(NamedTuple):
    """One section: its bytes are `buffers` one after another, `length` bytes in all."""

    section: Section
    length: int
    buffers: Iterable[Buffer]


def texts_bytes_max(properties: Mapping[str, str], *others: str) -> int:
    """Of any script, quoted and escaped, a text takes at most six bytes a character."""
    count = sum(map(len, properties)) + sum(map(len, properties.values())) + sum(map(len, others))
    return 6 * count


def encode_batch(
    bodies: Sequence[Buffer],
    *,
    keys: Sequence[str | bytes | None] | None = None,
    tags: Sequence[str | None] | None = None,
    properties: Sequence[Mapping[str, str] | None] | None = None,
    born_unix_ms: int | Sequence[int],
    due_unix_ms: Sequence[int] | None = None,
    sources: Sequence[int] | None = None,
    topic_id: int,
    queue_id: int,
    kind: Kind = Kind.NORMAL,
    codec: Codec = Codec.NONE,
    level: int = FASTEST,
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = -1,
    flags: int = 0,
) -> bytes:
    """The record batch of 1 to 65,535 messages of one queue, ready to send and to store.

    The columns are parallel to `bodies`; None or "" means no key or tag, None or {} no properties.
    Keys are UTF-8 text. `due_unix_ms` is for kind DELAY, `sources` (`pack_source`) for batches that
    brokers derive. With a `codec` the payload is compressed, unless that would not shrink it
    (`level`: from fast to small). The broker's fields are zero until `stamp`.
    Raises TooLargeError over 4 MiB a body, 32,767 B a key, tag or properties, 16 MiB in all, and
    BadRequestError for columns of other lengths and values that are no bytes, text or in range.
    """
    count = len(bodies)
    try:
        is_plain = keys is tags is properties is None and due_unix_ms is sources is None
        if count == 1 and is_plain and codec == 0 and len(bodies[0]) <= _ONE_BODY_BYTES_MAX:
            payload = _one_body_payload(bodies[0])
            (born,) = (born_unix_ms,) if isinstance(born_unix_ms, int) else born_unix_ms
            raw_bytes = len(payload)
            header = _header(
                HEADER_BYTES + raw_bytes, crc32c(payload), 0, 0, 0, born, born,
                producer_id, 0, topic_id, raw_bytes, base_sequence, producer_epoch, queue_id, 1,
                kind, codec, COLUMN_BODY, flags, 0,
            )  # fmt: skip
            return header + payload
        _check_count(count, base_sequence)
        limit = _properties_bytes_max(flags, sources)
        parts, born_first, born_last = _parts(bodies, keys, tags, properties, limit, born_unix_ms)
        parts += _number_parts(due_unix_ms, sources, count)
        out, raw_bytes, codec = _payload(parts, codec, level)
        with out.getbuffer() as whole:
            size, crc = len(whole), crc32c(whole[HEADER_BYTES:])
        columns = sum(1 << part.section for part in parts)
        header = _header(
            size, crc, 0, 0, 0, born_first, born_last,
            producer_id, 0, topic_id, raw_bytes, base_sequence, producer_epoch, queue_id, count,
            kind, codec, columns, flags, 0,
        )  # fmt: skip
    except (struct.error, TypeError, ValueError, AttributeError) as error:
        raise BadRequestError(f"messages cannot be encoded: {error}") from error
    out.seek(0)
    out.write(header)
    # BytesIO hands out its own buffer here, as nothing else holds it: no second copy.
    return out.getvalue()


def encode_internal(kind: Kind, document: Mapping[str, Any], *, store_unix_ms: int) -> bytes:
    """A batch of one internal record: `document` as canonical JSON, topic 0, not yet stamped."""
    assert kind not in (Kind.NORMAL, Kind.HALF), kind
    body = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return encode_batch([body], born_unix_ms=store_unix_ms, topic_id=0, queue_id=0, kind=kind)


def _header(size: int, *rest: int) -> bytes:
    """The packed header; `rest` are the fields from payload_crc32c on."""
    packed = _rest(*rest)
    return _prefix(MAGIC, size, crc32c(packed, size)) + packed


def _one_body_payload(body: Buffer) -> bytes:
    """What `_payload` makes of one body and no other column, in one go."""
    length = len(body)
    head = _ONE_BODY.pack(_ONE_OFFSETS_AT, 8, _ONE_BODY_AT, length, 0, length)
    padding = _PADDING[-length & 7]
    payload = b"".join((head, body, padding))
    if len(payload) != _ONE_BODY_AT + length + len(padding):
        raise TypeError("body is no flat buffer of bytes")
    return payload


def _check_count(count: int, base_sequence: int) -> None:
    if not 0 < count <= RECORDS_MAX:
        raise BadRequestError(f"a batch holds 1 to {RECORDS_MAX} records, not {count}")
    if base_sequence + count - 1 > SEQUENCE_MAX:
        raise BadRequestError(f"sequences {base_sequence} + {count} do not fit 31 bits")


def _properties_bytes_max(flags: int, sources: Sequence[int] | None) -> int:
    """A broker writes its own properties beside the application's, whatever room those left."""
    is_of_broker = flags & CAUSE_MASK or sources is not None
    return DERIVED_PROPERTIES_BYTES_MAX if is_of_broker else PROPERTIES_BYTES_MAX


def _parts(
    bodies: Sequence[Buffer],
    keys: Sequence[str | bytes | None] | None,
    tags: Sequence[str | None] | None,
    properties: Sequence[Mapping[str, str] | None] | None,
    properties_bytes_max: int,
    born_unix_ms: int | Sequence[int],
) -> tuple[list[_Part], int, int]:
    """The sections that are not empty, in their order, and the first and last born time."""
    count = len(bodies)
    parts: list[_Part] = []
    if isinstance(born_unix_ms, int):
        born_first = born_last = born_unix_ms
    else:
        _check_length("born_unix_ms", born_unix_ms, count)
        born_first, born_last = born_unix_ms[0], born_unix_ms[-1]
        if any(map(born_first.__ne__, born_unix_ms)):
            packed = struct.pack(f"<{count}q", *born_unix_ms)
            parts.append(_Part(Section.BORN, len(packed), (packed,)))
    parts += _blob_parts(bodies, Section.BODY_OFFSETS, Section.BODY_BLOB, MESSAGE_BYTES_MAX)
    if keys is not None:
        _check_length("keys", keys, count)
        parts += _blob_parts(_key_bytes(keys), Section.KEY_OFFSETS, Section.KEY_BLOB, KEY_BYTES_MAX)
    if properties is not None:
        _check_length("properties", properties, count)
        parts += _blob_parts(
            [_properties_json(mapping) if mapping else b"" for mapping in properties],
            Section.PROPERTY_OFFSETS,
            Section.PROPERTY_BLOB,
            properties_bytes_max,
        )
    if tags is not None:
        _check_length("tags", tags, count)
        parts += _tag_parts(tags)
    parts.sort(key=_section_of)
    return parts, born_first, born_last


def _number_parts(
    due_unix_ms: Sequence[int] | None, sources: Sequence[int] | None, count: int
) -> list[_Part]:
    """The columns of one 64-bit number per record."""
    parts = []
    for section, code, values in (
        (Section.DUE, "q", due_unix_ms),
        (Section.SOURCE, "Q", sources),
    ):
        if values is not None:
            _check_length(section.name, values, count)
            packed = struct.pack(f"<{count}{code}", *values)
            parts.append(_Part(section, len(packed), (packed,)))
    return parts


def _section_of(part: _Part) -> int:
    return part.section


def _check_length(column: str, values: Sequence[object], count: int) -> None:
    if len(values) != count:
        raise BadRequestError(f"{count} bodies but {len(values)} {column}", field=column)


def _blob_parts(
    values: Sequence[Buffer],
    offsets_section: Section,
    blob_section: Section,
    value_bytes_max: int,
) -> list[_Part]:
    """Offsets and blob of one column; nothing if all values are empty."""
    offsets = list(accumulate(map(len, values), initial=0))
    total = offsets[-1]
    if not total:
        return []
    if total > BATCH_BYTES_MAX:
        raise TooLargeError(f"batch with {total} bytes in a column", limit=BATCH_BYTES_MAX)
    if total > value_bytes_max and max(map(len, values)) > value_bytes_max:
        longest = max(map(len, values))
        raise TooLargeError(
            f"{blob_section.name} with a value of {longest} bytes", limit=value_bytes_max
        )
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    return [
        _Part(offsets_section, len(packed), (packed,)),
        _Part(blob_section, total, values),
    ]


def _key_bytes(keys: Sequence[str | bytes | None]) -> list[bytes]:
    return [key.encode() if isinstance(key, str) else _checked_key(key or b"") for key in keys]


def _checked_key(key: bytes) -> bytes:
    key.decode()  # keys are text, whichever way they come
    return key


def _properties_json(properties: Mapping[str, str]) -> bytes:
    plain = dict(properties)
    for name, value in plain.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadRequestError(
                f"property {name!r} is {value!r}, not text", field=f"properties.{name}"
            )
    return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)


def _tag_parts(tags: Sequence[str | None]) -> list[_Part]:
    """Ids (0 = no tag) and the dictionary in order of first use; nothing without any tag."""
    names = [tag for tag in dict.fromkeys(tags) if tag]
    if not names:
        return []
    ids: dict[str | None, int] = {name: number for number, name in enumerate(names, start=1)}
    ids[None] = ids[""] = 0
    packed = struct.pack(f"<{len(tags)}H", *map(ids.__getitem__, tags))
    return [
        _Part(Section.TAG_IDS, len(packed), (packed,)),
        *_blob_parts(
            [name.encode() for name in names], Section.TAG_OFFSETS, Section.TAG_BLOB, TAG_BYTES_MAX
        ),
    ]


def _payload(parts: list[_Part], codec: Codec, level: int) -> tuple[io.BytesIO, int, Codec]:
    """Room for the header and the payload behind it, its uncompressed length, the codec used."""
    at = 8 * len(parts)
    directory: list[int] = []
    for part in parts:
        directory += (at, part.length)
        at += part.length + (-part.length & 7)
    if at > BATCH_BYTES_MAX - HEADER_BYTES:
        raise TooLargeError(f"batch of {at} bytes", limit=BATCH_BYTES_MAX)
    buffers: list[Buffer] = [_NO_HEADER, struct.pack(f"<{len(directory)}I", *directory)]
    for part in parts:
        buffers += part.buffers
        buffers.append(_PADDING[-part.length & 7])
    # BytesIO takes over the joined bytes, as nothing else refers to them, and may write to them.
    out = io.BytesIO(b"".join(buffers))
    if out.seek(0, io.SEEK_END) != HEADER_BYTES + at:
        raise TypeError("a body is no flat buffer of bytes")
    if codec == Codec.NONE or not at:
        return out, at, Codec.NONE
    with out.getbuffer() as whole:
        packed = compress(whole[HEADER_BYTES:], codec, level=level)
    if packed is None:
        return out, at, Codec.NONE
    return io.BytesIO(_NO_HEADER + packed), at, codec
