"""Streaming reads: limits, micro-batches and offsets of a stream.

The reader plans on the driver until the query ends. Executors read with copies of it.

1. The planned end of a micro-batch is never before its start.
2. The offsets of finished micro-batches are committed to the stream's group, to show its progress.
   These offsets are never read: a stream resumes from Spark's checkpoint.
3. A topic that was deleted and created again is data loss: its offsets mean other records.
4. If a range was deleted, `failOnDataLoss` decides between an error and a warning before it is
   skipped.
"""

import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.client import ClientError, GroupOffset
from headrace.model.topics import TopicPartition
from headrace.spark.batch import Task, ranges_of
from headrace.spark.options import ReadOptions
from headrace.spark.planning import Planner
from headrace.spark.pyspark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from headrace.spark.ranges import limit_positions, plan_tasks
from headrace.spark.values import (
    OffsetRange,
    Positions,
    named,
    stream_group,
    stream_offset,
    stream_positions,
    stream_topic_ids,
)

if TYPE_CHECKING:
    import pyarrow as pa


class RefusedStream(DataSourceStreamReader):
    """A stream with invalid options: each method raises the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error

    getDefaultReadLimit = initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._planner = Planner(options)
        self._group: str | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._commit_failed = False
        self._latest: dict[TopicPartition, int] | None = None
        self._target: dict[TopicPartition, int] | None = None
        """The end offsets of a run of Trigger.AvailableNow."""
        self._triggered_s: float | None = None
        self._planned: dict[str, Any] = {}
        """The last planned end: before 4.2, Spark requests the latest offset without a start."""

    def __getstate__(self) -> dict[str, Any]:
        # Executors read ranges and need nothing else.
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    # The initial offset.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        planner, options = self._planner, self.options
        partitions = planner.require_topics()
        starts = planner.resolve(options.starting, partitions)
        if options.starting.kind == "offsets":
            self._check_given(starts)
        self._planned = stream_offset(starts, self._group_of({}), planner.topic_ids(starts))
        return self._planned

    def _check_given(self, starts: Positions) -> None:
        earliest, latest = self._planner.earliest(starts), self._planner.latest(starts)
        wrong = [at for at, start in starts.items() if not earliest[at] <= start <= latest[at]]
        if wrong:
            self._planner.report_loss(f"'startingOffsets' of {named(wrong)} are outside of the log")

    # The end of the next micro-batch.

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark accepts one limit only. The limit that it passes back shows whether these limits
        # apply.
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.partitions(refresh=True)
        self._target = self._planner.ends({})

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        if start is None:
            start = self._planned
        else:
            # Spark passes a start only after the micro-batches before it have finished.
            self._commit_progress(start)
        begin = stream_positions(start)
        known = stream_topic_ids(start)
        self._planner.check_topics(known)
        target = self._target
        if target is None:
            ends = self._planner.ends(begin)
        elif any(end < begin.get(at, end) for at, end in target.items()):
            # The target was read before Spark passed the offsets of the stream.
            ends = self._target = self._planner.ends(begin)
        else:
            ends = target
        ends = self._with_deleted(begin, ends)
        self._latest = ends
        group = self._group_of(start)
        # A deleted topic keeps its id.
        topic_ids = known | self._planner.topic_ids(ends)
        if limit is None or isinstance(limit, ReadAllAvailable):
            return stream_offset(ends, group, topic_ids)
        begin |= self._planner.earliest(at for at in ends if at not in begin)
        if self._is_too_small(sum(ends[at] - begin[at] for at in ends)):
            return start
        largest = self.options.max_offsets_per_trigger
        if largest is not None:
            ends = limit_positions(begin, ends, largest)
        return stream_offset(ends, group, topic_ids)

    def _with_deleted(self, begin: Positions, ends: Positions) -> dict[TopicPartition, int]:
        """The end offsets. A deleted partition keeps its last known offset."""
        deleted = [at for at in begin if at not in ends]
        if deleted and self._target is None:
            self._planner.partitions(refresh=True)
            ends = self._planner.ends(begin)
            deleted = [at for at in begin if at not in ends]
        if deleted:
            self._planner.report_loss(f"{named(deleted)} no longer exists")
        return {**{at: begin[at] for at in deleted}, **ends}

    def _is_too_small(self, size: int) -> bool:
        """Whether to wait for more records; never with Trigger.AvailableNow."""
        smallest = self.options.min_offsets_per_trigger
        if smallest is None or self._target is not None:
            return False
        now_s = time.monotonic()
        if size < smallest and self._triggered_s is not None:
            waited_ms = (now_s - self._triggered_s) * 1000
            if waited_ms < self.options.max_trigger_delay_ms:
                return True
        self._triggered_s = now_s
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else stream_offset(self._latest, None)

    # The tasks of a micro-batch.

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, ends = stream_positions(start), stream_positions(end)
        # Check the topics here also: before 4.2, `latestOffset` does not get the start, and the
        # offsets of a repeated micro-batch were planned by an earlier run.
        for offset in (start, end):
            self._planner.check_topics(stream_topic_ids(offset))
        self._group_of(end)
        self._planned = end
        shorter = [at for at in ends if ends[at] < begin.get(at, 0)]
        if shorter:
            self._planner.report_loss(
                f"{named(shorter)} ends before offsets that were already read"
            )
        new = self._planner.earliest(at for at in ends if at not in begin)
        late = [at for at, offset in new.items() if offset > 0]
        if late:
            self._planner.report_loss(
                f"the first records of new partitions were deleted unread: {named(late)}"
            )
        ranges = [OffsetRange(at, begin.get(at, new.get(at, 0)), ends[at]) for at in sorted(ends)]
        options = self.options
        tasks = plan_tasks(ranges, options.min_partitions, options.max_records_per_partition)
        return [Task(task) for task in tasks]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from headrace.spark.reading import read_ranges

        return read_ranges(self.options, ranges_of(partition))

    # Finished micro-batches.

    def commit(self, end: dict[str, Any]) -> None:
        self._commit_progress(end)

    def stop(self) -> None:
        self._planner.close()

    def _group_of(self, offset: Mapping[str, Any]) -> str | None:
        """The group in a stream's offset; None if the options contain a group."""
        if self.options.group_id is not None:
            return None
        carried = stream_group(offset)
        if carried is not None:
            # Spark can request an initial offset without using it. The offset in its checkpoint
            # applies.
            self._group = carried
        elif self._group is None:
            self._group = f"{self.options.group_prefix}-{uuid.uuid4()}"
        return self._group

    def _commit_progress(self, offset: Mapping[str, Any]) -> None:
        group = self.options.group_id or self._group_of(offset)
        positions = stream_positions(offset)
        changed = {
            partition: position
            for partition, position in positions.items()
            if self._committed.get(partition) != position
        }
        if not changed or group is None:
            return
        try:
            offsets = {partition: GroupOffset(position) for partition, position in changed.items()}
            self._planner.client.commit_group_offsets(group, offsets)
        except ClientError as error:
            # The stream uses its checkpoint, so its result is not affected.
            if not self._commit_failed:
                message = f"headrace: progress of group {group!r} was not committed: {error}"
                print(message, file=sys.stderr, flush=True)
            self._commit_failed = True
            return
        self._commit_failed = False
        self._committed |= changed
