"""Builds a log's jobs for the worker: syncs, checkpoints, removal of files, dropped pages.

Each log has at most one job at a time. The loop builds it from encoded bytes, and applies its
result in `done`.

1. The order in a job is: log files and their names, producer snapshots, the checkpoint that covers
   them, removals. A snapshot must survive the segments that it summarises. Index files are not
   synced: the checkpoint has their checksums, and they can be rebuilt from the log.
2. The recovery point advances only after the checkpoint that contains it is durable.
3. On a full disk, a new log start is made durable without a checkpoint (`_start_job`), so that the
   segments below it can be removed.
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.env.files import Files
from headrace.log.producers import ProducerEntry
from headrace.log.recovery.leftovers import start_path
from headrace.log.recovery.replay import snapshot_path
from headrace.log.segment import Segment
from headrace.log.upkeep import retention
from headrace.log.upkeep.checkpoints import (
    LEADER_EPOCHS,
    LOG_CHECKPOINT,
    LogCheckpoint,
    SegmentFacts,
    checkpoint_of,
    encode_epochs,
    encode_log_checkpoint,
)
from headrace.log.upkeep.jobs import FULL, PASSING, LogJob
from headrace.log.upkeep.snapshots import encode_snapshot

if TYPE_CHECKING:
    from headrace.log.log import Log

_LOG = logging.getLogger(__name__)


def facts_of(segment: Segment, size: int) -> SegmentFacts:
    return SegmentFacts(
        segment.base_offset,
        size,
        segment.created_ms,
        segment.first_timestamp,
        segment.largest_timestamp,
        segment.largest_timestamp_offset,
        segment.index_size,
        segment.index_crc,
        segment.time_index_size,
        segment.time_index_crc,
        segment.aborted_size,
        segment.aborted_crc,
    )


def take_facts(segment: Segment, facts: SegmentFacts) -> None:
    """Apply all facts except the size. Indexes are compared with their checksums when opened."""
    segment.created_ms = facts.created_ms
    segment.first_timestamp = facts.first_timestamp
    segment.largest_timestamp = facts.largest_timestamp
    segment.largest_timestamp_offset = facts.largest_timestamp_offset
    segment.index_size = facts.index_size
    segment.index_crc = facts.index_crc
    segment.time_index_size = facts.time_index_size
    segment.time_index_crc = facts.time_index_crc
    segment.aborted_size = facts.aborted_size
    segment.aborted_crc = facts.aborted_crc
    segment.indexes_on_disk = True


def checkpoint_below(log: "Log", point: int, without: Sequence[Segment] = ()) -> LogCheckpoint:
    """A checkpoint with a recovery point that is not above that of the log."""
    start = int(log.log_start_offset)
    facts = [
        facts_of(segment, segment.size)
        for segment in log.segments.all[:-1]
        if segment.base_offset < point
        and segment not in without
        and segment not in log.durable.unsettled
    ]
    vouched = log.durable.vouched
    if vouched is not None and vouched.base_offset < point:
        # The recovery point is inside this segment. It is the active one, or it was when the
        # checkpoint was written, and no job has succeeded since.
        others = {each.base_offset for each in facts}.union(each.base_offset for each in without)
        if vouched.base_offset in log.segments.base_offsets and vouched.base_offset not in others:
            facts.append(vouched)
    return checkpoint_of(log.topic_id, start, point, log.epochs.entries(), facts)


def next_job(log: "Log", now_ms: int, files: Files | None = None) -> LogJob | None:
    """The job that is due, or None. With `files`, the job uses them."""
    durable = log.durable
    if durable.job is not None or log.is_offline or log.is_closed or log.has_staged:
        return None
    durable.no_job_wanted()
    starts = durable.target_start_offset > log.log_start_offset
    if starts and durable.job_errno in FULL and durable.is_named:
        durable.begin(_start_job(log))
        return durable.job
    drops = log.page_drops.is_due(log.written_size, now_ms, log.settings)
    checkpoints = durable.is_checkpoint_due
    settles = bool(durable.unsettled or durable.doomed)
    flushes = is_flush_due(log, now_ms) or drops or checkpoints
    if not (flushes or settles or starts) and (durable.is_named or is_blank(log)):
        return None
    job = LogJob(files or log.files)
    try:
        if durable.replacement is not None:
            # The new checkpoint describes the old segments, so start-up must not replace them.
            durable.replacement.add_undo(job)
        removes_first = (
            durable.recovery_point >= log.segments.base_offsets[0] or durable.noted_start >= 0
        )
        if durable.doomed and durable.job_errno in FULL and not removes_first:
            _add_snapshots_if_room(log, job)
            removes_first = True
        if removes_first:
            _add_removals(log, job)
        _add_syncs(log, job, flushes)
        if flushes:
            durable.flushed_at(now_ms)
        if checkpoints or settles or starts:
            _add_checkpoint(log, job, checkpoints)
            if not removes_first:
                # The segment was rolled while the job with the new start was running.
                _add_removals(log, job)
            _add_stray_snapshots(log, job)
        if drops:
            _add_drop(log, job)
    except OSError as error:
        job = LogJob.failed(log.files, error)
    durable.begin(job)
    return job


def is_due(log: "Log", now_ms: int) -> bool:
    """Whether a job is due; requests a checkpoint after `checkpoint_bytes` of uncovered data."""
    durable = log.durable
    vouched_size = durable.vouched.size if durable.vouched is not None else 0
    unvouched_bytes = log.written_size - vouched_size
    if (
        durable.synced_offset > durable.recovery_point
        and unvouched_bytes >= log.settings.checkpoint_bytes
    ):
        durable.request_checkpoint()
    is_wanted = (
        durable.wants_job
        or durable.is_checkpoint_due
        or (not durable.is_named and not is_blank(log))
        or is_flush_due(log, now_ms)
    )
    return is_wanted and durable.job is None and not log.is_offline


def is_flush_due(log: "Log", now_ms: int) -> bool:
    durable = log.durable
    unsynced = log.written_end_offset - durable.synced_offset
    if unsynced <= 0 or now_ms < durable.synced_ms:
        # Nothing to sync, or the wall clock went back: restart the interval.
        durable.flushed_at(now_ms)
    if unsynced <= 0:
        return False
    return (
        unsynced >= log.config.flush_messages or now_ms - durable.synced_ms >= log.config.flush_ms
    )


def _add_syncs(log: "Log", job: LogJob, with_active: bool) -> None:
    job.sealed = list(log.durable.unsettled)
    for segment in job.sealed:
        job.sync(segment.open())
    active = log.active()
    job.end_offset = active.base_offset
    if with_active:
        job.sync(active.open())
        job.end_offset = log.written_end_offset
    if not log.durable.is_named:
        _add_name(log, job)
    elif not active.synced_entry:
        job.sync_name(log.path)
    job.named = active


def _add_name(log: "Log", job: LogJob) -> None:
    """Make a new partition durable: its topic id, and that it starts with its first segment."""
    job.sync_name(log.path.rpartition("/")[0])
    start = log.segments.all[0].base_offset
    if log.durable.recovery_point <= start:
        first = checkpoint_of(log.topic_id, log.log_start_offset, start)
        job.create_name(f"{log.path}/{LOG_CHECKPOINT}", encode_log_checkpoint(first))


def name_now(log: "Log") -> None:
    """Make a new partition durable now: no later segment may survive a crash without the first."""
    job = LogJob(log.files)
    _add_name(log, job)
    job.run()
    if job.error is not None:
        raise job.error
    log.durable.name()
    log.segments.all[0].synced_entry = True


def _add_checkpoint(log: "Log", job: LogJob, with_active: bool) -> None:
    durable = log.durable
    active = log.active()
    start = durable.target_start_offset
    sealed = log.segments.all[max(bisect_right(log.segments.base_offsets, start) - 1, 0) : -1]
    job.settled = [s for s in sealed if not s.indexes_on_disk or s in durable.unsettled]
    for segment in job.settled:
        _add_derived_files(job, segment)
    for offset, entries in durable.rolled:
        _add_snapshot(log, job, offset, entries)
    job.rolled = len(durable.rolled)
    vouched = durable.vouched if durable.recovery_point > active.base_offset else None
    recovery_point = max(durable.recovery_point, active.base_offset)
    if with_active and log.written_size > 0 and log.written_end_offset > recovery_point:
        recovery_point = log.written_end_offset
        active.end_time_index()
        active.mark()
        _add_derived_files(job, active)
        vouched = facts_of(active, log.written_size)
        entries = dict(log.producers.entries)
        _add_snapshot(log, job, recovery_point, entries)
    epochs = log.epochs.entries_from(start)
    job.write(f"{log.path}/{LEADER_EPOCHS}", encode_epochs(epochs))
    facts = [facts_of(segment, segment.size) for segment in sealed]
    if vouched is not None:
        facts.append(vouched)
    checkpoint = checkpoint_of(log.topic_id, start, recovery_point, epochs, facts)
    job.replace(f"{log.path}/{LOG_CHECKPOINT}", encode_log_checkpoint(checkpoint))
    job.recovery_point = recovery_point
    job.vouched = vouched
    job.start_offset = start
    if durable.noted_start >= 0:
        job.remove(start_path(log.path, durable.noted_start))
    durable.checkpoint_in_job()


def _add_derived_files(job: LogJob, segment: Segment) -> None:
    for path, data in segment.derived_files():
        job.write(path, data)


def _add_snapshot(log: "Log", job: LogJob, offset: int, entries: dict[int, ProducerEntry]) -> None:
    if offset not in log.durable.snapshots and offset not in job.snapshots:
        # If an empty snapshot is lost, recovery reads sequences from earlier segments, if any.
        # Stale ones reject valid producers.
        needs_sync = bool(entries) or offset > log.segments.base_offsets[0]
        encode = partial(encode_snapshot, entries)
        job.write_later(snapshot_path(log.path, offset), encode, sync=needs_sync)
        job.snapshots.append(offset)


def _add_removals(log: "Log", job: LogJob) -> None:
    """Remove the files of dropped segments, oldest first, so that a crash leaves no gap.

    An earlier job has synced the log start above them. The snapshot with their producers is also
    durable, unless the disk was full.
    """
    durable = log.durable
    for path in durable.doomed:
        job.rename(path, path + ".deleted")
    for path in durable.doomed:
        job.remove(path + ".deleted")
    job.doomed = len(durable.doomed)


def _start_job(log: "Log") -> LogJob:
    """Make a new log start durable on a full disk, which has no space for a checkpoint.

    An empty file has the offset as its name. The next checkpoint with this start replaces it. If
    possible the start is at a snapshot, or one is written for it, so that a crash does not lose the
    producers' sequences.
    """
    durable = log.durable
    start, target = log.log_start_offset, int(durable.target_start_offset)
    covered = [each for each in log.segments.base_offsets if start < each <= target]
    offset = max((each for each in covered if each in durable.snapshots), default=target)
    job = LogJob(log.files)
    _add_snapshots_if_room(log, job)
    spare = [log.segments.all[0].stem + ".timeindex", log.segments.all[0].stem + ".index"]
    job.note(start_path(log.path, offset), spare)
    job.sync_directory(log.path)
    if 0 <= durable.noted_start != offset:
        job.remove(start_path(log.path, durable.noted_start))
    job.start_offset = offset
    durable.note_start(offset)
    return job


def _add_snapshots_if_room(log: "Log", job: LogJob) -> None:
    """Write snapshots on a full disk, if they fit. Otherwise a crash loses the sequences."""
    durable = log.durable
    for offset, entries in durable.rolled:
        if offset not in durable.snapshots and offset <= durable.target_start_offset:
            job.write_if_room(snapshot_path(log.path, offset), partial(encode_snapshot, entries))


def _add_stray_snapshots(log: "Log", job: LogJob) -> None:
    """Keep one snapshot per segment and the newest one; remove the others."""
    for offset in log.durable.snapshots:
        if offset not in log.segments.base_offsets and offset != job.recovery_point:
            job.remove(snapshot_path(log.path, offset))
            job.stray.append(offset)


def done(log: "Log", job: LogJob) -> None:
    durable = log.durable
    durable.end()
    if job.synced:
        durable.synced(job.end_offset)
        if job.named is not None:
            job.named.synced_entry = True
            durable.name()
        _release_dropped(log, job)
    if job.error is not None:
        _failed(log, job, job.error)
        return
    durable.succeeded()
    durable.no_job_wanted()
    if job.recovery_point >= 0:
        for segment in job.settled:
            segment.indexes_on_disk = True
        durable.checkpoint_written(job)
        retention.start_here(log, job.start_offset)
        _release_dropped(log, job)
    elif job.start_offset >= 0:
        retention.start_here(log, job.start_offset)
    unsynced = log.written_end_offset - durable.synced_offset
    if (
        durable.unsettled
        or durable.doomed
        or durable.target_start_offset > log.log_start_offset
        or unsynced >= log.config.flush_messages
    ):
        durable.want_job()


def _release_dropped(log: "Log", job: LogJob) -> None:
    """Release the segments that the job has synced and that are below the first segment.

    A segment that was dropped before its sync stays in `unsettled`: the synced offset covers it,
    and only its batches have the producers' sequences until the next snapshot is written.
    """
    for segment in job.sealed:
        if segment.base_offset < log.segments.base_offsets[0] and segment in log.durable.unsettled:
            log.durable.release(segment)
            segment.forget()


def _failed(log: "Log", job: LogJob, error: OSError) -> None:
    code = error.errno or 0
    if code not in PASSING or not job.has_data:
        log.go_offline(error)
        return
    # Synced data is safe. The next timer or sync retries the rest.
    if code != log.durable.job_errno:
        _LOG.warning(
            "checkpoint not written, retrying: partition=%s error=%s", log.partition, error
        )
    log.durable.failed(code)


def _add_drop(log: "Log", job: LogJob) -> None:
    dropped = log.page_drops.take(log.written_size, log.settings.drop_behind_bytes)
    if dropped is None:
        return
    start, end, tail = dropped
    if tail is not None:
        job.drop_cached(tail, 0, 0)
    job.drop_cached(log.active().open(), start, end - start)


def is_blank(log: "Log") -> bool:
    """Whether nothing was ever written. Such a log can be lost and recreated."""
    return log.written_end_offset == log.log_start_offset == 0


def is_ahead(log: "Log") -> bool:
    """Whether the log has anything that its checkpoint does not cover."""
    durable = log.durable
    return (
        log.written_end_offset != durable.recovery_point
        or log.log_start_offset != durable.target_start_offset
        or bool(durable.unsettled)
    )
