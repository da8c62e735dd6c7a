# HOT
"""One partition's log: stages batches, writes them together, reads them as slices of files.

Runs on the loop thread only, without locks. Only methods whose docstring says so wait for the disk.
A worker thread runs the jobs that sync and write checkpoints (`next_job`, `finish_job`). Recovery,
retention, truncation and look-ups by time are in separate modules.

1. `stage` changes only memory. `write` appends all staged batches with one call. If that fails, or
   no memory is left, the log restores the end offset, producers, epochs and indexes, and truncates
   the file.
2. Records at or above `written_end_offset` are never read.
3. After a failed sync, or a write with a permanent error, the log is offline. It rejects appends
   until a restart has recovered it (B13, I18). Reads continue.
4. recovery_point <= synced_offset <= written_end_offset <= log_end_offset (L1).
"""

from typing import Final, final
from uuid import UUID

from mypy_extensions import i64

from headrace.config.topic import TopicConfig
from headrace.env.files import Files
from headrace.log import errors, reading, timestamps
from headrace.log.active_segment import ActiveSegment
from headrace.log.durable_state import DurableState
from headrace.log.epochs import EpochCache
from headrace.log.file import FileSlice, LogFile, OpenSegments
from headrace.log.page_drops import PageDrops
from headrace.log.producers import ProducerTable
from headrace.log.recovery import replay
from headrace.log.roll_rules import RollRules
from headrace.log.segment import RELATIVE_OFFSET_MAX, Segment
from headrace.log.segment_list import SegmentList
from headrace.log.staged_batches import StagedBatches
from headrace.log.state import LogSettings, LogState
from headrace.log.transactions import AbortedTransaction, read_end_marker
from headrace.log.upkeep import closing, durability, retention, truncation
from headrace.log.upkeep.jobs import PASSING, LogJob
from headrace.log.upkeep.producer_expiry import ProducerExpiry
from headrace.model.errors import ApiError
from headrace.model.topics import TopicPartition
from headrace.record.batch import PREFIX_SIZE, Batch

_COPY_BYTES_MAX: Final = 8192
"""Up to this size, copying a batch is cheaper than a memoryview of it."""


@final
class Log:
    def __init__(
        self,
        files: Files,
        open_segments: OpenSegments,
        path: str,
        partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        state: LogState,
        settings: LogSettings,
    ) -> None:
        self.files: Files = files
        self.open_segments: OpenSegments = open_segments
        self.path: str = path
        self.partition: TopicPartition = partition
        self.topic_id: UUID = topic_id
        self.settings: LogSettings = settings
        self.producers: ProducerTable = state.producers
        self.epochs: EpochCache = state.epochs
        self.segments: SegmentList = SegmentList(state.segments)
        self.durable: DurableState = DurableState(state)
        self.page_drops: PageDrops = PageDrops(settings)
        self.producer_expiry: ProducerExpiry = ProducerExpiry()
        self.log_start_offset: i64 = state.log_start_offset
        self.log_end_offset: i64 = state.log_end_offset
        """The offset of the next batch. Staged batches are below it."""
        self.written_end_offset: i64 = state.log_end_offset
        """The end offset of the batches that are in the file. Staged batches are above it."""
        self.first_dirty_offset: i64 = state.log_start_offset
        """Compaction has processed all records before this offset."""
        self.is_closed: bool = False
        self.truncation_count: i64 = 0
        self._has_roll_failed: bool = False
        self.leader_epoch: i64 = state.epochs.latest()
        self._staged: StagedBatches = StagedBatches()
        self._offline_reason: str | None = state.offline_reason or None
        """Why the log is offline; empty if its disk has failed, None if the log is not offline."""
        self.config: TopicConfig = config
        self._active: ActiveSegment = self._new_active(state.segments[-1])
        self.durable.set_flush_messages(config.flush_messages)

    @property
    def has_staged(self) -> bool:
        return self._staged.need_write()

    @property
    def written_size(self) -> i64:
        """The number of bytes of the active segment that are in its file."""
        return self._active.written_size

    @property
    def is_offline(self) -> bool:
        return self._offline_reason is not None

    @property
    def offline_reason(self) -> str:
        """Why the log is offline, for clients; empty if its disk has failed."""
        return self._offline_reason or ""

    # Appending

    def stage(self, batch: Batch, leader_epoch: i64, now_ms: i64) -> i64:
        """Assign the next offset to a batch, and keep it for `write`. Returns its first offset.

        A retry of a known batch is not staged. It returns the first offset of the known batch, and
        gets its timestamp.
        """
        end_offset = self.log_end_offset
        try:
            return self._stage(batch, end_offset, leader_epoch, now_ms)
        except MemoryError:
            raise self._drop_staged(end_offset) from None

    def _stage(self, batch: Batch, base_offset: i64, leader_epoch: i64, now_ms: i64) -> i64:
        if batch.producer_id < 0:
            self._stage_at(batch, base_offset, leader_epoch, now_ms, False)
            return base_offset
        if batch.is_control():
            self._stage_marker(batch, base_offset, leader_epoch, now_ms, False)
            return base_offset
        producers = self.producers
        if batch.base_sequence >= 0:
            known = producers.duplicate_of(batch)
            if known is not None:
                self._check_appendable()
                batch.max_timestamp = known.timestamp
                return known.last_offset - known.last_offset_delta
        producers.check(batch)
        self._stage_at(batch, base_offset, leader_epoch, now_ms, False)
        producers.apply(batch, base_offset)
        return base_offset

    def stage_replica(self, batch: Batch, now_ms: i64) -> None:
        """Stage a leader's batch unchanged: keep its offsets and epoch, check no sequences."""
        base_offset = batch.base_offset
        end_offset = self.log_end_offset
        if base_offset < end_offset and not truncation.is_first_batch(self, batch):
            raise errors.overlap(base_offset, end_offset)
        try:
            if batch.producer_id >= 0 and batch.is_control():
                self._stage_marker(batch, base_offset, batch.leader_epoch, now_ms, True)
                return
            self._stage_at(batch, base_offset, batch.leader_epoch, now_ms, True)
            if batch.producer_id >= 0:
                self.producers.apply(batch, base_offset)
        except MemoryError:
            raise self._drop_staged(end_offset) from None

    def _stage_at(
        self, batch: Batch, base_offset: i64, leader_epoch: i64, now_ms: i64, is_replica: bool
    ) -> None:
        self._check_appendable()
        if not self._active.has_indexes:
            self._load_active_indexes()
        size = batch.end - batch.start
        last_offset = base_offset + batch.last_offset_delta
        timestamp = batch.max_timestamp
        active = self._active
        segment = active.segment
        rules = active.rules
        if rules.is_full(segment, size, last_offset, timestamp, now_ms):
            if size > rules.segment_bytes and not is_replica:
                raise errors.larger_than_segment(size, rules.segment_bytes)
            self._roll_for(base_offset, last_offset, now_ms)
            active = self._active
            segment = active.segment
            rules = active.rules
        position = segment.size
        if leader_epoch != self.leader_epoch:
            self._begin_leader_epoch(leader_epoch, max(base_offset, self.log_start_offset))
        if position == 0:
            segment.set_first_timestamp(timestamp, now_ms)
        segment.index_batch(position, size, last_offset, timestamp, rules.index_interval_bytes)
        segment.size = position + size
        staged = self._staged.pieces
        staged.append(batch.prefix(base_offset, leader_epoch))
        start = batch.start + PREFIX_SIZE
        if size <= _COPY_BYTES_MAX:
            staged.append(batch.frame[start : batch.end])
        else:
            staged.append(memoryview(batch.frame)[start : batch.end])
        self.log_end_offset = last_offset + 1

    def _load_active_indexes(self) -> None:
        """Load the indexes of the active segment, which start-up does not load."""
        active = self._active.segment
        try:
            active.index()
            active.time_index()
            if active.aborted() is None:
                replay.rebuild_aborted(self, active)
        except OSError as error:
            raise errors.not_written(self.partition, error) from None
        # From now on they stay in memory: a write must not fail because they cannot be read.
        active.indexes_on_disk = False
        active.save_state()
        self._active.has_indexes = True

    def _stage_marker(
        self, batch: Batch, base_offset: i64, leader_epoch: i64, now_ms: i64, is_replica: bool
    ) -> None:
        marker = read_end_marker(batch, batch.frame[batch.start : batch.end])
        if marker is not None and not is_replica:
            self.producers.check_marker(batch, marker)
        self._stage_at(batch, base_offset, leader_epoch, now_ms, is_replica)
        if marker is not None:
            aborted = self.producers.apply_marker(batch, base_offset, marker)
            if aborted is not None:
                self._active.segment.add_aborted(aborted)

    def _begin_leader_epoch(self, leader_epoch: i64, offset: i64) -> None:
        if self._staged.epochs_before is None:
            self._staged.epochs_before = self.epochs.entries()
        if not self.epochs.assign(leader_epoch, offset):
            raise errors.epoch_has_ended(leader_epoch, self.epochs.latest())
        self.leader_epoch = leader_epoch

    def write(self, now_ms: i64) -> None:
        """Append all staged batches. If this raises, none of the staged batches is appended.

        Batches that were staged before a roll are already in the log. `log_end_offset` is correct
        in each case.
        """
        staged = self._staged
        staged_error = staged.take_error()
        if staged_error is not None:
            raise staged_error
        if not staged.pieces:
            return
        active = self._active
        segment = active.segment
        file = segment.file
        try:
            if file is None:
                file = segment.open()
            active.add_position(self.written_end_offset)
            self.files.append(file.fd, staged.pieces)
        except OSError as error:
            raise self._undo_staged(error, file) from None
        except MemoryError:
            raise self._undo_staged(None, file) from None
        staged.pieces.clear()
        staged.epochs_before = None
        self.written_end_offset = self.log_end_offset
        try:
            active.written(now_ms)
            self.producers.commit()
        except MemoryError:
            self._set_offline()
            raise
        self.durable.written(self.written_end_offset)
        if self.page_drops.is_due(active.written_size):
            self.durable.request_job()

    def _undo_staged(self, error: OSError | None, file: LogFile | None) -> ApiError:
        """Undo all staged batches, in memory and, if the file is open, in the file.

        The cause is `error`; None if no memory is left. Returns the error for clients.
        """
        active = self._active
        offline_reason = self._offline_reason
        self._set_offline()  # If no memory is left for the next steps, the log stays offline.
        self._staged.pieces.clear()
        self.log_end_offset = self.written_end_offset
        self.producers.undo(self.written_end_offset)
        if self._staged.epochs_before is not None:
            self.epochs = EpochCache(self._staged.epochs_before)
            self._staged.epochs_before = None
            self.leader_epoch = self.epochs.latest()
        active.segment.restore_state()
        try:
            if file is not None:
                self.files.truncate(file.fd, active.written_size)
        except OSError as truncate_error:
            self._offline_reason = offline_reason
            self.go_offline(truncate_error)
        else:
            self._offline_reason = offline_reason
        error = error or errors.no_memory()
        if error.errno in PASSING:
            self.settings.rejected(self.partition, error)
        else:
            self.go_offline(error)
        return errors.not_written(self.partition, error)

    def _drop_staged(self, end_offset: i64) -> ApiError:
        """Drop all staged batches: no memory was left for the batch at this end of the log."""
        try:
            error = self._undo_staged(None, self._active.segment.file)
        except MemoryError:
            self._set_offline()
            raise
        if self.written_end_offset < end_offset:
            # Earlier batches were dropped as well. So `write` must raise.
            self._staged.error = error
        return error

    def go_offline(self, error: OSError, reason: str = "") -> None:
        """Reject appends until a restart. `reason` is for clients, if it is not a failed disk."""
        was_online = self._offline_reason is None
        self._offline_reason = reason or self.offline_reason
        if was_online:
            self.settings.failed(self.partition, error)

    def _set_offline(self) -> None:
        """Reject appends until a restart, without a report. Needs no memory."""
        if self._offline_reason is None:
            self._offline_reason = ""

    def _check_appendable(self) -> None:
        """Raise the reason if the log accepts no batch."""
        if self._staged.error is not None:
            raise self._staged.error
        if self._offline_reason is not None:
            raise errors.offline(self.partition, self._offline_reason)

    # Rolling

    def roll(self, now_ms: i64) -> None:
        """Seal the active segment and begin a new one at the end of the log."""
        if self.has_staged:
            self.write(now_ms)
        if self._active.segment.size == 0:
            return
        if not self._active.has_indexes:
            self._load_active_indexes()
        segment = Segment(self.files, self.open_segments, self.path, self.log_end_offset, now_ms)
        active = self._new_active(segment)
        producers = dict(self.producers.entries)
        try:
            if not self.durable.is_directory_durable:
                durability.make_directory_durable(self)
            segment.create()
        except OSError as error:
            if error.errno in PASSING:
                self.settings.rejected(self.partition, error)
            else:
                self.go_offline(error)
            raise errors.not_written(self.partition, error) from None
        sealed = self._active.segment
        try:
            sealed.seal()
            self.durable.segment_sealed(sealed, self.log_end_offset, producers)
            self.segments.append(segment)
            self._set_active(active)
        except MemoryError:
            self._set_offline()
            raise

    def _roll_for(self, base_offset: i64, last_offset: i64, now_ms: i64) -> None:
        """Roll, because the active segment has no space for a batch with these offsets."""
        end_offset = self.log_end_offset
        try:
            self.roll(now_ms)
        except ApiError as error:
            if self.log_end_offset != end_offset:
                # The roll failed to write batches that were staged before this one, and dropped
                # them. So `write` must raise.
                self._staged.error = error
            raise
        if last_offset - self._active.segment.base_offset > RELATIVE_OFFSET_MAX:
            # The offsets have a gap of 2^31, as in the log of a compacted leader. The new segment
            # begins after the gap. Recovery must not treat the gap as a lost segment, so everything
            # before it is made durable now.
            truncation.skip_to(self, base_offset, now_ms)

    def _set_active(self, active: ActiveSegment) -> None:
        """Use this segment for appends."""
        self.page_drops.roll(self._active.segment.file)
        self._active = active
        self._load_active_indexes()

    # Reading

    def read(
        self, offset: i64, size_max: i64, offset_end: i64, at_least_one: bool, wait: bool = True
    ) -> FileSlice | None:
        """Return a slice that begins with the batch that contains `offset`.

        The slice ends at `offset_end` or after `size_max` bytes, possibly inside a batch. It is
        within one segment. If the first batch is larger than `size_max`, the result is this batch
        with `at_least_one`, and None without it. None also if no offset is left to read. With
        `wait` false, raises NotCached instead of waiting for the disk.
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
        active = self._active
        segment = active.segment
        if offset < segment.base_offset:
            return reading.read_sealed(self, offset, size_max, end, at_least_one, wait)
        end_position = active.written_size
        if end < self.written_end_offset:
            end_position = active.position_of(end)
            if end_position < 0:
                end_position, _ = segment.locate(end, active.written_size, wait)
        position: i64 = active.position_of(offset)
        if position >= 0:
            file = segment.file
            if file is None:
                file = segment.open()
            segment.is_recently_used = True
            if end_position - position <= size_max:
                return FileSlice(file, position, end_position - position)
            first_size = reading.batch_size(file, position, wait)
        else:
            position, first_size = segment.locate(offset, end_position, wait)
            file = segment.open()
        return reading.cut(file, position, end_position, size_max, first_size, at_least_one)

    def last_stable_offset(self, high_watermark: i64) -> i64:
        """The end of the offsets that a read_committed consumer may read."""
        producers = self.producers
        if not producers.open_transactions and not producers.unreplicated:
            return high_watermark
        first: i64 = producers.first_unstable_offset(high_watermark)
        if first < 0 or first >= high_watermark:
            return high_watermark
        return first if first > self.log_start_offset else self.log_start_offset

    def size_bytes(self) -> int:
        return self.segments.sealed_bytes + self._active.written_size

    def active(self) -> Segment:
        return self._active.segment

    # Changes for upkeep, truncation and compaction

    def raise_log_start(self, offset: i64) -> None:
        """Set the log start to a higher offset that is durable."""
        self.log_start_offset = offset
        self.epochs.cut_start(offset)

    def set_log_start(self, offset: i64) -> None:
        """Set the log start of a log without records."""
        self.log_start_offset = offset
        self.durable.set_target_start(offset)

    def replace_segments(
        self, segments: list[Segment], end_offset: i64, producers: ProducerTable
    ) -> None:
        """Replace the segments, the end offset and the producers, during a truncation."""
        self.producers = producers
        self.epochs.cut_end(end_offset)
        self.segments.replace_all(segments)
        self.log_end_offset = end_offset
        self.written_end_offset = end_offset
        self.durable.set_end(end_offset)
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
        self.leader_epoch = self.epochs.latest()
        self._set_active(self._new_active(segments[-1]))

    def invalidate_cleanings(self) -> None:
        """Make the segments that a cleaner is creating invalid, because a truncation begins."""
        self.truncation_count += 1

    def set_first_dirty_offset(self, offset: i64) -> None:
        self.first_dirty_offset = offset

    def record_roll(self, *, has_failed: bool) -> bool:
        """Record the result of a roll for retention. Returns whether it differs from the last."""
        is_change = has_failed != self._has_roll_failed
        self._has_roll_failed = has_failed
        return is_change

    def release(self) -> None:
        """Close the log, after everything is written and checkpointed, and release its files."""
        self.is_closed = True
        for segment in self.segments.all:
            segment.file = None

    def abandon(self) -> None:
        """Close the log without a checkpoint, because its partition is deleted."""
        self.is_closed = True
        self._set_offline()
        if self.durable.job is not None:
            self.durable.job.cancel()

    # Settings

    def set_config(self, config: TopicConfig) -> None:
        """Apply new settings, beginning with the next batch."""
        self.config = config
        self.durable.set_flush_messages(config.flush_messages)
        active = self._active
        active.rules = RollRules(config, self.partition, active.segment.base_offset)

    def _new_active(self, segment: Segment) -> ActiveSegment:
        return ActiveSegment(segment, RollRules(self.config, self.partition, segment.base_offset))

    # Operations of other modules

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one, and its end offset; (-1, -1) above the latest epoch."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def find_timestamp(self, timestamp: int) -> timestamps.Lookup:
        """Find the first record whose timestamp is not earlier than this one."""
        return timestamps.find(self, timestamp)

    def max_timestamp(self) -> timestamps.Lookup:
        """Find the first record with the largest timestamp."""
        return timestamps.find_max(self)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions in [start, end), by first offset."""
        return timestamps.aborted(self, start, end)

    def next_job(self, now_ms: int) -> LogJob | None:
        """The next job for a worker; None if none is due or one is running."""
        return durability.next_job(self, now_ms)

    def finish_job(self, job: LogJob) -> None:
        """Apply the result of a job that has run. After a failed sync, the log is offline."""
        durability.finish_job(self, job)

    def delete_records(self, before: int, high_watermark: int) -> int:
        """Request a higher log start (-1: the high watermark). The next job makes it durable.

        Returns the log start after that job.
        """
        return retention.delete_records(self, before, high_watermark)

    def apply_retention(self, now_ms: int, high_watermark: int, by_time: bool = True) -> int:
        """Request the removal of expired segments by the next jobs; returns their number."""
        return retention.apply(self, now_ms, high_watermark, by_time)

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Remove all records from an offset on, because a follower diverged. Waits for the disk."""
        truncation.truncate_to(self, offset, now_ms)

    def truncate_fully_and_start_at(self, offset: int, now_ms: int, base_offset: int = -1) -> None:
        """Empty the log, and set its start to an offset. Waits for the disk (`truncation`)."""
        truncation.truncate_fully_and_start_at(self, offset, now_ms, base_offset)

    def close(self, now_ms: int) -> bool:
        """Make the log and its checkpoint durable. Waits for the disk. False if that failed."""
        return closing.run_to_end(closing.close_all([self], now_ms))

    def assert_invariants(self) -> None:
        """Assert L1 to L5, between two operations on an open log."""
        durable = self.durable
        offsets = (
            int(durable.recovery_point),
            int(durable.synced_offset),
            int(self.written_end_offset),
            int(self.log_end_offset),
        )
        assert offsets == tuple(sorted(offsets)), f"L1: {offsets}"
        start: i64 = self.log_start_offset
        assert start <= self.log_end_offset, f"L2: {start} is above {self.log_end_offset}"
        assert self.has_staged or offsets[2] == offsets[3], f"L3: nothing is staged: {offsets}"
        active = self._active.segment
        assert active is self.segments.all[-1], "L4: the active segment is not the last one"
        assert self.written_size <= active.size, f"L3: {self.written_size} bytes are written"
        self.segments.assert_invariants()
        self.epochs.assert_invariants()
        assert self.leader_epoch == self.epochs.latest(), f"L5: {self.leader_epoch} is not latest"
