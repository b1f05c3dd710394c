"""Half messages read back from the log, to be committed, checked or written again.

Batches are read whole, verified, and kept for a while: the halves of one batch are mostly ended
together, as a producer's coalesced sends are answered together.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paceline.errors import (
    ForbiddenError,
    NotYetAvailableError,
    OverloadedError,
    StorageError,
)
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch, texts_bytes_max
from paceline.records.header import (
    RECORDS_MAX,
    BatchHeader,
    Cause,
    Kind,
    unpack_source,
)
from paceline.types import PhysicalOffset
from paceline.wire import properties as names
from paceline.wire.message_ids import OffsetMessageId, make_handle, unique_key
from paceline_broker.ports import LogReader, Role
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.transactions import Half
from paceline_broker.service.batch_rules import immunity_s
from paceline_broker.service.fetch.read import HOT_TAIL_BYTES
from paceline_broker.service.settings import ServiceSettings

HANDLE_KIND = "tx"
"""Of transaction ids (`paceline.wire.message_ids.make_handle`)."""
DERIVED_BYTES = 4 * 1024 * 1024
"""Halves that end together become batches of about this size; one alone may be larger."""
TEXT_BYTES_MAX = 16 * 1024
"""Larger bodies are shown to producers in base64 only."""
_ROW_BYTES = 1024
"""Of a row beside its body and texts: its unique key, names that the broker adds, its numbers."""
_OBJECT_BYTES = 512
"""Of a record's objects, beside its bytes."""
KEPT_BATCHES = 256
KEPT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HalfBatch:
    """The columns of one HALF batch, copied out of the log and verified."""

    header: BatchHeader
    bodies: list[bytes]
    keys: list[str | None]
    tags: list[str]
    properties: list[dict[str, str]]
    born: list[int]

    @property
    def memory_bytes(self) -> int:
        """About what it takes here; a small compressed batch may be a large one."""
        return self.header.payload_raw_bytes + _OBJECT_BYTES * self.header.record_count

    def row_bytes(self, index: int) -> int:
        """At most about what one record takes in a JSON answer."""
        texts = texts_bytes_max(self.properties[index], self.keys[index] or "")
        body = len(self.bodies[index])
        return 6 * min(body, TEXT_BYTES_MAX) + texts + 4 * body // 3 + _ROW_BYTES

    def producer_group(self, index: int) -> str:
        """Whom to ask about it; "" if it does not say."""
        return self.properties[index].get(names.PRODUCER_GROUP, "")

    def immunity_ms(self, index: int, default_ms: int) -> int:
        """How long after its storing nobody is asked about it."""
        seconds = immunity_s(self.properties[index].get(names.CHECK_IMMUNITY_S, ""))
        return default_ms if seconds is None else seconds * 1000

    def unique_key(self, index: int, group: str) -> str:
        """Made when it was first stored, and kept since."""
        kept = self.properties[index].get(names.UNIQ_KEY)
        return kept or unique_key(self.header, index, group)


class HalfMessageReader:
    """Reads HALF batches on the master of the moment."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._kept: dict[tuple[int, int], HalfBatch] = {}
        """By (epoch of the reader, position), the one used last at the end."""
        self._kept_bytes = 0

    async def batch_of(self, half: Half) -> HalfBatch:
        """The batch that holds a half. NotYetAvailableError above confirm, or where it is damaged;
        then it is being mended (R24)."""
        at = (int(self._role.epoch), int(half.position))
        kept = self._kept.pop(at, None)
        if kept is None:
            view = _view(self._role.reader, half)
            if _may_be_cold(self._role.reader, half) and self._role.reader.is_cold(view):
                await self._role.reader.warm(view)
            kept = self._kept.pop(at, None)  # another may have read it meanwhile
            if kept is None:
                kept = _decoded(self._role.reader, view, half.position)
                self._kept_bytes += kept.memory_bytes
        self._kept[at] = kept
        while len(self._kept) > 1 and (
            len(self._kept) > KEPT_BATCHES or self._kept_bytes > KEPT_BYTES
        ):
            oldest = next(iter(self._kept))
            self._kept_bytes -= self._kept.pop(oldest).memory_bytes
        return kept


def _may_be_cold(reader: LogReader, half: Half) -> bool:
    return half.position < reader.confirm - HOT_TAIL_BYTES


def _view(reader: LogReader, half: Half) -> memoryview:
    end = PhysicalOffset(half.position + half.size_bytes)
    if end > reader.confirm:
        raise NotYetAvailableError("the half message is not confirmed yet; try again")
    if reader.is_damaged(half.position, end):
        raise NotYetAvailableError("the half message is being repaired here; try again")
    view = reader.read(half.position, half.size_bytes)
    if len(view) != half.size_bytes:
        raise StorageError(f"the log holds {len(view)} of {half.size_bytes} bytes of a half")
    return view


def _decoded(reader: LogReader, view: memoryview, position: PhysicalOffset) -> HalfBatch:
    if not reader.is_sound(view, position):
        raise NotYetAvailableError("the half message is being repaired here; try again")
    batch = BatchView(view)
    return HalfBatch(
        batch.header,
        batch.bodies(),
        batch.keys(),
        batch.tags(),
        batch.properties(),
        batch.born(),
    )


def transaction_id(half: Half, group: str) -> str:
    """What clients call a half that is to be ended."""
    return make_handle(HANDLE_KIND, OffsetMessageId(group, *unpack_source(half.source)))


class Chosen(NamedTuple):
    """A half whose message goes somewhere now."""

    source: int
    batch: HalfBatch
    number: int
    """Of the half in `batch`."""
    more: Mapping[str, str]
    """Properties that the message made of it gets."""


def size_of(row: Chosen) -> int:
    """No less than what the half takes in the batch that is made of it."""
    batch, number = row.batch, row.number
    key, tag = batch.keys[number] or "", batch.tags[number]
    texts = texts_bytes_max(batch.properties[number], key, tag) + texts_bytes_max(row.more)
    return len(batch.bodies[number]) + texts + _ROW_BYTES


def batches_of(
    chosen: Iterable[Chosen],
    *,
    group: str,
    topic_id: int,
    queue_id: int,
    cause: Cause,
    kind: Kind = Kind.NORMAL,
) -> Iterator[bytes]:
    """The halves as batches for one queue, not yet stamped, few and large (R34)."""
    rows: list[Chosen] = []
    size = 0
    for row in chosen:
        row_bytes = size_of(row)
        if rows and (size + row_bytes > DERIVED_BYTES or len(rows) == RECORDS_MAX):
            yield _encoded(rows, group, topic_id, queue_id, cause, kind)
            rows, size = [], 0
        rows.append(row)
        size += row_bytes
    if rows:
        yield _encoded(rows, group, topic_id, queue_id, cause, kind)


def _encoded(
    rows: list[Chosen], group: str, topic_id: int, queue_id: int, cause: Cause, kind: Kind
) -> bytes:
    places = [(row.batch, row.number) for row in rows]
    keys = [batch.keys[number] for batch, number in places]
    tags = [batch.tags[number] for batch, number in places]
    return encode_batch(
        [batch.bodies[number] for batch, number in places],
        keys=keys if any(keys) else None,
        tags=tags if any(tags) else None,
        properties=[
            {
                **row.batch.properties[row.number],
                names.UNIQ_KEY: row.batch.unique_key(row.number, group),
                **row.more,
            }
            for row in rows
        ],
        born_unix_ms=[batch.born[number] for batch, number in places],
        sources=[row.source for row in rows],
        topic_id=topic_id,
        queue_id=queue_id,
        kind=kind,
        flags=cause,
    )


def check_may_begin(settings: ServiceSettings, projections: Projections) -> None:
    """Whether a half message is taken at all now; nothing was appended (ForbiddenError, 429)."""
    if settings.reject_transaction_message:
        raise ForbiddenError("this broker takes no transactions (reject_transaction_message)")
    open_count = projections.transactions.open_count
    if open_count >= settings.open_halves_max:
        raise OverloadedError(
            f"{open_count} transactions are open here, and not more may be: end them first",
            retry_after_ms=1000,
        )
