"""A log made by hand for tests of the fold: what the master would append, in one place."""

from typing import Any

from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch, encode_internal
from paceline.records.header import HEADER_BYTES, BatchHeader, Cause, Kind, parse_header, stamp
from paceline_broker.projections.locks import LockEntry, LockRequest, Token
from paceline_broker.projections.offsets import CommitEntry, CommitRequest
from paceline_broker.projections.projections import (
    Projections,
    TopicRecord,
    epoch_start_document,
    retention_document,
)

START_MS = 1_700_000_000_000


class HandLog:
    """Appends batches and folds each into `projections`, as a master does."""

    def __init__(self) -> None:
        self.projections = Projections()
        self.batches: list[bytes] = []
        self.epoch = 0
        self.now_ms = START_MS

    @property
    def end(self) -> int:
        return sum(map(len, self.batches))

    def append(self, batch: bytes, *, base: int = 0) -> Any:
        header = stamp(
            batch,
            physical_offset=self.projections.position,
            base_queue_offset=base,
            store_unix_ms=self.now_ms,
            master_epoch=self.epoch,
        )
        whole = header + batch[HEADER_BYTES:]
        self.batches.append(whole)
        view = BatchView(whole)
        return self.projections.apply(view.header, view)

    def internal(self, kind: Kind, document: dict[str, Any]) -> Any:
        return self.append(encode_internal(kind, document, store_unix_ms=self.now_ms))

    def begin_epoch(self, epoch: int, *, is_unclean: bool = False) -> None:
        self.epoch = epoch
        self.internal(Kind.EPOCH_START, epoch_start_document(epoch=epoch, is_unclean=is_unclean))

    def send(self, count: int = 1, *, topic_id: int = 1, queue_id: int = 0, **producer: int) -> int:
        """Append messages; returns the queue offset of the first."""
        key = topic_id << 16 | queue_id
        base = self.projections.queue_end(key)
        batch = encode_batch(
            [b"x"] * count,
            born_unix_ms=self.now_ms,
            topic_id=topic_id,
            queue_id=queue_id,
            **producer,  # type: ignore[arg-type]
        )
        self.append(batch, base=base)
        return base

    def dead_letter(self, topic_id: int, source: int, *, cause: Cause = Cause.DEAD) -> None:
        """Append what was made of a source for a topic (R34)."""
        batch = encode_batch(
            [b"x"],
            born_unix_ms=self.now_ms,
            topic_id=topic_id,
            queue_id=0,
            sources=[source],
            flags=cause,
        )
        self.append(batch, base=self.projections.queue_end(topic_id << 16))

    def topic(self, topic_id: int, queues: int = 4, *, is_deleted: bool = False) -> None:
        record = TopicRecord(
            topic=f"t{topic_id}", topic_id=topic_id, queues=queues, is_deleted=is_deleted
        )
        self.internal(Kind.TOPIC, record.to_json())

    def lock(
        self,
        client_id: str,
        key: int = 1 << 16,
        *,
        token: Token | None = None,
        group: str = "g",
        is_unlock: bool = False,
        lease_ms: int = 60_000,
    ) -> Any:
        request = LockRequest(
            group=group,
            client_id=client_id,
            is_unlock=is_unlock,
            lease_ms=lease_ms,
            entries=(LockEntry(key, token),),
        )
        return self.internal(Kind.LOCK, request.to_json())[0]

    def commit(
        self,
        offset: int,
        key: int = 1 << 16,
        *,
        group: str = "g",
        is_reset: bool = False,
        token: Token | None = None,
        generation: int | None = None,
        may_expire: bool = False,
    ) -> Any:
        request = CommitRequest(
            group=group,
            is_reset=is_reset,
            entries=(CommitEntry(key, offset, token, generation),),
            may_expire=may_expire,
        )
        return self.internal(Kind.OFFSET_COMMIT, request.to_json())[0]

    def retain(self, *, log_start: int | None = None, before_ms: int | None = None) -> None:
        document = retention_document(log_start=log_start, producers_before_unix_ms=before_ms)
        self.internal(Kind.RETENTION, document)


def a_header(*, sequence: int, count: int = 1, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    """The header of an incoming idempotent batch for topic 1 queue 0."""
    batch = encode_batch(
        [b"x"] * count,
        born_unix_ms=START_MS,
        topic_id=1,
        queue_id=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return parse_header(batch)
