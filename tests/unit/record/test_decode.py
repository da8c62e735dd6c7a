"""Reading what brokers stored: several batches, a cut end, and bytes that make no sense."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import Batch
from headrace.record.build import NewRecord, build_batch
from headrace.record.decode import Record, control_type, read_batches, read_records
from headrace.record.rewrite import emptied
from tests.unit.record import batch_scenario as at
from tests.unit.record.batch_scenario import NOW_MS, THREE, admitted, put, sample, with_records

WHOLE = b"\x0c\x00\x00\x00\x01\x01\x00"
"""One record with neither key nor value."""
TWO = [NewRecord(b"x", b"y", NOW_MS), NewRecord(None, None, NOW_MS)]


def records_of(data: bytes) -> list[Record]:
    return [record for batch in read_batches(data) for record in read_records(batch)]


def test_batches_are_read_up_to_a_cut_that_is_simply_the_end() -> None:
    first = build_batch(THREE, base_offset=10)
    data = first + build_batch(TWO, base_offset=13, codec=3)
    assert [record.offset for record in records_of(data)] == [10, 11, 12, 13, 14]
    for size in range(len(data)):
        offsets = [record.offset for record in records_of(data[:size])]
        assert offsets == ([10, 11, 12] if size >= len(first) else [])


def test_a_range_of_a_buffer_is_read_as_if_it_were_alone() -> None:
    data = b"junk" + sample() + b"junk"
    assert [batch.start for batch in read_batches(data, 4, len(data) - 4)] == [4]
    assert list(read_batches(data, 4, len(data) - 5)) == []


def test_a_batch_before_a_broken_one_is_still_read() -> None:
    data = sample() + put(sample(), at.MAGIC_AT, ">b", 9)
    batches = read_batches(data)
    assert len(read_records(next(batches))) == 3
    with pytest.raises(ApiError) as caught:
        next(batches)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_wrong_checksum_is_corrupt_unless_the_check_is_disabled() -> None:
    data = bytearray(sample())
    data[at.CRC_AT] ^= 1
    with pytest.raises(ApiError) as caught:
        list(read_batches(bytes(data)))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    (batch,) = read_batches(bytes(data), check_crc=False)
    assert len(read_records(batch)) == 3


def test_a_message_of_the_old_format_is_named_as_such() -> None:
    old = (0).to_bytes(8, "big") + (20).to_bytes(4, "big") + b"\x00" * 4 + b"\x01" + b"\x00" * 15
    with pytest.raises(ApiError) as caught:
        list(read_batches(old))
    assert caught.value.code == ErrorCode.INVALID_RECORD


def test_an_emptied_batch_has_no_records_and_no_control_type() -> None:
    for codec in range(5):
        data = emptied(admitted(sample(codec=codec))).frame
        (batch,) = read_batches(data)
        assert read_records(batch) == []
        assert control_type(batch) == -1


def test_a_header_key_that_is_not_utf_8_is_shown_with_replacements() -> None:
    body = b"\x00\x00\x00\x01\x01\x02\x02\xff\x01"
    data = with_records(bytes([len(body) * 2]) + body, 1)
    assert admitted(data).record_count == 1
    assert records_of(data)[0].headers == (("\ufffd", None),)


def test_records_compare_by_what_they_hold() -> None:
    first, second = records_of(sample()), records_of(sample())
    assert first == second
    assert len({*first, *second}) == 3
    assert first[0] != first[1]
    assert first[0] != "a record"
    assert "offset=1" in repr(first[1])


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (WHOLE + b"\x00", 1),
        (b"\x0e" + WHOLE[1:] + b"\x00", 1),
        (b"\x0a" + WHOLE[1:], 1),
        (b"\x0e" + WHOLE[1:] + WHOLE, 2),
        (WHOLE, 2),
        (WHOLE[:-1], 1),
        (b"\x01" + WHOLE, 1),
        (b"\x0c\x00\x00\x00\x01\x01\x04", 1),
        (b"", 1),
    ],
)
def test_records_that_do_not_fill_their_batch_are_corrupt(payload: bytes, count: int) -> None:
    (batch,) = read_batches(with_records(payload, count))
    with pytest.raises(ApiError) as caught:
        read_records(batch)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_timestamp_that_overflows_is_shown_as_java_shows_it() -> None:
    body = b"\x00\x04\x00\x01\x01\x00"
    data = with_records(bytes([len(body) * 2]) + body, 1, base_timestamp=2**63 - 1)
    assert [record.timestamp for record in records_of(data)] == [-(2**63) + 1]


@pytest.mark.parametrize("base_offset", [-1, -(2**63), 2**62, 2**63 - 1])
def test_a_stored_batch_cannot_be_at_an_offset_that_no_log_reaches(base_offset: int) -> None:
    with pytest.raises(ApiError) as caught:
        list(read_batches(build_batch(THREE, base_offset=base_offset)))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_control_record_without_a_type_is_corrupt() -> None:
    data = build_batch([NewRecord(b"\x00", b"")], control=True)
    (batch,) = read_batches(data)
    with pytest.raises(ApiError) as caught:
        control_type(batch)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def mutated(data: bytes, changes: list[tuple[int, int]], cut: int, resealed: bool) -> bytes:
    spoiled = bytearray(data)
    for position, byte in changes:
        spoiled[position % len(spoiled)] = byte
    del spoiled[len(spoiled) - cut % 20 :]
    if resealed and len(spoiled) > at.ATTRIBUTES_AT:
        return at.sealed(bytes(spoiled))
    return bytes(spoiled)


def outcome_of_admission(data: bytes) -> Batch | None:
    try:
        return admitted(data, size_max=1 << 16)
    except ApiError:
        return None


def outcome_of_reading(data: bytes) -> list[Record] | None:
    try:
        return [r for batch in read_batches(data) for r in read_records(batch, 1 << 16)]
    except ApiError:
        return None


changes = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=5)


@given(records=at.record_lists, codec=at.codecs, changes=changes, cut=st.integers(0, 19))
@settings(max_examples=250, deadline=None)
def test_a_mutated_batch_is_rejected_or_can_be_read(
    records: list[NewRecord], codec: int, changes: list[tuple[int, int]], cut: int
) -> None:
    data = mutated(build_batch(records, codec=codec), changes, cut, resealed=True)
    outcome_of_reading(data)
    batch = outcome_of_admission(data)
    if batch is not None:
        read = outcome_of_reading(at.stored_bytes(batch))
        assert read is not None
        assert [record.offset for record in read] == list(range(batch.record_count))
        assert max(-1, *(record.timestamp for record in read)) == batch.max_timestamp


@given(header=st.binary(min_size=61, max_size=61), payload=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_bytes_after_a_right_length_and_checksum_never_surprise(
    header: bytes, payload: bytes
) -> None:
    length = (49 + len(payload)).to_bytes(4, "big")
    data = at.sealed(header[:8] + length + header[12:16] + b"\x02" + header[17:] + payload)
    outcome_of_admission(data)
    outcome_of_reading(data)


def test_an_announced_count_takes_no_memory() -> None:
    body = b"\x00\x00\x00\x01\x01" + b"\xfe\xff\xff\xff\x0f"
    lying = [
        put(put(sample(), at.RECORD_COUNT_AT, ">i", 2**31 - 1), 23, ">i", 2**31 - 2),
        with_records(bytes([len(body) * 2]) + body, 1),
        with_records(b"\xfe\xff\xff\xff\x0f" + body, 1),
    ]
    outcome_of_admission(sample())
    tracemalloc.start()
    try:
        for data in lying:
            assert outcome_of_admission(data) is None
            assert outcome_of_reading(data) is None
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
