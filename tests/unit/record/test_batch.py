"""Validation of batch headers and records, with the code of each error."""

import struct
import subprocess
import sys

import pytest

from headrace.model.errors import ApiError, ErrorCode, RecordError
from headrace.record.batch import HEADER_SIZE, batch_end, checksum, read_batch, validate_records
from headrace.record.build import (
    CONTROL_COMMIT,
    NewRecord,
    build_batch,
    build_transaction_marker,
    encode_varint,
)
from tests.unit.record import batch_scenario as at
from tests.unit.record.batch_scenario import NOW_MS, THREE, admitted, put, sample, with_records


def refused(data: bytes, keys_required: bool = False) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        admitted(data, keys_required)
    return caught.value.code


def record(
    *,
    timestamp: bytes = b"\x00",
    offset: bytes = b"\x00",
    key: bytes = b"\x01",
    value: bytes = b"\x04hi",
    headers: bytes = b"\x00",
    length: bytes | None = None,
) -> bytes:
    body = b"\x00" + timestamp + offset + key + value + headers
    return (encode_varint(len(body)) if length is None else length) + body


def test_valid_batch_returns_the_fields_of_its_header() -> None:
    data = build_batch(
        THREE, producer_id=7, producer_epoch=2, base_sequence=40, leader_epoch=9, transactional=True
    )
    batch = read_batch(b"before" + data + b"after", 6, 6 + len(data))
    assert (batch.start, batch.end, batch.size()) == (6, 6 + len(data), len(data))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, 40)
    assert (batch.record_count, batch.last_offset_delta, batch.last_offset()) == (3, 2, 2)
    assert (batch.base_timestamp, batch.max_timestamp) == (NOW_MS, NOW_MS + 5)
    assert (batch.base_offset, batch.leader_epoch, batch.codec()) == (0, 9, 0)
    assert batch.is_transactional()
    assert not batch.is_control()
    assert not batch.is_log_append_time()
    assert bytes(batch.payload()) == data[HEADER_SIZE:]


def test_a_walk_learns_the_smallest_and_largest_timestamp() -> None:
    batch = admitted(sample())
    assert (batch.min_timestamp, batch.max_timestamp) == (NOW_MS, NOW_MS + 5)


def test_the_prefix_sets_offset_and_epoch_and_leaves_the_checksum_valid() -> None:
    batch = admitted(sample())
    stored = at.stored_bytes(batch, base_offset=1 << 40, leader_epoch=17)
    again = read_batch(stored, 0, len(stored), from_client=False)
    assert (again.base_offset, again.leader_epoch) == (1 << 40, 17)
    assert stored[16:] == sample()[16:]


def test_a_small_and_a_large_range_have_the_checksum_of_their_bytes() -> None:
    data = bytes(range(256)) * 100
    assert checksum(b"123456789", 0, 9) == 0xE3069283
    for start, end in ((3, 100), (3, 4099), (3, 4100), (7, 25_000)):
        copied = data[start:end]
        assert checksum(data, start, end) == checksum(copied, 0, len(copied))


def test_a_flipped_bit_anywhere_after_the_checksum_is_corrupt() -> None:
    data = sample()
    for position in range(at.CRC_AT, len(data)):
        spoiled = bytearray(data)
        spoiled[position] ^= 0x10
        assert refused(bytes(spoiled)) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_format_is_named_as_such(magic: int) -> None:
    data = put(sample(), at.MAGIC_AT, ">b", magic)
    assert refused(data) == ErrorCode.INVALID_RECORD
    tiny = struct.pack(">qiIbb", 0, 14, 0, magic, 0) + b"\xff" * 8
    assert refused(tiny) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [3, 127, -1, -128])
def test_an_unknown_message_format_is_corrupt(magic: int) -> None:
    assert refused(put(sample(), at.MAGIC_AT, ">b", magic)) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("length", "code"),
    [
        (-1, ErrorCode.CORRUPT_MESSAGE),
        (-(2**31), ErrorCode.CORRUPT_MESSAGE),
        (0, ErrorCode.CORRUPT_MESSAGE),
        (48, ErrorCode.CORRUPT_MESSAGE),
        (49, ErrorCode.INVALID_RECORD),
        (2**31 - 1, ErrorCode.INVALID_RECORD),
    ],
)
def test_a_batch_length_that_is_not_the_frames_is_rejected(length: int, code: ErrorCode) -> None:
    assert refused(put(sample(), at.LENGTH_AT, ">i", length)) == code


def test_two_batches_or_trailing_bytes_are_rejected() -> None:
    assert refused(sample() + sample()) == ErrorCode.INVALID_RECORD
    assert refused(sample() + b"\x00") == ErrorCode.INVALID_RECORD


def test_a_batch_that_is_cut_anywhere_is_rejected() -> None:
    data = sample()
    for size in range(len(data)):
        assert refused(data[:size]) == ErrorCode.INVALID_RECORD


def test_a_range_outside_of_the_frame_is_rejected() -> None:
    data = sample()
    for start, end in ((-1, len(data)), (0, len(data) + 1), (len(data), 0), (5000, 6000)):
        with pytest.raises(ApiError):
            read_batch(data, start, end)
    batch = read_batch(data, 0, len(data))
    for start, end in ((-1, len(data)), (HEADER_SIZE, len(data) + 1)):
        with pytest.raises(ApiError):
            validate_records(batch, data, start, end, False)


@pytest.mark.parametrize("count", [2**31 - 1, 4, 2, 1, 0, -1, -(2**31)])
def test_a_count_that_is_not_the_records_is_rejected(count: int) -> None:
    lying = put(sample(), at.RECORD_COUNT_AT, ">i", count)
    assert refused(lying) == ErrorCode.INVALID_RECORD
    consistent = put(lying, at.LAST_OFFSET_DELTA_AT, ">i", max(count - 1, -(2**31)))
    assert refused(consistent) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("delta", [1, 3, -1, 2**31 - 1, -(2**31)])
def test_a_last_offset_delta_that_is_not_the_counts_is_rejected(delta: int) -> None:
    assert refused(put(sample(), at.LAST_OFFSET_DELTA_AT, ">i", delta)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_named_as_such(codec: int) -> None:
    data = put(sample(), at.ATTRIBUTES_AT, ">h", codec)
    assert refused(data) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_bytes_that_are_not_of_their_codec_are_corrupt(codec: int) -> None:
    assert refused(put(sample(), at.ATTRIBUTES_AT, ">h", codec)) == ErrorCode.CORRUPT_MESSAGE


def test_a_base_offset_of_a_client_must_be_zero() -> None:
    data = build_batch(THREE, base_offset=5)
    assert refused(data) == ErrorCode.INVALID_RECORD
    assert read_batch(data, 0, len(data), from_client=False).base_offset == 5


def test_a_control_batch_is_taken_from_a_leader_and_not_from_a_client() -> None:
    data = build_transaction_marker(
        CONTROL_COMMIT, producer_id=3, producer_epoch=1, coordinator_epoch=0, timestamp=NOW_MS
    )
    assert refused(data) == ErrorCode.INVALID_RECORD
    assert read_batch(data, 0, len(data), from_client=False).is_control()
    assert refused(put(sample(), at.ATTRIBUTES_AT, ">h", 0x20)) == ErrorCode.INVALID_RECORD


def test_a_client_can_set_neither_append_time_nor_a_delete_horizon() -> None:
    assert refused(put(sample(), at.ATTRIBUTES_AT, ">h", 0x08)) == ErrorCode.INVALID_TIMESTAMP
    assert refused(put(sample(), at.ATTRIBUTES_AT, ">h", 0x40)) == ErrorCode.INVALID_RECORD


def test_attribute_bits_that_mean_nothing_yet_are_left_alone() -> None:
    data = put(sample(), at.ATTRIBUTES_AT, ">h", 0x7F80)
    assert at.stored_bytes(admitted(data))[16:] == data[16:]


@pytest.mark.parametrize(
    ("producer_id", "epoch", "sequence"), [(5, 0, -1), (5, -1, 0), (-2, -1, -1), (5, -1, -1)]
)
def test_inconsistent_producer_fields_are_rejected(
    producer_id: int, epoch: int, sequence: int
) -> None:
    data = build_batch(THREE, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    assert refused(data) == ErrorCode.INVALID_RECORD


def test_a_compacted_batch_with_gaps_is_taken_from_disk_and_not_from_a_client() -> None:
    data = put(sample(), at.LAST_OFFSET_DELTA_AT, ">i", 9)
    assert refused(data) == ErrorCode.INVALID_RECORD
    assert read_batch(data, 0, len(data), from_client=False).last_offset() == 9
    empty = with_records(b"", 0)
    assert read_batch(empty, 0, len(empty), from_client=False).record_count == 0


@pytest.mark.parametrize(("count", "delta"), [(-1, 2), (4, 2), (0, -2), (1, -1)])
def test_a_stored_batch_cannot_hold_more_records_than_offsets(count: int, delta: int) -> None:
    data = put(put(sample(), at.RECORD_COUNT_AT, ">i", count), at.LAST_OFFSET_DELTA_AT, ">i", delta)
    with pytest.raises(ApiError):
        read_batch(data, 0, len(data), from_client=False)


def test_records_without_a_key_are_named_where_keys_are_required() -> None:
    records = [NewRecord(b"k", b"v"), NewRecord(None, b"v"), NewRecord(b"", b"v"), NewRecord()]
    assert admitted(sample(records)).record_count == 4
    for codec in range(5):
        with pytest.raises(RecordError) as caught:
            admitted(sample(records, codec), keys_required=True)
        assert caught.value.code == ErrorCode.INVALID_RECORD
        assert caught.value.record_indexes == [1, 3]
    assert admitted(sample(), keys_required=True).record_count == 3


@pytest.mark.parametrize("header_timestamp", [NOW_MS + 4, NOW_MS + 6, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("codec", [0, 3])
def test_a_lying_maximum_timestamp_is_corrected_before_it_is_stored(
    header_timestamp: int, codec: int
) -> None:
    data = sample(codec=codec)
    batch = admitted(put(data, at.MAX_TIMESTAMP_AT, ">q", header_timestamp))
    assert batch.max_timestamp == NOW_MS + 5
    assert at.stored_bytes(batch)[16:] == data[16:]


def test_records_without_a_timestamp_have_neither_minimum_nor_maximum() -> None:
    batch = admitted(sample([NewRecord(b"k", b"v"), NewRecord(b"k", b"v")]))
    assert (batch.min_timestamp, batch.max_timestamp) == (-1, -1)
    mixed = admitted(sample([NewRecord(b"k", b"v"), NewRecord(b"k", b"v", NOW_MS)]))
    assert (mixed.min_timestamp, mixed.max_timestamp) == (NOW_MS, NOW_MS)


def test_a_negative_timestamp_shows_in_the_minimum_and_never_in_the_maximum() -> None:
    batch = admitted(sample([NewRecord(b"k", b"v", -500)]))
    assert (batch.min_timestamp, batch.max_timestamp) == (-500, -1)


@pytest.mark.parametrize("base", [2**62, 2**63 - 1, -(2**62), -(2**63)])
def test_base_timestamp_that_could_overflow_is_rejected(base: int) -> None:
    data = with_records(record(), 1, base_timestamp=base)
    assert refused(data) == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("delta", [2**62, 2**63 - 1, -(2**62), -(2**63)])
def test_a_timestamp_delta_that_could_overflow_is_rejected(delta: int) -> None:
    data = with_records(record(timestamp=encode_varint(delta)), 1)
    assert refused(data) == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_timestamps_that_are_taken_add_up(sign: int) -> None:
    largest = sign * (2**62 - 1)
    data = with_records(record(timestamp=encode_varint(largest)), 1, base_timestamp=largest)
    batch = admitted(data)
    assert (batch.min_timestamp, batch.max_timestamp) == (2 * largest, max(-1, 2 * largest))


@pytest.mark.parametrize(
    "payload",
    [
        record(offset=b"\x02"),
        record(offset=b"\x01"),
        record(length=b"\x00"),
        record(length=b"\x01"),
        record(length=encode_varint(100)),
        record(length=encode_varint(7)),
        record(length=encode_varint(9)),
        record(length=encode_varint(2**31 - 1)),
        record(key=b"\x03"),
        record(value=b"\x03"),
        record(key=encode_varint(2**31 - 1)),
        record(value=encode_varint(2**31 - 1)),
        record(headers=b"\x01"),
        record(headers=encode_varint(2**31 - 1)),
        record(headers=b"\x02\x01\x00"),
        record(headers=b"\x02\x01"),
        record(headers=b"\x02\x00\x03"),
        record(headers=b"\x02\x00"),
        record(headers=b"\x04\x00\x00"),
        record(headers=b"\x02\x02"),
        record(offset=b"\x80\x80\x80\x80\x80\x00"),
        record(offset=b"\x80\x80\x80\x80\x10"),
        record(timestamp=b"\x80" * 10 + b"\x00"),
        record(timestamp=b"\x80" * 9 + b"\x02"),
        record() + b"\x00",
        record()[:-1],
        b"\x80",
        b"\xff" * 5,
        b"",
    ],
)
def test_a_record_that_is_not_whole_is_rejected(payload: bytes) -> None:
    assert refused(with_records(payload, 1)) == ErrorCode.INVALID_RECORD
    # The same with other bytes after it: a walk must not read into the next request.
    data = with_records(payload, 1)
    batch = read_batch(data + record() * 3, 0, len(data))
    with pytest.raises(ApiError):
        validate_records(batch, batch.frame, HEADER_SIZE, len(data), False)


@pytest.mark.parametrize("length", [7, 9, 17])
def test_a_length_must_be_right_even_where_the_records_could_be_read_without_it(
    length: int,
) -> None:
    payload = record(length=encode_varint(length)) + record(offset=b"\x02")
    assert refused(with_records(payload, 2)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("offset", [b"\x80\x00", b"\x80\x80\x00", b"\x80\x80\x80\x80\x00"])
def test_an_overlong_number_within_its_bound_is_taken_as_java_takes_it(offset: bytes) -> None:
    assert admitted(with_records(record(offset=offset), 1)).record_count == 1


def test_a_batch_of_many_records_has_deltas_of_every_length() -> None:
    records = [NewRecord(b"k%d" % i, b"v" * (i % 300), NOW_MS + i * 77) for i in range(9000)]
    batch = admitted(sample(records))
    assert batch.record_count == 9000
    assert batch.max_timestamp == NOW_MS + 8999 * 77


def test_the_end_of_a_batch_is_found_or_known_to_be_missing() -> None:
    data = sample() + sample()
    half = len(data) // 2
    assert batch_end(data, 0, len(data)) == half
    assert batch_end(data, half, len(data)) == len(data)
    assert batch_end(data, len(data), len(data)) == -1
    for end in range(half):
        assert batch_end(data, 0, end) == -1


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_a_length_that_no_batch_has_is_corrupt(length: int) -> None:
    data = put(sample(), at.LENGTH_AT, ">i", length)
    with pytest.raises(ApiError) as caught:
        batch_end(data, 0, len(data))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_the_checksum_comes_without_its_package_and_compression_only_when_used() -> None:
    script = (
        "import sys; import headrace.record.batch, headrace.record.decode, headrace.record.build; "
        "print({'crc32c', 'importlib.metadata', 'cramjam'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
