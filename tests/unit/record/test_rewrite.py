"""Changes to a stored batch: what they change, and everything that they must keep."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from headrace.model.errors import ApiError
from headrace.record.batch import DELETE_HORIZON, Batch, read_batch
from headrace.record.build import CONTROL_ABORT, NewRecord, build_batch, build_transaction_marker
from headrace.record.compression import decompress
from headrace.record.decode import Record, control_type, read_records
from headrace.record.rewrite import emptied, filtered, recompressed, with_append_time
from tests.unit.record import batch_scenario as at
from tests.unit.record.batch_scenario import NOW_MS, THREE, admitted, codecs, record_lists, sample


def stored(data: bytes) -> Batch:
    return read_batch(data, 0, len(data), from_client=False)


def checked(batch: Batch) -> Batch:
    """Check that a returned batch is valid, and that its fields match its bytes."""
    again = read_batch(batch.frame, batch.start, batch.end, from_client=False)
    assert KafkaPythonBatch(batch.frame[batch.start : batch.end]).validate_crc()
    assert kept_fields(again) == kept_fields(batch)
    assert again.attributes == batch.attributes
    assert again.record_count == batch.record_count
    assert (again.base_timestamp, again.max_timestamp) == (
        batch.base_timestamp,
        batch.max_timestamp,
    )
    return batch


def kept_fields(batch: Batch) -> tuple[int, ...]:
    return (
        batch.base_offset,
        batch.last_offset_delta,
        batch.leader_epoch,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.is_transactional(),
        batch.is_control(),
    )


def from_producer(records: list[NewRecord], codec: int = 0, **more: int) -> Batch:
    return stored(
        build_batch(
            records,
            codec=codec,
            base_offset=500,
            leader_epoch=6,
            producer_id=11,
            producer_epoch=2,
            base_sequence=70,
            transactional=True,
            log_append_time=more.get("log_append_time"),
        )
    )


@given(records=record_lists, codec=codecs)
@settings(max_examples=40, deadline=None)
def test_append_time_replaces_every_timestamp_and_nothing_else(
    records: list[NewRecord], codec: int
) -> None:
    batch = from_producer(records, codec)
    before = batch.frame
    stamped = checked(with_append_time(batch, NOW_MS))
    assert kept_fields(stamped) == kept_fields(batch)
    assert batch.frame is before
    assert (stamped.min_timestamp, stamped.max_timestamp) == (NOW_MS, NOW_MS)
    assert stamped.is_log_append_time()
    assert read_records(stamped) == [
        Record(r.offset, NOW_MS, 1, r.key, r.value, r.headers) for r in read_records(batch)
    ]


def test_append_time_works_on_a_batch_in_the_middle_of_a_frame() -> None:
    data = sample()
    batch = read_batch(b"xyz" + data + b"tail", 3, 3 + len(data))
    stamped = checked(with_append_time(batch, NOW_MS + 1))
    assert stamped.size() == len(data)
    assert stamped.max_timestamp == NOW_MS + 1


@given(records=record_lists, source=codecs, target=codecs)
@settings(max_examples=60, deadline=None)
def test_another_codec_keeps_every_record(
    records: list[NewRecord], source: int, target: int
) -> None:
    batch = from_producer(records, source)
    changed = checked(recompressed(batch, target))
    assert changed.codec() == target
    assert kept_fields(changed) == kept_fields(batch)
    assert read_records(changed) == read_records(batch)
    assert (changed.max_timestamp, changed.min_timestamp) == (
        batch.max_timestamp,
        batch.min_timestamp,
    )


def test_the_same_codec_changes_nothing() -> None:
    batch = from_producer(THREE, 3)
    assert recompressed(batch, 3) is batch


def test_a_payload_at_hand_is_not_decompressed_again() -> None:
    batch = admitted(sample(codec=1))
    payload = decompress(1, batch.payload(), 1 << 20)
    assert read_records(recompressed(batch, 4, payload=payload)) == read_records(batch)


def test_append_time_survives_another_codec() -> None:
    changed = recompressed(with_append_time(admitted(sample()), NOW_MS + 9), 2)
    assert changed.is_log_append_time()
    assert [record.timestamp for record in read_records(changed)] == [NOW_MS + 9] * 3


@given(
    records=record_lists,
    codec=codecs,
    wanted=st.sets(st.integers(0, 89)),
    horizon=st.none() | st.integers(0, 10**15),
    appended=st.none() | st.just(NOW_MS),
)
@settings(max_examples=120, deadline=None)
def test_filtering_keeps_offsets_timestamps_headers_and_the_producer(
    records: list[NewRecord],
    codec: int,
    wanted: set[int],
    horizon: int | None,
    appended: int | None,
) -> None:
    batch = stored(
        build_batch(
            records,
            codec=codec,
            base_offset=500,
            producer_id=11,
            producer_epoch=2,
            base_sequence=70,
            log_append_time=appended,
        )
    )
    kept = [r for r in read_records(batch) if r.offset - 500 in wanted]
    result = checked(
        filtered(batch, lambda record: record.offset - 500 in wanted, delete_horizon_ms=horizon)
    )
    assert kept_fields(result) == kept_fields(batch)
    assert read_records(result) == kept
    assert result.record_count == len(kept)
    if not kept:
        assert result.size() == 61
    elif horizon is not None and any(record.value is None for record in kept):
        assert result.attributes & DELETE_HORIZON
        assert result.base_timestamp == horizon
    elif len(kept) == len(records):
        assert result is batch
    if appended is None and kept:
        assert result.max_timestamp == max(-1, *(record.timestamp for record in kept))
    else:
        assert result.max_timestamp == batch.max_timestamp


def test_a_delete_horizon_is_set_once() -> None:
    first = filtered(from_producer(THREE), lambda _: True, delete_horizon_ms=NOW_MS + 100)
    assert first.base_timestamp == NOW_MS + 100
    assert filtered(first, lambda _: True, delete_horizon_ms=NOW_MS + 900) is first
    fewer = filtered(first, lambda record: record.offset != 501, delete_horizon_ms=NOW_MS + 900)
    assert fewer.base_timestamp == NOW_MS + 100
    assert fewer.attributes & DELETE_HORIZON
    assert [record.timestamp for record in read_records(fewer)] == [NOW_MS, NOW_MS + 3]


def test_only_a_tombstone_that_stays_needs_a_delete_horizon() -> None:
    batch = from_producer(THREE)
    without = filtered(batch, lambda r: r.value is not None, delete_horizon_ms=NOW_MS + 9)
    assert not without.attributes & DELETE_HORIZON
    assert without.base_timestamp == batch.base_timestamp
    values = from_producer(THREE[:2])
    assert filtered(values, lambda _: True, delete_horizon_ms=NOW_MS + 9) is values


@pytest.mark.parametrize("codec", range(5))
def test_an_emptied_batch_holds_the_last_sequence_of_its_producer(codec: int) -> None:
    batch = from_producer(THREE, codec)
    bare = checked(emptied(batch))
    assert kept_fields(bare) == kept_fields(batch)
    assert (bare.record_count, bare.size(), bare.codec()) == (0, 61, 0)
    assert (bare.base_timestamp, bare.max_timestamp) == (-1, batch.max_timestamp)
    assert list(KafkaPythonBatch(bare.frame)) == []


def test_a_marker_keeps_saying_what_it_says_under_a_delete_horizon() -> None:
    data = build_transaction_marker(
        CONTROL_ABORT, producer_id=3, producer_epoch=1, coordinator_epoch=0, timestamp=NOW_MS
    )
    result = filtered(stored(data), lambda _: True, delete_horizon_ms=NOW_MS + 7)
    assert control_type(result) == CONTROL_ABORT
    assert read_records(result)[0].timestamp == NOW_MS


def test_a_filtered_batch_is_not_taken_from_a_client() -> None:
    result = filtered(admitted(sample()), lambda record: record.offset != 1)
    assert at.stored_bytes(result)[16:] == result.frame[16:]
    with pytest.raises(ApiError):
        read_batch(result.frame, 0, len(result.frame))
