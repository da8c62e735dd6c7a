# HOT
"""What is durable of one log, and the work for its next job.

Owns the recovery point, the synced offset, the list of snapshots, the segments and files that the
next job processes, and the running job. Only methods of this class change them;
`upkeep/durability.py` builds the jobs.

1. recovery_point <= synced_offset, except while a truncation is in progress.
2. At most one job runs at a time.
"""

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from headrace.log.producers import ProducerEntry
from headrace.log.segment import Segment
from headrace.log.state import LogState
from headrace.log.upkeep.checkpoints import SegmentFacts
from headrace.log.upkeep.jobs import LogJob

if TYPE_CHECKING:
    from headrace.log.compaction.swap_in import Replacement


@final
class DurableState:
    def __init__(self, state: LogState) -> None:
        self.recovery_point: i64 = state.recovery_point
        self.synced_offset: i64 = state.recovery_point
        self.synced_ms: i64 = 0
        """When the log was last synced, or last had nothing to sync. flush.ms begins here."""
        self._flush_messages: i64 = 0
        self.target_start_offset: i64 = state.log_start_offset
        """The log start offset after the next checkpoint."""
        self.snapshots: list[int] = state.snapshots
        """Offsets of the producer snapshots on disk, ascending."""
        self.uncovered: list[Segment] = state.uncovered
        """Sealed segments that no checkpoint covers yet."""
        self.pending_snapshots: list[tuple[int, dict[int, ProducerEntry]]] = state.pending_snapshots
        """Offsets, and the producers before each of them, that are not in a snapshot on disk yet.
        """
        self.files_to_remove: list[str] = []
        """Files of removed segments, in the order in which a job removes them."""
        self.active_facts: SegmentFacts | None = state.active_facts
        """The checkpoint's facts about the segment that was active when it was written.

        None if the recovery point is at the start of a segment.
        """
        self.start_file_offset: i64 = state.start_file_offset
        """The offset of the `.start` file; -1 if none exists."""
        self.is_directory_durable: bool = state.is_directory_durable
        """Whether the partition's directory and its topic id survive a power failure."""
        self.is_checkpoint_due: bool = state.is_checkpoint_due
        self.is_job_requested: bool = bool(state.uncovered) or state.is_checkpoint_due
        self.job: LogJob | None = None
        self.job_errno: i64 = 0
        """The error of the last job, if it failed and will be retried."""
        self.replacement: Replacement | None = None
        """The replacement of segments by a compacted one that is in progress, or has failed."""

    # Requests for a job

    def set_flush_messages(self, count: i64) -> None:
        """Request a job when so many records are not synced."""
        self._flush_messages = count

    def written(self, end_offset: i64) -> None:
        """The file has all records before this offset."""
        if end_offset - self.synced_offset >= self._flush_messages:
            self.is_job_requested = True

    def request_job(self) -> None:
        self.is_job_requested = True

    def request_checkpoint(self) -> None:
        """Make the next job write a checkpoint that covers the active segment."""
        self.is_checkpoint_due = True

    def raise_target_start(self, offset: i64) -> None:
        """Make the next checkpoint raise the log start to an offset."""
        if offset > self.target_start_offset:
            self.target_start_offset = offset
            self.is_job_requested = True

    def segment_sealed(
        self, segment: Segment, end_offset: i64, producers: dict[int, ProducerEntry]
    ) -> None:
        """Add a sealed segment, and the state of the producers at its end."""
        self.uncovered.append(segment)
        self.pending_snapshots.append((int(end_offset), producers))
        self.is_job_requested = True

    def add_uncovered(self, segment: Segment) -> None:
        """Make the next job write the index files of a sealed segment again."""
        self.uncovered.append(segment)
        self.is_job_requested = True

    def remove_files_of(self, paths: list[str], base_offset: int, snapshot: str) -> None:
        """Make the next job remove the files of a segment, and its snapshot."""
        self.files_to_remove += paths
        if base_offset in self.snapshots:
            self.snapshots.remove(base_offset)
            self.files_to_remove.append(snapshot)
        self.is_job_requested = True

    # The job

    def begin_job(self, job: LogJob) -> None:
        assert self.job is None, "a job is in progress"
        self.job = job

    def end_job(self) -> None:
        self.job = None

    def drop_job(self) -> None:
        """Drop a job that has not run. The next one does its work."""
        assert self.job is not None
        if self.job.recovery_point >= 0:
            self.is_checkpoint_due = True
        self.is_job_requested = True
        self.job = None

    def clear_job_request(self) -> None:
        self.is_job_requested = False

    def clear_checkpoint_request(self) -> None:
        self.is_checkpoint_due = False

    def restart_flush_interval(self, now_ms: i64) -> None:
        """Restart the interval of flush.ms."""
        self.synced_ms = now_ms

    def directory_is_durable(self) -> None:
        self.is_directory_durable = True

    def set_start_file_offset(self, offset: i64) -> None:
        """Store that a `.start` file has this log start until the next checkpoint; -1: none has."""
        self.start_file_offset = offset

    def raise_synced_offset(self, offset: i64) -> None:
        if offset > self.synced_offset:
            self.synced_offset = offset

    def remove_uncovered(self, segment: Segment) -> None:
        self.uncovered.remove(segment)

    def checkpoint_written(self, job: LogJob) -> None:
        """Apply the result of a job whose checkpoint is durable."""
        self.uncovered = [each for each in self.uncovered if each not in job.covered]
        del self.pending_snapshots[: job.written_snapshot_count]
        del self.files_to_remove[: job.removed_file_count]
        self.snapshots = sorted(
            set(self.snapshots).difference(job.removed_snapshots).union(job.snapshots)
        )
        self.recovery_point = max(self.recovery_point, i64(job.recovery_point))
        self.active_facts = job.active_facts
        self.start_file_offset = -1

    def job_succeeded(self) -> None:
        self.job_errno = 0

    def job_failed(self, code: i64) -> None:
        """Store the error of a failed job, and request the checkpoint again."""
        self.job_errno = code
        self.is_checkpoint_due = True

    # Compaction and truncation

    def set_replacement(self, replacement: "Replacement") -> None:
        self.replacement = replacement

    def clear_replacement(self) -> None:
        self.replacement = None

    def add_snapshot(self, offset: int) -> None:
        self.snapshots = sorted([*self.snapshots, offset])

    def remove_snapshot(self, offset: int) -> None:
        self.snapshots.remove(offset)

    def truncation_checkpointed(self, recovery_point: i64) -> None:
        """Apply the result of a truncation whose last checkpoint is durable."""
        self.recovery_point = recovery_point
        active_facts = self.active_facts
        if active_facts is not None and active_facts.base_offset >= recovery_point:
            self.active_facts = None

    def set_active_facts(self, facts: SegmentFacts) -> None:
        self.active_facts = facts

    def forget_segments(self, removed: list[Segment], last_offset: i64) -> None:
        """Forget what concerns truncated segments.

        `last_offset` is the base offset of the last segment that remains. The state of producers
        above it is unknown.
        """
        self.uncovered = [each for each in self.uncovered if each not in removed]
        self.pending_snapshots = [each for each in self.pending_snapshots if each[0] <= last_offset]

    def move_pending_snapshot(self, before: i64, after: i64) -> None:
        """Change the offset of a pending snapshot, because the empty active segment moved."""
        self.pending_snapshots = [
            (int(after) if offset == before else offset, producers)
            for offset, producers in self.pending_snapshots
        ]

    def clear(self) -> None:
        """Forget all segments and snapshots, because they were removed."""
        self.snapshots.clear()
        self.files_to_remove.clear()
        self.start_file_offset = -1
        self.uncovered.clear()
        self.pending_snapshots.clear()

    def set_target_start(self, offset: i64) -> None:
        self.target_start_offset = offset

    def set_end(self, log_end_offset: i64) -> None:
        """Lower all offsets to the end of a truncated log."""
        self.synced_offset = max(min(self.synced_offset, log_end_offset), self.recovery_point)
        self.target_start_offset = min(self.target_start_offset, log_end_offset)
        self.is_job_requested = True
