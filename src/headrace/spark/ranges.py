"""Divides offset ranges into tasks: splits large ranges, combines small ones.

Pure. A task costs tens of milliseconds in any case, so a few records of many partitions are one
task. Options limit the size of a task.

1. Every offset is in exactly one task. Within a task, the offsets of a partition are in order.
2. Without `minPartitions` and `maxRecordsPerPartition` a partition is in one task only.
"""

from collections.abc import Sequence

from headrace.model.topics import TopicPartition
from headrace.spark.values import OffsetRange, Positions

OFFSETS_WORTH_A_TASK = 5_000


def plan_tasks(
    ranges: Sequence[OffsetRange], min_partitions: int, max_records: int | None
) -> list[list[OffsetRange]]:
    """The ranges of each task; no task if all ranges are empty."""
    wanted = [one for one in ranges if one.size > 0]
    if max_records is not None:
        wanted = [part for one in wanted for part in _split(one, -(-one.size // max_records))]
    if min_partitions > len(wanted):
        wanted = _split_largest(wanted, min_partitions)
    if min_partitions or max_records is not None:
        return [[one] for one in wanted]
    total = sum(one.size for one in wanted)
    count = min(len(wanted), -(-total // OFFSETS_WORTH_A_TASK))
    return _combine(wanted, count)


def _split(one: OffsetRange, parts: int) -> list[OffsetRange]:
    pieces: list[OffsetRange] = []
    start = one.start
    for left in range(min(parts, one.size), 0, -1):
        end = start + (one.end - start) // left
        pieces.append(OffsetRange(one.partition, start, end))
        start = end
    return pieces


def _split_largest(ranges: Sequence[OffsetRange], count: int) -> list[OffsetRange]:
    """Split in proportion to sizes, into about `count` ranges."""
    total = sum(one.size for one in ranges)
    small = [one for one in ranges if round(one.size / total * count) <= 1]
    small_total = sum(one.size for one in small)
    left = max(count - len(small), 1)
    pieces: list[OffsetRange] = []
    for one in ranges:
        parts = 1 if one in small else max(round(one.size / (total - small_total) * left), 1)
        pieces += _split(one, parts)
    return pieces


def _combine(ranges: Sequence[OffsetRange], count: int) -> list[list[OffsetRange]]:
    """Combine ranges into `count` tasks of similar size.

    The largest range is assigned first, each to the smallest task.
    """
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    loads = [0] * count
    for one in sorted(ranges, key=lambda one: (-one.size, one.partition)):
        smallest = loads.index(min(loads))
        tasks[smallest].append(one)
        loads[smallest] += one.size
    return tasks


def limit_positions(start: Positions, end: Positions, limit: int) -> dict[TopicPartition, int]:
    """End positions with at most `limit` offsets in total, shared in proportion to the sizes.

    A partition with records gets at least one, so that none waits indefinitely.
    """
    sizes = {
        partition: end[partition] - start[partition]
        for partition in end
        if end[partition] > start[partition]
    }
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    # One offset per partition. The others are shared in proportion to the remaining sizes.
    spare, rest = max(limit - len(sizes), 0), max(total - len(sizes), 1)
    return dict(end) | {
        partition: start[partition] + 1 + spare * (size - 1) // rest
        for partition, size in sizes.items()
    }
