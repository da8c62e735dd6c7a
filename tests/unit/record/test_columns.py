"""Records as columns: the same records as one by one, cut at both ends, and bad batches."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import Batch, read_batch
from headrace.record.build import BatchBuilder, NewRecord, build_batch
from headrace.record.columns import Columns
from headrace.record.decode import plain_payload, read_records

NEVER = 1 << 62
DATA = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=5), DATA), max_size=3)
RECORDS = st.lists(
    st.builds(NewRecord, DATA, DATA, st.integers(-1, 1 << 50), HEADERS), min_size=1, max_size=20
)
Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def batch_of(records: list[NewRecord], codec: int = 0, base_offset: int = 0) -> Batch:
    data = build_batch(records, codec=codec, base_offset=base_offset)
    return read_batch(data, 0, len(data), from_client=False)


def pairs(buffer: bytes, places: bytes) -> list[bytes]:
    ends = struct.unpack(f"<{len(places) // 4}i", places)
    return [buffer[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True)]


def optional(values: list[bytes], presence: bytes) -> list[bytes | None]:
    return [value if there else None for value, there in zip(values, presence, strict=True)]


def rows(columns: Columns, buffer: bytes) -> list[Row]:
    count = int(columns.count)
    offsets = struct.unpack(f"<{count}q", columns.offsets.getvalue())
    times = struct.unpack(f"<{count}q", columns.timestamps.getvalue())
    keys = optional(pairs(buffer, columns.keys.getvalue()), columns.key_presence.getvalue())
    values = optional(pairs(buffer, columns.values.getvalue()), columns.value_presence.getvalue())
    names = [str(name, "utf-8") for name in pairs(buffer, columns.header_keys.getvalue())]
    contents = optional(
        pairs(buffer, columns.header_values.getvalue()), columns.header_value_presence.getvalue()
    )
    ends = struct.unpack(f"<{count + 1}i", columns.header_counts.getvalue())
    headers = list(zip(names, contents, strict=True))
    return [
        (offsets[at], times[at], keys[at], values[at], headers[ends[at] : ends[at + 1]])
        for at in range(count)
    ]


@given(RECORDS, st.sampled_from([0, 2, 4]), st.integers(0, 25), st.integers(0, 25))
@example([NewRecord(b"k", b"v", 0)] * 5, 0, 3, 5)
def test_columns_hold_the_records_between_two_offsets(
    records: list[NewRecord], codec: int, first: int, limit: int
) -> None:
    batch = batch_of(records, codec, base_offset=2)
    payload, at, end = plain_payload(batch)
    columns = Columns(True)
    columns.append(batch, payload, at, end, at, first, limit)
    assert rows(columns, payload) == [
        (one.offset, one.timestamp * 1000, one.key, one.value, list(one.headers))
        for one in read_records(batch)
        if first <= one.offset < limit
    ]
    assert columns.keyless == columns.key_presence.getvalue().count(0)
    assert columns.valueless == columns.value_presence.getvalue().count(0)


def test_batches_of_several_payloads_become_columns_of_one_buffer() -> None:
    columns, plain = Columns(True), b""
    want: list[Row] = []
    for number in range(3):
        batch = batch_of([NewRecord(b"k", b"v%d" % number)], codec=4, base_offset=number * 10)
        payload, at, end = plain_payload(batch)
        columns.append(batch, payload, at, end, len(plain), 0, NEVER)
        plain += payload[at:end]
        want.append((number * 10, -1000, b"k", b"v%d" % number, []))
    assert rows(columns, plain) == want


@given(st.lists(RECORDS, max_size=4), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_plain_batches_become_columns_where_they_lie(
    batches: list[list[NewRecord]], cut: int, first: int, limit: int
) -> None:
    data, want, offset = b"before", [], 3
    for records in batches:
        batch = batch_of(records, base_offset=offset)
        data += batch.frame
        offset = int(batch.last_offset()) + 3
        want += [one for one in read_records(batch) if first <= one.offset < limit]
    # An incomplete batch at the end is ignored.
    data += batch_of([NewRecord(b"k", b"v")]).frame[:cut]
    columns = Columns(True)
    assert columns.append_plain(data, len(b"before"), len(data), first, limit, True)
    assert rows(columns, data) == [
        (one.offset, one.timestamp * 1000, one.key, one.value, list(one.headers)) for one in want
    ]


def test_what_is_compressed_or_in_a_transaction_is_not_plain() -> None:
    plain = build_batch([NewRecord(b"k", b"v")])
    packed = build_batch([NewRecord(b"k", b"v" * 500)], codec=4, base_offset=1)
    part = build_batch(
        [NewRecord(b"k", b"v")], base_offset=1, producer_id=7, producer_epoch=0, transactional=True
    )
    for other in (packed, part):
        data = plain + other
        assert not Columns(False).append_plain(data, 0, len(data), 0, NEVER, True)
        assert Columns(False).append_plain(data, 0, len(plain), 0, NEVER, True)


def test_wrong_checksum_is_found_only_if_it_is_checked() -> None:
    data = bytearray(build_batch([NewRecord(b"k", b"value")]))
    data[-2] ^= 1
    with pytest.raises(ApiError):
        Columns(False).append_plain(bytes(data), 0, len(data), 0, NEVER, True)
    assert Columns(False).append_plain(bytes(data), 0, len(data), 0, NEVER, False)


def test_append_time_is_the_time_of_every_record() -> None:
    builder = BatchBuilder()
    builder.append(b"k", b"v", (), 5)
    data = builder.build(log_append_time=77)
    batch = read_batch(data, 0, len(data), from_client=False)
    columns = Columns(True)
    columns.append(batch, *plain_payload(batch), plain_payload(batch)[1], 0, NEVER)
    assert rows(columns, data) == [(0, 77_000, b"k", b"v", [])]
    assert columns.timestamp_types.getvalue() == b"\1\0\0\0"


@pytest.mark.parametrize("timestamp", [(1 << 61), -(1 << 61)])
def test_a_time_beyond_what_microseconds_can_say_stays_at_the_edge(timestamp: int) -> None:
    batch = batch_of([NewRecord(b"k", b"v", 0), NewRecord(b"k", b"v", timestamp)])
    columns = Columns(True)
    columns.append(batch, *plain_payload(batch), plain_payload(batch)[1], 0, NEVER)
    edge = 9_223_372_036_854_775_000
    assert rows(columns, batch.frame)[1][1] == (edge if timestamp > 0 else -edge)


@given(RECORDS, st.data())
def test_a_batch_that_is_not_whole_is_corrupt(
    records: list[NewRecord], data: st.DataObject
) -> None:
    batch = batch_of(records)
    payload, at, end = plain_payload(batch)
    cut = data.draw(st.integers(at, end - 1))
    with pytest.raises(ApiError) as caught:
        Columns(True).append(batch, payload, at, cut, at, 0, NEVER)
    assert caught.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
