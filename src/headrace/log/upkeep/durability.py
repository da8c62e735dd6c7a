"""Builds a log's jobs for the worker: syncs, checkpoints, removal of files and of cached pages.

Each log has at most one job at a time. The loop builds it from encoded bytes, and applies its
result in `finish_job`.

1. A job first syncs log files and their names, then writes producer snapshots, then the checkpoint
   that covers both, then removes files. So a snapshot is durable before the segments that it
   summarises are removed. Index files are not synced: the checkpoint has their checksums, and they
   can be rebuilt from the log.
2. The recovery point advances only after the checkpoint that contains it is durable.
3. On a full disk, a new log start is made durable without a checkpoint (`_start_file_job`), so that
   the segments below it can be removed.
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.env.files import Files
from headrace.log.index_file import IndexFile
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
        segment.index_file.size,
        segment.index_file.crc,
        segment.time_index_file.size,
        segment.time_index_file.crc,
        segment.aborted_file.size,
        segment.aborted_file.crc,
    )


def apply_facts(segment: Segment, facts: SegmentFacts) -> None:
    """Apply all facts except the size. Indexes are compared with their checksums when opened."""
    segment.created_ms = facts.created_ms
    segment.first_timestamp = facts.first_timestamp
    segment.largest_timestamp = facts.largest_timestamp
    segment.largest_timestamp_offset = facts.largest_timestamp_offset
    segment.index_file = IndexFile(facts.index_size, facts.index_crc)
    segment.time_index_file = IndexFile(facts.time_index_size, facts.time_index_crc)
    if facts.aborted_size > 0:
        segment.aborted_file = IndexFile(facts.aborted_size, facts.aborted_crc)
    segment.indexes_on_disk = True


def checkpoint_below(
    log: "Log", recovery_point: int, without: Sequence[Segment] = ()
) -> LogCheckpoint:
    """A checkpoint of what is durable below a recovery point, which is not above that of the log.

    It omits the segments of `without`.
    """
    start = int(log.log_start_offset)
    facts = [
        facts_of(segment, segment.size)
        for segment in log.segments.all[:-1]
        if segment.base_offset < recovery_point
        and segment not in without
        and segment not in log.durable.uncovered
    ]
    active_facts = log.durable.active_facts
    if active_facts is not None and active_facts.base_offset < recovery_point:
        # The log's recovery point is inside this segment. If it is no longer the active one, no job
        # has succeeded since it was rolled.
        others = {each.base_offset for each in facts}.union(each.base_offset for each in without)
        if (
            active_facts.base_offset in log.segments.base_offsets
            and active_facts.base_offset not in others
        ):
            facts.append(active_facts)
    return checkpoint_of(log.topic_id, start, recovery_point, log.epochs.entries(), facts)


def next_job(log: "Log", now_ms: int, files: Files | None = None) -> LogJob | None:
    """The job that is due, or None. The job uses `files` instead of those of the log."""
    durable = log.durable
    if durable.job is not None or log.is_offline or log.is_closed or log.has_staged:
        return None
    durable.clear_job_request()
    raises_start = durable.target_start_offset > log.log_start_offset
    if raises_start and durable.job_errno in FULL and durable.is_directory_durable:
        durable.begin_job(_start_file_job(log))
        return durable.job
    drops_pages = log.page_drops.end_step(log.written_size, now_ms, log.settings)
    covers_active = durable.is_checkpoint_due
    changes_segments = bool(durable.uncovered or durable.files_to_remove)
    syncs_active = is_flush_due(log, now_ms) or drops_pages or covers_active
    if not (syncs_active or changes_segments or raises_start) and (
        durable.is_directory_durable or was_never_written(log)
    ):
        return None
    job = LogJob(files or log.files)
    try:
        if durable.replacement is not None:
            # The new checkpoint covers the old segments, so start-up must not replace them.
            durable.replacement.add_undo(job)
        # Whether the checkpoint on disk, or the `.start` file, needs none of the files to remove.
        removes_first = (
            durable.recovery_point >= log.segments.base_offsets[0] or durable.start_file_offset >= 0
        )
        if durable.files_to_remove and durable.job_errno in FULL and not removes_first:
            _add_snapshots_if_space(log, job)
            removes_first = True
        if removes_first:
            _add_removals(log, job)
        _add_syncs(log, job, syncs_active)
        if syncs_active:
            durable.restart_flush_interval(now_ms)
        if covers_active or changes_segments or raises_start:
            _add_checkpoint(log, job, covers_active)
            if not removes_first:
                # The log was rolled while the job with the new start was running.
                _add_removals(log, job)
            _add_snapshot_removals(log, job)
        if drops_pages:
            _add_page_drop(log, job)
    except OSError as error:
        job = LogJob.failed(log.files, error)
    durable.begin_job(job)
    return job


def is_due(log: "Log", now_ms: int) -> bool:
    """Whether a job is due. Requests a checkpoint after `checkpoint_bytes` of uncovered data."""
    durable = log.durable
    covered_size = durable.active_facts.size if durable.active_facts is not None else 0
    uncovered_bytes = log.written_size - covered_size
    if (
        durable.synced_offset > durable.recovery_point
        and uncovered_bytes >= log.settings.checkpoint_bytes
    ):
        durable.request_checkpoint()
    is_wanted = (
        durable.is_job_requested
        or durable.is_checkpoint_due
        or (not durable.is_directory_durable and not was_never_written(log))
        or is_flush_due(log, now_ms)
    )
    return is_wanted and durable.job is None and not log.is_offline


def is_flush_due(log: "Log", now_ms: int) -> bool:
    """Whether flush.messages or flush.ms requires a sync."""
    durable = log.durable
    unsynced = log.written_end_offset - durable.synced_offset
    if unsynced <= 0 or now_ms < durable.synced_ms:
        # Nothing to sync, or the wall clock went back: restart the interval.
        durable.restart_flush_interval(now_ms)
    if unsynced <= 0:
        return False
    return (
        unsynced >= log.config.flush_messages or now_ms - durable.synced_ms >= log.config.flush_ms
    )


def _add_syncs(log: "Log", job: LogJob, with_active: bool) -> None:
    """Add the syncs of the sealed segments that are not covered yet, and of the active one."""
    job.sealed = list(log.durable.uncovered)
    for segment in job.sealed:
        job.sync(segment.open())
    active = log.active()
    job.end_offset = active.base_offset
    if with_active:
        job.sync(active.open())
        job.end_offset = log.written_end_offset
    if not log.durable.is_directory_durable:
        _add_directory(log, job)
    elif not active.is_name_synced:
        job.sync_directory_first(log.path)
    job.active = active


def _add_directory(log: "Log", job: LogJob) -> None:
    """Add steps that make a new partition durable.

    Its first checkpoint contains the topic id, and the base offset of the first segment.
    """
    job.sync_directory_first(log.path.rpartition("/")[0])
    start = log.segments.all[0].base_offset
    if log.durable.recovery_point <= start:
        first = checkpoint_of(log.topic_id, log.log_start_offset, start)
        job.create_file_first(f"{log.path}/{LOG_CHECKPOINT}", encode_log_checkpoint(first))


def make_directory_durable(log: "Log") -> None:
    """Make a new partition durable now. Waits for the disk.

    Otherwise a crash could keep a later segment and lose the first one.
    """
    job = LogJob(log.files)
    _add_directory(log, job)
    job.run()
    if job.error is not None:
        raise job.error
    log.durable.directory_is_durable()
    log.segments.all[0].is_name_synced = True


def _add_checkpoint(log: "Log", job: LogJob, with_active: bool) -> None:
    """Add the checkpoint, and the derived files that it covers.

    It covers all sealed segments, and the active one if requested.
    """
    durable = log.durable
    active = log.active()
    start = durable.target_start_offset
    sealed = log.segments.all[max(bisect_right(log.segments.base_offsets, start) - 1, 0) : -1]
    job.covered = [each for each in sealed if not each.indexes_on_disk or each in durable.uncovered]
    for segment in job.covered:
        _add_derived_files(job, segment)
    for offset, entries in durable.pending_snapshots:
        _add_snapshot(log, job, offset, entries)
    job.written_snapshot_count = len(durable.pending_snapshots)
    active_facts = durable.active_facts if durable.recovery_point > active.base_offset else None
    recovery_point = max(durable.recovery_point, active.base_offset)
    if with_active and log.written_size > 0 and log.written_end_offset > recovery_point:
        recovery_point = log.written_end_offset
        active.add_last_time_entry()
        active.save_state()
        _add_derived_files(job, active)
        active_facts = facts_of(active, log.written_size)
        entries = dict(log.producers.entries)
        _add_snapshot(log, job, recovery_point, entries)
    epochs = log.epochs.entries_from(start)
    job.write(f"{log.path}/{LEADER_EPOCHS}", encode_epochs(epochs))
    facts = [facts_of(segment, segment.size) for segment in sealed]
    if active_facts is not None:
        facts.append(active_facts)
    checkpoint = checkpoint_of(log.topic_id, start, recovery_point, epochs, facts)
    job.replace(f"{log.path}/{LOG_CHECKPOINT}", encode_log_checkpoint(checkpoint))
    job.recovery_point = recovery_point
    job.active_facts = active_facts
    job.start_offset = start
    if durable.start_file_offset >= 0:
        job.remove(start_path(log.path, durable.start_file_offset))
    durable.clear_checkpoint_request()


def _add_derived_files(job: LogJob, segment: Segment) -> None:
    for path, data in segment.derived_files():
        job.write(path, data)


def _add_snapshot(log: "Log", job: LogJob, offset: int, entries: dict[int, ProducerEntry]) -> None:
    if offset not in log.durable.snapshots and offset not in job.snapshots:
        # If recovery does not find an empty snapshot, it reads sequences from earlier segments.
        # These can be stale, and would reject valid producers. The first segment has no earlier
        # one.
        needs_sync = bool(entries) or offset > log.segments.base_offsets[0]
        encode = partial(encode_snapshot, entries)
        job.write_made(snapshot_path(log.path, offset), encode, sync=needs_sync)
        job.snapshots.append(offset)


def _add_removals(log: "Log", job: LogJob) -> None:
    """Add the removal of the files of removed segments, oldest first, so that no gap can occur.

    An earlier job has synced the log start above them. The snapshot with their producers is also
    durable, unless the disk was full.
    """
    durable = log.durable
    for path in durable.files_to_remove:
        job.rename(path, path + ".deleted")
    for path in durable.files_to_remove:
        job.remove(path + ".deleted")
    job.removed_file_count = len(durable.files_to_remove)


def _start_file_job(log: "Log") -> LogJob:
    """A job that makes a new log start durable on a full disk, which has no space for a checkpoint.

    It creates an empty file that has the offset as its name. The next checkpoint replaces it. If
    possible, the new start is the offset of a snapshot, so that a crash does not lose the
    producers' sequences.
    """
    durable = log.durable
    start, target = log.log_start_offset, int(durable.target_start_offset)
    candidates = [each for each in log.segments.base_offsets if start < each <= target]
    offset = max((each for each in candidates if each in durable.snapshots), default=target)
    job = LogJob(log.files)
    _add_snapshots_if_space(log, job)
    spare = [log.segments.all[0].stem + ".timeindex", log.segments.all[0].stem + ".index"]
    job.create_empty(start_path(log.path, offset), spare)
    job.sync_directory(log.path)
    if 0 <= durable.start_file_offset != offset:
        job.remove(start_path(log.path, durable.start_file_offset))
    job.start_offset = offset
    durable.set_start_file_offset(offset)
    return job


def _add_snapshots_if_space(log: "Log", job: LogJob) -> None:
    """Add pending snapshots that the job omits if the disk has no space for them.

    Without these snapshots, a crash loses the producers' sequences.
    """
    durable = log.durable
    for offset, entries in durable.pending_snapshots:
        if offset not in durable.snapshots and offset <= durable.target_start_offset:
            job.write_if_space(snapshot_path(log.path, offset), partial(encode_snapshot, entries))


def _add_snapshot_removals(log: "Log", job: LogJob) -> None:
    """Add the removal of all snapshots except one per segment and the newest one."""
    for offset in log.durable.snapshots:
        if offset not in log.segments.base_offsets and offset != job.recovery_point:
            job.remove(snapshot_path(log.path, offset))
            job.removed_snapshots.append(offset)


def finish_job(log: "Log", job: LogJob) -> None:
    """Apply the result of a job that has run."""
    durable = log.durable
    durable.end_job()
    if job.are_names_synced:
        durable.raise_synced_offset(job.end_offset)
        if job.active is not None:
            job.active.is_name_synced = True
            durable.directory_is_durable()
        _close_removed(log, job)
    if job.error is not None:
        _apply_failure(log, job, job.error)
        return
    durable.job_succeeded()
    durable.clear_job_request()
    if job.recovery_point >= 0:
        for segment in job.covered:
            segment.indexes_on_disk = True
        durable.checkpoint_written(job)
        retention.apply_log_start(log, job.start_offset)
        _close_removed(log, job)
    elif job.start_offset >= 0:
        retention.apply_log_start(log, job.start_offset)
    unsynced = log.written_end_offset - durable.synced_offset
    if (
        durable.uncovered
        or durable.files_to_remove
        or durable.target_start_offset > log.log_start_offset
        or unsynced >= log.config.flush_messages
    ):
        durable.request_job()


def _close_removed(log: "Log", job: LogJob) -> None:
    """Close the segments that the job has synced, and that retention has removed from the log.

    A segment that was removed before its sync stays in `uncovered` until then. Until the next
    snapshot is written, only its batches have the producers' sequences.
    """
    for segment in job.sealed:
        if segment.base_offset < log.segments.base_offsets[0] and segment in log.durable.uncovered:
            log.durable.remove_uncovered(segment)
            segment.close()


def _apply_failure(log: "Log", job: LogJob, error: OSError) -> None:
    code = error.errno or 0
    if code not in PASSING or not job.are_files_synced:
        log.go_offline(error)
        return
    # The records are synced. The next job writes the missing files.
    if code != log.durable.job_errno:
        _LOG.warning(
            "checkpoint not written, retrying: partition=%s error=%s", log.partition, error
        )
    log.durable.job_failed(code)


def _add_page_drop(log: "Log", job: LogJob) -> None:
    dropped = log.page_drops.take(log.written_size, log.settings.drop_behind_bytes)
    if dropped is None:
        return
    start, end, former_file = dropped
    if former_file is not None:
        job.drop_cached(former_file, 0, 0)
    job.drop_cached(log.active().open(), start, end - start)


def was_never_written(log: "Log") -> bool:
    """Whether nothing was ever written. Such a log needs no job: it can be recreated empty."""
    return log.written_end_offset == log.log_start_offset == 0


def needs_checkpoint(log: "Log") -> bool:
    """Whether the log contains something that its checkpoint does not cover."""
    durable = log.durable
    return (
        log.written_end_offset != durable.recovery_point
        or log.log_start_offset != durable.target_start_offset
        or bool(durable.uncovered)
    )
