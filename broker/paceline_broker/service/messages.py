"""Messages as JSON values, turned into record batches at the edge.

Sending encodes one batch per queue and goes the way of all batches (DESIGN 1, idea 2). What is
sent in one request to several queues is appended in one step but is no transaction: each message
has its own place in the answer. Pulling fetches batches and decodes them.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from crc32c import crc32c

from paceline.errors import (
    MessageTypeError,
    NotYetAvailableError,
    OffsetOutOfRangeError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from paceline.platform.ports import Buffer, Clock
from paceline.records.decode import BatchView
from paceline.records.encode import encode_batch
from paceline.records.header import Kind, parse_header
from paceline.wire.cluster import TopicView
from paceline.wire.http import PullRequest, SendRequest
from paceline.wire.message_ids import RECALL, OffsetMessageId, make_handle
from paceline.wire.names import check_readable_topic_name, check_topic_name
from paceline.wire.static_topics import Place
from paceline.wire.stream import (
    FETCH_FLAG_ACTING,
    FETCH_SUGGESTION_SHIFT,
    PRODUCE_FLAG_DUPLICATE,
    PRODUCE_FLAG_OFFSET_UNKNOWN,
    PRODUCE_FLAG_UNCONFIRMED,
    FetchCode,
    FetchPart,
    FetchQueue,
    ProduceAnswer,
)
from paceline.wire.topics import FIFO, PRIORITY, no_priorities, queue_of_priority
from paceline_broker.ports import Role
from paceline_broker.projections.consume_queues import queue_key
from paceline_broker.service.batch_rules import SenderRights
from paceline_broker.service.fetch.fetch import Fetcher, FutureFetchSink
from paceline_broker.service.fetch.filters import unpacked_bytes
from paceline_broker.service.fetch.read import Fetched
from paceline_broker.service.long_work import LongWork
from paceline_broker.service.produce.auto_create import AutoCreator
from paceline_broker.service.produce.logical_queues import add_place, open_queue, queue_of_key
from paceline_broker.service.produce.send import FutureSink, Sender
from paceline_broker.service.pulling import pulled_messages
from paceline_broker.service.routes import Routes
from paceline_broker.service.rpc import MAYBE_STALE
from paceline_broker.service.transactions.half_messages import HANDLE_KIND

JSON_PULL_BYTES_MAX = 1024 * 1024
"""Batches decoded for one answer: bounds the time of one loop turn."""
NEW_TOPIC_WAIT_MS = 250
"""A view with a topic just created arrives within some ms; an unknown name costs this once."""


class Messages:
    """Sending and pulling messages one queue (or a few) at a time."""

    def __init__(
        self,
        role: Role,
        sender: Sender,
        fetcher: Fetcher,
        routes: Routes,
        clock: Clock,
        creator: AutoCreator,
        work: LongWork,
    ) -> None:
        self._creator = creator
        self._work = work
        self._role = role
        self._sender = sender
        self._fetcher = fetcher
        self._routes = routes
        self._clock = clock
        self._turn = 0

    async def topic(self, name: str) -> TopicView:
        """The topic of that name, to read: waits a little for a view that may be under way.

        Raises BadNameError, ForbiddenError (some of the system's), TopicNotFoundError.
        """
        check_readable_topic_name(name)
        try:
            return self._routes.topic_named(name)
        except TopicNotFoundError:
            await self._routes.wait_newer(self._routes.version, timeout_ms=NEW_TOPIC_WAIT_MS)
        return self._routes.topic_named(name)

    async def topic_to_send(self, name: str) -> TopicView:
        """The topic of that name, made if topics make themselves; as `AutoCreator.ensure_topic`."""
        check_topic_name(name)
        if self._creator.makes_topics:
            return await self._creator.ensure_topic(name)
        return await self.topic(name)

    # -- sending -----------------------------------------------------------------------------------

    async def send(
        self, topic: TopicView, request: SendRequest, *, rights: SenderRights | None = None
    ) -> dict[str, Any]:
        """Store messages: "messages", a row for each in the order of the request, and the "epoch"
        and "confirm" of the acknowledgement itself: the role may be another by now (INV-4).
        `rights`: as of `Sender.send`.

        Raises the first error of any batch; batches of other queues may be stored then, which only
        idempotence fields make safe to repeat.
        """
        here = self._routes.sendable.get(topic.topic_id)
        count = 0 if here is None else here.writes
        if request.queue is not None:
            self._routes.check_queue(topic.topic_id, request.queue)
        elif count == 0:
            self._routes.check_writable(topic)
        elif topic.message_type == FIFO and not all(request.chosen_by):
            raise MessageTypeError(
                f"topic {topic.topic} is of type FIFO: give each message a sharding key (in"
                " gRPC clients a message group) or a key, or name the queue",
                topic=topic.topic,
                message_type=FIFO,
                field="key",
            )
        by_queue: dict[tuple[int, bool], list[int]] = {}
        for index, key in enumerate(request.chosen_by):
            queue = self._queue_of(topic, key, request.priorities[index], request.queue, count)
            by_queue.setdefault((queue, request.dues[index] is not None), []).append(index)
        self._turn += 1
        # Everything is encoded before anything is appended: a message that cannot be fails all.
        batches = [
            self._encode(topic.topic_id, queue, request, indexes, is_delayed=is_delayed)
            for (queue, is_delayed), indexes in by_queue.items()
        ]
        headers = [parse_header(batch) for batch in batches]
        for header, batch, indexes in zip(headers, batches, by_queue.values(), strict=True):
            properties = [row or {} for row in _chosen(request.properties, indexes)]
            self._sender.check(header, batch, properties, rights)
        sinks = [FutureSink() for _ in batches]
        for batch, header, sink in zip(batches, headers, sinks, strict=True):
            self._sender.send_checked(batch, header, sink, 0)
        answers = await _all(sinks)
        rows: list[dict[str, Any]] = [{} for _ in request.bodies]
        for ((queue, is_delayed), indexes), answer in zip(by_queue.items(), answers, strict=True):
            for number, index in enumerate(indexes):
                rows[index] = _row(queue, number, answer)
                if is_delayed:
                    rows[index] |= self._delayed_row(number, answer)
                elif request.is_transaction:
                    rows[index] |= self._half_row(number, answer)
            add_place((rows[index] for index in indexes), self.place_of(topic, queue))
        return {
            "messages": rows,
            "epoch": min(answer.master_epoch for answer in answers),
            "confirm": max(answer.confirm for answer in answers),
        }

    async def send_batch(
        self, batch: Buffer, *, asker: str | None, rights: SenderRights | None = None
    ) -> ProduceAnswer:
        """Store a record batch as it came; the answer when confirm has passed it."""
        sink = FutureSink()
        job = self._sender.send(batch, sink, 0, asker=asker, rights=rights)
        try:
            return await sink.answer
        finally:
            if job is not None:
                job.cancel()

    def place_of(self, topic: TopicView, queue: int) -> Place | None:
        """Which segment of a logical queue a queue here is, if the topic is static."""
        return self._routes.places.get(queue_key(topic.topic_id, queue))

    def _queue_of(
        self,
        topic: TopicView,
        key: str | None,
        priority: int | None,
        queue: int | None,
        count: int,
    ) -> int:
        """The named queue, else by priority, else by (sharding) key over this broker's queues (over
        all logical queues of a static topic), else the next one in turn. QueueSealedError;
        MessageTypeError for a priority where there are none."""
        if queue is not None:
            return queue
        if topic.message_type == PRIORITY:
            return queue_of_priority(priority or 0, count)
        if priority is not None:
            raise no_priorities(topic, field="priority")
        if topic.is_static:
            group, seals = self._routes.group, self._role.projections.seals.by_key
            if key:
                return queue_of_key(topic, group, key)
            return open_queue(topic, group, self._turn, seals)
        if key:
            return int(crc32c(key.encode())) % count
        return self._turn % count

    def _delayed_row(self, number: int, answer: ProduceAnswer) -> dict[str, Any]:
        """A delayed message has no offset yet; what it can be recalled by instead."""
        if answer.flags & PRODUCE_FLAG_OFFSET_UNKNOWN:
            return {"recall_handle": None}
        place = OffsetMessageId(self._routes.group, answer.base_queue_offset, number)
        return {"offset": None, "recall_handle": make_handle(RECALL, place)}

    def _half_row(self, number: int, answer: ProduceAnswer) -> dict[str, Any]:
        """A half message has no offset; what its transaction is ended by instead."""
        if answer.flags & PRODUCE_FLAG_OFFSET_UNKNOWN:
            return {"transaction_id": None}
        place = OffsetMessageId(self._routes.group, answer.base_queue_offset, number)
        return {"offset": None, "transaction_id": make_handle(HANDLE_KIND, place)}

    def _encode(
        self,
        topic_id: int,
        queue: int,
        request: SendRequest,
        indexes: list[int],
        *,
        is_delayed: bool,
    ) -> bytes:
        producer = request.producer
        return encode_batch(
            _chosen(request.bodies, indexes),
            keys=_column(request.keys, indexes),
            tags=_column(request.tags, indexes),
            properties=_column(request.properties, indexes),
            born_unix_ms=self._clock.unix_ms(),
            kind=_kind(request, is_delayed=is_delayed),
            due_unix_ms=_chosen(request.dues, indexes) if is_delayed else None,
            topic_id=topic_id,
            queue_id=queue,
            producer_id=0 if producer is None else producer.producer_id,
            producer_epoch=0 if producer is None else producer.epoch,
            base_sequence=-1 if producer is None else producer.sequence,
        )

    # -- pulling -----------------------------------------------------------------------------------

    async def pull(
        self, topic: TopicView, queue: int, request: PullRequest, *, asker: str | None = None
    ) -> dict[str, Any]:
        """Messages of one queue as JSON values, its confirmed range, and `next_offset`.

        With tags, batches in which nothing matches are passed over until the wait is over. Raises
        OffsetOutOfRangeError, QueueNotFoundError, NotYetAvailableError, NotMasterError (redirect).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_ms / 1000
        asked = replace(request, max_bytes=min(request.max_bytes, JSON_PULL_BYTES_MAX))
        while True:
            left_ms = max(0, int((deadline - loop.time()) * 1000))
            answer = await self.fetch_one(topic, queue, replace(asked, wait_ms=left_ms))
            rows, next_offset = await self._work.run(
                pulled_messages(_views(answer), asked),
                asker=asker,
                raw_bytes=unpacked_bytes(answer.buffers),
            )
            is_stuck = next_offset == asked.offset
            if rows or is_stuck or loop.time() >= deadline:
                part = answer.parts[0]
                add_place(rows, self.place_of(topic, queue))
                return {
                    "messages": rows,
                    "next_offset": next_offset,
                    "start": part.start,
                    "end": part.end,
                    **(MAYBE_STALE if part.flags & FETCH_FLAG_ACTING else {}),
                    **_suggestion(part.flags >> FETCH_SUGGESTION_SHIFT),
                }
            asked = replace(asked, offset=next_offset)

    async def fetch_one(self, topic: TopicView, queue: int, request: PullRequest) -> Fetched:
        """One fetch of one queue as batches; its code turned into an error."""
        self._routes.check_queue(topic.topic_id, queue)
        offset, max_bytes = request.offset, request.max_bytes
        answer = await self.fetch(
            [FetchQueue(topic.topic_id, queue, offset, max_bytes)],
            wait_ms=request.wait_ms,
            max_bytes=max_bytes,
            min_bytes=1,
        )
        self._raise_code(answer.parts[0], offset)
        return answer

    async def fetch(
        self, queues: Sequence[FetchQueue], *, wait_ms: int, max_bytes: int, min_bytes: int
    ) -> Fetched:
        """As `Fetcher.fetch`, awaited; a cancelled asker leaves nothing waiting."""
        sink = FutureFetchSink(self._fetcher.turns)
        self._fetcher.fetch(
            queues,
            wait_ms=wait_ms,
            max_bytes=max_bytes,
            min_bytes=min_bytes,
            sink=sink,
            request_id=0,
        )
        try:
            return await sink.answer
        finally:
            self._fetcher.cancel(sink)

    def _raise_code(self, part: FetchPart, offset: int) -> None:
        match part.code:
            case FetchCode.OFFSET_OUT_OF_RANGE:
                raise OffsetOutOfRangeError(
                    f"offset {offset} is not in [{part.start}, {part.end}]",
                    start=part.start,
                    end=part.end,
                )
            case FetchCode.UNKNOWN_QUEUE:
                raise QueueNotFoundError(f"no queue {part.queue_id}", queue=part.queue_id)
            case FetchCode.NO_PERMISSION:
                self._routes.check_read(part.topic_id)
            case FetchCode.NOT_YET_AVAILABLE:
                if self._role.acting is None:
                    self._role.writer()  # elsewhere than on the master it says where that is (R3)
                raise NotYetAvailableError(f"offset {offset} is not known here yet")


def _chosen(values: Sequence[Any], indexes: list[int]) -> Sequence[Any]:
    """The values at `indexes`; the sequence itself if that is all of them."""
    return values if len(indexes) == len(values) else [values[index] for index in indexes]


def _column(values: Sequence[Any], indexes: list[int]) -> Sequence[Any] | None:
    """A chosen column, or None when it would be empty (left out of the batch)."""
    chosen = _chosen(values, indexes)
    return chosen if any(chosen) else None


async def _all(sinks: list[FutureSink]) -> list[ProduceAnswer]:
    """All answers, or the first error once every batch has its outcome."""
    if len(sinks) == 1:
        return [await sinks[0].answer]
    outcomes = await asyncio.gather(*(sink.answer for sink in sinks), return_exceptions=True)
    answers = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        answers.append(outcome)
    return answers


def _kind(request: SendRequest, *, is_delayed: bool) -> Kind:
    if request.is_transaction:
        return Kind.HALF
    return Kind.DELAY if is_delayed else Kind.NORMAL


def _row(queue: int, number: int, answer: ProduceAnswer) -> dict[str, Any]:
    """Where record `number` of an answered batch lies."""
    is_unknown = answer.flags & PRODUCE_FLAG_OFFSET_UNKNOWN
    return {
        "queue": queue,
        "offset": None if is_unknown else answer.base_queue_offset + number,
        "duplicate": bool(answer.flags & PRODUCE_FLAG_DUPLICATE),
        "confirmed": not answer.flags & PRODUCE_FLAG_UNCONFIRMED,
        "store_unix_ms": answer.store_unix_ms,
    }


def _views(answer: Fetched) -> Iterator[BatchView]:
    """The batches of an answer, each checked: who gets JSON has no CRC to check for himself.

    Raises CorruptLogError.
    """
    for buffer in answer.buffers:
        at = 0
        while at < len(buffer):
            view = BatchView(buffer, at)
            view.verify()
            at += view.header.size_bytes
            yield view


def _suggestion(replica_id: int) -> dict[str, Any]:
    """The replica to read on from, as the queue lags far behind."""
    return {"suggest_which_broker_id": replica_id} if replica_id else {}
