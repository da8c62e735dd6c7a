"""Replaces segments by a compacted one.

A worker runs two jobs. Between them, the loop starts to read from the new segment:

    first   sync the snapshot with the producers of the old segments, remove the old segments from
            the checkpoint, rename the new files from `.cleaned` to `.swap`, sync the directory
    loop    replace the old segments in the list by the new one; reads in progress continue
    second  remove the old files, sync, remove `.swap` from the new names, sync

1. After a crash before the `.swap` names are synced, start-up undoes the replacement. After a later
   crash, it finishes the replacement (`swap`).
2. The checkpoint does not list segments that a crash can leave half replaced, so start-up reads
   them.
3. Segments are replaced in the order of their offsets. A later segment can lack a tombstone because
   of an earlier one, so it must not be used with the old version of the earlier one.
4. It is the only job of the log, so no other job changes the files.
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
from headrace.log.upkeep.durability import checkpoint_below, take_facts
from headrace.log.upkeep.jobs import PASSING, LogJob

if TYPE_CHECKING:
    from headrace.log.log import Log

_LOG = logging.getLogger(__name__)


class Replacement:
    """Replaces segments by a new one. A worker runs `first_job` and `second_job`."""

    def __init__(self, log: "Log", cleaned: CleanedSegment, sources: Sequence[Segment]) -> None:
        self._log = log
        self._sources = sources
        self._truncations = cleaned.truncations
        self._segment = _segment_of(log, cleaned.facts, sources[-1])
        self._is_in_log = False
        self._is_undone = False

    def is_possible(self) -> bool:
        """Whether the log still has the cleaned segments, covered by checkpoint and snapshot."""
        log = self._log
        if log.is_closed or log.is_offline or log.truncations != self._truncations:
            return False
        at = self._position()
        sources = self._sources
        return (
            at >= 0
            and log.segments.all[at : at + len(sources)] == sources
            and at + len(sources) < len(log.segments.all)
            and vouching_snapshot(log) >= log.segments.base_offsets[at + len(sources)]
            and not any(segment.suffix or segment in log.durable.unsettled for segment in sources)
        )

    def first_job(self) -> LogJob:
        log = self._log
        durable = log.durable
        assert durable.job is None, "a job is in progress"
        job = LogJob(log.files)
        job.sync_later(snapshot_path(log.path, vouching_snapshot(log)))
        checkpoint = checkpoint_below(log, int(durable.recovery_point), without=self._sources)
        job.replace(f"{log.path}/{LOG_CHECKPOINT}", encode_log_checkpoint(checkpoint))
        for suffix in reversed(SUFFIXES):
            path = self._segment.stem + suffix
            job.rename(path + CLEANED, path + SWAP)
        job.sync_directory(log.path)
        durable.begin(job)
        durable.begin_replacement(self)
        return job

    def first_done(self, job: LogJob) -> bool:
        """Put the new segment into the list. False if the job failed."""
        log = self._log
        log.durable.end()
        if job.error is not None or log.is_closed:
            self._failed(job.error)
            return False
        for source in log.segments.replace(self._position(), len(self._sources), self._segment):
            source.forget()
        self._is_in_log = True
        return True

    def second_job(self) -> LogJob:
        log = self._log
        job = LogJob(log.files)
        first = self._sources[0]
        for source in self._sources[1:]:
            for suffix in SUFFIXES:
                job.remove(source.stem + suffix)
        if self._segment.aborted_size == 0:
            job.remove(first.stem + ".txnindex")
        job.sync_directory(log.path)
        for suffix in SUFFIXES:
            path = first.stem + suffix
            job.rename(path + SWAP, path)
        job.sync_directory(log.path)
        log.durable.begin(job)
        return job

    def second_done(self, job: LogJob) -> bool:
        """False if the second job must be repeated later."""
        log = self._log
        log.durable.end()
        if job.error is not None or log.is_closed:
            self._failed(job.error)
            return not self.is_unfinished()
        self._segment.suffix = ""
        log.durable.end_replacement()
        self._ask_for_checkpoint()
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
        log.durable.begin(job)
        return job

    def add_undo(self, job: LogJob) -> None:
        """Add steps to a job that undo this replacement, if its first job failed."""
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
        """Apply the undo job. If it failed, the log's next job retries before its checkpoint."""
        self._log.durable.end()
        self._ask_for_checkpoint()

    def settle(self) -> None:
        """Finish or undo the replacement. Waits for the disk; OSError if that failed."""
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

    def _ask_for_checkpoint(self) -> None:
        """Request a checkpoint that covers the new segment, so that start-up need not read it."""
        self._log.durable.request_checkpoint()
        self._log.durable.want_job()

    def _position(self) -> int:
        """The index of the first old segment in the log; -1 if it is not there."""
        try:
            return self._log.segments.all.index(self._sources[0])
        except ValueError:
            return -1

    def _failed(self, error: OSError | None) -> None:
        """Log a temporary error, which only loses this cleaning. Others take the log offline."""
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


def vouching_snapshot(log: "Log") -> int:
    """The offset of the snapshot that start-up uses. It does not need batches below that offset."""
    return max(
        (offset for offset in log.durable.snapshots if offset <= log.durable.recovery_point),
        default=0,
    )


def _segment_of(log: "Log", facts: SegmentFacts, last: Segment) -> Segment:
    segment = Segment(log.files, log.cache, log.path, facts.base_offset, facts.created_ms)
    segment.suffix = SWAP
    segment.size = facts.size
    segment.is_sealed = True
    segment.synced_entry = True
    segment.appended_ms = last.appended_ms
    take_facts(segment, facts)
    return segment
