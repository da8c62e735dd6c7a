"""Putting a cleaned segment in the place of the ones it was made from.

Two jobs for a worker, and between them, on the loop, the moment from which on the log is read
from the new segment:

    first   sync the snapshot that has what the old segments tell of producers, take back what the
            checkpoint says of them, rename the new files from `.cleaned` to `.swap`, sync that
    loop    the new segment is in the list, the old ones are not; who reads them goes on
    second  remove the old files, sync that, take `.swap` off the new ones, sync that

1. A crash before the names are synced leaves the old segments, one after it the new one: start-up
   undoes the one and finishes the other (`swap`).
2. Whatever a crash leaves, the checkpoint says nothing of it: start-up looks for itself.
3. No segment is replaced before those in front of it: what a later one lacks because of an earlier
   one (a tombstone) must not be missed while that is still the old one.
4. The log's only job is this one meanwhile, so nothing else changes its files.
5. A truncation makes every cleaning invalid that began before it. The cleaner can have read records
   that no longer exist, and the last segment that is kept takes new records.
6. A truncation first finishes or undoes a replacement whose job failed (`settle`). Otherwise
   start-up could put the cleaned segment in the place of new records.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.log.checkpoints import LOG_CHECKPOINT, SegmentFacts, encode_log_checkpoint
from headrace.log.cleaning import CleanedSegment
from headrace.log.jobs import PASSING, LogJob
from headrace.log.replay import snapshot_path
from headrace.log.segment import SUFFIXES, Segment
from headrace.log.swap import CLEANED, SWAP
from headrace.log.upkeep import checkpoint_below, take_facts

if TYPE_CHECKING:
    from headrace.log.log import Log

_LOG = logging.getLogger(__name__)


class Replacement:
    """One segment on its way into a log. `first_job` and `second_job` are run by a worker."""

    def __init__(self, log: "Log", cleaned: CleanedSegment, sources: Sequence[Segment]) -> None:
        self._log = log
        self._sources = sources
        self._truncations = cleaned.truncations
        self._segment = _segment_of(log, cleaned.facts, sources[-1])
        self._is_in_log = False
        self._is_undone = False

    def is_possible(self) -> bool:
        """Whether the log is still what was cleaned, and settled so far."""
        log = self._log
        if log.is_closed or log.is_offline or log.truncations != self._truncations:
            return False
        at = self._place()
        sources = self._sources
        return (
            at >= 0
            and log.segments[at : at + len(sources)] == sources
            and at + len(sources) < len(log.segments)
            and vouching_snapshot(log) >= log.base_offsets[at + len(sources)]
            and not any(segment.suffix or segment in log.unsettled for segment in sources)
        )

    def first_job(self) -> LogJob:
        log = self._log
        assert log.job is None, "a job is in progress"
        job = LogJob(log.files)
        job.sync_later(snapshot_path(log.path, vouching_snapshot(log)))
        checkpoint = checkpoint_below(log, int(log.recovery_point), without=self._sources)
        job.replace(f"{log.path}/{LOG_CHECKPOINT}", encode_log_checkpoint(checkpoint))
        for suffix in reversed(SUFFIXES):
            path = self._segment.stem + suffix
            job.rename(path + CLEANED, path + SWAP)
        job.sync_directory(log.path)
        log.job = job
        log.replacement = self
        return job

    def first_done(self, job: LogJob) -> bool:
        """Let the log be read from the new segment. False if that came to nothing."""
        log = self._log
        log.job = None
        if job.error is not None or log.is_closed:
            self._failed(job.error)
            return False
        at = self._place()
        count = len(self._sources)
        log.segments[at : at + count] = [self._segment]
        log.base_offsets[at : at + count] = [int(self._segment.base_offset)]
        log.sealed_bytes += self._segment.size - sum(each.size for each in self._sources)
        for source in self._sources:
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
        log.job = job
        return job

    def second_done(self, job: LogJob) -> bool:
        """False if the second job has to be done once more, later."""
        log = self._log
        log.job = None
        if job.error is not None or log.is_closed:
            self._failed(job.error)
            return not self.is_unfinished()
        self._segment.suffix = ""
        log.replacement = None
        self._ask_for_checkpoint()
        return True

    def is_unfinished(self) -> bool:
        """Whether the log is read from the new segment, and its files lack their final names."""
        log = self._log
        return (
            bool(self._segment.suffix)
            and self._segment in log.segments
            and not (log.is_closed or log.is_offline)
        )

    def is_pending(self) -> bool:
        """Whether files with names of this replacement are still in the directory."""
        return self.is_unfinished() if self._is_in_log else not self._is_undone

    def undo_job(self) -> LogJob:
        """Remove the files that a failed first job has left."""
        log = self._log
        job = LogJob(log.files)
        self.add_undo(job)
        log.job = job
        return job

    def add_undo(self, job: LogJob) -> None:
        """Add steps to a job that undo this replacement, if its first job failed."""
        if self._is_in_log or self._is_undone:
            return
        for suffix in SUFFIXES:
            for state in (CLEANED, SWAP):
                job.remove(self._segment.stem + suffix + state)
        # Otherwise a power loss could restore the names, and start-up would finish the replacement.
        job.sync_directory(self._log.path)
        job.then(self._undone)

    def _undone(self) -> None:
        self._is_undone = True

    def undo_done(self) -> None:
        """If the undo failed, the log's next job tries it again before its checkpoint."""
        self._log.job = None
        self._ask_for_checkpoint()

    def settle(self) -> None:
        """Finish or undo the replacement now. Waits for the disk; OSError if that failed."""
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
        """The last one says nothing of what is there now: start-up would have to read it."""
        self._log.checkpoint_asked = True
        self._log.wants_job = True

    def _place(self) -> int:
        """Where the old segments are in the log; -1 if they are not."""
        try:
            return self._log.segments.index(self._sources[0])
        except ValueError:
            return -1

    def _failed(self, error: OSError | None) -> None:
        """What passes costs this cleaning; anything else may have cost more."""
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
    """The offset of the snapshot that start-up would begin with; nothing below is needed then."""
    return max((offset for offset in log.snapshots if offset <= log.recovery_point), default=0)


def _segment_of(log: "Log", facts: SegmentFacts, last: Segment) -> Segment:
    segment = Segment(log.files, log.cache, log.path, facts.base_offset, facts.created_ms)
    segment.suffix = SWAP
    segment.size = facts.size
    segment.is_sealed = True
    segment.synced_entry = True
    segment.appended_ms = last.appended_ms
    take_facts(segment, facts)
    return segment
