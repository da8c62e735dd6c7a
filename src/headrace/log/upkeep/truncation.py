"""Removes the end of a log, or all of it, if a follower's log differs from its leader's.

These functions wait for the disk. The log must have no running job and no staged batch.

1. A checkpoint with `discard_from` is durable before the first change, and one without it before
   the next append. After a crash in between, start-up finishes the truncation
   (`recovery/interrupted.py`).
2. Until the checkpoint with `discard_from` is renamed into its place, no record is removed, and the
   caller can try again, unless a sync of records failed. Each step that needs free space or a file
   descriptor precedes this rename, so a full disk does not stop a truncation halfway. If the rename
   or a later step fails, the log goes offline.
3. If the records before the new end are synced, the state of their producers is durable before that
   rename.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO
from typing import TYPE_CHECKING

from headrace.log import errors
from headrace.log.file import LogFile
from headrace.log.producers import ProducerTable
from headrace.log.recovery.interrupted import is_log_file
from headrace.log.recovery.leftovers import START, TEMPORARY, offset_of
from headrace.log.recovery.replay import producers_at, rebuild_aborted, snapshot_path
from headrace.log.scan import BatchWalk
from headrace.log.segment import Segment
from headrace.log.transactions import AbortedTransaction
from headrace.log.upkeep import durability
from headrace.log.upkeep.checkpoints import (
    LOG_CHECKPOINT,
    LogCheckpoint,
    checkpoint_of,
    encode_log_checkpoint,
)
from headrace.log.upkeep.snapshots import encode_snapshot
from headrace.record.batch import Batch

if TYPE_CHECKING:
    from headrace.log.log import Log

_LOG = logging.getLogger(__name__)


def truncate_to(log: "Log", offset: int, now_ms: int) -> None:
    durable = log.durable
    _assert_idle(log)
    if offset >= log.log_end_offset:
        return
    if offset <= log.segments.base_offsets[0]:
        truncate_fully_and_start_at(log, offset, now_ms)
        return
    _prepare(log)
    kept = [segment for segment in log.segments.all if segment.base_offset < offset]
    removed = log.segments.all[len(kept) :]
    last = kept[-1]
    position, _ = last.locate(offset, last.size, True)
    first_removed = BatchWalk(log.files, last.open().fd, position, last.size, False).next()
    if first_removed is not None and min(offset, first_removed.base_offset) < log.log_start_offset:
        truncate_fully_and_start_at(log, int(first_removed.base_offset), now_ms)
        return
    # The end of the last batch that is kept, because a new segment must follow without a gap.
    offset = _end_offset_before(log, last, position)
    producers = producers_at(
        log.files,
        log.path,
        kept,
        durable.snapshots,
        # If a power failure lost records below the log start, the state before them is stale.
        max(offset, int(log.log_start_offset)),
        log.settings.producers_max,
        durable.pending_snapshots,
    )
    if offset <= log.log_start_offset:
        # No record is left.
        start = int(log.log_start_offset)
        _replace_by_empty_segment(log, start, now_ms, producers, start)
        return
    aborted = last.aborted()
    if aborted is None:
        aborted = rebuild_aborted(log, last)
    aborted = [each for each in aborted if each.last_offset < offset]
    file = LogFile(log.files, last.path(".log"), log.files.open(last.path(".log"), write=True))
    point = min(int(durable.recovery_point), int(last.base_offset))
    checkpoint = durability.checkpoint_below(log, point)
    if durable.recovery_point >= last.base_offset:
        # Compaction can have removed batches that had sequences, so the producers' state must not
        # depend on a scan, also if a later step fails.
        _sync_kept(log, file)
        kept_part = _truncated_copy(log, last, position, aborted)
        checkpoint = _write_derived_files(log, checkpoint, kept_part, offset, producers)
    names = [info.name for info in log.files.list_directory(log.path)]
    with _atomic_removal(log, checkpoint, offset) as directory_fd:
        for segment in reversed(removed):
            _remove(log, segment)
        _remove_above(log, names, offset)
        # Otherwise a power failure could restore a segment over a new one of the same name.
        log.files.sync_directory(log.path, directory_fd)
        log.files.truncate(file.fd, position)
        log.files.sync(file.fd)
        last.file = file
        last.is_sealed = False
        last.size = position
        last.reindex(log.config.index_interval_bytes)
        last.replace_aborted(aborted)
    if durable.recovery_point > last.base_offset:
        durable.set_active_facts(checkpoint.segments[-1])
    durable.forget_segments([last, *removed], last.base_offset)
    log.replace_segments(kept, offset, producers)
    _LOG.info("log truncated: partition=%s offset=%d", log.partition, offset)


def _sync_kept(log: "Log", file: LogFile) -> None:
    """Sync the segment that is about to be truncated. A failed sync takes the log offline."""
    try:
        log.files.sync(file.fd)
    except OSError as error:
        log.go_offline(error)
        raise


def _truncated_copy(
    log: "Log", segment: Segment, size: int, aborted: list[AbortedTransaction]
) -> Segment:
    """A segment as it will be after its truncation, with its indexes."""
    part = Segment(log.files, log.open_segments, log.path, segment.base_offset, segment.created_ms)
    part.size = size
    part.first_timestamp = segment.first_timestamp
    part.reindex(log.config.index_interval_bytes)
    part.replace_aborted(aborted)
    return part


def _write_derived_files(
    log: "Log", checkpoint: LogCheckpoint, last: Segment, offset: int, producers: ProducerTable
) -> LogCheckpoint:
    """Write the index files and the snapshot of a log that ends with this segment.

    Returns a checkpoint that covers them.
    """
    for path, data in last.derived_files():
        log.files.write_file(path, data, sync=False)
    if offset not in log.durable.snapshots:
        snapshot = encode_snapshot(dict(producers.entries))
        log.files.write_file(snapshot_path(log.path, offset), snapshot, sync=True)
        log.durable.add_snapshot(offset)
    facts = [each for each in checkpoint.segments if each.base_offset < last.base_offset]
    facts += [durability.facts_of(last, last.size)] if offset > last.base_offset else []
    last.close()
    start = checkpoint.log_start_offset
    return checkpoint_of(log.topic_id, start, offset, log.epochs.entries(), facts)


def _end_offset_before(log: "Log", segment: Segment, position: int) -> int:
    """The end offset of the batches before a position."""
    positions = segment.index().positions
    before = bisect_left(positions, position) - 1
    walk = BatchWalk(
        log.files, segment.open().fd, positions[before] if before >= 0 else 0, position, False
    )
    end = int(segment.base_offset)
    while (batch := walk.next()) is not None:
        end = int(batch.last_offset()) + 1
    return end


def truncate_fully_and_start_at(
    log: "Log", offset: int, now_ms: int, base_offset: int = -1
) -> None:
    """Empty a log, and set its start to `offset`.

    `base_offset` is that of the new segment. It is below `offset` if the next batch begins before
    the log start. If a crash loses that batch, the log is empty and starts at `offset` again.
    """
    _assert_idle(log)
    _prepare(log)
    producers = ProducerTable(log.settings.producers_max)
    _replace_by_empty_segment(
        log, offset, now_ms, producers, offset if base_offset < 0 else base_offset
    )


def _replace_by_empty_segment(
    log: "Log", offset: int, now_ms: int, producers: ProducerTable, base_offset: int
) -> None:
    """Replace all segments by an empty one, which begins at `base_offset`."""
    checkpoint = checkpoint_of(log.topic_id, offset, base_offset)
    files = log.files
    segment = Segment(files, log.open_segments, log.path, base_offset, now_ms)
    segment_path = segment.path(".log")
    path = snapshot_path(log.path, offset)
    files.write_file(segment_path + TEMPORARY, b"", sync=False)
    file = LogFile(files, segment_path, files.open(segment_path + TEMPORARY, write=True))
    if producers.entries:
        files.write_file(path + TEMPORARY, encode_snapshot(dict(producers.entries)), sync=True)
    names = [info.name for info in files.list_directory(log.path)]
    with _atomic_removal(log, checkpoint, 0) as directory_fd:
        for each in log.segments.all:
            each.close()
        for name in reversed(names):
            if is_log_file(name):
                files.remove(f"{log.path}/{name}")
        files.sync_directory(log.path, directory_fd)
        files.rename(segment_path + TEMPORARY, segment_path)
        segment.use_new_file(file)
        log.durable.clear()
        if producers.entries:
            files.rename(path + TEMPORARY, path)
            log.durable.add_snapshot(offset)
    log.set_log_start(offset)
    log.epochs.cut_end(0)
    log.replace_segments([segment], offset, producers)
    _LOG.info("log emptied: partition=%s log_start_offset=%d", log.partition, offset)


def is_first_batch(log: "Log", batch: Batch) -> bool:
    """Whether a batch can be the first of an empty log, although it begins before the log start."""
    active = log.active()
    return (
        active.size == 0
        and bool(active.base_offset <= batch.base_offset)
        and bool(batch.last_offset() >= log.log_end_offset)
    )


def skip_to(log: "Log", offset: int, now_ms: int) -> None:
    """Replace an empty active segment by one at a higher offset, and make the log durable.

    If it is the only segment, the log start rises as well. Waits for the disk.
    """
    durable = log.durable
    if durable.job is not None:
        raise errors.busy(log.partition)
    empty = log.active()
    segment = Segment(log.files, log.open_segments, log.path, offset, now_ms)
    try:
        segment.create()
    except OSError as error:
        raise errors.not_written(log.partition, error) from None
    durable.move_pending_snapshot(empty.base_offset, offset)
    if len(log.segments.all) == 1:
        log.set_log_start(offset)
    log.replace_segments([*log.segments.all[:-1], segment], offset, log.producers)
    durable.request_checkpoint()
    while durable.recovery_point < offset and not log.is_offline:
        job = durability.next_job(log, now_ms)
        if job is not None:
            job.run()
            durability.finish_job(log, job)
        if job is None or job.error is not None:
            # Without a checkpoint above the gap, start-up would treat the gap as lost segments.
            log.go_offline((job and job.error) or OSError(EIO, "no checkpoint was written"))
            raise errors.offline(log.partition)
    _remove(log, empty)


def _assert_idle(log: "Log") -> None:
    assert log.durable.job is None, "a job is in progress"
    assert not log.has_staged, "batches are staged"


def _prepare(log: "Log") -> None:
    """End a replacement of segments by compacted ones, and make later ones invalid."""
    durable = log.durable
    if durable.replacement is not None:
        durable.replacement.settle()
    log.invalidate_cleanings()
    if not durable.is_directory_durable:
        # A truncation writes a checkpoint, and a checkpoint implies that the directory is durable.
        durability.make_directory_durable(log)


@contextmanager
def _atomic_removal(log: "Log", checkpoint: LogCheckpoint, offset: int) -> Iterator[int]:
    """Make the removal of all offsets from `offset` on atomic. `checkpoint` is valid after it.

    Yields a descriptor of the directory. If a step fails, the log goes offline.
    """
    files = log.files
    path = f"{log.path}/{LOG_CHECKPOINT}"
    first, last = path + TEMPORARY, f"{path}.truncated{TEMPORARY}"
    files.write_file(
        first, encode_log_checkpoint(checkpoint._replace(discard_from=offset)), sync=True
    )
    files.write_file(last, encode_log_checkpoint(checkpoint), sync=True)
    directory_fd = files.open_directory(log.path)
    try:
        files.rename(first, path)
        files.sync_directory(log.path, directory_fd)
        yield directory_fd
        files.rename(last, path)
        files.sync_directory(log.path, directory_fd)
    except OSError as error:
        log.go_offline(error)
        raise
    finally:
        files.close(directory_fd)
    log.durable.truncation_checkpointed(checkpoint.recovery_point)


def _remove(log: "Log", segment: Segment) -> None:
    segment.close()
    for path in segment.paths():
        log.files.remove(path)


def _remove_above(log: "Log", names: list[str], offset: int) -> None:
    """Remove the snapshots and `.start` files of offsets above this one.

    Failed jobs can leave files that are in neither `snapshots` nor `start_file_offset`. A later
    start-up would load such a snapshot, which has the sequences of truncated batches.
    """
    durable = log.durable
    for name in names:
        at = offset_of(name)
        if at > offset and name.endswith((".snapshot", START)):
            if name.endswith(".snapshot") and at in durable.snapshots:
                durable.remove_snapshot(at)
            log.files.remove(f"{log.path}/{name}")
    if durable.start_file_offset > offset:
        durable.set_start_file_offset(-1)
