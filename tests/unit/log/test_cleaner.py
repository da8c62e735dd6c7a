"""The batches and records that compaction keeps and removes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log.compaction.rules import Cleaner, Rules
from headrace.log.producers import ProducerTable
from headrace.log.transactions import read_end_marker
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import DELETE_HORIZON, read_batch
from headrace.record.build import NewRecord, build_batch
from headrace.record.decode import read_records
from tests.unit.log.cleaner_scenario import (
    NOW_MS,
    RETENTION_MS,
    SmallLog,
    committed_of,
    latest,
    records_of,
)

LATER_MS = NOW_MS + RETENTION_MS
MUCH_LATER_MS = NOW_MS + 10 * RETENTION_MS


def test_last_record_of_each_key_is_unchanged() -> None:
    log = SmallLog()
    log.put(("a", "1"), ("b", "1"), ("c", "1"))
    log.put(("a", "2"))
    log.put(("b", "2"), ("d", "1"))
    before = {record.offset: record for record in log.records()}
    log.clean()
    assert log.pairs() == [("c", "1"), ("a", "2"), ("b", "2"), ("d", "1")]
    assert log.offsets() == [2, 3, 4, 5]
    for record in log.records():
        assert record == before[record.offset]
    assert {int(batch.leader_epoch) for batch in log.batches} == {3}
    assert log.first_dirty_offset == 6


def test_batch_without_removed_records_keeps_its_bytes() -> None:
    log = SmallLog()
    log.put(("a", "1"), ("b", "1"), codec=1)
    before = log.batches[0]
    log.clean()
    assert log.batches[0] is before


@pytest.mark.parametrize("codec", range(5))
def test_records_leave_a_compressed_batch_and_the_rest_is_compressed_again(codec: int) -> None:
    log = SmallLog()
    log.put(("a", "1"), ("b", "1"), ("a", "2"), codec=codec)
    log.clean()
    assert log.pairs() == [("b", "1"), ("a", "2")]
    assert log.batches[0].codec() == codec
    assert log.batches[0].last_offset() == 2


def test_compacted_records_are_replaced_by_later_ones() -> None:
    log = SmallLog()
    log.put(("a", "1"), ("b", "1"))
    log.clean()
    log.put(("a", "2"))
    log.clean()
    assert log.pairs() == [("b", "1"), ("a", "2")]


def test_records_without_a_key_are_removed() -> None:
    log = SmallLog()
    log.put((None, "1"), ("a", "1"))
    log.clean()
    assert log.pairs() == [("a", "1")]


def test_tombstone_removes_earlier_records_immediately_and_stays_for_the_retention_time() -> None:
    log = SmallLog()
    log.put(("a", "1"), ("b", "1"))
    log.put(("a", None), ("c", "1"))
    log.clean()
    assert log.pairs() == [("b", "1"), ("a", None), ("c", "1")]
    timestamps = [record.timestamp for record in log.records()]
    assert log.batches[1].attributes & DELETE_HORIZON
    assert log.batches[1].base_timestamp == NOW_MS + RETENTION_MS
    log.clean(LATER_MS - 1)
    assert ("a", None) in log.pairs()
    assert [record.timestamp for record in log.records()] == timestamps
    log.clean(LATER_MS)
    assert log.pairs() == [("b", "1"), ("c", "1")]


def test_the_longest_delete_retention_ms_keeps_a_tombstone_and_its_timestamp() -> None:
    log = SmallLog()
    log.put(("a", "1"), ("b", None))
    timestamps = [record.timestamp for record in log.records()]
    log.clean(retention_ms=2**63 - 1)
    log.clean(NOW_MS + 2**61, retention_ms=2**63 - 1)
    assert log.pairs() == [("a", "1"), ("b", None)]
    assert [record.timestamp for record in log.records()] == timestamps


def test_retention_of_a_tombstone_does_not_restart_with_each_compaction() -> None:
    log = SmallLog()
    log.put(("a", None))
    log.clean(NOW_MS)
    log.clean(NOW_MS + RETENTION_MS // 2)
    assert log.batches[0].base_timestamp == NOW_MS + RETENTION_MS


def test_tombstones_stay_while_the_clock_is_not_trusted() -> None:
    log = SmallLog()
    log.put(("a", None))
    log.clean()
    log.put(("b", None))
    log.clean(MUCH_LATER_MS, can_expire=False)
    assert log.pairs() == [("a", None), ("b", None)]
    # Nor is anything told by that clock when it will.
    assert not log.batches[1].attributes & DELETE_HORIZON


def test_value_after_a_tombstone_removes_it_immediately() -> None:
    log = SmallLog()
    log.put(("a", None))
    log.put(("a", "2"))
    log.clean()
    assert log.pairs() == [("a", "2")]


def test_full_key_table_ends_a_compaction_and_the_next_one_continues_there() -> None:
    log = SmallLog()
    keys = [f"key {number}" for number in range(100)]
    for round_ in range(3):
        for key in keys:
            log.put((key, f"{round_}"))
    cleaner = log.clean(table_bytes_max=24 * 70)
    assert cleaner.key_count < 70
    assert log.first_dirty_offset == cleaner.key_count
    assert len(log.records()) == 300
    rounds = 1
    while log.first_dirty_offset < log.end_offset:
        log.clean(table_bytes_max=24 * 70)
        rounds += 1
    assert rounds > 3
    assert log.pairs() == [(key, "2") for key in keys]


def test_key_table_can_be_full_inside_a_batch() -> None:
    log = SmallLog()
    log.put(*((f"key {number % 150}", f"{number}") for number in range(300)))
    for _ in range(20):
        log.clean(table_bytes_max=24 * 70)
    assert log.first_dirty_offset == 300
    assert log.pairs() == [(f"key {number % 150}", f"{number}") for number in range(150, 300)]


def test_tombstone_after_a_full_key_table_stays_until_earlier_records_are_removed() -> None:
    log = SmallLog()
    log.put(("a", "1"))
    for number in range(100):
        log.put((f"key {number}", "1"))
    log.put(("a", None))
    log.clean(table_bytes_max=24 * 70)
    assert not log.batches[-1].attributes & DELETE_HORIZON
    assert ("a", "1") in log.pairs()
    log.clean(MUCH_LATER_MS)
    assert log.pairs()[-1] == ("a", None)
    assert ("a", "1") not in log.pairs()
    log.clean(MUCH_LATER_MS + RETENTION_MS)
    assert "a" not in dict(log.pairs())


# Producers


def test_the_last_batch_of_a_producer_stays_without_its_records() -> None:
    log = SmallLog()
    log.put(("a", "1"), ("b", "1"), producer=7)
    log.put(("a", "2"), ("b", "2"), producer=7)
    log.put(("a", "3"), ("b", "3"))
    log.clean()
    assert log.pairs() == [("a", "3"), ("b", "3")]
    empty = log.batches[0]
    assert empty.record_count == 0
    assert (empty.producer_id, empty.base_sequence, empty.last_offset()) == (7, 2, 3)
    log.clean()
    assert log.batches[0] is empty
    # A replay of the log gets the producer's last sequence from it.
    table = ProducerTable()
    table.apply(empty, empty.base_offset)
    assert table.entries[7].last_sequence() == 3


def test_empty_batch_is_removed_when_its_producer_has_a_later_one() -> None:
    log = SmallLog()
    log.put(("a", "1"), producer=7)
    log.put(("a", "2"))
    log.clean()
    assert [batch.record_count for batch in log.batches] == [0, 1]
    log.put(("b", "1"), producer=7)
    log.clean()
    assert [batch.record_count for batch in log.batches] == [1, 1]


def test_an_expired_producer_leaves_nothing_behind() -> None:
    log = SmallLog()
    log.put(("a", "1"), producer=7)
    log.put(("a", "2"))
    del log.table.entries[7]
    log.clean()
    assert [batch.record_count for batch in log.batches] == [1]


def test_last_batch_of_a_segment_stays_so_that_offsets_are_continuous() -> None:
    log = SmallLog()
    log.put(("a", "1"))
    log.put(("a", "2"))
    log.put(("a", "3"))
    log.clean(keep_last=True)
    assert [(batch.record_count, batch.last_offset()) for batch in log.batches] == [(1, 2)]
    log.put(("a", None))
    for now_ms in (NOW_MS, LATER_MS):
        log.clean(now_ms, keep_last=True)
    assert [(batch.record_count, batch.last_offset()) for batch in log.batches] == [(0, 3)]


# Transactions


def test_records_of_an_aborted_transaction_are_removed_and_replace_no_value() -> None:
    log = SmallLog()
    log.put(("a", "1"))
    log.put(("a", "2"), ("b", "2"), producer=7, transactional=True)
    log.put(("c", "2"), producer=7, transactional=True)
    log.end(7, abort=True)
    log.clean()
    assert log.pairs() == [("a", "1")]
    # The producer's last batch is there without records, so the marker and the index are, too.
    assert [batch.record_count for batch in log.batches] == [1, 0, 1]
    assert [each.first_offset for each in log.aborted] == [1]


def test_marker_is_removed_the_retention_time_after_its_transaction() -> None:
    log = SmallLog()
    log.put(("a", "1"), producer=7, transactional=True)
    marker = log.end(7, abort=True)
    log.put(("b", "1"), producer=7)
    log.clean()
    assert log.marker_offsets() == [marker]
    log.clean()
    assert log.marker_offsets() == [marker]
    assert log.aborted == []
    log.clean(LATER_MS - 1)
    assert log.marker_offsets() == [marker]
    log.clean(LATER_MS)
    assert log.marker_offsets() == []


def test_the_marker_of_a_commit_stays_while_any_record_of_it_does() -> None:
    log = SmallLog()
    log.put(("a", "1"), producer=7, transactional=True)
    log.put(("b", "1"), producer=7, transactional=True)
    marker = log.end(7, abort=False)
    log.put(("c", "1"), producer=7)
    log.put(("a", "2"))
    for _ in range(3):
        log.clean(MUCH_LATER_MS)
    assert log.pairs() == [("b", "1"), ("c", "1"), ("a", "2")]
    assert log.marker_offsets() == [marker]
    log.put(("b", "2"))
    for now_ms in (MUCH_LATER_MS, MUCH_LATER_MS, MUCH_LATER_MS + RETENTION_MS):
        log.clean(now_ms)
    assert log.marker_offsets() == []


def test_the_last_marker_of_a_producer_without_data_keeps_its_epoch() -> None:
    log = SmallLog()
    log.put(("a", "1"), producer=7, transactional=True)
    log.end(7, abort=True, epoch=1)
    for now_ms in (NOW_MS, NOW_MS, MUCH_LATER_MS):
        log.clean(now_ms)
    (last,) = log.batches
    assert last.is_control()
    assert last.record_count == 0
    assert last.producer_epoch == 1


def test_a_transaction_that_ends_beyond_what_is_cleaned_is_known_by_its_end() -> None:
    log = SmallLog()
    log.put(("a", "1"), producer=7, transactional=True)
    log.put(("a", "0"))
    last = log.put(("b", "1"), producer=7, transactional=True)
    log.end(7, abort=True)
    log.clean(up_to=last)
    assert log.pairs() == [("a", "0"), ("b", "1")]
    assert latest(log.committed()) == {b"a": b"0"}


def test_transactions_of_several_producers_may_cross() -> None:
    log = SmallLog()
    log.put(("a", "1"), producer=1, transactional=True)
    log.put(("b", "1"), producer=2, transactional=True)
    log.put(("c", "1"), producer=1, transactional=True)
    log.end(1, abort=True)
    log.put(("d", "1"), producer=2, transactional=True)
    log.put(("a", "2"), producer=1, transactional=True)
    log.end(2, abort=False)
    log.end(1, abort=False)
    before = latest(log.committed())
    log.clean()
    assert latest(log.committed()) == before == {b"a": b"2", b"b": b"1", b"d": b"1"}
    assert latest(log.records()) == before


def test_a_batch_that_unfolds_to_more_than_is_allowed_is_an_error_not_a_bomb() -> None:
    frame = build_batch([NewRecord(b"k", bytes(1 << 22), NOW_MS)], codec=4)
    bomb = read_batch(frame, 0, len(frame), False)
    rules = Rules(0, NOW_MS, RETENTION_MS, decompressed_bytes_max=1 << 20)
    for decide in (
        Cleaner(rules, {}).add_keys,
        lambda batch: Cleaner(rules, {}).clean(batch, False),
    ):
        with pytest.raises(ApiError) as refused:
            decide(bomb)
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


# Any history


keys = st.sampled_from(["a", "b", "c", "d", None])
pairs = st.tuples(keys, st.sampled_from(["x", "y", None]))
steps = st.one_of(
    st.tuples(
        st.just("put"),
        st.lists(pairs, min_size=1, max_size=4),
        st.integers(-1, 2),
        st.booleans(),
        st.integers(0, 4),
    ),
    st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("clean"), st.integers(0, 3 * RETENTION_MS), st.booleans(), st.integers(0, 9)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=40))
def test_random_writes_and_compactions_keep_the_last_values(
    history: list[tuple[Any, ...]],
) -> None:
    log = SmallLog()
    everything = SmallLog()
    stable: dict[int, int] = {}
    now_ms = NOW_MS
    for step in history:
        if step[0] == "put":
            _, records, producer, transactional, codec = step
            transactional = producer >= 0 and (transactional or producer in stable)
            if transactional:
                stable.setdefault(producer, log.end_offset)
            values = [(key, value and f"{value}{log.end_offset}") for key, value in records]
            for each in (log, everything):
                each.put(*values, producer=producer, transactional=transactional, codec=codec)
        elif step[0] == "end":
            _, producer, abort = step
            if stable.pop(producer, None) is not None:
                for each in (log, everything):
                    each.end(producer, abort=abort)
        else:
            _, elapsed_ms, keep_last, table = step
            now_ms += elapsed_ms
            up_to = min(stable.values(), default=log.end_offset)
            log.clean(now_ms, up_to=up_to, keep_last=keep_last, table_bytes_max=24 * (5 + table))
    expected = {record.offset: record for record in everything.records()}
    for record in log.records():
        assert record == expected[record.offset]
    assert log.offsets() == sorted(log.offsets())
    assert latest(log.committed()) == latest(everything.committed())
    for producer, entry in replayed(log).entries.items():
        original = everything.table.entries[producer]
        assert entry.epoch == original.epoch
        assert entry.last_sequence() == original.last_sequence()
        assert entry.transaction_first_offset < 0 or original.transaction_first_offset >= 0
    assert replayed(log).entries.keys() == everything.table.entries.keys()
    # A consumer that knows only the transaction markers gets the same records.
    rebuilt = committed_of(log.batches, replayed_aborted(log))
    assert latest(rebuilt) == latest(everything.committed())
    assert records_of(log.batches) == log.records()


def replayed(log: SmallLog) -> ProducerTable:
    return _replay(log)[0]


def replayed_aborted(log: SmallLog) -> list[Any]:
    return _replay(log)[1]


def _replay(log: SmallLog) -> tuple[ProducerTable, list[Any]]:
    """What recovery makes of the batches when every derived file is lost."""
    table = ProducerTable()
    found = []
    for batch in log.batches:
        if batch.is_control():
            marker = read_end_marker(batch, batch.frame[batch.start : batch.end])
            if marker is not None:
                aborted = table.apply_marker(batch, batch.base_offset, marker)
                found += [aborted] if aborted is not None else []
        elif batch.producer_id >= 0:
            table.apply(batch, batch.base_offset)
            assert read_records(batch) is not None
    return table, found
