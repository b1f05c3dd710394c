"""What a master does with what acting masters send it: another group's messages are stored, and
what its own group's have sent elsewhere is not delivered here (R36).

Both come over a connection that has proven the cluster secret (`session.py`); what they say is
checked all the same, record by record.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from paceline.errors import (
    BadRequestError,
    ForbiddenError,
    NotYetAvailableError,
    PacelineError,
    QueueNotFoundError,
    QueueSealedError,
)
from paceline.records.checking import check_batch
from paceline.records.decode import BatchView
from paceline.records.header import (
    CAUSE_MASK,
    COLUMN_DUE,
    COLUMN_SOURCE,
    BatchHeader,
    Cause,
    Kind,
    unpack_source,
)
from paceline.types import GroupName
from paceline.wire import properties as names
from paceline.wire.message_ids import parse_offset_id
from paceline.wire.names import RETRY_PREFIX
from paceline_broker.ports import Identity, LogWriter, Role
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.projections.projections import Projections
from paceline_broker.projections.timers import Due
from paceline_broker.replication.messages import Hello, Refused
from paceline_broker.service.escape.notes import SentNote
from paceline_broker.service.escape.wait import EscapeWait
from paceline_broker.service.escape.wire import EscapeTold
from paceline_broker.service.ledger import Ledger
from paceline_broker.service.routes import Routes
from paceline_broker.service.topic_records import log_topic

log = logging.getLogger("paceline.escape")


class Intake:
    """The use-cases of one broker."""

    def __init__(
        self,
        role: Role,
        routes: Routes,
        ledger: Ledger,
        wait: EscapeWait,
        *,
        on_told: Callable[[], None],
    ) -> None:
        """`on_told`: delivery need not wait any longer."""
        self._role = role
        self._routes = routes
        self._ledger = ledger
        self.wait = wait
        self.taken = 0
        """Messages of other groups, stored here."""
        self.skipped = 0
        """Messages of this group that are not delivered here, as another group has them."""
        self._on_told = on_told

    @property
    def identity(self) -> Identity:
        return self._role.identity

    @property
    def epoch(self) -> int:
        return self._role.epoch

    def refusal_of(self, hello: Hello) -> Refused | None:
        """Why the sender may not go on, as far as its hello tells."""
        known = self._role.identity
        if known.cluster_id is None or known.replica_id is None:
            return Refused(code="NOT_REGISTERED", detail="this broker is not registered yet")
        if hello.cluster_id != known.cluster_id:
            return Refused(code="OTHER_CLUSTER", detail="this broker is of another cluster")
        return None

    # -- messages of another group -----------------------------------------------------------------

    async def take(self, sender: GroupName, batches: Sequence[bytes]) -> list[str | None]:
        """Store each batch, or say why not; returns when confirm has passed them.

        Whatever is raised leaves open what became of them.
        """
        checked: list[BatchHeader | PacelineError] = []
        for batch in batches:
            try:
                checked.append(check_escaped(batch, sender, self._role.identity.group))
            except PacelineError as error:
                checked.append(error)
        try:
            writer = self._open_writer()
            writer.ensure_can_append()
        except PacelineError as error:
            return [error.code] * len(batches)
        projections, now_ms = self._role.projections, self._ledger.log_time_ms()
        codes: list[str | None] = []
        for batch, found in zip(batches, checked, strict=True):
            code = self._refusal(found)
            codes.append(code)
            if code is None:
                assert isinstance(found, BatchHeader)
                log_topic(writer, projections, self._routes, found.topic_id, store_unix_ms=now_ms)
                writer.appender.made(batch, store_unix_ms=now_ms)
                self.taken += found.record_count
        await self._ledger.confirmed(writer)
        return codes

    def _refusal(self, found: BatchHeader | PacelineError) -> str | None:
        try:
            if isinstance(found, PacelineError):
                raise found
            check_target(self._routes, found.topic_id, found.queue_id)
            key = queue_key(found.topic_id, found.queue_id)
            if key in self._role.projections.seals.by_key:
                raise QueueSealedError(
                    f"queue {found.queue_id} of topic {found.topic_id} is sealed"
                )
        except PacelineError as error:
            log.warning("escape_refused", extra={"code": error.code, "why": error.message})
            return error.code
        return None

    # -- of the own group --------------------------------------------------------------------------

    async def told(self, told: EscapeTold) -> None:
        """Close what waits here and was sent elsewhere; returns when that is confirmed.

        What was delivered meanwhile, recalled, or is another message than the note means, stays as
        it is. Raises what an append and the wait may raise.
        """
        writer = self._open_writer()
        projections = self._role.projections
        epochs = self._role.reader.epochs()
        waiting = [self._waiting(projections, epochs, note) for note in told.notes]
        found = [entry for entry in waiting if entry is not None]
        if found:
            writer.ensure_can_append()
            writer.appender.record(
                Kind.OPERATION,
                {"timers": {"escaped": [entry.source for entry in found]}},
                store_unix_ms=self._ledger.log_time_ms(),
            )
            self.skipped += len(found)
            log.info("escaped_skipped", extra={"told": len(told.notes), "skipped": len(found)})
        await self._ledger.confirmed(writer)
        self.wait.told(told.epochs)
        self._on_told()

    def _open_writer(self) -> LogWriter:
        writer = self._role.writer()
        if not writer.is_open:
            raise NotYetAvailableError(f"epoch {writer.epoch} is not open yet")
        return writer

    def _waiting(
        self, projections: Projections, epochs: Sequence[Mapping[str, int]], note: SentNote
    ) -> Due | None:
        """The entry that the note means, if it waits still."""
        entry = projections.timers.find_origin(note.origin)
        if entry is None or (entry.due_unix_ms, entry.key) != (note.due_unix_ms, note.key):
            return None
        position, _ = unpack_source(note.origin)
        return entry if epoch_at(epochs, position) == note.epoch else None


def epoch_at(epochs: Sequence[Mapping[str, int]], position: int) -> int:
    """The epoch that wrote a place of the log; 0 if its table does not say."""
    for row in reversed(epochs):
        if row["start"] <= position:
            return row["epoch"]
    return 0


def check_escaped(batch: bytes, sender: GroupName, own: GroupName) -> BatchHeader:
    """The header of a batch as only an acting master of `sender` may send it (R36).

    Raises CorruptLogError, TooLargeError, BadRequestError, ForbiddenError.
    """
    if sender == own:
        raise ForbiddenError("an acting master sends nothing to its own group")
    header = check_batch(batch)
    if header.kind != Kind.NORMAL or header.flags & CAUSE_MASK != Cause.ESCAPED:
        raise BadRequestError("only escaped messages are taken here", field="flags")
    if header.flags & ~CAUSE_MASK or header.producer_id:
        raise BadRequestError("escaped messages have no producer and no other flags", field="flags")
    if header.columns & (COLUMN_SOURCE | COLUMN_DUE):
        raise BadRequestError("sources and due times are those of the own log", field="columns")
    for properties in BatchView(batch).properties():
        source = parse_offset_id(properties.get(names.ESCAPED_FROM, ""))
        if source.group != sender:
            raise ForbiddenError(f"a message of group {source.group}, sent by {sender}")
        if not properties.get(names.TIMER_OUT_MS, "").isdecimal():
            raise BadRequestError("an escaped message says when it was due", field="TIMER_OUT_MS")
    return header


def check_target(routes: Routes, topic_id: int, queue_id: int) -> None:
    """Raise unless the queue may be given messages of another group.

    Topics for clients while they may be written here, and topics of retries; TopicNotFoundError,
    QueueNotFoundError, NoPermissionError, ForbiddenError.
    """
    routes.check_queue(topic_id, queue_id)
    topic = routes.topics_by_id[topic_id]
    if topic.topic.startswith(RETRY_PREFIX):
        return
    routes.check_writable(topic)
    writes = topic.write_queues.get(routes.group, 0)
    if queue_id >= writes:
        raise QueueNotFoundError(f"queue {queue_id} of {topic.topic} is read only", queues=writes)
