"""Offset ranges become tasks, and streams' offsets texts: nothing is lost or read twice."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.topics import TopicPartition
from headrace.spark.ranges import OFFSETS_WORTH_A_TASK, limit_positions, plan_tasks
from headrace.spark.values import (
    OffsetRange,
    stream_group,
    stream_offset,
    stream_positions,
    stream_topic_ids,
)

RANGES = st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 40_000)), max_size=12).map(
    lambda sizes: [
        OffsetRange(TopicPartition("t", at), start, start + size)
        for at, (start, size) in enumerate(sizes)
    ]
)


@given(RANGES, st.integers(0, 40), st.none() | st.integers(1_000, 50_000))
def test_every_offset_is_in_one_task(
    ranges: list[OffsetRange], min_partitions: int, max_records: int | None
) -> None:
    tasks = plan_tasks(ranges, min_partitions, max_records)
    pieces = sorted(one for task in tasks for one in task)
    for whole in ranges:
        own = [one for one in pieces if one.partition == whole.partition]
        at = whole.start
        for one in own:
            assert one.start == at
            assert one.size > 0
            at = one.end
        assert at == whole.end
    for task in tasks:
        assert task
        assert len({one.partition for one in task}) == len(task)
        assert max_records is None or sum(one.size for one in task) <= max_records


def test_tasks_are_never_more_than_records() -> None:
    assert len(plan_tasks([OffsetRange(TopicPartition("t", 0), 5, 8)], 1 << 40, None)) == 3


def test_few_records_of_many_partitions_are_one_task() -> None:
    ranges = [OffsetRange(TopicPartition("t", at), 0, 10) for at in range(50)]
    assert len(plan_tasks(ranges, 0, None)) == 1
    many = [OffsetRange(TopicPartition("t", at), 0, OFFSETS_WORTH_A_TASK) for at in range(50)]
    assert len(plan_tasks(many, 0, None)) == 50


def test_min_partitions_splits_what_is_large() -> None:
    ranges = [
        OffsetRange(TopicPartition("t", 0), 0, 100_000),
        OffsetRange(TopicPartition("t", 1), 0, 10),
    ]
    tasks = plan_tasks(ranges, 5, None)
    assert [len(task) for task in tasks] == [1] * 5
    assert sum(1 for task in tasks if task[0].partition.partition == 0) == 4


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 99), st.integers(0, 99))),
    st.integers(1, 200),
)
def test_limit_is_shared_and_every_partition_makes_progress(
    given_places: dict[int, tuple[int, int]], limit: int
) -> None:
    start = {TopicPartition("t", at): begin for at, (begin, _) in given_places.items()}
    end = {TopicPartition("t", at): begin + n for at, (begin, n) in given_places.items()}
    limited = limit_positions(start, end, limit)
    assert set(limited) == set(end)
    for partition, at in limited.items():
        assert start[partition] <= at <= end[partition]
        assert at > start[partition] or end[partition] == start[partition]
    taken = sum(limited[partition] - start[partition] for partition in end)
    assert taken <= max(limit, len(end))


def test_a_streams_offset_is_the_connectors_and_a_group() -> None:
    positions = {TopicPartition("b", 10): 3, TopicPartition("b", 9): 2, TopicPartition("a", 0): 1}
    offset = stream_offset(positions, "g")
    assert offset == {"headrace:group": "g", "a": {"0": 1}, "b": {"9": 2, "10": 3}}
    assert list(offset["b"]) == ["9", "10"]
    assert stream_positions(offset) == positions
    assert stream_group(offset) == "g"
    assert stream_group({"a": {"0": 1}}) is None


def test_stream_offset_has_the_ids_of_topics_that_were_read() -> None:
    positions = {TopicPartition("b", 0): 0, TopicPartition("a", 0): 0, TopicPartition("a", 1): 1}
    offset = stream_offset(positions, None, {"b": "2", "a": "1"})
    assert list(offset["headrace:topics"].items()) == [("a", "1"), ("b", "2")]
    assert stream_positions(offset) == positions
    assert stream_topic_ids(offset) == {"a": "1"}
    assert stream_topic_ids({"a": {"0": 1}}) == {}
