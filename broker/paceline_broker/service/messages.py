"""Messages as JSON: the convenient door, turned into record batches at the edge (DESIGN 1, idea 2).

Sending encodes one batch per queue and goes the way of all batches. Pulling fetches batches and
decodes them. What is sent in one request to several queues is appended in one step but is no
transaction: each message has its own place in the answer.
"""

import asyncio
import binascii
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from crc32c import crc32c

from paceline.errors import (
    BadRequestError,
    NotYetAvailableError,
    OffsetOutOfRangeError,
    QueueNotFoundError,
    TooLargeError,
)
from paceline.ports import Clock
from paceline.records.decode import BatchView, Record
from paceline.records.encode import encode_batch
from paceline.records.header import SEQUENCE_MAX, parse_header
from paceline.wire.cluster import TopicView
from paceline.wire.fields import Fields
from paceline.wire.stream import (
    PRODUCE_FLAG_DUPLICATE,
    PRODUCE_FLAG_OFFSET_UNKNOWN,
    FetchCode,
    FetchPart,
    FetchQueue,
    ProduceAnswer,
)
from paceline_broker.service.fetch import Fetcher, FutureFetchSink
from paceline_broker.service.gather import Fetched
from paceline_broker.service.ports import Role
from paceline_broker.service.routes import Routes
from paceline_broker.service.send import FutureSink, Sender

MESSAGES_MAX = 1000
"""Messages of one JSON request: bounds the work of one loop turn."""
PROPERTIES_MAX = 128
KEY_CHARACTERS_MAX = 1024
TAG_CHARACTERS_MAX = 128
PULL_BYTES_MAX = 4 * 1024 * 1024


class JsonMessage(NamedTuple):
    """One message of a JSON request."""

    body: bytes
    key: str | None
    tag: str | None
    properties: dict[str, str] | None


class Producer(NamedTuple):
    """The idempotence fields of a JSON request (R31)."""

    producer_id: int
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """A checked JSON send."""

    messages: Sequence[JsonMessage]
    queue: int | None
    producer: Producer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """A checked pull of one queue."""

    topic: TopicView
    queue: int
    offset: int
    max_messages: int
    max_bytes: int
    wait_ms: int
    tags: frozenset[str]
    """Empty = all."""


class Messages:
    """Sending and pulling messages one queue (or a few) at a time, in JSON values."""

    def __init__(
        self, role: Role, sender: Sender, fetcher: Fetcher, routes: Routes, clock: Clock
    ) -> None:
        self._role = role
        self._sender = sender
        self._fetcher = fetcher
        self._routes = routes
        self._clock = clock
        self._turn = 0

    # -- sending -----------------------------------------------------------------------------------

    async def send(self, topic: TopicView, document: dict[str, Any]) -> list[dict[str, Any]]:
        """Store the messages of a JSON request; one row per message, in its order.

        Raises the first error of any batch; batches of other queues may be stored then, which only
        idempotence fields make safe to repeat.
        """
        request = parse_send(document)
        count = self._routes.queue_counts.get(topic.topic_id, 0)
        if count == 0:
            raise QueueNotFoundError(
                f"topic {topic.topic} has no queue in group {self._routes.group}", queues=0
            )
        if request.queue is not None:
            self._routes.check_queue(topic.topic_id, request.queue)
        by_queue: dict[int, list[int]] = {}
        for index, message in enumerate(request.messages):
            queue = self._queue_of(message, request.queue, count)
            by_queue.setdefault(queue, []).append(index)
        self._turn += 1
        sinks = []
        for queue, indexes in by_queue.items():
            sink = FutureSink()
            batch = self._encode(topic.topic_id, queue, request, indexes)
            self._sender.send_checked(batch, parse_header(batch), sink, 0)
            sinks.append(sink)
        answers = await _all(sinks)
        rows: list[dict[str, Any]] = [{} for _ in request.messages]
        for (queue, indexes), answer in zip(by_queue.items(), answers, strict=True):
            for number, index in enumerate(indexes):
                rows[index] = produce_row(queue, number, answer)
        return rows

    def _queue_of(self, message: JsonMessage, queue: int | None, count: int) -> int:
        """The named queue, else by key over this broker's queues, else the next one in turn."""
        if queue is not None:
            return queue
        if message.key:
            return int(crc32c(message.key.encode())) % count
        return self._turn % count

    def _encode(self, topic_id: int, queue: int, request: SendRequest, indexes: list[int]) -> bytes:
        chosen = [request.messages[index] for index in indexes]
        producer = request.producer or Producer(0, 0, -1)
        return encode_batch(
            [message.body for message in chosen],
            keys=_column([message.key for message in chosen]),
            tags=_column([message.tag for message in chosen]),
            properties=_column([message.properties for message in chosen]),
            born_unix_ms=self._clock.unix_ms(),
            topic_id=topic_id,
            queue_id=queue,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
        )

    # -- pulling -----------------------------------------------------------------------------------

    async def pull(self, request: PullRequest) -> dict[str, Any]:
        """Messages of one queue as JSON values, with where to go on (`next_offset`).

        With tags, batches in which nothing matches are passed over until the wait is over. Raises
        OffsetOutOfRangeError, QueueNotFoundError, NotYetAvailableError, NotMasterError (redirect).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_ms / 1000
        offset = request.offset
        while True:
            left_ms = max(0, int((deadline - loop.time()) * 1000))
            answer = await self.fetch_one(request, offset=offset, wait_ms=left_ms)
            part = answer.parts[0]
            rows, next_offset = _messages(answer, offset, request)
            is_stuck = next_offset == offset
            if rows or is_stuck or loop.time() >= deadline:
                return {
                    "messages": rows,
                    "next_offset": next_offset,
                    "start": part.start,
                    "end": part.end,
                }
            offset = next_offset

    async def fetch_one(self, request: PullRequest, *, offset: int, wait_ms: int) -> Fetched:
        """One fetch of one queue, its code turned into an error."""
        sink = FutureFetchSink()
        asked = FetchQueue(request.topic.topic_id, request.queue, offset, request.max_bytes)
        self._fetcher.fetch(
            [asked],
            wait_ms=wait_ms,
            max_bytes=request.max_bytes,
            min_bytes=1,
            sink=sink,
            request_id=0,
        )
        try:
            answer = await sink.answer
        finally:
            self._fetcher.cancel(sink)
        self._raise_code(answer.parts[0], offset)
        return answer

    def _raise_code(self, part: FetchPart, offset: int) -> None:
        match part.code:
            case FetchCode.OFFSET_OUT_OF_RANGE:
                raise OffsetOutOfRangeError(
                    f"offset {offset} is not in [{part.start}, {part.end}]",
                    start=part.start,
                    end=part.end,
                )
            case FetchCode.UNKNOWN_QUEUE:
                self._routes.check_queue(part.topic_id, part.queue_id)
                raise QueueNotFoundError(f"no queue {part.queue_id}")
            case FetchCode.NOT_YET_AVAILABLE:
                self._role.writer()  # elsewhere than on the master this says where that is (R3)
                raise NotYetAvailableError(f"offset {offset} is not known here yet")


def parse_send(document: dict[str, Any]) -> SendRequest:
    """Check a JSON send: `{"messages": [...]}` or one message at the top; or BadRequestError."""
    fields = Fields(document, name="request")
    queue = fields.integer("queue", high=2**16 - 1) if fields.has("queue") else None
    producer = _producer(fields) if fields.has("producer") else None
    if fields.has("messages"):
        rows = fields.any("messages")
        fields.done()
        if not isinstance(rows, list) or not rows:
            raise BadRequestError("messages must be a list of messages", field="messages")
        if len(rows) > MESSAGES_MAX:
            raise TooLargeError(f"{len(rows)} messages, at most {MESSAGES_MAX}", limit=MESSAGES_MAX)
        messages = [
            _message(Fields(row, name=f"messages[{index}]")) for index, row in enumerate(rows)
        ]
    else:
        messages = [_message(fields)]
    if producer is not None and queue is None:
        raise BadRequestError(
            "queue is needed with producer: sequences run per queue", field="queue"
        )
    return SendRequest(messages=messages, queue=queue, producer=producer)


def _producer(fields: Fields) -> Producer:
    row = Fields(fields.any("producer"), name="producer")
    producer = Producer(
        int.from_bytes(row.hexadecimal("id", size_bytes=8), "big"),
        row.integer("epoch", high=2**16 - 1),
        row.integer("sequence", high=SEQUENCE_MAX),
    )
    row.done()
    if producer.producer_id == 0:
        raise BadRequestError("producer id 0 means none", field="id")
    return producer


def _message(row: Fields) -> JsonMessage:
    """One message; reads every member it knows and refuses the rest."""
    if row.has("body_base64") == row.has("body"):
        raise BadRequestError("a message has either body or body_base64", field="body")
    if row.has("body"):
        text = row.any("body")
        if not isinstance(text, str):
            raise row.wrong("body", "a string", text)
        body = text.encode()
    else:
        body = _base64(row)
    key = row.text("key", length_max=KEY_CHARACTERS_MAX) if row.has("key") else None
    tag = row.text("tag", length_max=TAG_CHARACTERS_MAX) if row.has("tag") else None
    if tag is not None and "|" in tag:
        raise BadRequestError("a tag has no |: pulls separate tags by it", field="tag")
    properties = _properties(row) if row.has("properties") else None
    row.done()
    return JsonMessage(body, key, tag, properties)


def _base64(row: Fields) -> bytes:
    value = row.any("body_base64")
    if not isinstance(value, str):
        raise row.wrong("body_base64", "a string", value)
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequestError(f"body_base64 is no base64: {error}", field="body_base64") from error


def _properties(row: Fields) -> dict[str, str]:
    properties = row.any("properties")
    if not isinstance(properties, dict) or not all(
        isinstance(value, str) for value in properties.values()
    ):
        raise BadRequestError("properties must be an object of strings", field="properties")
    if len(properties) > PROPERTIES_MAX:
        raise BadRequestError(
            f"{len(properties)} properties, at most {PROPERTIES_MAX}", field="properties"
        )
    return properties


def _column(values: list[Any]) -> list[Any] | None:
    """A column, or None when it would be empty (left out of the batch)."""
    return values if any(values) else None


async def _all(sinks: list[FutureSink]) -> list[ProduceAnswer]:
    """All answers, or the first error once every batch has its outcome."""
    outcomes = await asyncio.gather(*(sink.answer for sink in sinks), return_exceptions=True)
    answers = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        answers.append(outcome)
    return answers


def produce_row(queue: int, number: int, answer: ProduceAnswer) -> dict[str, Any]:
    """Where record `number` of an answered batch lies."""
    is_unknown = answer.flags & PRODUCE_FLAG_OFFSET_UNKNOWN
    return {
        "queue": queue,
        "offset": None if is_unknown else answer.base_queue_offset + number,
        "duplicate": bool(answer.flags & PRODUCE_FLAG_DUPLICATE),
        "store_unix_ms": answer.store_unix_ms,
    }


def _messages(
    answer: Fetched, offset: int, request: PullRequest
) -> tuple[list[dict[str, Any]], int]:
    """Rows that match, and the offset after the last record that was looked at."""
    rows: list[dict[str, Any]] = []
    next_offset = offset
    for buffer in answer.buffers:
        at = 0
        while at < len(buffer):
            view = BatchView(buffer, at)
            at += view.header.size_bytes
            skip = max(0, next_offset - view.header.base_queue_offset)
            for record in view.records(skip):
                if len(rows) == request.max_messages:
                    return rows, next_offset
                next_offset = record.queue_offset + 1
                if not request.tags or record.tag in request.tags:
                    rows.append(_record_json(record, view.header.store_unix_ms))
    return rows, next_offset


def _record_json(record: Record, store_unix_ms: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "offset": record.queue_offset,
        "key": record.key,
        "tag": record.tag or None,
        "properties": record.properties,
        "born_unix_ms": record.born_unix_ms,
        "store_unix_ms": store_unix_ms,
    }
    try:
        row["body"] = record.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = b64encode(record.body).decode()
    return row
