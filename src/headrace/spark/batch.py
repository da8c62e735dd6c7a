"""Batch reads: plans offset ranges on the driver, reads them on the executors."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.spark.filters import Narrowing
from headrace.spark.options import ReadOptions
from headrace.spark.planning import Planner, plan_ranges
from headrace.spark.ranges import plan_tasks
from headrace.spark.values import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa


class Task(InputPartition):
    """The offset ranges that one task reads."""

    def __init__(self, ranges: list[OffsetRange]) -> None:
        super().__init__(ranges)


def ranges_of(partition: InputPartition | None) -> list[OffsetRange]:
    """The ranges of a task.

    If the ranges are empty, Spark runs a task without a value; Spark 4.1 passes None.
    """
    value: list[OffsetRange] | None = getattr(partition, "value", None)
    return value or []


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        planner = Planner(self.options)
        try:
            ranges = self._ranges(planner)
        finally:
            planner.close()
        options = self.options
        tasks = plan_tasks(ranges, options.min_partitions, options.max_records_per_partition)
        return [Task(task) for task in tasks]

    def _ranges(self, planner: Planner) -> list[OffsetRange]:
        ranges = plan_ranges(planner)
        ranges = [
            self.narrowing.narrowed(one) for one in ranges if self.narrowing.wants(one.partition)
        ]
        if self.narrowing.time_from_ms is None:
            return ranges
        at = planner.at_time({one.partition: self.narrowing.time_from_ms for one in ranges})
        return [
            OffsetRange(one.partition, max(one.start, at[one.partition]), one.end)
            for one in ranges
            if at[one.partition] >= 0
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from headrace.spark.reading import read_ranges

        return read_ranges(self.options, ranges_of(partition))


class FilteringBatchReader(BatchReader):
    """A separate class, because it has the method `pushFilters`.

    PySpark rejects readers with this method if spark.sql.python.filterPushdown.enabled is off.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        return [one for one in filters if not self.narrowing.take(one)]
