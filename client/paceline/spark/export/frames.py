"""Data frames of an export: what is read, how it is laid out, what is counted."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from paceline.queues import QueueName
from paceline.spark.batch import spark_schema
from paceline.spark.columns import COLUMNS
from paceline.spark.export.counts import QueueCount
from paceline.spark.export.protocol import Layout
from paceline.spark.offsets import Offsets, offsets_to_json
from paceline.spark.source import FORMAT
from paceline.types import GroupName, QueueId, TopicName


def source_frame(
    spark: SparkSession, options: Mapping[str, str], start: Offsets, end: Offsets
) -> DataFrame:
    """Exactly the rows [start, end)."""
    return (
        spark.read.format(FORMAT)
        .options(**dict(options))
        .option("assign", orjson.dumps(_assigned(end)).decode())
        .option("startingOffsets", orjson.dumps(offsets_to_json(start)).decode())
        .option("endingOffsets", orjson.dumps(offsets_to_json(end)).decode())
        .load()
    )


def laid_out(frame: DataFrame, layout: Layout) -> DataFrame:
    """The columns as they are written: the body in its form, folders' columns added."""
    found = frame
    if layout.body == "text":
        found = found.withColumn("body", f.col("body").cast("string"))
    elif layout.body == "base64":
        found = found.withColumn("body", f.base64(f.col("body")))
    if layout.format == "csv":
        found = found.withColumn("properties", f.to_json(f.col("properties")))
    if "dt" in layout.partition_by:
        found = found.withColumn("dt", f.date_format("stored_at", "yyyy-MM-dd"))
    if "hour" in layout.partition_by:
        found = found.withColumn("hour", f.date_format("stored_at", "HH"))
    return found


def write(frame: DataFrame, layout: Layout, path: str) -> None:
    """Write a laid out frame to a folder that does not exist yet."""
    writer = frame.write.format(layout.format).mode("errorifexists")
    if layout.format == "csv":
        writer = writer.option("header", "true").option("escape", '"')
    if layout.format == "json":
        writer = writer.option("ignoreNullFields", "false")
    if layout.partition_by:
        writer = writer.partitionBy(*layout.partition_by)
    writer.save(path)


def written_frame(spark: SparkSession, layout: Layout, paths: Sequence[str]) -> DataFrame:
    """What was written, with the columns of the source and their types again.

    `paths`: folders of batches, all in one folder.
    """
    base = paths[0].rpartition("/")[0]
    reader = spark.read.format(layout.format).option("basePath", base)
    if layout.format == "csv":
        reader = (
            reader.option("header", "true").option("escape", '"').option("enforceSchema", "true")
        )
    if layout.format != "parquet":
        reader = reader.schema(_written_schema(layout))
    frame = reader.load(list(paths))
    if layout.body == "base64":
        frame = frame.withColumn("body", f.unbase64(f.col("body")))
    elif layout.body == "text":
        frame = frame.withColumn("body", f.col("body").cast("binary"))
    if layout.format == "csv":
        frame = frame.withColumn("properties", f.from_json("properties", "map<string,string>"))
    found = [f.col(column.name).cast(column.type).alias(column.name) for column in COLUMNS]
    return frame.select(*found)


def counted(frame: DataFrame, *, is_thorough: bool) -> dict[QueueName, QueueCount]:
    """Rows and offsets by queue; `is_thorough` adds distinct offsets and a checksum of contents."""
    what = [
        f.count(f.lit(1)).alias("rows"),
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.sum(f.col("offset").cast("decimal(38,0)")).alias("total"),
    ]
    if is_thorough:
        what.append(f.count_distinct("offset").alias("distinct"))
        what.append(f.sum(_crc().cast("decimal(38,0)")).alias("checksum"))
    rows = frame.groupBy("topic", "broker_group", "queue_id").agg(*what).collect()
    return {
        QueueName(
            TopicName(row["topic"]), GroupName(row["broker_group"]), QueueId(int(row["queue_id"]))
        ): QueueCount(
            rows=row["rows"],
            first=row["first"],
            last=row["last"],
            sum_of_offsets=int(row["total"]),
            distinct=row["distinct"] if is_thorough else None,
            checksum=int(row["checksum"]) if is_thorough else None,
        )
        for row in rows
    }


def _crc() -> Column:
    """A CRC over all that a producer gave, each part closed by a byte that ends it."""
    end = f.lit(bytes(1))
    return f.crc32(
        f.concat(
            f.col("body"),
            end,
            f.coalesce(f.col("key"), f.lit("")).cast("binary"),
            end,
            f.coalesce(f.col("tag"), f.lit("")).cast("binary"),
            end,
            f.coalesce(f.to_json(f.col("properties")), f.lit("{}")).cast("binary"),
        )
    )


def _written_schema(layout: Layout) -> StructType:
    found = StructType()
    for field in spark_schema(COLUMNS).fields:
        kind: Any = field.dataType
        is_text = field.name == "body" or (field.name == "properties" and layout.format == "csv")
        found = found.add(field.name, "string" if is_text else kind, True)
    for extra in ("dt", "hour"):
        if extra in layout.partition_by:
            found = found.add(extra, "string", True)
    return found


def _assigned(offsets: Offsets) -> dict[str, list[int]]:
    found: dict[str, set[int]] = {}
    for queue in offsets:
        found.setdefault(str(queue.topic), set()).add(int(queue.queue_id))
    return {topic: sorted(queues) for topic, queues in found.items()}
