"""The sinks: rows of a data frame to a topic, each stored once however often its task runs.

The producer id is derived from what Spark keeps the same when it repeats work: query, micro-batch
and partition of a stream, or the option `jobId` and the partition of a batch write. Sequences count
the rows. A repetition sends the same batches under the same ids, and the brokers answer them as
duplicates (R31). It rests on the same rows coming in the same order in the same partition:
docs/SPARK.md says when that holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from paceline.errors import BadRequestError
from paceline.platform.runtime import SystemRandom
from paceline.spark.options import WriteOptions
from paceline.spark.storing import StoredRows, check_columns, store_rows, store_tails

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass
class Stored(WriterCommitMessage):
    """What one task tells the driver."""

    stored: StoredRows


class PacelineWriter(DataSourceArrowWriter):
    """`df.write.format("paceline")`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns({field.name: field.dataType.simpleString() for field in schema}, options)
        self._options = options
        # Made on the driver and pickled: every attempt of a task has the same.
        self._name = options.job_id or options.producer or SystemRandom().token(16).hex()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = _context()
        name = f"{self._name}/batch/{context.partitionId()}"
        return _store(self._options, name, context, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        store_tails(self._options, _stored(messages))


class PacelineStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("paceline")`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns({field.name: field.dataType.simpleString() for field in schema}, options)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise BadRequestError(
                "Spark does not tell this task its query and micro-batch: rows could be stored"
                " twice. This is made for Spark 4.3",
                field="version",
            )
        name = f"{self._options.producer or query}/{batch}/{context.partitionId()}"
        return _store(self._options, name, context, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        store_tails(self._options, _stored(messages))


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a writer runs in a task"
    return context


def _store(
    options: WriteOptions, name: str, context: TaskContext, batches: Iterator[Any]
) -> Stored:
    if not options.is_deduplicated:
        name = f"{name}/{context.taskAttemptId()}/{SystemRandom().token(8).hex()}"
    return Stored(store_rows(options, name, context.partitionId(), batches))


def _stored(messages: list[WriterCommitMessage | None]) -> list[StoredRows]:
    found = []
    for message in messages:
        assert isinstance(message, Stored), message
        found.append(message.stored)
    return found
