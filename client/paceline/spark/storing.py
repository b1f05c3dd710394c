"""The work of one task of a sink: rows to batches, batches to the masters, in order by queue."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from paceline.errors import (
    BadRequestError,
    OutOfOrderSequenceError,
    TopicNotFoundError,
    UnknownProducerError,
)
from paceline.platform.runtime import SystemClock
from paceline.queues import QueueKey, write_queues_of
from paceline.records.encode import encode_batch
from paceline.records.header import Codec
from paceline.spark.brokers import Brokers
from paceline.spark.chunks import Chunk, QueueRows, by_queue, chunks, producer_id, rows_of
from paceline.spark.options import WriteOptions
from paceline.types import TopicName
from paceline.wire.names import check_topic_name

LANES = 4
"""Queues are stored in parallel on so many connections; one queue always on the same."""
WAITING_MAX = 16
_COLUMNS = {
    "body": ("binary", "string"),
    "key": ("string", "binary"),
    "tag": ("string",),
    "properties": ("map<string,string>",),
    "topic": ("string",),
}


def check_columns(types: Mapping[str, str], options: WriteOptions) -> None:
    """The columns of a data frame to write. BadRequestError for one that has no place."""
    for name, kind in types.items():
        wanted = _COLUMNS.get(name)
        if wanted is None:
            raise BadRequestError(
                f"a sink takes the columns {', '.join(_COLUMNS)}, not {name}: select yours",
                field=name,
            )
        if kind not in wanted:
            raise BadRequestError(
                f"column {name} is {kind}; a sink takes {' or '.join(wanted)}", field=name
            )
    if "body" not in types:
        raise BadRequestError("a sink needs the column body, binary or string", field="body")
    if options.topic is None and "topic" not in types:
        raise BadRequestError("give the option topic, or a column of that name", field="topic")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """What one task has stored, and the rows at its end that it has not.

    When the task before fails, Spark closes the pipe to the sink, which looks like the end of the
    rows. A last chunk that may have been cut short is no chunk that a repetition would send, so the
    task keeps it back, and the driver stores it once all tasks are known to have succeeded.
    """

    rows: int
    duplicates: int
    name: str
    partition: int
    tail: Chunk | None
    sequences: Mapping[QueueKey, int]


def store_rows(
    options: WriteOptions, name: str, partition: int, batches: Iterable[Any]
) -> StoredRows:
    """Store Arrow record batches under the producer of that name, but for an open chunk."""
    tail = None
    with _Writer(options, name, {}) as writer:
        rows = (row for batch in batches for row in _rows(batch, options.topic))
        for chunk in chunks(rows, records_max=options.chunk_records, bytes_max=options.chunk_bytes):
            if chunk.is_complete:
                writer.put_chunk(chunk, partition)
            else:
                writer.queues(chunk.topic)  # a wrong topic fails here, and not on the driver
                tail = chunk
        writer.finish()
        return StoredRows(
            rows=writer.rows,
            duplicates=writer.duplicates,
            name=name,
            partition=partition,
            tail=tail,
            sequences=writer.sequences,
        )


def store_tails(options: WriteOptions, stored: Iterable[StoredRows]) -> None:
    """On the driver, when all tasks have succeeded: the rows that they kept back."""
    for one in stored:
        if one.tail is None:
            continue
        with _Writer(options, one.name, one.sequences) as writer:
            writer.put_chunk(one.tail, one.partition)
            writer.finish()


def _rows(batch: Any, topic: str | None) -> Iterator[Any]:
    columns = {
        name: batch.column(position).to_pylist() for position, name in enumerate(batch.schema.names)
    }
    if any(body is None for body in columns["body"]):
        raise BadRequestError("a row has no body: it is null", field="body")
    if topic is None and any(named is None for named in columns["topic"]):
        raise BadRequestError("a row has no topic: it is null", field="topic")
    return rows_of(columns, topic)


class _Writer:
    """Batches under way, a few at a time."""

    def __init__(self, options: WriteOptions, name: str, sequences: Mapping[QueueKey, int]) -> None:
        self._options = options
        self._producer_id = producer_id(name)
        self.sequences = dict(sequences)
        """The next of each queue."""
        self._queues: dict[str, tuple[QueueKey, ...]] = {}
        self._lanes = [(Brokers(options.access), ThreadPoolExecutor(1)) for _ in range(LANES)]
        self._waiting: deque[tuple[Future[dict[str, Any]], int]] = deque()
        self.rows = 0
        self.duplicates = 0

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *_: object) -> None:
        for brokers, lane in self._lanes:
            lane.shutdown(cancel_futures=True)
            brokers.close()

    def queues(self, topic: str) -> tuple[QueueKey, ...]:
        """The queues of a topic in their stable order. TopicNotFoundError."""
        found = self._queues.get(topic)
        if found is None:
            check_topic_name(topic)
            with Brokers(self._options.access) as brokers:  # the lanes' own are busy in threads
                view = brokers.view()
            known = view.topics.get(TopicName(topic))
            if known is None:
                raise TopicNotFoundError(
                    f"topic {topic} does not exist; create it with `paceline topic create {topic}`",
                    topic=topic,
                )
            found = self._queues[topic] = write_queues_of(known)
        return found

    def put_chunk(self, chunk: Chunk, partition: int) -> None:
        """Begin to store a chunk: one batch for each queue that it has rows for."""
        queues = self.queues(chunk.topic)
        grouped = by_queue(chunk.rows, queues_count=len(queues), turn=partition + chunk.number)
        for index in sorted(grouped):
            self.put(chunk.topic, queues[index], grouped[index])

    def put(self, topic: str, queue: QueueKey, rows: QueueRows) -> None:
        """Begin to store one batch; waits while too many are under way."""
        sequence = self.sequences.get(queue, 0)
        count = len(rows.bodies)
        self.sequences[queue] = sequence + count
        batch = encode_batch(
            rows.bodies,
            keys=rows.keys if any(rows.keys) else None,
            tags=rows.tags if any(rows.tags) else None,
            properties=rows.properties if any(rows.properties) else None,
            born_unix_ms=SystemClock().unix_ms(),
            topic_id=queue.topic_id,
            queue_id=queue.queue_id,
            codec=Codec[self._options.compression.upper()],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        brokers, lane = self._lanes[queue.queue_id % LANES]
        future = lane.submit(brokers.store, queue.group, topic, queue.queue_id, batch)
        self._waiting.append((future, count))
        while len(self._waiting) > WAITING_MAX:
            self._take_one()

    def finish(self) -> None:
        """Wait for all that is under way."""
        while self._waiting:
            self._take_one()

    def _take_one(self) -> None:
        future, count = self._waiting.popleft()
        try:
            answer = future.result()
        except (OutOfOrderSequenceError, UnknownProducerError) as error:
            raise type(error)(
                f"{error.message}. An earlier attempt of this task stored other batches: the rows"
                " came in another order or number, or its memory has expired; see docs/SPARK.md,"
                ' "Each row once"',
                **error.details,
            ) from error
        self.rows += count
        self.duplicates += count if answer.get("duplicate") else 0
