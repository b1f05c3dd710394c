"""Batch reads of the Spark data source, and what they share with streams.

Everything heavier than options happens where Spark asks for it: `partitions` on the driver, `read`
in executors, with whatever it needs inside the partition. Instances are pickled: no socket is kept.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from paceline.errors import BadRequestError
from paceline.platform.runtime import SystemRandom
from paceline.spark.brokers import Brokers
from paceline.spark.columnar import arrow_schema
from paceline.spark.columns import Column, columns_named
from paceline.spark.filters import push
from paceline.spark.options import ReadOptions
from paceline.spark.pinning import owner_of, pin
from paceline.spark.plan import Planner
from paceline.spark.ranges import Bounds, Task
from paceline.spark.reading import ReadPlan, read_task

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "map<string,string>": MapType(StringType(), StringType(), valueContainsNull=False),
    "timestamp": TimestampType(),
}


class TaskPartition(InputPartition):
    """One task of a read."""

    def __init__(self, task: Task | None) -> None:
        super().__init__(task)


class PacelineReader(DataSourceReader):
    """A batch read. The plan is made once: every action of a data frame plans anew."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._bounds = Bounds(tags=options.tags, keys=options.keys)
        self._columns = chosen_columns(schema)
        if options.is_pushdown:
            self.pushFilters = _PushFilters(self)

    def take_filters(self, filters: Iterable[Filter]) -> list[Filter]:
        """Narrow the read; what Spark must check itself comes back."""
        return push(self._bounds, filters)

    def partitions(self) -> list[InputPartition]:
        with Brokers(self._options.access) as brokers:
            planner = Planner(self._options, brokers)
            ranges = planner.narrowed(planner.ranges(), self._bounds)
            if self._options.is_pinned and ranges:
                owner = owner_of("read", SystemRandom().token(8).hex())
                starts = {one.queue: one.start for one in ranges}
                pin(brokers, owner, starts, lease_seconds=self._options.lease_seconds)
            tasks = planner.tasks(ranges)
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        bounds = self._bounds
        plan = read_plan(self._options, self._columns, tags=bounds.tags, keys=bounds.keys)
        return read_task(plan, partition.value)


class _PushFilters:
    """`pushFilters` of a reader in a session that may not allow it.

    Spark refuses a reader that overrides `pushFilters` while `spark.sql.python.filterPushdown.
    enabled` is off, and nothing tells a source how that is set. It looks at the function behind
    the method: this object shows the one that is not overridden, and is called only where pushing
    is allowed.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: PacelineReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.take_filters(filters)


def spark_schema(columns: Iterable[Column]) -> StructType:
    """The columns as Spark's schema, with who may be null."""
    return StructType(
        [StructField(column.name, _TYPES[column.type], column.is_nullable) for column in columns]
    )


def chosen_columns(schema: StructType) -> tuple[Column, ...]:
    """The columns of a schema that a user may have given. BadRequestError for a wrong type."""
    columns = columns_named(tuple(field.name for field in schema.fields), option="schema")
    found = []
    for column, field in zip(columns, schema.fields, strict=True):
        if column.is_nullable and not field.nullable:
            raise BadRequestError(
                f"schema: {column.name} is null where a message has none", field=column.name
            )
        # Arrow's schema must say what the user's says, also where nothing is ever null.
        found.append(column._replace(is_nullable=field.nullable))
        if field.dataType.simpleString() != _TYPES[column.type].simpleString():
            raise BadRequestError(
                f"schema: {column.name} is {column.type}, not {field.dataType.simpleString()}",
                field=column.name,
            )
    return tuple(found)


def read_plan(
    options: ReadOptions,
    columns: tuple[Column, ...],
    *,
    tags: frozenset[str] | None,
    keys: frozenset[str] | None,
) -> ReadPlan:
    """What the tasks of a query are told."""
    return ReadPlan(
        access=options.access,
        schema=arrow_schema(columns),
        batch_bytes=options.batch_bytes,
        tags=tags,
        keys=keys,
        fail_on_data_loss=options.fail_on_data_loss,
        reads_masters=options.reads_masters,
    )
