# HOT
"""One partition's log: stages batches, writes them together, reads them as slices of files.

Loop thread only; no locks, no waiting. A worker thread runs the jobs that wait for the disk
(`next_job`, `done`). Recovery, retention, look-ups by time and upkeep are in separate modules.

1. `stage` changes only memory. `write` appends all staged batches with one call. If that fails, it
   restores the end offset, producers, epochs and indexes, and truncates the file.
2. Records at or above `written_end_offset` are never read.
3. After a failed sync, or a write with a permanent error, the log is offline. It rejects appends
   until a restart has recovered it (B13, I18). Reads continue.
4. recovery_point <= synced_offset <= written_end_offset <= log_end_offset (L1).
"""

from typing import Final, final
from uuid import UUID

from mypy_extensions import i64

from headrace.config.topic import TopicConfig
from headrace.env.files import Bytes, Files
from headrace.log import errors, reading, timestamps
from headrace.log.durable_state import DurableState
from headrace.log.epochs import EpochCache
from headrace.log.file import FileSlice, LogFile, OpenSegments
from headrace.log.page_drops import PageDrops
from headrace.log.producers import ProducerTable
from headrace.log.recovery import replay
from headrace.log.segment import RELATIVE_OFFSET_MAX, Segment
from headrace.log.segment_list import SegmentList
from headrace.log.state import LogSettings, LogState
from headrace.log.transactions import AbortedTransaction, read_end_marker
from headrace.log.upkeep import closing, durability, retention, truncation
from headrace.log.upkeep.jobs import PASSING, LogJob
from headrace.log.upkeep.producer_expiry import ProducerExpiry
from headrace.model.errors import ApiError
from headrace.model.topics import TopicPartition
from headrace.record.batch import PREFIX_SIZE, Batch, crc32c

_COPY_BYTES_MAX: Final = 8192
"""Up to this size, copying a part of a frame is cheaper than a memoryview."""
_BOUNDARIES_MAX: Final = 256


@final
class Log:
    def __init__(
        self,
        files: Files,
        cache: OpenSegments,
        path: str,
        partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        state: LogState,
        settings: LogSettings,
    ) -> None:
        self.files: Files = files
        self.cache: OpenSegments = cache
        self.path: str = path
        self.partition: TopicPartition = partition
        self.topic_id: UUID = topic_id
        self.settings: LogSettings = settings
        self.producers: ProducerTable = state.producers
        self.epochs: EpochCache = state.epochs
        self.segments: SegmentList = SegmentList(state.segments)
        self.durable: DurableState = DurableState(state)
        self.page_drops: PageDrops = PageDrops()
        self.producer_expiry: ProducerExpiry = ProducerExpiry()
        self.log_start_offset: i64 = state.log_start_offset
        self.log_end_offset: i64 = state.log_end_offset
        """The offset of the next batch. Staged batches are below it."""
        self.offline_reason: str = state.offline_reason
        self.written_end_offset: i64 = state.log_end_offset
        self.first_dirty_offset: i64 = state.log_start_offset
        """Compaction has processed all records before this offset."""
        self.has_staged: bool = False
        self.is_offline: bool = bool(state.offline_reason)
        self.is_closed: bool = False
        self.truncations: i64 = 0
        self._has_roll_failed: bool = False
        self._pieces: list[Bytes] = []
        self._staged_error: ApiError | None = None
        self._epochs_before: list[tuple[int, int]] | None = None
        self._boundaries: dict[int, int] = {}
        self._active: Segment = state.segments[-1]
        self.written_size: i64 = self._active.size
        """The number of bytes of the active segment that are in its file."""
        self.leader_epoch: i64 = state.epochs.latest()
        self._is_ready: bool = False
        """Whether the indexes of the active segment are in memory."""
        self._drop_step: i64 = settings.drop_behind_step_bytes
        self._segment_bytes: i64 = 0
        self._segment_ms: i64 = 0
        self._index_gap: i64 = 0
        self._index_bytes: i64 = 0
        self._flush_messages: i64 = 0
        self.config: TopicConfig = config
        self.set_config(config)

    # Appending

    def stage(self, batch: Batch, leader_epoch: i64, now_ms: i64) -> i64:
        """Assign the next offset to a batch and keep it for `write`. Returns its first offset.

        A retry of a known batch returns the offset and the time of that batch; nothing is staged.
        """
        base_offset = self.log_end_offset
        if batch.producer_id < 0:
            self._stage_at(batch, base_offset, leader_epoch, now_ms, False)
            return base_offset
        if batch.is_control():
            self._stage_marker(batch, base_offset, leader_epoch, now_ms, True)
            return base_offset
        producers = self.producers
        if batch.base_sequence >= 0:
            known = producers.duplicate_of(batch)
            if known is not None:
                if self.is_offline or self._staged_error is not None:
                    raise self._refusal()
                batch.max_timestamp = known.timestamp
                return known.last_offset - known.offset_delta
        producers.check(batch)
        self._stage_at(batch, base_offset, leader_epoch, now_ms, False)
        producers.apply(batch, base_offset)
        return base_offset

    def stage_replica(self, batch: Batch, now_ms: i64) -> None:
        """Stage a leader's batch unchanged: keep its offsets and epoch, check no sequences."""
        base_offset = batch.base_offset
        if base_offset < self.log_end_offset and not truncation.is_first_batch(self, batch):
            raise errors.overlap(base_offset, self.log_end_offset)
        if batch.producer_id >= 0 and batch.is_control():
            self._stage_marker(batch, base_offset, batch.leader_epoch, now_ms, False)
            return
        self._stage_at(batch, base_offset, batch.leader_epoch, now_ms, True)
        if batch.producer_id >= 0:
            self.producers.apply(batch, base_offset)

    def _stage_at(
        self, batch: Batch, base_offset: i64, leader_epoch: i64, now_ms: i64, is_replica: bool
    ) -> None:
        if self.is_offline or self._staged_error is not None:
            raise self._refusal()
        if not self._is_ready:
            self._get_ready()
        size = batch.end - batch.start
        last_offset = base_offset + batch.last_offset_delta
        timestamp = batch.max_timestamp
        segment = self._active
        position = segment.size
        if (
            position + size > self._segment_bytes
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or (
                segment.bytes_since_index > self._index_gap
                and not segment.has_room(self._index_bytes)
            )
            or (position > 0 and self._is_old(segment, timestamp, now_ms))
        ):
            if size > self._segment_bytes and not is_replica:
                raise errors.larger_than_segment(size, self._segment_bytes)
            self._roll_for(base_offset, last_offset, now_ms)
            segment = self._active
            position = segment.size
        if leader_epoch != self.leader_epoch:
            self._begin_epoch(leader_epoch, max(base_offset, self.log_start_offset))
        if position == 0:
            segment.begin(timestamp, now_ms)
        segment.note(position, size, last_offset, timestamp, self._index_gap)
        segment.size = position + size
        pieces = self._pieces
        pieces.append(batch.prefix(base_offset, leader_epoch))
        start = batch.start + PREFIX_SIZE
        if size <= _COPY_BYTES_MAX:
            pieces.append(batch.frame[start : batch.end])
        else:
            pieces.append(memoryview(batch.frame)[start : batch.end])
        self.log_end_offset = last_offset + 1
        self.has_staged = True

    def _get_ready(self) -> None:
        """Load the indexes of the active segment, which start-up does not load."""
        active = self._active
        try:
            active.index()
            active.time_index()
            if active.aborted() is None:
                replay.rebuild_aborted(self, active)
        except OSError as error:
            raise errors.not_written(self.partition, error) from None
        # From now on they stay in memory: a write must not fail because they cannot be read.
        active.indexes_on_disk = False
        active.mark()
        self._is_ready = True

    def _is_old(self, segment: Segment, timestamp: i64, now_ms: i64) -> bool:
        """Whether segment.ms has passed since the first batch, by the batches' timestamps."""
        if segment.first_timestamp >= 0:
            return timestamp - segment.first_timestamp > self._segment_ms
        return now_ms - segment.created_ms > self._segment_ms

    def _stage_marker(
        self, batch: Batch, base_offset: i64, leader_epoch: i64, now_ms: i64, check: bool
    ) -> None:
        marker = read_end_marker(batch, batch.frame[batch.start : batch.end])
        if marker is not None and check:
            self.producers.check_marker(batch, marker)
        self._stage_at(batch, base_offset, leader_epoch, now_ms, not check)
        if marker is not None:
            aborted = self.producers.apply_marker(batch, base_offset, marker)
            if aborted is not None:
                self._active.add_aborted(aborted)

    def _begin_epoch(self, leader_epoch: i64, offset: i64) -> None:
        if self._epochs_before is None:
            self._epochs_before = self.epochs.entries()
        if not self.epochs.assign(leader_epoch, offset):
            raise errors.epoch_is_over(leader_epoch, self.epochs.latest())
        self.leader_epoch = leader_epoch

    def write(self, now_ms: i64) -> None:
        """Append all staged batches. If this raises, the log ends at `log_end_offset`.

        A part that was written earlier, because a segment was full, can be in the log.
        """
        if self._staged_error is not None:
            error = self._staged_error
            self._staged_error = None
            self.has_staged = False
            raise error
        if not self.has_staged:
            return
        segment = self._active
        file = segment.file
        try:
            if file is None:
                file = segment.open()
            self.files.append(file.fd, self._pieces)
        except OSError as error:
            raise self._take_back(error, file) from None
        self._pieces.clear()
        self.has_staged = False
        self._epochs_before = None
        boundaries = self._boundaries
        if len(boundaries) >= _BOUNDARIES_MAX:
            boundaries.clear()
        boundaries[self.written_end_offset] = self.written_size
        self.written_size = segment.size
        self.written_end_offset = self.log_end_offset
        segment.appended_ms = now_ms
        segment.used = True
        segment.mark()
        self.producers.commit()
        if (
            self.written_end_offset - self.durable.synced_offset >= self._flush_messages
            or self.written_size - self.page_drops.position >= self._drop_step
        ):
            self.durable.want_job()

    def _take_back(self, error: OSError, file: LogFile | None) -> ApiError:
        """Undo all staged batches, in memory and, if the file is open, in the file."""
        segment = self._active
        self._pieces.clear()
        self.has_staged = False
        self.log_end_offset = self.written_end_offset
        self.producers.undo(self.written_end_offset)
        if self._epochs_before is not None:
            self.epochs = EpochCache(self._epochs_before)
            self._epochs_before = None
            self.leader_epoch = self.epochs.latest()
        segment.take_back()
        try:
            if file is not None:
                self.files.truncate(file.fd, self.written_size)
        except OSError as second:
            self.go_offline(second)
        if error.errno in PASSING:
            self.settings.rejected(self.partition, error)
        else:
            self.go_offline(error)
        return errors.not_written(self.partition, error)

    def go_offline(self, error: OSError, reason: str = "") -> None:
        """Reject appends until a restart; `reason` is for clients, if recovery can tell."""
        self.offline_reason = reason or self.offline_reason
        if not self.is_offline:
            self.is_offline = True
            self.settings.failed(self.partition, error)

    def _refusal(self) -> ApiError:
        return self._staged_error or errors.offline(self.partition, self.offline_reason)

    # Rolling

    def roll(self, now_ms: i64) -> None:
        """Seal the active segment and begin a new one at the end of the log."""
        if self.has_staged:
            self.write(now_ms)
        if self._active.size == 0:
            return
        if not self._is_ready:
            self._get_ready()
        segment = Segment(self.files, self.cache, self.path, self.log_end_offset, now_ms)
        try:
            if not self.durable.is_named:
                durability.name_now(self)
            segment.create()
        except OSError as error:
            if error.errno in PASSING:
                self.settings.rejected(self.partition, error)
            else:
                self.go_offline(error)
            raise errors.not_written(self.partition, error) from None
        sealed = self._active
        sealed.seal()
        self.durable.seal(sealed, self.log_end_offset, dict(self.producers.entries))
        self.segments.append(segment)
        self._use_active(segment)

    def _roll_for(self, base_offset: i64, last_offset: i64, now_ms: i64) -> None:
        end_offset = self.log_end_offset
        try:
            self.roll(now_ms)
        except ApiError as error:
            if self.log_end_offset != end_offset:
                # The roll also dropped batches that were staged before this one. `write` must
                # raise.
                self._staged_error = error
                self.has_staged = True
            raise
        if last_offset - self._active.base_offset > RELATIVE_OFFSET_MAX:
            # A gap of 2^31 offsets (a compacted leader): begin after it. Recovery must not take the
            # gap for a lost segment, so everything before it is made durable now.
            truncation.skip_to(self, base_offset, now_ms)

    def _use_active(self, segment: Segment) -> None:
        """Use this segment for appends."""
        self.written_size = segment.size
        self.page_drops.roll(self._active.file)
        self._active = segment
        self._boundaries.clear()
        self._get_ready()
        self._set_segment_ms()

    # Reading

    def read(
        self, offset: i64, size_max: i64, offset_end: i64, at_least_one: bool, wait: bool = True
    ) -> FileSlice | None:
        """A slice from the batch with `offset` on, up to `offset_end` and `size_max`.

        None if the range is empty (or, without `at_least_one`, if the first batch does not fit). A
        slice is within one segment and can end inside a batch. With `wait` false, raises NotCached
        instead of waiting for the disk.
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise errors.out_of_range(
                self.partition, offset, self.log_start_offset, self.log_end_offset
            )
        end = self.written_end_offset
        if offset_end < end:
            end = offset_end
        if offset >= end:
            return None
        segment = self._active
        if offset < segment.base_offset:
            return reading.read_sealed(self, offset, size_max, end, at_least_one, wait)
        limit = self.written_size
        if end < self.written_end_offset:
            limit = self._boundaries.get(end, -1)
            if limit < 0:
                limit, _ = segment.locate(end, self.written_size, wait)
        position: i64 = self._boundaries.get(offset, -1)
        if position >= 0:
            file = segment.file
            if file is None:
                file = segment.open()
            segment.used = True
            if limit - position <= size_max:
                return FileSlice(file, position, limit - position)
            first_size = reading.batch_size(file, position, wait)
        else:
            position, first_size = segment.locate(offset, limit, wait)
            file = segment.open()
        return reading.cut(file, position, limit, size_max, first_size, at_least_one)

    def last_stable_offset(self, high_watermark: i64) -> i64:
        """The end of the offsets that a read_committed consumer may read."""
        producers = self.producers
        if not producers.open_transactions and not producers.undecided:
            return high_watermark
        first: i64 = producers.first_unstable_offset(high_watermark)
        if first < 0 or first >= high_watermark:
            return high_watermark
        return first if first > self.log_start_offset else self.log_start_offset

    def size_bytes(self) -> int:
        return self.segments.sealed_bytes + self.written_size

    def active(self) -> Segment:
        return self._active

    # Changes by upkeep, truncation and compaction.

    def raise_start(self, offset: i64) -> None:
        """Set the log start to a higher offset that is durable."""
        self.log_start_offset = offset
        self.epochs.cut_start(offset)

    def set_start(self, offset: i64) -> None:
        """Set the log start of a log without records."""
        self.log_start_offset = offset
        self.durable.start_at(offset)

    def restart(self, segments: list[Segment], end_offset: i64, producers: ProducerTable) -> None:
        """Continue with these segments and this end, after a truncation."""
        self.producers = producers
        self.epochs.cut_end(end_offset)
        self.segments.replace_all(segments)
        self.log_end_offset = end_offset
        self.written_end_offset = end_offset
        self.durable.end_at(end_offset)
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
        self.leader_epoch = self.epochs.latest()
        self._use_active(segments[-1])

    def invalidate_cleanings(self) -> None:
        """A truncation begins: segments that a cleaner creates from this log are not used."""
        self.truncations += 1

    def cleaned_to(self, offset: i64) -> None:
        """Compaction has processed all records before this offset."""
        self.first_dirty_offset = offset

    def roll_succeeded(self) -> None:
        self._has_roll_failed = False

    def roll_failed(self) -> bool:
        """Note that retention could not roll the active segment; whether that is new."""
        is_new = not self._has_roll_failed
        self._has_roll_failed = True
        return is_new

    def release(self) -> None:
        """Close the files of a log that is written and checkpointed."""
        self.is_closed = True
        for segment in self.segments.all:
            segment.file = None

    def abandon(self) -> None:
        """Stop using a log whose partition is deleted."""
        self.is_closed = True
        self.is_offline = True
        if self.durable.job is not None:
            self.durable.job.cancel()

    # Operations of other modules.

    def set_config(self, config: TopicConfig) -> None:
        """Apply new settings, beginning with the next batch."""
        self.config = config
        self._segment_bytes = config.segment_bytes
        self._index_gap = config.index_interval_bytes
        self._index_bytes = config.segment_index_bytes
        self._flush_messages = config.flush_messages
        self._set_segment_ms()

    def _set_segment_ms(self) -> None:
        """Subtract a jitter from segment.ms, so that logs do not roll simultaneously."""
        segment_ms = self.config.segment_ms
        if self.config.compacts:
            # The active segment is not compacted, so it must roll within max.compaction.lag.ms.
            segment_ms = min(segment_ms, self.config.max_compaction_lag_ms)
        jitter_ms_max = min(self.config.segment_jitter_ms, segment_ms)
        jitter_ms = 0
        if jitter_ms_max > 0:
            name = f"{self.partition} {self._active.base_offset}"
            jitter_ms = crc32c(name.encode()) % jitter_ms_max
        self._segment_ms = segment_ms - jitter_ms

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one, and its end offset; (-1, -1) above the latest epoch."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def find_timestamp(self, timestamp: int) -> timestamps.Lookup:
        """(timestamp, offset, leader epoch) of the first record that is not earlier."""
        return timestamps.find(self, timestamp)

    def max_timestamp(self) -> timestamps.Lookup:
        """The same for the first record with the largest timestamp."""
        return timestamps.find_max(self)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions in [start, end), by first offset."""
        return timestamps.aborted(self, start, end)

    def next_job(self, now_ms: int) -> LogJob | None:
        """The next job for a worker; None if none is due or one is running."""
        return durability.next_job(self, now_ms)

    def done(self, job: LogJob) -> None:
        """Apply the result of a job. After a failed sync the log is offline."""
        durability.done(self, job)

    def delete_records(self, before: int, high_watermark: int) -> int:
        """Raise the log start to an offset (-1: the high watermark), effective after the next job.

        Returns the new log start.
        """
        return retention.delete_records(self, before, high_watermark)

    def apply_retention(self, now_ms: int, high_watermark: int, by_time: bool = True) -> int:
        """Remove expired segments with the next jobs; returns their number."""
        return retention.apply(self, now_ms, high_watermark, by_time)

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Remove all records from an offset on, in a follower that diverged. Waits for the disk."""
        truncation.truncate_to(self, offset, now_ms)

    def start_at(self, offset: int, now_ms: int, base_offset: int = -1) -> None:
        """Empty the log and set its start to an offset (see `truncation`). Waits for the disk."""
        truncation.start_at(self, offset, now_ms, base_offset)

    def close(self, now_ms: int) -> bool:
        """Write the log and its checkpoint durably. Waits for the disk; false if it failed."""
        return closing.run(closing.close_all([self], now_ms))

    def assert_invariants(self) -> None:
        """Assert L1 to L5, between two operations on an open log."""
        durable = self.durable
        order = (
            int(durable.recovery_point),
            int(durable.synced_offset),
            int(self.written_end_offset),
            int(self.log_end_offset),
        )
        assert order == tuple(sorted(order)), f"L1: {order}"
        start: i64 = self.log_start_offset
        assert start <= self.log_end_offset, f"L2: {start} is above {self.log_end_offset}"
        assert self.has_staged or order[2] == order[3], f"L3: nothing is staged: {order}"
        assert self.has_staged or not self._pieces, "L3: pieces remain after a write"
        assert self._active is self.segments.all[-1], "L4: the active segment is not the last one"
        assert self.written_size <= self._active.size, f"L3: {self.written_size} bytes are written"
        self.segments.assert_invariants()
        self.epochs.assert_invariants()
        assert self.leader_epoch == self.epochs.latest(), f"L5: {self.leader_epoch} is not latest"
