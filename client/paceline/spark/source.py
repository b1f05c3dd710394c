"""The Spark data source `paceline`: batch reads, streams and sinks, each in its own module."""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    StructType,
)

from paceline.errors import BadRequestError
from paceline.spark.batch import PacelineReader, spark_schema
from paceline.spark.columns import COLUMNS, columns_named
from paceline.spark.options import environment, read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "paceline"


class PacelineDataSource(DataSource):
    """`spark.read.format("paceline")`, `readStream`, `write`, `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    def schema(self) -> StructType:
        return spark_schema(columns_named(read_options(self.options, environment()).columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        return PacelineReader(read_options(self.options, environment()), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from paceline.spark.stream import PacelineStreamReader

        return PacelineStreamReader(read_options(self.options, environment()), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from paceline.spark.sink import PacelineWriter

        if overwrite:
            raise BadRequestError(
                "a topic cannot be overwritten: write with mode append", field="mode"
            )
        return PacelineWriter(write_options(self.options, environment()), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from paceline.spark.sink import PacelineStreamWriter

        if overwrite:
            raise BadRequestError(
                "a topic cannot be overwritten: write with outputMode append", field="outputMode"
            )
        return PacelineStreamWriter(write_options(self.options, environment()), schema)


def register(spark: "SparkSession") -> None:
    """Make format "paceline" known to a session; needed once, also beside automatic discovery."""
    spark.dataSource.register(PacelineDataSource)


__all__ = ["COLUMNS", "FORMAT", "PacelineDataSource", "register"]
