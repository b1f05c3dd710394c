"""Batches that a master makes out of messages it has: for one queue, with the sources named (R34).

Everything here is one synchronous step with the decision it carries out: no await between.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from paceline.records.encode import encode_batch, texts_bytes_max
from paceline.records.header import Cause, Kind, pack_source
from paceline.wire import properties as names
from paceline.wire.message_ids import OffsetMessageId, unique_key
from paceline.wire.names import RETRY_PREFIX
from paceline_broker.ports import LogWriter
from paceline_broker.projections.projections import Projections
from paceline_broker.service.retry.source_messages import Source
from paceline_broker.service.routes import Routes
from paceline_broker.service.topic_records import log_topic

BATCH_BYTES = 4 * 1024 * 1024
"""A batch is closed once it holds so much; one message more fits below the format's limit."""

_TELLING = frozenset({Cause.DEAD, Cause.RESENT})
"""Made by `origin_of` itself, in whatever topic they lie."""


class Target(NamedTuple):
    """What a batch is made for."""

    topic_id: int
    queue: int
    kind: Kind
    cause: Cause


class Made(NamedTuple):
    """One message of a batch in the making."""

    source: Source
    properties: Mapping[str, str]
    due_unix_ms: int = 0
    """Only for kind DELAY."""


def append_derived(
    writer: LogWriter,
    projections: Projections,
    routes: Routes,
    target: Target,
    made: Sequence[Made],
    *,
    store_unix_ms: int,
) -> list[int]:
    """Append the messages, in one batch or a few; where each lies, as `pack_source`.

    The caller has asked `writer.ensure_can_append`. Raises StorageError (R22).
    """
    log_topic(writer, projections, routes, target.topic_id, store_unix_ms=store_unix_ms)
    places: list[int] = []
    for part in _parts(made):
        batch = _encode(target, part)
        position = writer.appender.made(batch, store_unix_ms=store_unix_ms)
        places.extend(pack_source(position, index) for index in range(len(part)))
    return places


def origin_of(source: Source, routes: Routes) -> dict[str, str]:
    """What a message made out of `source` says of its first storing in this broker group.

    A message keeps the unique key that its client gave it. A delivered or committed message has
    what its producer put into it, so only what retries, dead letters and resent messages say of
    their origin is a broker's word.
    """
    header, group = source.header, routes.group
    kept = source.properties if header.is_of_broker else {}
    is_retry = routes.topic_name(header.topic_id).startswith(RETRY_PREFIX)
    told = kept.get(names.ORIGIN_MESSAGE_ID) if is_retry or header.cause in _TELLING else None
    return {
        names.UNIQ_KEY: source.properties.get(names.UNIQ_KEY)
        or unique_key(header, source.number, group),
        names.ORIGIN_MESSAGE_ID: told
        or str(OffsetMessageId(group, header.physical_offset, source.number)),
    }


def _encode(target: Target, part: Sequence[Made]) -> bytes:
    sources = [made.source for made in part]
    return encode_batch(
        [source.body for source in sources],
        keys=[source.message_key for source in sources],
        tags=[source.tag for source in sources],
        properties=[made.properties for made in part],
        born_unix_ms=[source.born_unix_ms for source in sources],
        due_unix_ms=[made.due_unix_ms for made in part] if target.kind == Kind.DELAY else None,
        sources=[source.packed for source in sources],
        topic_id=target.topic_id,
        queue_id=target.queue,
        kind=target.kind,
        flags=target.cause,
    )


def _parts(made: Sequence[Made]) -> Iterator[list[Made]]:
    part: list[Made] = []
    size_bytes = 0
    for one in made:
        part.append(one)
        size_bytes += _size(one)
        if size_bytes >= BATCH_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part


def _size(one: Made) -> int:
    source = one.source
    texts = texts_bytes_max(one.properties, source.message_key, source.tag)
    return len(source.body) + texts + 64
