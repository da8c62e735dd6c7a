"""Rows encoded in bulk: the records that a builder would make, where Java would send them."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.produce.partitioner import keyed_partition
from headrace.model.errors import ApiError
from headrace.record.batch import HEADER_SIZE, read_batch, validate_records
from headrace.record.build import BatchBuilder, encode_headers
from headrace.record.decode import read_records
from headrace.record.rows import Column, RowEncoder

DATA = st.none() | st.binary(max_size=200)
ROWS = st.lists(st.tuples(DATA, DATA, st.integers(-1, 2)), min_size=1, max_size=60)


def column(values: list[bytes | None]) -> Column:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value or b""))
    presence = bytes(value is not None for value in values) if None in values else b""
    return Column(
        struct.pack(f"<{len(ends)}i", *ends), b"".join(value or b"" for value in values), presence
    )


@given(ROWS, st.integers(1, 2_000), st.booleans())
def test_rows_become_the_records_of_sound_batches(
    rows: list[tuple[bytes | None, bytes | None, int]], bytes_max: int, with_headers: bool
) -> None:
    encoder = RowEncoder(3, [1, 2, 0], bytes_max)
    headers = [("number", b"%d" % at) for at in range(len(rows))] if with_headers else []
    encoder.append(
        len(rows),
        struct.pack(f"<{len(rows)}i", *(row[2] for row in rows)),
        column([row[0] for row in rows]),
        column([row[1] for row in rows]),
        [encode_headers([header]) for header in headers],
    )
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {0: [], 1: [], 2: []}
    for partition, payload, count in encoder.take(True):
        assert count == 1 or len(payload) <= bytes_max
        data = BatchBuilder.of_encoded(payload, count, 1_000).build(4)
        batch = read_batch(data, 0, len(data))
        plain = BatchBuilder.of_encoded(payload, count, 1_000).build()
        validate_records(read_batch(plain, 0, len(plain)), plain, HEADER_SIZE, len(plain), False)
        for one in read_records(batch):
            assert one.timestamp == 1_000
            assert list(one.headers) == [] or one.headers[0] in headers
            found[partition].append((one.key, one.value))
    for key, value, partition in rows:
        if partition < 0 and key is not None:
            partition = keyed_partition(key, 3)
        if partition >= 0:
            assert (key, value) in found[partition]
    assert sum(map(len, found.values())) == len(rows)


def test_rows_of_a_partition_keep_their_order() -> None:
    encoder = RowEncoder(2, [0, 1], 100)
    values: list[bytes | None] = [b"%d" % number for number in range(50)]
    encoder.append(50, struct.pack("<50i", *[1] * 50), None, column(values), [])
    found: list[bytes | None] = []
    for partition, payload, count in encoder.take(True):
        assert partition == 1
        data = BatchBuilder.of_encoded(payload, count, 0).build()
        found += [one.value for one in read_records(read_batch(data, 0, len(data)))]
    assert found == values


def test_rows_without_a_key_fill_partitions_sequentially() -> None:
    encoder = RowEncoder(3, [2, 0, 1], 100)
    encoder.append(30, b"", None, column([b"0123456789"] * 30), [])
    partitions = [partition for partition, _, _ in encoder.take(True)]
    assert partitions[:4] == [2, 0, 1, 2]


def test_unknown_partition_is_rejected() -> None:
    with pytest.raises(ApiError, match="unknown partition 7"):
        RowEncoder(3, [0], 100).append(1, struct.pack("<i", 7), None, column([b"v"]), [])
