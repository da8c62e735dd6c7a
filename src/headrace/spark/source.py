"""The data source: its name, its columns, and its readers and writers.

Spark imports this module in several short processes, only to inspect it. So other modules are
imported when they are needed.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    from headrace.spark.options import ReadOptions, Use

_FIELDS = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]
HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)


class HeadraceDataSource(DataSource):
    """Topics of a cluster with the Kafka protocol. docs/SPARK.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        from headrace.spark.options import read_options

        return _schema(read_options(self.options, None))

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.batch import BatchReader, FilteringBatchReader

        options = self._read_options(schema, "batch")
        return FilteringBatchReader(options) if options.push_filters else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from headrace.spark.option_values import OptionError
        from headrace.spark.stream import RefusedStream, StreamReader

        try:
            return StreamReader(self._read_options(schema, "stream"))
        except OptionError as error:
            # PySpark 4.3 fails with an UnboundLocalError if this method raises.
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from headrace.spark.option_values import OptionError
        from headrace.spark.options import write_options
        from headrace.spark.writing import BatchWriter, check_columns

        if overwrite:
            raise OptionError("a topic cannot be overwritten. Use mode('append')")
        options = write_options(self.options)
        check_columns(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from headrace.spark.options import write_options
        from headrace.spark.writing import StreamWriter, check_columns

        options = write_options(self.options)
        check_columns(schema, options)
        return StreamWriter(options)

    def _read_options(self, schema: StructType, use: "Use") -> "ReadOptions":
        from headrace.spark.option_values import OptionError
        from headrace.spark.options import check_versions, read_options
        from headrace.spark.pyspark_api import VERSION
        from headrace.spark.versions import OPTIONS_SINCE

        check_versions(self.options, OPTIONS_SINCE, VERSION)
        options = read_options(self.options, use)
        kinds = {field.name: field.dataType for field in _schema(options)}
        wanted = {field.name: field.dataType for field in schema}
        if not wanted or not wanted.items() <= kinds.items():
            known = ", ".join(f"{name} {kind.simpleString()}" for name, kind in kinds.items())
            raise OptionError(f"schema(...) can contain only the columns {known}")
        if not all(field.nullable for field in schema):
            raise OptionError(
                "schema(...) has NOT NULL, but all columns are nullable. Remove NOT NULL"
            )
        return replace(options, columns=tuple(schema.names))


def _schema(options: "ReadOptions") -> StructType:
    headers = [StructField("headers", HEADERS)] if options.include_headers else []
    return StructType(_FIELDS + headers)
