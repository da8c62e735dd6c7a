"""Replaces segments by a compacted one.

A worker runs two jobs. Between them, the loop starts to read from the new segment:

    first   sync the snapshot with the producers of the old segments, remove the old segments from
            the checkpoint, rename the new files from `.cleaned` to `.swap`, sync the directory
    loop    replace the old segments in the list by the new one; reads in progress continue
    second  remove the old files, sync, remove `.swap` from the new names, sync

1. After a crash before the `.swap` names are synced, start-up undoes the replacement. After a later
   crash, it finishes the replacement (`recovery/leftovers.py`).
2. During the replacement, the checkpoint does not list its segments, so start-up scans them.
3. Segments are replaced in the order of their offsets. A compacted segment can lack a tombstone
   because the compaction of an earlier segment has removed the older records of its key. So it must
   not be used with the old version of that segment.
4. The log has no other job during a job of the replacement, so no other job changes the files.
5. A truncation makes all earlier cleanings invalid. The cleaner can have read records that no
   longer exist, and the last remaining segment receives new records.
6. A truncation first finishes or undoes a replacement whose job failed (`settle`). Otherwise
   start-up could replace new records by the compacted segment.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.log.compaction.cleaning import CleanedSegment
from headrace.log.recovery.leftovers import CLEANED, SWAP
from headrace.log.recovery.replay import snapshot_path
from headrace.log.segment import SUFFIXES, Segment
from headrace.log.upkeep.checkpoints import LOG_CHECKPOINT, SegmentFacts, encode_log_checkpoint
from headrace.log.upkeep.durability import apply_facts, checkpoint_below
from headrace.log.upkeep.jobs import PASSING, LogJob

if TYPE_CHECKING:
    from headrace.log.log import Log

_LOG = logging.getLogger(__name__)


class Replacement:
    """One replacement. A worker runs `first_job`, then `second_job`."""

    def __init__(self, log: "Log", cleaned: CleanedSegment, sources: Sequence[Segment]) -> None:
        self._log = log
        self._sources = sources
        self._truncation_count = cleaned.truncation_count
        self._segment = _new_segment(log, cleaned.facts, sources[-1])
        self._is_in_log = False
        self._is_undone = False

    def is_possible(self) -> bool:
        """Whether the log still has the old segments, covered by checkpoint and snapshot."""
        log = self._log
        if log.is_closed or log.is_offline or log.truncation_count != self._truncation_count:
            return False
        start = self._index_in_log()
        end = start + len(self._sources)
        sources = self._sources
        return (
            start >= 0
            and log.segments.all[start:end] == sources
            and end < len(log.segments.all)
            and recovery_snapshot(log) >= log.segments.base_offsets[end]
            and not any(segment.suffix or segment in log.durable.uncovered for segment in sources)
        )

    def first_job(self) -> LogJob:
        log = self._log
        durable = log.durable
        assert durable.job is None, "a job is in progress"
        job = LogJob(log.files)
        job.sync_file_if_exists(snapshot_path(log.path, recovery_snapshot(log)))
        checkpoint = checkpoint_below(log, int(durable.recovery_point), without=self._sources)
        job.replace(f"{log.path}/{LOG_CHECKPOINT}", encode_log_checkpoint(checkpoint))
        for suffix in reversed(SUFFIXES):
            path = self._segment.stem + suffix
            job.rename(path + CLEANED, path + SWAP)
        job.sync_directory(log.path)
        durable.begin_job(job)
        durable.set_replacement(self)
        return job

    def first_done(self, job: LogJob) -> bool:
        """Put the new segment into the log, after the first job. False if that job failed."""
        log = self._log
        log.durable.end_job()
        if job.error is not None or log.is_closed:
            self._failed(job.error)
            return False
        for source in log.segments.replace(self._index_in_log(), len(self._sources), self._segment):
            source.close()
        self._is_in_log = True
        return True

    def second_job(self) -> LogJob:
        log = self._log
        job = LogJob(log.files)
        first = self._sources[0]
        for source in self._sources[1:]:
            for suffix in SUFFIXES:
                job.remove(source.stem + suffix)
        if self._segment.aborted_file.size == 0:
            job.remove(first.stem + ".txnindex")
        job.sync_directory(log.path)
        for suffix in SUFFIXES:
            path = first.stem + suffix
            job.rename(path + SWAP, path)
        job.sync_directory(log.path)
        log.durable.begin_job(job)
        return job

    def second_done(self, job: LogJob) -> bool:
        """Complete the replacement, after the second job. False if that job must be repeated."""
        log = self._log
        log.durable.end_job()
        if job.error is not None or log.is_closed:
            self._failed(job.error)
            return not self.is_unfinished()
        self._segment.suffix = ""
        log.durable.clear_replacement()
        self._request_checkpoint()
        return True

    def is_unfinished(self) -> bool:
        """Whether the new segment is in the log, but its files lack their final names."""
        log = self._log
        return (
            bool(self._segment.suffix)
            and self._segment in log.segments.all
            and not (log.is_closed or log.is_offline)
        )

    def is_pending(self) -> bool:
        """Whether the directory still has `.cleaned` or `.swap` files of this replacement."""
        return self.is_unfinished() if self._is_in_log else not self._is_undone

    def undo_job(self) -> LogJob:
        """A job that removes the files of a failed first job."""
        log = self._log
        job = LogJob(log.files)
        self.add_undo(job)
        log.durable.begin_job(job)
        return job

    def add_undo(self, job: LogJob) -> None:
        """Add steps to a job that undo this replacement, unless the log uses the new segment."""
        if self._is_in_log or self._is_undone:
            return
        for suffix in SUFFIXES:
            for state in (CLEANED, SWAP):
                job.remove(self._segment.stem + suffix + state)
        # Otherwise a power failure could restore the names, and start-up would finish the
        # replacement.
        job.sync_directory(self._log.path)
        job.then(self._undone)

    def _undone(self) -> None:
        self._is_undone = True

    def undo_done(self) -> None:
        """End the undo job. If it failed, the log's next job retries before its checkpoint."""
        self._log.durable.end_job()
        self._request_checkpoint()

    def settle(self) -> None:
        """Finish or undo the replacement. Waits for the disk. Raises OSError if that failed."""
        if not self.is_pending():
            return
        job = self.second_job() if self._is_in_log else self.undo_job()
        job.run()
        if self._is_in_log:
            self.second_done(job)
        else:
            self.undo_done()
        if job.error is not None:
            raise job.error

    def _request_checkpoint(self) -> None:
        """Request a checkpoint that covers the segments, so that start-up need not scan them."""
        self._log.durable.request_checkpoint()
        self._log.durable.request_job()

    def _index_in_log(self) -> int:
        """The index of the first old segment in the log; -1 if the log no longer has it."""
        try:
            return self._log.segments.all.index(self._sources[0])
        except ValueError:
            return -1

    def _failed(self, error: OSError | None) -> None:
        """Process the error of a job. An error that is not temporary takes the log offline."""
        if error is None or self._log.is_closed:
            return
        if error.errno in PASSING:
            _LOG.warning(
                "compacted segments not installed: partition=%s error=%s",
                self._log.partition,
                error,
            )
        else:
            self._log.go_offline(error)


def recovery_snapshot(log: "Log") -> int:
    """The offset of the snapshot that start-up loads. It needs no batch below this offset."""
    return max(
        (offset for offset in log.durable.snapshots if offset <= log.durable.recovery_point),
        default=0,
    )


def _new_segment(log: "Log", facts: SegmentFacts, last: Segment) -> Segment:
    segment = Segment(log.files, log.open_segments, log.path, facts.base_offset, facts.created_ms)
    segment.suffix = SWAP
    segment.size = facts.size
    segment.is_sealed = True
    segment.is_name_synced = True
    segment.appended_ms = last.appended_ms
    apply_facts(segment, facts)
    return segment
