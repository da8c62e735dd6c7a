# HOT
"""The durable part of one log, and the work that its next job has to do.

Owns the recovery point, the synced offset, the snapshots, the segments and files that wait for a
job, and the running job. Only its methods change them; `upkeep/durability.py` builds the jobs.

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
        """When the log was last synced, or last had nothing to sync."""
        self.target_start_offset: i64 = state.log_start_offset
        """The log start offset after the next checkpoint."""
        self.snapshots: list[int] = state.snapshots
        self.unsettled: list[Segment] = state.unsettled
        """Sealed segments that no checkpoint covers yet."""
        self.rolled: list[tuple[int, dict[int, ProducerEntry]]] = state.rolled
        """The producers at the base offsets of new segments, which are not in snapshots yet."""
        self.doomed: list[str] = []
        """Files of removed segments, in the order in which a job removes them."""
        self.vouched: SegmentFacts | None = state.vouched
        """The checkpoint's facts about the active segment, if it contains the recovery point."""
        self.noted_start: i64 = state.noted_start
        """The offset of the `.start` file; -1 if none exists."""
        self.is_named: bool = state.is_named
        """Whether the partition's directory and its topic id survive a power failure."""
        self.is_checkpoint_due: bool = state.is_changed
        self.wants_job: bool = bool(state.unsettled) or state.is_changed
        self.job: LogJob | None = None
        self.job_errno: i64 = 0
        """The error of the last job, if it failed and will be retried."""
        self.replacement: Replacement | None = None
        """The compacted segment that is being put into the log, or whose old files remain."""

    # Requests for a job.

    def want_job(self) -> None:
        self.wants_job = True

    def request_checkpoint(self) -> None:
        """The next job writes a checkpoint that covers the active segment."""
        self.is_checkpoint_due = True

    def aim_at(self, offset: i64) -> None:
        """Raise the log start with the next checkpoint."""
        if offset > self.target_start_offset:
            self.target_start_offset = offset
            self.wants_job = True

    def seal(self, segment: Segment, end_offset: i64, producers: dict[int, ProducerEntry]) -> None:
        """A segment was sealed; `producers` is their state at its end."""
        self.unsettled.append(segment)
        self.rolled.append((int(end_offset), producers))
        self.wants_job = True

    def unsettle(self, segment: Segment) -> None:
        """The index files of a sealed segment have to be written again."""
        self.unsettled.append(segment)
        self.wants_job = True

    def doom(self, paths: list[str], base_offset: int, snapshot: str) -> None:
        """The next job removes the files of a segment, and its snapshot."""
        self.doomed += paths
        if base_offset in self.snapshots:
            self.snapshots.remove(base_offset)
            self.doomed.append(snapshot)
        self.wants_job = True

    # The job.

    def begin(self, job: LogJob) -> None:
        assert self.job is None, "a job is in progress"
        self.job = job

    def end(self) -> None:
        self.job = None

    def retract(self) -> None:
        """Drop a job that has not run; the next one does its work."""
        assert self.job is not None
        if self.job.recovery_point >= 0:
            self.is_checkpoint_due = True
        self.wants_job = True
        self.job = None

    def no_job_wanted(self) -> None:
        self.wants_job = False

    def checkpoint_in_job(self) -> None:
        self.is_checkpoint_due = False

    def flushed_at(self, now_ms: i64) -> None:
        """Start the interval of flush.ms again."""
        self.synced_ms = now_ms

    def name(self) -> None:
        self.is_named = True

    def note_start(self, offset: i64) -> None:
        """A `.start` file has the new log start, until the next checkpoint; -1 if none exists."""
        self.noted_start = offset

    def synced(self, offset: i64) -> None:
        if offset > self.synced_offset:
            self.synced_offset = offset

    def release(self, segment: Segment) -> None:
        self.unsettled.remove(segment)

    def checkpoint_written(self, job: LogJob) -> None:
        self.unsettled = [each for each in self.unsettled if each not in job.settled]
        del self.rolled[: job.rolled]
        del self.doomed[: job.doomed]
        self.snapshots = sorted(set(self.snapshots).difference(job.stray).union(job.snapshots))
        self.recovery_point = max(self.recovery_point, i64(job.recovery_point))
        self.vouched = job.vouched
        self.noted_start = -1

    def succeeded(self) -> None:
        self.job_errno = 0

    def failed(self, code: i64) -> None:
        """A job failed, and will be retried."""
        self.job_errno = code
        self.is_checkpoint_due = True

    # Compaction and truncation.

    def begin_replacement(self, replacement: "Replacement") -> None:
        self.replacement = replacement

    def end_replacement(self) -> None:
        self.replacement = None

    def add_snapshot(self, offset: int) -> None:
        self.snapshots = sorted([*self.snapshots, offset])

    def remove_snapshot(self, offset: int) -> None:
        self.snapshots.remove(offset)

    def truncation_written(self, recovery_point: i64) -> None:
        """The checkpoint of a truncation is durable."""
        self.recovery_point = recovery_point
        vouched = self.vouched
        if vouched is not None and vouched.base_offset >= recovery_point:
            self.vouched = None

    def vouch(self, facts: SegmentFacts) -> None:
        self.vouched = facts

    def forget_segments(self, removed: list[Segment], last_offset: i64) -> None:
        """Segments were truncated; producers beyond the base offset of the last one are unknown."""
        self.unsettled = [each for each in self.unsettled if each not in removed]
        self.rolled = [each for each in self.rolled if each[0] <= last_offset]

    def move_rolled(self, before: i64, after: i64) -> None:
        """An empty active segment moved from one base offset to another."""
        self.rolled = [(int(after) if at == before else at, each) for at, each in self.rolled]

    def empty(self) -> None:
        """All segments and snapshots were removed."""
        self.snapshots.clear()
        self.doomed.clear()
        self.noted_start = -1
        self.unsettled.clear()
        self.rolled.clear()

    def start_at(self, offset: i64) -> None:
        self.target_start_offset = offset

    def end_at(self, log_end_offset: i64) -> None:
        """The log ends at an offset after a truncation."""
        self.synced_offset = max(min(self.synced_offset, log_end_offset), self.recovery_point)
        self.target_start_offset = min(self.target_start_offset, log_end_offset)
        self.wants_job = True
