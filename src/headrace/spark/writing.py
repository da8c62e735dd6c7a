"""Writes rows to topics: batch and streaming sinks, at least once.

Each task writes with its own idempotent producer, and ends when all records are acknowledged. A
task that Spark repeats writes its rows again. `exactly_once` will need a class that stages rows
instead of sending them, and a `commit` that publishes them.

1. The columns are the connector's: key, value, topic, partition, headers. Other columns are not
   written.
2. The option `topic` has priority over the column.
3. An error in the columns is raised before any record is written. An error in a row names its
   column.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from headrace.client import ClientError, Producer, RecordTooLarge, UnknownTopic
from headrace.client.core.options import ProducerOptions
from headrace.model.errors import ApiError
from headrace.record.build import encode_headers
from headrace.record.rows import Column, RowEncoder
from headrace.spark.connections import connect
from headrace.spark.option_values import OptionError
from headrace.spark.options import WriteOptions
from headrace.spark.pyspark_api import DataSourceStreamArrowWriter

_TEXT_OR_BYTES = (StringType, BinaryType)


@dataclass
class Written(WriterCommitMessage):
    """The number of rows that a task has written."""

    rows: int


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Check that a DataFrame has the required columns, with types that can be written."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if "value" not in kinds:
        raise OptionError("the DataFrame has no column 'value'")
    if options.topic is None and "topic" not in kinds:
        raise OptionError("no topic: set the option 'topic', or add a column 'topic'")
    _check(kinds, "key", "STRING or BINARY", _TEXT_OR_BYTES)
    _check(kinds, "value", "STRING or BINARY", _TEXT_OR_BYTES)
    if options.topic is None:
        _check(kinds, "topic", "STRING", (StringType,))
    _check(kinds, "partition", "INT", (IntegerType,))
    headers = kinds.get("headers")
    if headers is not None and not _is_headers(headers):
        raise _wrong_type("headers", "ARRAY<STRUCT<key: STRING, value: BINARY>>", headers)


def _check(
    kinds: dict[str, DataType], name: str, wanted: str, types: tuple[type[DataType], ...]
) -> None:
    kind = kinds.get(name)
    if kind is not None and not isinstance(kind, types):
        raise _wrong_type(name, wanted, kind)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


def _wrong_type(name: str, wanted: str, kind: DataType) -> OptionError:
    return OptionError(f"column {name!r} is {kind.simpleString().upper()}: cast it to {wanted}")


class _Sink:
    """The shared base of batch and stream writers."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        rows = 0
        client = connect(self.options.connection)
        try:
            with client.producer(**dict(self.options.producer)) as producer:
                task = _Task(self.options, producer)
                for batch in iterator:
                    task.append(batch)
                    rows += batch.num_rows
                task.finish()
        except ClientError as error:
            raise _with_advice(error) from error
        finally:
            client.close()
        return Written(rows)


class BatchWriter(_Sink, DataSourceArrowWriter):
    pass


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: all records are already written."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: records that were written remain (at least once)."""


def _with_advice(error: ClientError) -> ClientError:
    """An error with the column, option or topic setting to change."""
    if isinstance(error, RecordTooLarge):
        advice = "write less in the column 'value', or raise the topic's max.message.bytes"
    elif isinstance(error, UnknownTopic):
        advice = "create the topic, or change the option 'topic' or the column 'topic'"
    else:
        return error
    return type(error)(error.code, f"{error.message.rstrip('.')}: {advice}")


class _Task:
    """Encodes and sends the rows of one task."""

    def __init__(self, options: WriteOptions, producer: Producer) -> None:
        self._options = options
        self._producer = producer
        self._encoders: dict[str, RowEncoder] = {}
        given = dict(options.producer)
        self._bytes_max = int(given.get("batch_bytes_max", ProducerOptions().batch_bytes_max))

    def append(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._options.topic is not None:
            self._append_to(self._options.topic, batch)
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise OptionError(
                "a row has no topic: the column 'topic' is null; fill it, or set the option 'topic'"
            )
        for topic in pc.unique(topics).to_pylist():
            of_topic = batch if pc.all(pc.equal(topics, topic)).as_py() else None
            self._append_to(topic, of_topic or batch.filter(pc.equal(topics, topic)))

    def _append_to(self, topic: str, batch: pa.RecordBatch) -> None:
        encoder = self._encoders.get(topic) or self._encoder(topic)
        names = batch.schema.names
        partitions = batch.column("partition") if "partition" in names else None
        try:
            encoder.append(
                batch.num_rows,
                b"" if partitions is None else _numbers(partitions),
                _column(batch.column("key")) if "key" in names else None,
                _column(batch.column("value")),
                _headers(batch.column("headers")) if "headers" in names else [],
            )
        except ApiError as error:
            raise OptionError(f"column 'partition' of a row for {topic!r}: {error}") from None
        self._send(topic, encoder, everything=False)

    def _encoder(self, topic: str) -> RowEncoder:
        count = self._producer.partition_count(topic)
        sticky = list(range(count))
        random.shuffle(sticky)
        encoder = self._encoders[topic] = RowEncoder(count, sticky, self._bytes_max)
        return encoder

    def finish(self) -> None:
        for topic, encoder in self._encoders.items():
            self._send(topic, encoder, everything=True)

    def _send(self, topic: str, encoder: RowEncoder, *, everything: bool) -> None:
        now_ms = int(time.time() * 1000)
        for partition, payload, count in encoder.take(everything):
            self._producer.send_batch(topic, partition, payload, count, now_ms)


def _numbers(column: pa.Array) -> bytes:
    """32-bit numbers; -1 for null."""
    filled = pc.fill_null(column, -1)
    data: bytes = filled.buffers()[1].to_pybytes()
    return data[filled.offset * 4 : (filled.offset + len(filled)) * 4]


def _column(column: pa.Array) -> Column:
    plain = pc.cast(column, pa.binary())
    if plain.offset:
        plain = pa.concat_arrays([plain])
    _, ends, data = plain.buffers()
    presence = b""
    if plain.null_count:
        valid = pc.cast(pc.is_valid(plain), pa.uint8())
        presence = valid.buffers()[1].to_pybytes()[: len(plain)]
    return Column(ends.to_pybytes(), b"" if data is None else data.to_pybytes(), presence)


def _headers(column: pa.Array) -> list[bytes]:
    if column.null_count == len(column) or not len(column.flatten()):
        return []
    return [
        encode_headers([(pair["key"] or "", pair["value"]) for pair in pairs or ()])
        for pairs in column.to_pylist()
    ]
