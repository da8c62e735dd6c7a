"""Opens a log: trusts data covered by a checkpoint, scans the rest, keeps the longest valid prefix.

Works on one partition's directory before any client reads or writes it. `_Recovery` fills its
fields step by step, and returns them as a `LogState`.

1. From the recovery point on, the checksum of each batch is verified, offsets must increase, and
   segments must be contiguous. The log ends at the first batch that does not fit (I15).
2. Data below the recovery point is not read, unless a derived file is missing or damaged.
3. Recovery deletes no record (`lost`). A batch that a kill has torn is cut off: it was never
   acknowledged. Other data above the end of the log is kept as a `.lost` file. Segments below the
   log start stay in the log until its first job.
4. If no crash explains the files, the log stays offline and its files stay unchanged.
5. Each derived file can be lost, and is rebuilt with the same content (I16).
6. After a kill the directory is synced first, so that a power failure cannot undo a name that
   recovery has read.
"""

import logging

from headrace.config.topic import TopicConfig
from headrace.env.files import FileInfo, Files
from headrace.log.directory.offset_files import KafkaOffsets
from headrace.log.epochs import EpochCache
from headrace.log.file import OpenSegments
from headrace.log.producers import ProducerEntry, ProducerTable
from headrace.log.recovery.interrupted import finish_truncation
from headrace.log.recovery.leftovers import START, finish_or_undo_replacement, offset_of
from headrace.log.recovery.lost import LogOffline, contradiction, cut_tail, set_aside
from headrace.log.recovery.replay import producers_at, replay_segment, snapshot_path
from headrace.log.recovery.verify import verify_segment
from headrace.log.scan import BatchWalk
from headrace.log.segment import RELATIVE_OFFSET_MAX, SUFFIXES, Segment
from headrace.log.state import LogSettings, LogState, offline_state
from headrace.log.upkeep.checkpoints import (
    LEADER_EPOCHS,
    LOG_CHECKPOINT,
    LogCheckpoint,
    SegmentFacts,
    decode_epochs,
    decode_log_checkpoint,
)
from headrace.log.upkeep.durability import apply_facts

_LOG = logging.getLogger(__name__)
_PROGRESS_BYTES = 1 << 30


def read_log_checkpoint(files: Files, path: str) -> LogCheckpoint | None:
    """The checkpoint of a partition directory; None if it is missing or damaged."""
    try:
        return decode_log_checkpoint(files.read_file(f"{path}/{LOG_CHECKPOINT}"))
    except FileNotFoundError:
        return None


def recover(
    files: Files,
    open_segments: OpenSegments,
    path: str,
    config: TopicConfig,
    settings: LogSettings,
    now_ms: int,
    kafka_offsets: KafkaOffsets | None = None,
    is_synced: bool = False,
) -> LogState:
    """Open a log. With `is_synced`, all names in its directory are known to be durable."""
    if not is_synced:
        # Otherwise a power failure could undo a rename or removal that recovery relies on.
        files.sync_directory(path)
    return _Recovery(
        files, open_segments, path, config, settings, now_ms, kafka_offsets or KafkaOffsets()
    ).run()


class _Recovery:
    def __init__(
        self,
        files: Files,
        open_segments: OpenSegments,
        path: str,
        config: TopicConfig,
        settings: LogSettings,
        now_ms: int,
        kafka_offsets: KafkaOffsets,
    ) -> None:
        self.files = files
        self.open_segments = open_segments
        self.path = path
        self.config = config
        self.settings = settings
        self.now_ms = now_ms
        self.kafka_offsets = kafka_offsets
        self.segments: list[Segment] = []
        self.uncovered: list[Segment] = []
        self.snapshots: list[int] = []
        self.pending_snapshots: list[tuple[int, dict[int, ProducerEntry]]] = []
        self.epochs = EpochCache()
        self.producers = ProducerTable(settings.producers_max)
        self.checkpoint: LogCheckpoint | None = None
        self.log_start_offset = 0
        self.start_file_offset = -1
        self.lost_file_count = 0
        self.end_offset = 0
        self.scanned_bytes = 0
        self.active_facts: SegmentFacts | None = None
        self.is_checkpoint_due = False

    def run(self) -> LogState:
        try:
            return self._run()
        except LogOffline as error:
            return self._offline_state(str(error))

    def _run(self) -> LogState:
        listing, replaced = finish_or_undo_replacement(self.files, self.path)
        self.checkpoint = read_log_checkpoint(self.files, self.path)
        if self.checkpoint is None:
            self.files.remove(f"{self.path}/{LOG_CHECKPOINT}")
        elif self.checkpoint.discard_from >= 0:
            self.checkpoint = finish_truncation(self.files, self.path, self.checkpoint)
            listing = self.files.list_directory(self.path)
        if self.checkpoint is not None and replaced:
            facts = [each for each in self.checkpoint.segments if each.base_offset not in replaced]
            self.checkpoint = self.checkpoint._replace(segments=facts)
        self._find_files(listing)
        self.log_start_offset = self._read_log_start()
        self._check_files()
        self._remove_indexes_without_log(listing)
        if self.checkpoint is None:
            point = self._recover_without_checkpoint()
        else:
            point = self._recover_from(self.checkpoint)
        start = self._resolve_log_start()
        self._make_last_active()
        if self._is_below_start(self.segments, 0):
            # The next checkpoint stores the producers. The segments are removed after that.
            self.is_checkpoint_due = True
        self._read_epoch()
        self.epochs.cut_start(start)
        self._drop_snapshots_above(self.end_offset)
        return LogState(
            self.segments,
            start,
            self.end_offset,
            min(point, self.end_offset),
            self.producers,
            self.epochs,
            self.snapshots,
            self.pending_snapshots,
            self.uncovered,
            self.active_facts,
            is_directory_durable=self.checkpoint is not None,
            is_checkpoint_due=self.is_checkpoint_due,
            start_file_offset=self.start_file_offset,
            lost_file_count=self.lost_file_count,
        )

    def _offline_state(self, reason: str) -> LogState:
        """A log that rejects reads and writes, and ends at the recovery point of its checkpoint."""
        assert self.checkpoint is not None
        end = max(self.log_start_offset, self.checkpoint.recovery_point)
        return offline_state(
            Segment(self.files, self.open_segments, self.path, end, self.now_ms),
            self.log_start_offset,
            reason,
            EpochCache(self.checkpoint.epochs),
            self.start_file_offset,
            self.lost_file_count,
        )

    # The files of the log

    def _find_files(self, listing: list[FileInfo]) -> None:
        logs = {}
        for info in listing:
            offset = offset_of(info.name)
            if offset >= 0 and info.name.endswith(".log"):
                logs[offset] = info
            elif offset >= 0 and info.name.endswith(".snapshot"):
                self.snapshots.append(offset)
            elif offset >= 0 and info.name.endswith(START):
                self.start_file_offset = max(self.start_file_offset, offset)
                self.is_checkpoint_due = True
        for offset, info in sorted(logs.items()):
            segment = Segment(self.files, self.open_segments, self.path, offset, info.modified_ms)
            segment.size = info.size
            segment.is_sealed = True
            self.segments.append(segment)

    def _remove_indexes_without_log(self, listing: list[FileInfo]) -> None:
        bases = {int(segment.base_offset) for segment in self.segments}
        for info in listing:
            offset = offset_of(info.name)
            if offset >= 0 and info.name.endswith(SUFFIXES[1:]) and offset not in bases:
                self.files.remove(f"{self.path}/{info.name}")

    def _check_files(self) -> None:
        if self.checkpoint is None:
            return
        sizes = {int(each.base_offset): int(each.size) for each in self.segments}
        reason = contradiction(self.checkpoint, self.log_start_offset, sizes)
        if reason:
            raise LogOffline(reason)
        # The files of the others are missing or shorter. All of them are below the log start.
        facts = self.checkpoint.segments
        facts = [each for each in facts if sizes.get(each.base_offset, -1) >= each.size]
        self.checkpoint = self.checkpoint._replace(segments=facts)

    def _read_log_start(self) -> int:
        if self.checkpoint is not None:
            return max(self.checkpoint.log_start_offset, self.start_file_offset)
        return max(self.kafka_offsets.log_start_offset, self.start_file_offset)

    def _is_below_start(self, segments: list[Segment], index: int) -> bool:
        """Whether all offsets of a segment are below the log start."""
        following = index + 1
        return (
            following < len(segments) and segments[following].base_offset <= self.log_start_offset
        )

    # Below the recovery point

    def _recover_from(self, checkpoint: LogCheckpoint) -> int:
        """Trust data below the recovery point, scan the rest. Returns the recovery point."""
        point = checkpoint.recovery_point
        if self.segments and point < self.segments[0].base_offset <= self.log_start_offset:
            # Retention deleted the segments up to the first one. Its snapshot was synced before.
            point = int(self.segments[0].base_offset)
        # Later snapshots were not synced when the checkpoint was written.
        self._drop_snapshots_above(point)
        facts = {each.base_offset: each for each in checkpoint.segments}
        self.epochs = EpochCache(checkpoint.epochs)
        below = [segment for segment in self.segments if segment.base_offset < point]
        above = self.segments[len(below) :]
        self.segments = below
        for index, segment in enumerate(below):
            segment.is_name_synced = True
            known = facts.get(segment.base_offset)
            if known is None:
                if not self._is_below_start([*below, *above], index):
                    self._index_uncovered(segment)
            else:
                self._apply_facts(segment, known, is_last=segment is below[-1])
        self.end_offset = point
        if not below:
            self.producers = self._producers_at(point)
            self._scan(above, 0, must_be_contiguous=True)
            return point
        last = below[-1]
        known = facts.get(last.base_offset)
        if known is None and not (above and above[0].base_offset == point):
            return self._scan_last_completely(last, above)
        size = last.size
        if known is not None:
            last.size = known.size
            if not (above and above[0].base_offset == point):
                self.active_facts = known
        self.producers = self._producers_at(point)
        if last.size < size:
            below.pop()
            position, last.size = last.size, size
            self._scan([last, *above], position, must_be_contiguous=True)
        else:
            self._scan(above, 0, must_be_contiguous=True)
        return point

    def _scan_last_completely(self, last: Segment, above: list[Segment]) -> int:
        """Scan the complete segment of the recovery point, because its size is unknown."""
        self.segments.pop()
        self.uncovered = [each for each in self.uncovered if each is not last]
        point = self.end_offset = int(last.base_offset)
        self.epochs.cut_end(point)
        self.producers = self._producers_at(point)
        self.is_checkpoint_due = True
        self._scan([last, *above], 0, must_be_contiguous=True)
        return point

    def _apply_facts(self, segment: Segment, facts: SegmentFacts, *, is_last: bool) -> None:
        """Apply the checkpoint's facts about a segment, except the size of the last one."""
        if not is_last:
            segment.size = min(segment.size, facts.size)
        apply_facts(segment, facts)

    def _index_uncovered(self, segment: Segment) -> None:
        """Index a sealed segment that the checkpoint does not cover (compaction created it)."""
        segment.start_indexes()
        segment.reindex(self.config.index_interval_bytes)
        table = self._producers_at(segment.base_offset)
        end = segment.base_offset + RELATIVE_OFFSET_MAX
        segment.replace_aborted(
            replay_segment(self.files, segment, table, segment.base_offset, end)
        )
        self.uncovered.append(segment)

    def _producers_at(self, offset: int) -> ProducerTable:
        producers_max = self.settings.producers_max
        return producers_at(
            self.files, self.path, self.segments, self.snapshots, offset, producers_max
        )

    # Above the recovery point

    def _recover_without_checkpoint(self) -> int:
        """Scan all segments, because the log was written by Kafka or its checkpoint is damaged.

        Returns the recovery point. Kafka's recovery point is not trusted: it only shows which
        damage a crash does not explain.
        """
        segments, self.segments = self.segments, []
        if not segments:
            self.end_offset = self.kafka_offsets.log_start_offset
            return self.end_offset
        point = int(segments[0].base_offset)
        self._drop_snapshots_above(point)
        self.end_offset = point
        self.producers = self._producers_at(point)
        self.is_checkpoint_due = True
        self._scan(segments, 0, must_be_contiguous=not self.config.compacts)
        return point

    def _scan(self, segments: list[Segment], position: int, *, must_be_contiguous: bool) -> None:
        """Verify and add segments. Verification of the first one starts at a position."""
        for index, segment in enumerate(segments):
            if segment.base_offset != self.end_offset and position == 0:
                if not self._is_gap_explained(segment, must_be_contiguous):
                    reason = f"does not follow offset {self.end_offset - 1}"
                    self._set_aside(segments[index:], reason)
                    return
                self.end_offset = segment.base_offset
            self.segments.append(segment)
            is_last = index + 1 == len(segments)
            if position == 0 and (is_last or self.checkpoint is not None):
                # A snapshot is needed: retention or compaction can remove batches with sequences.
                self.pending_snapshots.append(
                    (int(segment.base_offset), dict(self.producers.entries))
                )
            error = self._scan_segment(segment, position, is_last)
            position = 0
            if error and self._is_below_start(segments, index):
                self.producers = ProducerTable(self.settings.producers_max)
            elif error and not self._was_complete(segments, index):
                self._truncate(segment, error)
                self._set_aside(segments[index + 1 :], "follows a segment that lost its end")
                return
            if not is_last:
                segment.seal()
                self.uncovered.append(segment)

    def _is_gap_explained(self, segment: Segment, must_be_contiguous: bool) -> bool:
        """Whether the offsets before a segment are missing for a known reason.

        They are below the log start, or Kafka's compaction removed them, which leaves gaps.
        """
        if segment.base_offset < self.end_offset:
            return False
        if segment.base_offset <= self.log_start_offset:
            # Stale sequences would reject valid producers; unknown producers are accepted.
            self.producers = ProducerTable(self.settings.producers_max)
            return True
        is_synced = segment.base_offset <= self.kafka_offsets.recovery_point
        return not must_be_contiguous or (is_synced and self.checkpoint is None)

    def _was_complete(self, segments: list[Segment], index: int) -> bool:
        """Whether Kafka synced a complete segment: the next one is below its recovery point.

        Damage in the segment is then not the end of the log.
        """
        return (
            self.checkpoint is None
            and index + 1 < len(segments)
            and segments[index + 1].base_offset <= self.kafka_offsets.recovery_point
        )

    def _scan_segment(self, segment: Segment, position: int, is_last: bool) -> str:
        """Verify a segment from a position on. Returns why it ends early; "" if it does not."""
        if position == 0:
            segment.start_indexes()
        else:
            self._resume_indexes(segment, position)
        segment.is_sealed = not is_last
        segment.file = None
        size = segment.size
        walk = BatchWalk(self.files, segment.open().fd, position, size, True)
        self.end_offset, error = verify_segment(
            segment,
            walk,
            self.producers,
            self.epochs,
            self.end_offset,
            self.config.index_interval_bytes,
            self.now_ms,
        )
        self._progress(size - position)
        return error

    def _resume_indexes(self, segment: Segment, position: int) -> None:
        """Load the indexes of a segment that was checkpointed while it was active."""
        size = segment.size
        segment.size = position
        index = segment.index()
        segment.time_index()
        if segment.aborted() is None:
            table = self._producers_at(segment.base_offset)
            segment.replace_aborted(
                replay_segment(self.files, segment, table, segment.base_offset, self.end_offset)
            )
        segment.bytes_since_index = position - (index.positions[-1] if len(index) else 0)
        segment.indexes_on_disk = False
        segment.size = size

    def _progress(self, size: int) -> None:
        """Log the progress after each gibibyte."""
        before = self.scanned_bytes // _PROGRESS_BYTES
        self.scanned_bytes += size
        if self.scanned_bytes // _PROGRESS_BYTES > before:
            _LOG.info(
                "scanning: partition=%s scanned_gib=%d",
                self.path,
                self.scanned_bytes // _PROGRESS_BYTES,
            )

    def _check_end(self) -> None:
        """Raise LogOffline if the log would end before its recovery point: that data was synced."""
        if self.checkpoint is None or self.end_offset >= self.checkpoint.recovery_point:
            return
        raise LogOffline(
            f"the records at offset {self.end_offset} are damaged, although all records below "
            f"offset {self.checkpoint.recovery_point} were synced"
        )

    def _truncate(self, segment: Segment, error: str) -> None:
        """Cut the damaged end of a segment, which becomes the last one."""
        self._check_end()
        self.is_checkpoint_due = True
        segment.is_sealed = False
        segment.file = None
        self.lost_file_count += cut_tail(self.files, segment, self.end_offset, error, self.now_ms)

    def _set_aside(self, segments: list[Segment], reason: str) -> None:
        if segments:
            self._check_end()
            self.is_checkpoint_due = True
            self.lost_file_count += set_aside(self.files, self.path, segments, reason, self.now_ms)

    # End of recovery

    def _resolve_log_start(self) -> int:
        """Return the log start offset. If it is above the end of the log, the log ends there too.

        A power failure explains this: the new start was synced, but the records below it were not.
        """
        if self.end_offset < self.log_start_offset and self.checkpoint is not None:
            self.is_checkpoint_due = True
            self.producers = ProducerTable(self.settings.producers_max)
            if self.segments:
                self._seal_last()
            self.end_offset = self.log_start_offset
            self._add_active()
            self.pending_snapshots = [(self.log_start_offset, {})]
        first = int(self.segments[0].base_offset) if self.segments else self.end_offset
        return (
            first if self.log_start_offset > self.end_offset else max(self.log_start_offset, first)
        )

    def _seal_last(self) -> None:
        last = self.segments[-1]
        if not last.is_sealed:
            last.file = None
            last.seal()
            self.uncovered.append(last)

    def _add_active(self) -> None:
        segment = Segment(self.files, self.open_segments, self.path, self.end_offset, self.now_ms)
        segment.create()
        if self.checkpoint is not None:
            # Otherwise a power failure could remove this segment, and keep the next one.
            self.files.sync_directory(self.path)
            segment.is_name_synced = True
        self.segments.append(segment)

    def _make_last_active(self) -> None:
        """Make the last segment the active one."""
        if not self.segments:
            self._add_active()
            return
        last = self.segments[-1]
        if last.is_sealed:
            last.is_sealed = False
            last.file = None
            last.bytes_since_index = last.size
            self.uncovered = [segment for segment in self.uncovered if segment is not last]

    def _read_epoch(self) -> None:
        """Read the leader epoch of a log without batches from Kafka's file."""
        if len(self.epochs) or self.checkpoint is not None:
            return
        try:
            found = decode_epochs(self.files.read_file(f"{self.path}/{LEADER_EPOCHS}"))
        except (FileNotFoundError, ValueError):
            return
        if found and found[-1][0] >= 0 and found[-1][1] <= self.end_offset:
            self.epochs.assign(*found[-1])

    def _drop_snapshots_above(self, end: int) -> None:
        for offset in [each for each in self.snapshots if each > end]:
            self.snapshots.remove(offset)
            self.files.remove(snapshot_path(self.path, offset))
        self.snapshots.sort()
