"""The bytes on disk: Kafka's layouts, and our own checkpoint."""

import struct
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.epochs import EpochCache
from headrace.log.index import OffsetIndex, TimeIndex
from headrace.log.producers import BatchMetadata, ProducerEntry, ProducerTable
from headrace.log.transactions import AbortedTransaction, decode_aborted, encode_aborted
from headrace.log.upkeep import checkpoints
from headrace.log.upkeep.checkpoints import LogCheckpoint, SegmentFacts
from headrace.log.upkeep.snapshots import decode_snapshot, encode_snapshot
from headrace.model.topics import TopicPartition
from headrace.record.batch import crc32c

INT32 = st.integers(0, 2**31 - 1)


@given(st.lists(st.tuples(INT32, INT32)))
def test_the_offset_index_is_pairs_of_int32(entries: list[tuple[int, int]]) -> None:
    index = OffsetIndex()
    for offset, position in entries:
        index.append(offset, position)
    data = index.to_bytes()
    assert data == b"".join(struct.pack(">ii", *entry) for entry in entries)
    again = OffsetIndex.from_bytes(data + b"\x01\x02\x03")
    assert list(zip(again.offsets, again.positions, strict=True)) == entries


@given(st.lists(st.tuples(st.integers(0, 2**62), INT32)))
def test_the_time_index_is_int64_and_int32(entries: list[tuple[int, int]]) -> None:
    index = TimeIndex()
    for timestamp, offset in entries:
        index.maybe_append(timestamp, offset)
    kept = list(zip(index.timestamps, index.offsets, strict=True))
    assert all(before[0] < after[0] for before, after in pairwise(kept))
    data = index.to_bytes()
    assert data == b"".join(struct.pack(">qi", *entry) for entry in kept)
    again = TimeIndex.from_bytes(data + b"\x01" * 11)
    assert list(zip(again.timestamps, again.offsets, strict=True)) == kept


def test_an_offset_is_looked_up_at_the_entry_before_it() -> None:
    index = OffsetIndex()
    for offset, position in ((9, 100), (19, 200), (29, 300)):
        index.append(offset, position)
    found = [index.lookup(offset) for offset in (0, 8, 9, 18, 19, 28, 29, 1000)]
    assert found == [0, 0, 100, 100, 200, 200, 300, 300]


def test_a_timestamp_is_looked_up_behind_all_that_is_earlier() -> None:
    index = TimeIndex()
    for timestamp, offset in ((-1, 3), (50, 9), (50, 12), (40, 15), (60, 20)):
        index.maybe_append(timestamp, offset)
    assert len(index) == 2
    assert [index.lookup(timestamp) for timestamp in (0, 50, 51, 60, 61)] == [-1, -1, 9, 9, 20]


def test_an_aborted_transaction_is_34_bytes() -> None:
    transactions = [AbortedTransaction(1, 2, 3, 4), AbortedTransaction(5, 6, 7, 8)]
    data = encode_aborted(transactions)
    assert data == struct.pack(">hqqqqhqqqq", 0, 1, 2, 3, 4, 0, 5, 6, 7, 8)
    assert decode_aborted(data + b"torn") == transactions


def entry(producer_id: int, spans: int = 1, first_offset: int = -1) -> ProducerEntry:
    found = tuple(BatchMetadata(100 - n, 1000 - n * 10, n, 5000 + n) for n in range(spans))
    return ProducerEntry(producer_id, 3, found, 5000, 9, first_offset, 1000)


def test_a_snapshot_begins_as_kafka_writes_it() -> None:
    data = encode_snapshot({7: entry(7, 5, first_offset=950)})
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, count) == (1, 1)
    assert crc == crc32c(data[6:])
    assert struct.unpack_from(">qhiqiqiq", data, 10) == (7, 3, 100, 1000, 0, 5000, 9, 950)
    without_older = encode_snapshot({7: entry(7, 1)})
    assert len(without_older) == 10 + struct.calcsize(">qhiqiqiq")


def shown(table: ProducerTable | None) -> object:
    assert table is not None
    return {
        producer_id: (
            e.epoch,
            e.timestamp,
            e.coordinator_epoch,
            e.transaction_first_offset,
            [(s.last_sequence, s.last_offset, s.last_offset_delta, s.timestamp) for s in e.batches],
        )
        for producer_id, e in table.entries.items()
    }


def test_a_snapshot_remembers_five_batches_of_each_producer() -> None:
    table = ProducerTable()
    table.entries = {1: entry(1, 5), 2: entry(2, 1), 3: entry(3, 0), 4: entry(4, 3, first_offset=9)}
    again = decode_snapshot(encode_snapshot(table.entries), 1001, 100)
    assert shown(again) == shown(table)
    assert again is not None
    assert again.open_transactions == {9: 4}


@given(st.data())
def test_a_damaged_snapshot_is_none(data: st.DataObject) -> None:
    encoded = encode_snapshot({1: entry(1, 5), 2: entry(2, 2)})
    at = data.draw(st.integers(0, len(encoded) - 1))
    flipped = bytes([encoded[at] ^ data.draw(st.integers(1, 255))])
    assert decode_snapshot(encoded[:at] + flipped + encoded[at + 1 :], 1, 100) is None
    assert decode_snapshot(encoded[:at], 1, 100) is None


FACTS = SegmentFacts(0, 100, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
CHECKPOINT = LogCheckpoint(UUID(int=99), 5, 10, [(0, 0), (3, 7)], [FACTS, FACTS])


def test_a_log_checkpoint_is_read_back() -> None:
    encoded = checkpoints.encode_log_checkpoint(CHECKPOINT)
    assert checkpoints.decode_log_checkpoint(encoded) == CHECKPOINT


@given(st.data())
def test_a_damaged_log_checkpoint_is_none(data: st.DataObject) -> None:
    encoded = checkpoints.encode_log_checkpoint(CHECKPOINT)
    at = data.draw(st.integers(0, len(encoded) - 1))
    flipped = bytes([encoded[at] ^ data.draw(st.integers(1, 255))])
    assert checkpoints.decode_log_checkpoint(encoded[:at] + flipped + encoded[at + 1 :]) is None
    assert checkpoints.decode_log_checkpoint(encoded[:at]) is None


@given(st.binary())
def test_random_bytes_are_not_read_as_any_file(data: bytes) -> None:
    assert checkpoints.decode_log_checkpoint(data) is None
    assert decode_snapshot(data, 0, 10) is None
    checkpoints.decode_partition_metadata(data)
    checkpoints.decode_meta_properties(data)
    for decode in (checkpoints.decode_offsets, checkpoints.decode_epochs):
        try:
            decode(data)
        except ValueError:
            continue


def test_offset_checkpoints_are_kafkas_text() -> None:
    offsets = {TopicPartition("b", 1): 5, TopicPartition("a", 0): 7}
    assert checkpoints.encode_offsets(offsets) == b"0\n2\na 0 7\nb 1 5\n"
    assert checkpoints.decode_offsets(b"0\n2\na 0 7\nb 1 5\n") == offsets
    assert checkpoints.encode_epochs([(0, 0), (2, 9)]) == b"0\n2\n0 0\n2 9\n"
    assert checkpoints.decode_epochs(b"0\n2\n0 0\n2 9\n") == [(0, 0), (2, 9)]


def test_partition_metadata_is_kafkas_text() -> None:
    topic_id = UUID("01234567-89ab-cdef-0123-456789abcdef")
    text = checkpoints.encode_partition_metadata(topic_id)
    assert text == b"version: 0\ntopic_id: ASNFZ4mrze8BI0VniavN7w"
    assert checkpoints.decode_partition_metadata(text) == topic_id
    assert checkpoints.decode_partition_metadata(b"version: 0\n") is None


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, (-1, -1)), (0, (0, 10)), (2, (2, 20)), (3, (2, 20)), (5, (5, 99)), (6, (-1, -1))],
)
def test_an_epoch_ends_where_the_next_begins(epoch: int, expected: tuple[int, int]) -> None:
    cache = EpochCache([(2, 10), (5, 20)])
    assert cache.end_offset_for(epoch, 99) == expected


def test_epochs_are_cut_at_both_ends() -> None:
    cache = EpochCache([(1, 0), (2, 10), (5, 20)])
    cache.cut_start(12)
    assert cache.entries() == [(2, 12), (5, 20)]
    cache.cut_start(12)
    cache.cut_end(20)
    assert cache.entries() == [(2, 12)]
    cache.cut_start(50)
    assert cache.entries() == [(2, 50)]
    assert cache.assign(4, 50)
    assert cache.entries() == [(4, 50)]
    assert not cache.assign(3, 60)
    assert cache.epoch_for(49) == -1
    assert cache.epoch_for(50) == 4
