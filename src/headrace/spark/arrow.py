"""Converts fetched record batches to Arrow record batches, one for each portion of a response.

Owns the schema of the rows and the conversion of bytes in a response to columns. It reads no topic;
its input is one fetched response.

1. Columns and types are those of Spark's Kafka connector. Only requested columns are created,
   because Spark converts all columns to rows, even if a query does not use them.
2. `headers` is an empty list for a record without headers, never null: with null arrays, Spark's
   path to a sink takes quadratic time.
3. A record batch exceeds `_PLAIN_BYTES_MAX` by at most one batch of the topic.
"""

from array import array
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.fetch.chunks import Chunk, corrupt
from headrace.model.errors import ApiError
from headrace.record.batch import Batch
from headrace.record.columns import Columns
from headrace.record.decode import plain_payload

_PLAIN_BYTES_MAX = 16 * 1024 * 1024
HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
_KINDS: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}


def record_batches(
    chunk: Chunk, limit: int, names: tuple[str, ...], check_crc: bool
) -> Iterator[pa.RecordBatch]:
    """The records of a chunk before the offset `limit`, as few Arrow record batches."""
    group: list[tuple[Batch, bytes, int, int]] = []
    plain = 0
    try:
        if chunk.size <= _PLAIN_BYTES_MAX:
            columns = Columns("headers" in names)
            if columns.append_plain(
                chunk.data, chunk.start, chunk.end, chunk.offset, limit, check_crc
            ):
                yield from _rows(chunk, columns, chunk.data, names)
                return
        for batch in chunk.batches(check_crc):
            if batch.base_offset >= limit:
                break
            if batch.last_offset() < chunk.offset or batch.record_count == 0:
                continue
            payload, at, end = plain_payload(batch)
            group.append((batch, payload, at, end))
            plain += end - at
            if plain >= _PLAIN_BYTES_MAX:
                yield from _one(chunk, group, limit, names)
                group, plain = [], 0
        yield from _one(chunk, group, limit, names)
    except ApiError as error:
        raise corrupt(chunk.partition, error) from error


def _one(
    chunk: Chunk, group: list[tuple[Batch, bytes, int, int]], limit: int, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    columns = Columns("headers" in names)
    if all(payload is chunk.data for _, payload, _, _ in group):
        # Nothing was compressed: keys and values are read from the response itself.
        plain = chunk.data
        for batch, payload, at, end in group:
            columns.append(batch, payload, at, end, at, chunk.offset, limit)
    else:
        plain = b"".join(memoryview(payload)[at:end] for _, payload, at, end in group)
        position = 0
        for batch, payload, at, end in group:
            columns.append(batch, payload, at, end, position, chunk.offset, limit)
            position += end - at
    yield from _rows(chunk, columns, plain, names)


def _rows(
    chunk: Chunk, columns: Columns, plain: bytes, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    if columns.count:
        data = pa.py_buffer(plain)
        arrays = [_column(name, chunk, columns, data) for name in names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema_of(names))


@lru_cache(maxsize=8)
def schema_of(names: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of these columns."""
    return pa.schema([(name, _KINDS[name]) for name in names])


def _column(name: str, chunk: Chunk, columns: Columns, plain: pa.Buffer) -> pa.Array:
    count = int(columns.count)
    match name:
        case "key":
            presence = columns.key_presence.getvalue() if columns.keyless else None
            return _scattered(plain, columns.keys.getvalue(), count, presence)
        case "value":
            presence = columns.value_presence.getvalue() if columns.valueless else None
            return _scattered(plain, columns.values.getvalue(), count, presence)
        case "topic":
            return _repeated(chunk.partition.topic, _rounded_up(count))[:count]
        case "partition":
            return _numbers(_KINDS[name], array("i", [chunk.partition.partition]) * count, count)
        case "offset":
            return _numbers(_KINDS[name], columns.offsets.getvalue(), count)
        case "timestamp":
            return _numbers(_KINDS[name], columns.timestamps.getvalue(), count)
        case "timestampType":
            return _numbers(_KINDS[name], columns.timestamp_types.getvalue(), count)
        case _:
            return _headers(columns, plain)


# Create arrays from buffers: pa.array and pa.repeat import pandas to check their arguments, which
# would delay the first row of a worker.


def _numbers(kind: pa.DataType, data: "bytes | array[int]", count: int) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _rounded_up(count: int) -> int:
    """A count rounded up to a power of two, so that cached arrays can be reused and sliced."""
    return max(1024, 1 << (count - 1).bit_length())


@lru_cache(maxsize=8)
def _even_numbers(count: int) -> pa.Array:
    return _numbers(pa.int32(), array("i", range(0, 2 * count, 2)), count)


@lru_cache(maxsize=8)
def _repeated(text: str, count: int) -> pa.StringArray:
    data = text.encode()
    ends = array("i", (len(data) * number for number in range(count + 1)))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _scattered(
    plain: pa.Buffer, positions: bytes, count: int, presence: bytes | None
) -> pa.BinaryArray:
    """The values between pairs of positions in a buffer, as one array."""
    if not count:
        return pa.array([], pa.binary())
    if presence is not None and not any(presence):
        return pa.nulls(count, pa.binary())
    # An array that takes all positions as offsets: every other element is a value.
    both = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(positions), plain], null_count=0
    )
    wanted = both.take(_even_numbers(_rounded_up(count))[:count])
    if presence is None:
        return wanted
    flags = pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(presence)])
    _, ends, data = wanted.buffers()
    bits = flags.cast(pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), count, [bits, ends, data])


def _headers(columns: Columns, plain: pa.Buffer) -> pa.ListArray:
    total = int(columns.header_count)
    names = _scattered(plain, columns.header_keys.getvalue(), total, None)
    contents = _scattered(
        plain, columns.header_values.getvalue(), total, columns.header_value_presence.getvalue()
    )
    pairs = pa.StructArray.from_arrays(
        [_text(names), contents], fields=list(HEADERS_TYPE.value_type)
    )
    ends = _numbers(pa.int32(), columns.header_counts.getvalue(), int(columns.count) + 1)
    return pa.ListArray.from_arrays(ends, pairs, type=HEADERS_TYPE)


def _text(names: pa.BinaryArray) -> pa.StringArray:
    """Decode names as UTF-8, with replacement characters for invalid bytes, as Java does."""
    try:
        return pc.cast(names, pa.string())
    except pa.ArrowInvalid:
        return pa.array([str(name, "utf-8", "replace") for name in names.to_pylist()], pa.string())
