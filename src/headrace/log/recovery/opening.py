"""Opens a log: trusts data covered by a checkpoint, scans the rest, keeps the longest valid prefix.

Works on one partition's directory before any client reads or writes it.

1. From the recovery point on, the checksum of each batch is verified, offsets must increase, and
   segments must be contiguous. The log ends at the first batch that does not fit (I15).
2. Data below the recovery point is not read, unless a derived file is missing or damaged.
3. Recovery deletes no record (`lost`). A batch that a kill has torn is cut off: it was never
   acknowledged. Other data beyond the end of the log is kept as a `.lost` file. Segments below the
   log start stay in the log until its first job.
4. If no crash explains the files, the log stays offline and its files stay unchanged.
5. Each derived file can be lost, and is rebuilt with the same content (I16).
6. After a kill the directory is synced first, so that a power failure cannot undo a name that
   recovery has read.
"""

import logging

from headrace.config.topic import TopicConfig
from headrace.env.files import FileInfo, Files
from headrace.log.directory.offset_files import Hints
from headrace.log.epochs import EpochCache
from headrace.log.file import OpenSegments
from headrace.log.producers import ProducerEntry, ProducerTable
from headrace.log.recovery.interrupted import finish_truncation
from headrace.log.recovery.leftovers import START, offset_of, tidy
from headrace.log.recovery.lost import LogOffline, contradiction, cut_tail, set_aside
from headrace.log.recovery.replay import producers_at, replay_segment, snapshot_path
from headrace.log.recovery.verify import verify_segment
from headrace.log.scan import Walk
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
from headrace.log.upkeep.durability import take_facts

_LOG = logging.getLogger(__name__)
_PROGRESS_BYTES = 1 << 30


def read_log_checkpoint(files: Files, path: str) -> LogCheckpoint | None:
    try:
        return decode_log_checkpoint(files.read_file(f"{path}/{LOG_CHECKPOINT}"))
    except FileNotFoundError:
        return None


def recover(
    files: Files,
    cache: OpenSegments,
    path: str,
    config: TopicConfig,
    settings: LogSettings,
    now_ms: int,
    hints: Hints | None = None,
    is_synced: bool = False,
) -> LogState:
    """Open a log. With `is_synced`, all names in its directory are known to be durable."""
    if not is_synced:
        # Otherwise a power failure could undo a rename or removal that recovery relies on.
        files.sync_directory(path)
    return _Recovery(files, cache, path, config, settings, now_ms, hints or Hints()).run()


class _Recovery:
    def __init__(
        self,
        files: Files,
        cache: OpenSegments,
        path: str,
        config: TopicConfig,
        settings: LogSettings,
        now_ms: int,
        hints: Hints,
    ) -> None:
        self.files = files
        self.cache = cache
        self.path = path
        self.config = config
        self.settings = settings
        self.now_ms = now_ms
        self.hints = hints
        self.segments: list[Segment] = []
        self.unsettled: list[Segment] = []
        self.snapshots: list[int] = []
        self.rolled: list[tuple[int, dict[int, ProducerEntry]]] = []
        self.epochs = EpochCache()
        self.producers = ProducerTable(settings.producers_max)
        self.checkpoint: LogCheckpoint | None = None
        self.start = 0
        self.noted_start = -1
        self.lost_files = 0
        self.end_offset = 0
        self.scanned_bytes = 0
        self.vouched: SegmentFacts | None = None
        self.is_changed = False

    def run(self) -> LogState:
        try:
            return self._run()
        except LogOffline as error:
            return self._offline_state(str(error))

    def _run(self) -> LogState:
        listing, replaced = tidy(self.files, self.path)
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
        self.start = self._log_start_offset()
        self._check_files()
        self._remove_indexes_without_log(listing)
        if self.checkpoint is None:
            point = self._recover_without_checkpoint()
        else:
            point = self._recover_from(self.checkpoint)
        start = self._settle_start()
        self._need_active()
        if self._is_dropped(self.segments, 0):
            # The first checkpoint stores the producers. The segments are removed after that.
            self.is_changed = True
        self._read_epoch()
        self.epochs.cut_start(start)
        self._drop_snapshots_beyond(self.end_offset)
        return LogState(
            self.segments,
            start,
            self.end_offset,
            min(point, self.end_offset),
            self.producers,
            self.epochs,
            self.snapshots,
            self.rolled,
            self.unsettled,
            self.vouched,
            is_named=self.checkpoint is not None,
            is_changed=self.is_changed,
            noted_start=self.noted_start,
            lost_files=self.lost_files,
        )

    def _offline_state(self, reason: str) -> LogState:
        """A log that rejects reads and writes, and ends at the recovery point of its checkpoint."""
        assert self.checkpoint is not None
        end = max(self.start, self.checkpoint.recovery_point)
        return offline_state(
            Segment(self.files, self.cache, self.path, end, self.now_ms),
            self.start,
            reason,
            EpochCache(self.checkpoint.epochs),
            self.noted_start,
            self.lost_files,
        )

    # Files

    def _find_files(self, listing: list[FileInfo]) -> None:
        logs = {}
        for info in listing:
            offset = offset_of(info.name)
            if offset >= 0 and info.name.endswith(".log"):
                logs[offset] = info
            elif offset >= 0 and info.name.endswith(".snapshot"):
                self.snapshots.append(offset)
            elif offset >= 0 and info.name.endswith(START):
                self.noted_start = max(self.noted_start, offset)
                self.is_changed = True
        for offset, info in sorted(logs.items()):
            segment = Segment(self.files, self.cache, self.path, offset, info.modified_ms)
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
        reason = contradiction(self.checkpoint, self.start, sizes)
        if reason:
            raise LogOffline(reason)
        # The others are below the log start, and were removed or emptied.
        facts = self.checkpoint.segments
        facts = [each for each in facts if sizes.get(each.base_offset, -1) >= each.size]
        self.checkpoint = self.checkpoint._replace(segments=facts)

    def _log_start_offset(self) -> int:
        if self.checkpoint is not None:
            return max(self.checkpoint.log_start_offset, self.noted_start)
        return max(self.hints.log_start_offset, self.noted_start)

    def _is_dropped(self, segments: list[Segment], at: int) -> bool:
        """Whether all offsets of a segment are below the log start."""
        return at + 1 < len(segments) and segments[at + 1].base_offset <= self.start

    # Below the recovery point

    def _recover_from(self, checkpoint: LogCheckpoint) -> int:
        """Trust data below the recovery point, scan the rest; returns the recovery point."""
        point = checkpoint.recovery_point
        if self.segments and point < self.segments[0].base_offset <= self.start:
            # Retention deleted the segments up to there. Their snapshot was synced before.
            point = int(self.segments[0].base_offset)
        # Later snapshots were not synced when the checkpoint was written.
        self._drop_snapshots_beyond(point)
        facts = {each.base_offset: each for each in checkpoint.segments}
        self.epochs = EpochCache(checkpoint.epochs)
        below = [segment for segment in self.segments if segment.base_offset < point]
        beyond = self.segments[len(below) :]
        self.segments = below
        for at, segment in enumerate(below):
            segment.synced_entry = True
            known = facts.get(segment.base_offset)
            if known is None:
                if not self._is_dropped([*below, *beyond], at):
                    self._index_uncovered(segment)
            else:
                self._apply_facts(segment, known, is_last=segment is below[-1])
        self.end_offset = point
        if not below:
            self.producers = self._producers_at(point)
            self._scan(beyond, 0, checked=True)
            return point
        last = below[-1]
        known = facts.get(last.base_offset)
        if known is None and not (beyond and beyond[0].base_offset == point):
            return self._scan_again(last, beyond)
        size = last.size
        if known is not None:
            last.size = known.size
            if not (beyond and beyond[0].base_offset == point):
                self.vouched = known
        self.producers = self._producers_at(point)
        if last.size < size:
            below.pop()
            position, last.size = last.size, size
            self._scan([last, *beyond], position, checked=True)
        else:
            self._scan(beyond, 0, checked=True)
        return point

    def _scan_again(self, last: Segment, beyond: list[Segment]) -> int:
        """Scan the complete segment of the recovery point, because its size is unknown."""
        self.segments.pop()
        self.unsettled = [each for each in self.unsettled if each is not last]
        point = self.end_offset = int(last.base_offset)
        self.epochs.cut_end(point)
        self.producers = self._producers_at(point)
        self.is_changed = True
        self._scan([last, *beyond], 0, checked=True)
        return point

    def _apply_facts(self, segment: Segment, facts: SegmentFacts, *, is_last: bool) -> None:
        """Apply the checkpoint's facts about a segment."""
        if not is_last:
            segment.size = min(segment.size, facts.size)
        take_facts(segment, facts)

    def _index_uncovered(self, segment: Segment) -> None:
        """Index a sealed segment that the checkpoint does not cover (compaction created it)."""
        segment.start_indexes()
        segment.reindex(self.config.index_interval_bytes)
        table = self._producers_at(segment.base_offset)
        end = segment.base_offset + RELATIVE_OFFSET_MAX
        segment.set_aborted(replay_segment(self.files, segment, table, segment.base_offset, end))
        self.unsettled.append(segment)

    def _producers_at(self, offset: int) -> ProducerTable:
        producers_max = self.settings.producers_max
        return producers_at(
            self.files, self.path, self.segments, self.snapshots, offset, producers_max
        )

    # Above the recovery point

    def _recover_without_checkpoint(self) -> int:
        """Scan all segments. Kafka's recovery point only shows which damage is not a torn tail."""
        everything, self.segments = self.segments, []
        if not everything:
            self.end_offset = self.hints.log_start_offset
            return self.end_offset
        point = int(everything[0].base_offset)
        self._drop_snapshots_beyond(point)
        self.end_offset = point
        self.producers = self._producers_at(point)
        self.is_changed = True
        self._scan(everything, 0, checked=not self.config.compacts)
        return point

    def _scan(self, segments: list[Segment], position: int, *, checked: bool) -> None:
        """Verify and add segments; with `checked`, they must be contiguous."""
        for at, segment in enumerate(segments):
            if segment.base_offset != self.end_offset and position == 0:
                if not self._may_skip_to(segment, checked):
                    self._set_aside(segments[at:], f"does not follow offset {self.end_offset - 1}")
                    return
                self.end_offset = segment.base_offset
            self.segments.append(segment)
            is_last = at + 1 == len(segments)
            if position == 0 and (is_last or self.checkpoint is not None):
                # Retention or compaction can remove the batches with the sequences.
                self.rolled.append((int(segment.base_offset), dict(self.producers.entries)))
            error = self._scan_segment(segment, position, is_last)
            position = 0
            if error and self._is_dropped(segments, at):
                self.producers = ProducerTable(self.settings.producers_max)
            elif error and not self._is_kept(segments, at):
                self._truncate(segment, error)
                self._set_aside(segments[at + 1 :], "follows a segment that lost its end")
                return
            if not is_last:
                segment.seal()
                self.unsettled.append(segment)

    def _may_skip_to(self, segment: Segment, checked: bool) -> bool:
        """Whether the offsets before a segment are missing for a known reason.

        They are below the log start, or compaction removed them (Kafka's leaves gaps).
        """
        if segment.base_offset < self.end_offset:
            return False
        if segment.base_offset <= self.start:
            # Stale sequences would reject valid producers; unknown producers are accepted.
            self.producers = ProducerTable(self.settings.producers_max)
            return True
        is_synced = segment.base_offset <= self.hints.recovery_point
        return not checked or (is_synced and self.checkpoint is None)

    def _is_kept(self, segments: list[Segment], at: int) -> bool:
        """Whether a later segment is below Kafka's recovery point: then this one was complete."""
        return (
            self.checkpoint is None
            and at + 1 < len(segments)
            and segments[at + 1].base_offset <= self.hints.recovery_point
        )

    def _scan_segment(self, segment: Segment, position: int, is_last: bool) -> str:
        """Verify a segment from a position on; returns the reason if it ends early, or ""."""
        if position == 0:
            segment.start_indexes()
        else:
            self._resume_indexes(segment, position)
        segment.is_sealed = not is_last
        segment.file = None
        size = segment.size
        walk = Walk(self.files, segment.open().fd, position, size, True)
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
            segment.set_aborted(
                replay_segment(self.files, segment, table, segment.base_offset, self.end_offset)
            )
        segment.bytes_since_index = position - (index.positions[-1] if len(index) else 0)
        segment.indexes_on_disk = False
        segment.size = size

    def _progress(self, size: int) -> None:
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
        self._check_end()
        self.is_changed = True
        segment.is_sealed = False
        segment.file = None
        self.lost_files += cut_tail(self.files, segment, self.end_offset, error, self.now_ms)

    def _set_aside(self, segments: list[Segment], reason: str) -> None:
        if segments:
            self._check_end()
            self.is_changed = True
            self.lost_files += set_aside(self.files, self.path, segments, reason, self.now_ms)

    # End of recovery

    def _settle_start(self) -> int:
        """Return the log start offset. If it is above the end of the log, move the end there.

        A power failure explains that: the new start was synced, the records before it were not.
        """
        if self.end_offset < self.start and self.checkpoint is not None:
            self.is_changed = True
            self.producers = ProducerTable(self.settings.producers_max)
            if self.segments:
                self._seal_last()
            self.end_offset = self.start
            self._add_active()
            self.rolled = [(self.start, {})]
        first = int(self.segments[0].base_offset) if self.segments else self.end_offset
        return first if self.start > self.end_offset else max(self.start, first)

    def _seal_last(self) -> None:
        last = self.segments[-1]
        if not last.is_sealed:
            last.file = None
            last.seal()
            self.unsettled.append(last)

    def _add_active(self) -> None:
        segment = Segment(self.files, self.cache, self.path, self.end_offset, self.now_ms)
        segment.create()
        if self.checkpoint is not None:
            # Otherwise a power failure could keep the next segment and remove this one.
            self.files.sync_directory(self.path)
            segment.synced_entry = True
        self.segments.append(segment)

    def _need_active(self) -> None:
        """Make the last segment the active one."""
        if not self.segments:
            self._add_active()
            return
        last = self.segments[-1]
        if last.is_sealed:
            last.is_sealed = False
            last.file = None
            last.bytes_since_index = last.size
            self.unsettled = [segment for segment in self.unsettled if segment is not last]

    def _read_epoch(self) -> None:
        """Read the epoch of an empty log from Kafka's file, because it has no batch."""
        if len(self.epochs) or self.checkpoint is not None:
            return
        try:
            found = decode_epochs(self.files.read_file(f"{self.path}/{LEADER_EPOCHS}"))
        except (FileNotFoundError, ValueError):
            return
        if found and found[-1][0] >= 0 and found[-1][1] <= self.end_offset:
            self.epochs.assign(*found[-1])

    def _drop_snapshots_beyond(self, end: int) -> None:
        for offset in [each for each in self.snapshots if each > end]:
            self.snapshots.remove(offset)
            self.files.remove(snapshot_path(self.path, offset))
        self.snapshots.sort()
