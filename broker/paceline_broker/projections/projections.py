"""Pure: the one fold of a broker's log (R28, R29): records in, queryable state out.

`Projections` stands at one `position`: it has folded every batch below, in log order. A master
folds each batch as it appends it, so its state is that of `end`; other replicas fold up to confirm.
The decisions about requests (sequences, locks, commits) are methods of the same state, so what a
master answers is what every replica computes from the records.

A fold reads nothing but records: no clock, settings or controller state. It is total over the log
of this feature level; a kind or level it does not know raises CorruptLogError and stops the
replica.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from paceline.errors import CorruptLogError
from paceline.records.decode import BatchView
from paceline.records.header import BatchHeader, Cause, Kind
from paceline.types import MasterEpoch, PhysicalOffset
from paceline.wire.names import group_of_retries
from paceline_broker.projections import snapshots
from paceline_broker.projections.consume_queues import (
    ConsumeQueue,
    ConsumeQueues,
    queue_key,
    topic_of,
)
from paceline_broker.projections.cursors import group_of
from paceline_broker.projections.locks import LockOutcome, LockRequest, Locks, Token
from paceline_broker.projections.offsets import CommitOutcome, CommitRequest, Joined, Offsets
from paceline_broker.projections.pins import PinRequest, Pins
from paceline_broker.projections.producers import Producers
from paceline_broker.projections.receipts import Moved, Receipts
from paceline_broker.projections.seals import Seal, Seals
from paceline_broker.projections.send_backs import SendBacks
from paceline_broker.projections.timers import Timers
from paceline_broker.projections.transactions import Transactions

FEATURE_LEVEL = 4
"""Written into every epoch-start record; a replica that knows only a lower level stops (R29).

2: retention records move the log's start and drop pins; pin records; an epoch's start may withhold
locks (R36). 3: the message model: delayed and half messages, batches that brokers derive (R34),
receipts. 4: cursors of broadcasting groups."""


PENDING_KINDS = frozenset({Kind.DELAY, Kind.HALF})
"""Messages that are not in a queue yet."""


def needs_payload(header: BatchHeader) -> bool:
    """Whether the fold reads more of a batch than its header."""
    return header.kind != Kind.NORMAL or header.is_derived


class Touched(NamedTuple):
    """A watched queue got a batch that ends at `position` of the log."""

    position: int
    queue: ConsumeQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """The document of a topic record: logged before the first batch of a topic (R35)."""

    topic: str
    topic_id: int
    queues: int
    is_deleted: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "is_deleted": self.is_deleted,
            "queues": self.queues,
            "topic": self.topic,
            "topic_id": self.topic_id,
        }


def epoch_start_document(
    *,
    epoch: int,
    is_unclean: bool,
    withhold_locks_ms: int = 0,
    withheld_rest_ms: int | None = None,
) -> dict[str, Any]:
    """The document of the record that begins an epoch; the role appends it (DESIGN 4, R21, R36).

    `withhold_locks_ms`: for leases of an acting master that has just ended; `withheld_rest_ms`:
    what the master knows to be left of those that an earlier epoch withheld locks for.
    """
    return {
        "epoch": epoch,
        "feature_level": FEATURE_LEVEL,
        "is_unclean": is_unclean,
        "withheld_rest_ms": withheld_rest_ms,
        "withhold_locks_ms": withhold_locks_ms,
    }


class Retained(NamedTuple):
    """A retention record that moved the log's start; it counts once confirm passes `record_end`."""

    record_end: PhysicalOffset
    log_start: PhysicalOffset


def retention_document(
    *,
    log_start: int | None = None,
    producers_before_unix_ms: int | None = None,
    dropped_pins: Sequence[str] = (),
) -> dict[str, Any]:
    """The document of a retention record: what the master decided to forget (R26, R29, R31)."""
    return {
        "dropped_pins": list(dropped_pins),
        "log_start": log_start,
        "producers_before_unix_ms": producers_before_unix_ms,
    }


class Projections:
    """The state of all projections at `position`. Owned by the role; one task folds."""

    def __init__(self) -> None:
        self.position = PhysicalOffset(0)
        """Everything below is folded, nothing at or above."""
        self.log_time_ms = 0
        """Highest store time folded; log time is max(this, wall clock) (R29)."""
        self.consume_queues = ConsumeQueues()
        self.offsets = Offsets()
        self.locks = Locks()
        self.producers = Producers()
        self.pins = Pins()
        self.send_backs = SendBacks()
        self.timers = Timers()
        self.transactions = Transactions()
        self.receipts = Receipts()
        self.seals = Seals()
        self.topics: dict[int, TopicRecord] = {}
        self.group_ids: dict[str, int] = {}
        """Consumer group -> id of its retry topic, which is the group's own: one that is made again
        has another, and its state goes with the old one (R35). Only what `topics` says."""
        self.log_start = PhysicalOffset(0)
        """Nothing below is kept, as the newest retention record says, confirmed or not."""
        self.retained = Retained(PhysicalOffset(0), PhysicalOffset(0))
        """The newest retention record below confirm, as `retain` was told. Not state."""
        self._retained_later: deque[Retained] = deque()
        self.touched: deque[Touched] = deque()
        """Watched queues that got a batch, in log order; the pull service drains it. Not state."""

    # -- the fold ----------------------------------------------------------------------------------

    def apply(
        self, header: BatchHeader, batch: BatchView | None
    ) -> list[LockOutcome] | list[CommitOutcome] | None:
        """Fold the batch that begins at `position`; returns what a request record decided.

        `batch` may be None unless `needs_payload(header)`. Raises CorruptLogError if the batch is
        not the next one or its record is not understood.
        """
        if header.physical_offset != self.position:
            raise CorruptLogError(
                f"batch of offset {header.physical_offset} comes at {self.position}",
                offset=int(self.position),
            )
        if header.kind == Kind.NORMAL:
            key = queue_key(header.topic_id, header.queue_id)
            queue = self.consume_queues.get_or_make(key)
            self.fold_messages(header, queue, header.base_queue_offset, header.store_unix_ms)
            if header.is_derived:
                assert batch is not None, header
                self._close_sources(header, batch)
            return None
        assert batch is not None, header
        if header.kind in PENDING_KINDS:
            outcomes = None
            self._fold_pending(header, batch)
        else:
            outcomes = self._apply_internal(header, batch)
        self.position = PhysicalOffset(self.position + header.size_bytes)
        self.log_time_ms = max(self.log_time_ms, header.store_unix_ms)
        return outcomes

    def fold_messages(
        self,
        header: BatchHeader,
        queue: ConsumeQueue,
        base_queue_offset: int,
        store_unix_ms: int,
    ) -> None:
        """Fold a batch of messages that lies at `position`.

        The master's fast path: `header` is the client's, whose broker fields are not stamped, so
        they come as arguments.
        """
        position = self.position
        size = header.size_bytes
        if queue.key in self.seals.by_key:
            raise CorruptLogError(
                f"batch at {position} is of queue {header.queue_id} of topic {header.topic_id},"
                " which was sealed before",
                offset=int(position),
            )
        queue.add(base_queue_offset, header.record_count, position, size)
        if header.producer_id:
            self.producers.add(queue.key, header, base_queue_offset, store_unix_ms)
        self.position = PhysicalOffset(position + size)
        if store_unix_ms > self.log_time_ms:
            self.log_time_ms = store_unix_ms
        if queue.is_watched:
            queue.is_watched = False
            self.touched.append(Touched(self.position, queue))

    def _fold_pending(self, header: BatchHeader, batch: BatchView) -> None:
        """Messages that wait (R34): in no consume queue until a derived batch puts them there."""
        key = queue_key(header.topic_id, header.queue_id)
        if header.producer_id:
            # What a duplicate is answered with (R30): there is no queue offset yet.
            self.producers.add(key, header, header.physical_offset, header.store_unix_ms)
        self.timers.fold(header, batch)
        self.send_backs.fold(header, batch)
        self.transactions.fold(header, batch)

    def _close_sources(self, header: BatchHeader, batch: BatchView) -> None:
        """A derived batch of messages: what it was made from is done, by the same record (R34)."""
        self.timers.fold(header, batch)
        self.send_backs.fold(header, batch)
        self.transactions.fold(header, batch)
        if self.receipts.dying and header.cause == Cause.DEAD:
            self._follow(self.receipts.close_dead(header.topic_id, batch.sources()))

    def fold_decided(self, header: BatchHeader) -> None:
        """A POP record at `position` whose items the master folded one by one as it decided them.

        `receipt_item` folds an item: the next one of a loop turn is decided on what it leaves.
        """
        assert header.physical_offset == self.position, (header.physical_offset, self.position)
        self.position = PhysicalOffset(self.position + header.size_bytes)
        self.log_time_ms = max(self.log_time_ms, header.store_unix_ms)

    def receipt_item(self, item: list[Any]) -> None:
        """Fold one item of the POP record that begins at `position`."""
        self._follow(self.receipts.apply_item(item, position=self.position))
        if item[0] == "end":
            self.offsets.drop_cursor(item[1])

    def _follow(self, moved: list[Moved]) -> None:
        for group, key, floor in moved:
            self.offsets.follow(group, key, floor, at=Joined(self.position, self.log_time_ms))

    def _apply_internal(
        self, header: BatchHeader, batch: BatchView
    ) -> list[LockOutcome] | list[CommitOutcome] | None:
        try:
            document = batch.document()
            match header.kind:
                case Kind.OFFSET_COMMIT:
                    return self._fold_commit(header, CommitRequest.from_json(document))
                case Kind.LOCK:
                    token = Token(*_token_of(header))
                    request = LockRequest.from_json(document)
                    return self.locks.apply(
                        request, new_token=token, now_unix_ms=header.store_unix_ms
                    )
                case Kind.EPOCH_START:
                    self._begin_epoch(header, document)
                case Kind.TOPIC:
                    self._fold_topic(TopicRecord(**document))
                case Kind.RETENTION:
                    self._fold_retention(header, document)
                case Kind.OPERATION:
                    self._fold_operation(document, header)
                case Kind.PIN:
                    self.pins.apply(
                        PinRequest.from_json(document), now_unix_ms=header.store_unix_ms
                    )
                case Kind.POP:
                    for item in document["items"]:
                        self.receipt_item(item)
                case _:
                    raise CorruptLogError(f"kind {header.kind} is not known to this version")
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise CorruptLogError(
                f"record of kind {header.kind} at {header.physical_offset} is malformed: {error!r}",
                offset=header.physical_offset,
            ) from error
        return None

    def _fold_commit(self, header: BatchHeader, request: CommitRequest) -> list[CommitOutcome]:
        at = Joined(self.position, header.store_unix_ms)
        outcomes = self.offsets.apply(request, self, at=at)
        group, is_reset = request.group, request.is_reset
        for key, code, committed in outcomes:
            if code is not None:
                continue
            if is_reset:
                self.send_backs.note_reset(group, key, self.position)
            if committed is not None:
                self.receipts.commit_moved(
                    group, key, committed.offset, is_reset=is_reset, position=self.position
                )
        return outcomes

    def _begin_epoch(self, header: BatchHeader, document: dict[str, Any]) -> None:
        level = document["feature_level"]
        if level > FEATURE_LEVEL:
            raise CorruptLogError(f"feature level {level} is above {FEATURE_LEVEL}: upgrade first")
        if document["is_unclean"]:  # R21
            self.offsets.clamp(self)
            self.receipts.clamp(self.queue_end)
            self.locks.void_all()
            self.producers.fence_all(header.physical_offset)
        now_unix_ms = header.store_unix_ms
        self.locks.renew_all(
            log_time_before_ms=self.log_time_ms,
            now_unix_ms=now_unix_ms,
            withheld_rest_ms=document.get("withheld_rest_ms"),  # absent before feature level 3
        )
        withhold_ms = document.get("withhold_locks_ms", 0)
        if withhold_ms:
            self.locks.withhold(
                withhold_ms, now_unix_ms=now_unix_ms, epoch=MasterEpoch(document["epoch"])
            )

    def _fold_operation(self, document: dict[str, Any], header: BatchHeader) -> None:
        """What was decided about messages that wait, or queues, by the feature it belongs to."""
        now_unix_ms = header.store_unix_ms
        match document:
            case {"topics": {"sealed": list(pairs)}}:
                for topic_id, queue_id in pairs:
                    key = queue_key(topic_id, queue_id)
                    end = header.physical_offset + header.size_bytes
                    self.seals.add(key, Seal(self.queue_end(key), end))
            case {"transactions": dict(found)}:
                self.transactions.apply(found, now_unix_ms=now_unix_ms)
            case {"timers": {"recalled": list(sources)}}:
                self.timers.recall(sources, now_unix_ms=now_unix_ms)
            case {"timers": {"escaped": list(sources)}}:
                self.timers.close_all(sources)  # another group has them (R36)
            case _:
                raise CorruptLogError("an operation that is not known to this version")

    def _fold_topic(self, record: TopicRecord) -> None:
        if not record.is_deleted:
            self.topics[record.topic_id] = record
            self._note_group(record)
            return
        known = self.topics.pop(record.topic_id, None)
        group = None if known is None else group_of_retries(known.topic)
        if group is not None and self.group_ids.get(group) == record.topic_id:
            del self.group_ids[group]
            for topic_id, topic in self.topics.items():
                if topic.topic == record.topic:  # a state restored from a checkpoint says the same
                    self.group_ids[group] = max(topic_id, self.group_ids.get(group, 0))
            for of_group in (self.offsets, self.locks, self.send_backs, self.receipts):
                of_group.drop_group(group)
        for projection in (
            self.consume_queues,
            self.offsets,
            self.locks,
            self.producers,
            self.send_backs,
            self.transactions,
            self.receipts,
            self.seals,
        ):
            projection.drop_topic(record.topic_id)

    def _note_group(self, record: TopicRecord) -> None:
        group = group_of_retries(record.topic)
        if group is not None:
            self.group_ids[group] = max(record.topic_id, self.group_ids.get(group, 0))

    def groups(self) -> set[str]:
        """Every consumer group that something here hangs on."""
        names = {*self.offsets.groups(), *self.locks.groups(), *self.receipts.groups()}
        return set(map(group_of, names))

    def topic_ids(self) -> list[int]:
        """Every topic that something here hangs on, sorted (R35)."""
        keys = self.offsets.keys() | self.locks.keys() | self.receipts.keys() | self.seals.keys()
        found = set(self.topics) | self.send_backs.topic_ids() | {topic_of(key) for key in keys}
        return sorted(found)

    def _fold_retention(self, header: BatchHeader, document: dict[str, Any]) -> None:
        if document["log_start"] is not None:
            self.log_start = PhysicalOffset(max(self.log_start, document["log_start"]))
            end = PhysicalOffset(header.physical_offset + header.size_bytes)
            self._retained_later.append(Retained(end, self.log_start))
            self.transactions.drop_below(self.log_start)
        self.pins.drop(document.get("dropped_pins", []))
        if document["producers_before_unix_ms"] is not None:
            self.producers.forget_before(document["producers_before_unix_ms"])

    def retain(self, confirm: PhysicalOffset) -> None:
        """Confirm has moved: queues begin where confirmed retention records say (R26, INV-8).

        Not in the fold: on a master that runs ahead of confirm, and a start that readers were
        shown is gone for good.
        """
        later = self._retained_later
        if not later or later[0].record_end > confirm:
            return
        while later and later[0].record_end <= confirm:
            self.retained = later.popleft()
        self.consume_queues.drop_below(self.retained.log_start)
        self.send_backs.drop_below(self.retained.log_start)

    # -- facts for decisions (offsets.QueueFacts) --------------------------------------------------

    def queue_end(self, key: int) -> int:
        queue = self.consume_queues.get(key)
        return 0 if queue is None else queue.end

    def joined_at(self, group: str, key: int) -> int | None:
        """Where a queue stood when the group began to read its topic here, if it has."""
        joined = self.offsets.joined(group, topic_of(key))
        queue = self.consume_queues.get(key)
        if joined is None:
            return None
        return 0 if queue is None else queue.confirmed_end(joined.position)

    def lock_token(self, group: str, key: int) -> Token | None:
        return self.locks.token_of(group, key)

    def is_locked(self, group: str, key: int, now_unix_ms: int) -> bool:
        return self.locks.get(group, key, now_unix_ms=now_unix_ms) is not None

    def has_open_receipts(self, group: str, key: int, now_unix_ms: int) -> bool:
        return self.receipts.holds(group, key, now_unix_ms)

    # -- checkpoints -------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Canonical bytes of the state at `position`: equal states give equal bytes (INV-9).

        On a master the caller keeps them back until confirm and flushed have passed `position`.
        """
        return b"".join(self.snapshot_pieces())

    def snapshot_pieces(self) -> list[bytes]:
        """What joined is `snapshot`."""
        return snapshots.encode_pieces(
            snapshots.Snapshot(
                position=self.position,
                log_time_ms=self.log_time_ms,
                consume_queues=self.consume_queues.snapshot(self.log_start),
                producers=self.producers.snapshot(),
                document={
                    "locks": self.locks.to_json(),
                    "log_start": self.log_start,
                    "locks_withheld": list(self.locks.withheld),
                    "offsets": self.offsets.to_json(),
                    "offsets_joined": self.offsets.joined_json(),
                    "pins": self.pins.to_json(),
                    "producers_voided_at": self.producers.voided_at,
                    "seals": self.seals.to_json(),
                    "send_back_resets": self.send_backs.resets_json(self.log_start),
                    "topics": [self.topics[key].to_json() for key in sorted(self.topics)],
                },
                parts={
                    "timers": self.timers.snapshot(self.log_time_ms),
                    "send_backs": [self.send_backs.snapshot(self.log_start)],
                    "transactions": [self.transactions.snapshot()],
                    "receipts": [self.receipts.snapshot()],
                },
            )
        )

    @classmethod
    def restore(cls, snapshot: bytes) -> "Projections":
        """The state that `snapshot` was taken of; CorruptLogError if it is not intact."""
        found = snapshots.decode(snapshot)
        projections = cls()
        projections.position = found.position
        projections.log_time_ms = found.log_time_ms
        projections.consume_queues = ConsumeQueues.restore(memoryview(found.consume_queues))
        voided_at = found.document.get("producers_voided_at", 0)  # absent in older ones
        projections.producers = Producers.restore(memoryview(found.producers), voided_at)
        withheld = found.document.get("locks_withheld", (0, 0))
        projections.locks = Locks.from_json(found.document["locks"], withheld)
        joined = found.document.get("offsets_joined", [])  # absent in older ones
        projections.offsets = Offsets.from_json(found.document["offsets"], joined)
        # Absent before feature level 2.
        projections.pins = Pins.from_json(found.document.get("pins", []))
        # Absent before feature level 3.
        projections.send_backs = SendBacks.restore(
            found.part("send_backs"), found.document.get("send_back_resets", [])
        )
        projections.seals = Seals.from_json(found.document.get("seals", []))
        projections.timers = Timers.restore(found.part("timers"))
        projections.transactions = Transactions.restore(found.part("transactions"))
        projections.log_start = PhysicalOffset(found.document.get("log_start", 0))
        if "receipts" in found.parts:  # absent before feature level 3
            projections.receipts = Receipts.restore(bytes(found.part("receipts")))
        # Snapshots are kept once their position is confirmed.
        projections.retained = Retained(projections.position, projections.log_start)
        topics = [TopicRecord(**topic) for topic in found.document["topics"]]
        projections.topics = {topic.topic_id: topic for topic in topics}
        for topic in topics:
            projections._note_group(topic)
        return projections


def _token_of(header: BatchHeader) -> tuple[Any, Any]:
    return header.master_epoch, header.physical_offset
