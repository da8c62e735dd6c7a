"""Batches that we build, read back by ourselves and by two clients that share no code with us."""

from typing import Any

import pytest
from aiokafka.record._crecords.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record._crecords.default_records import (
    DefaultRecordBatchBuilder as AiokafkaBuilder,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from headrace.record.batch import read_batch, read_varlong
from headrace.record.build import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    BatchBuilder,
    NewRecord,
    build_batch,
    build_transaction_marker,
    encode_varint,
    record_size_max,
)
from headrace.record.decode import Record, control_type, read_batches, read_records
from tests.unit.record.batch_scenario import (
    NOW_MS,
    THREE,
    admitted,
    codecs,
    record_lists,
    stored_bytes,
)


def expected(records: list[NewRecord], base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + place, new.timestamp, 0, new.key, new.value, tuple(new.headers))
        for place, new in enumerate(records)
    ]


def as_record(foreign: Any) -> Record:
    return Record(
        foreign.offset,
        # kafka-python shows no timestamp as None.
        -1 if foreign.timestamp is None else foreign.timestamp,
        foreign.timestamp_type or 0,
        foreign.key,
        foreign.value,
        tuple(foreign.headers),
    )


@given(records=record_lists, codec=codecs)
@settings(max_examples=80, deadline=None)
def test_a_built_batch_is_admitted_and_read_back(records: list[NewRecord], codec: int) -> None:
    data = build_batch(records, codec=codec)
    stored = stored_bytes(admitted(data), base_offset=1000)
    (batch,) = read_batches(stored)
    assert batch.codec() == codec
    assert read_records(batch) == expected(records, 1000)


@given(records=record_lists, codec=codecs)
@settings(max_examples=60, deadline=None)
def test_kafka_python_and_aiokafka_read_the_same_from_our_batch(
    records: list[NewRecord], codec: int
) -> None:
    data = build_batch(records, codec=codec, base_offset=77)
    for foreign in (KafkaPythonBatch(data), AiokafkaBatch(data)):
        assert foreign.validate_crc()
        assert [as_record(record) for record in foreign] == expected(records, 77)


@given(records=record_lists, codec=codecs)
@settings(max_examples=60, deadline=None)
def test_what_kafka_python_and_aiokafka_build_is_admitted_and_read(
    records: list[NewRecord], codec: int
) -> None:
    # Both take a first timestamp of -1 for none yet, and the next record's for the base.
    records = [new._replace(timestamp=max(0, new.timestamp)) for new in records]
    for builder in (
        KafkaPythonBuilder(2, codec, False, -1, -1, -1, 1 << 24),
        AiokafkaBuilder(2, codec, 0, -1, -1, -1, 1 << 24),
    ):
        for place, new in enumerate(records):
            builder.append(
                place, new.timestamp, new.key, new.value, [(n, v or b"") for n, v in new.headers]
            )
        batch = admitted(bytes(builder.build()))
        read = read_records(batch)
        assert [(r.timestamp, r.key, r.value) for r in read] == [
            (new.timestamp, new.key, new.value) for new in records
        ]
        assert [[name for name, _ in r.headers] for r in read] == [
            [name for name, _ in new.headers] for new in records
        ]


@given(records=record_lists)
@settings(max_examples=60, deadline=None)
def test_the_size_of_a_builder_is_the_size_of_its_batch(records: list[NewRecord]) -> None:
    builder = BatchBuilder()
    for new in records:
        before = builder.size
        builder.append(new.key, new.value, new.headers, new.timestamp)
        assert builder.size - before <= record_size_max(new.key, new.value, new.headers)
    assert builder.size == len(builder.build())
    assert builder.record_count == len(records)


def test_a_builder_can_build_again_with_other_numbers() -> None:
    builder = BatchBuilder()
    builder.append(b"k", b"v", (), NOW_MS)
    first = read_batch(builder.build(0, 4, 1, 10), 0, builder.size)
    again = read_batch(builder.build(0, 4, 2, 0), 0, builder.size)
    assert (first.producer_epoch, first.base_sequence) == (1, 10)
    assert (again.producer_epoch, again.base_sequence) == (2, 0)


def test_append_time_is_the_timestamp_of_every_record() -> None:
    data = build_batch(THREE, log_append_time=NOW_MS + 99)
    (batch,) = read_batches(data)
    assert [(r.timestamp, r.timestamp_type) for r in read_records(batch)] == [(NOW_MS + 99, 1)] * 3
    assert [as_record(r) for r in KafkaPythonBatch(data)] == read_records(batch)


@pytest.mark.parametrize("kind", [CONTROL_ABORT, CONTROL_COMMIT])
def test_a_transaction_marker_says_how_the_transaction_ended(kind: int) -> None:
    data = build_transaction_marker(
        kind,
        producer_id=9,
        producer_epoch=3,
        coordinator_epoch=5,
        timestamp=NOW_MS,
        base_offset=12,
        leader_epoch=1,
    )
    (batch,) = read_batches(data)
    assert batch.is_control()
    assert batch.is_transactional()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 3, -1)
    assert (batch.base_offset, batch.leader_epoch) == (12, 1)
    assert control_type(batch) == kind
    foreign = KafkaPythonBatch(data)
    assert foreign.is_control_batch
    (marker,) = foreign
    assert (marker.abort, marker.commit) == (kind == CONTROL_ABORT, kind == CONTROL_COMMIT)


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_number_of_64_bits_comes_back_from_its_zigzag_form(number: int) -> None:
    encoded = encode_varint(number)
    assert read_varlong(encoded + b"\xff", 0) == (number, len(encoded))
    assert len(encoded) <= 10
