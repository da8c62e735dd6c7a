"""Converts filters of a query to limits of offsets. Pure.

Filters are recognized by the names of their classes, which exist since PySpark 4.1.

1. An accepted filter is applied exactly, because Spark does not check the rows again.
2. A filter on `timestamp` only raises the start offsets, and Spark applies it again: records are in
   the order of offsets, not of times.
"""

from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any

from headrace.model.topics import TopicPartition
from headrace.spark.values import OffsetRange

_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(slots=True)
class Narrowing:
    """The partitions, offsets and times that match all filters so far."""

    topics: set[str] | None = None
    partitions: set[int] | None = None
    partition_from: float = -inf
    partition_to: float = inf
    offset_from: float = -inf
    offset_to: float = inf
    time_from_ms: int | None = None

    def take(self, one: Any) -> bool:
        """Apply a filter. Returns whether Spark can omit it."""
        path: tuple[str, ...] = getattr(one, "attribute", ())
        column = path[0] if len(path) == 1 else ""
        if _kind(one) == "IsNotNull":
            return column in _NEVER_NULL
        if column == "timestamp":
            self._take_time(one)
            return False
        if column == "topic":
            return self._take_topic(one)
        if column in ("partition", "offset"):
            return self._take_number(column, one)
        return False

    def _take_time(self, one: Any) -> None:
        if _kind(one) in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
            value = one.value
            if isinstance(value, datetime):
                at_ms = int(value.timestamp() * 1000 // 1)
                self.time_from_ms = max(self.time_from_ms or 0, at_ms)

    def _take_topic(self, one: Any) -> bool:
        if _kind(one) == "EqualTo" and isinstance(one.value, str):
            wanted = {one.value}
        elif _kind(one) == "In" and all(isinstance(value, str) for value in one.value):
            wanted = set(one.value)
        else:
            return False
        self.topics = wanted if self.topics is None else self.topics & wanted
        return True

    def _take_number(self, column: str, one: Any) -> bool:
        if _kind(one) == "In":
            if column == "offset" or not all(_is_whole(value) for value in one.value):
                return False
            wanted = {int(value) for value in one.value}
            self.partitions = wanted if self.partitions is None else self.partitions & wanted
            return True
        value = getattr(one, "value", None)
        if not _is_whole(value):
            return False
        assert isinstance(value, int)
        low, high = -inf, inf
        match _kind(one):
            case "EqualTo":
                low, high = value, value + 1
            case "GreaterThan":
                low = value + 1
            case "GreaterThanOrEqual":
                low = value
            case "LessThan":
                high = value
            case "LessThanOrEqual":
                high = value + 1
            case _:
                return False
        if column == "offset":
            self.offset_from = max(self.offset_from, low)
            self.offset_to = min(self.offset_to, high)
        else:
            self.partition_from = max(self.partition_from, low)
            self.partition_to = min(self.partition_to, high)
        return True

    def wants(self, partition: TopicPartition) -> bool:
        """Whether records of this partition can match."""
        topic, index = partition
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or index in self.partitions)
            and self.partition_from <= index < self.partition_to
        )

    def narrowed(self, one: OffsetRange) -> OffsetRange:
        start = max(one.start, self.offset_from)
        end = min(one.end, self.offset_to)
        return OffsetRange(one.partition, int(start), int(max(start, end)))


def _kind(one: Any) -> str:
    return type(one).__name__


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
