"""Removes the end of a log, or all of it, when a follower's log differs from its leader's.

Rare, and waits for the disk. The log must have no running job and no staged batch.

1. A checkpoint with `discard_from` is durable before the first change, and one without it before
   the next append. In between, start-up finishes the truncation (`interrupted`).
2. Until the first checkpoint is renamed, no record was removed, and the caller can try again,
   unless a sync of records failed. Each step that needs free space or a descriptor comes before
   this rename, so a full disk does not stop a truncation halfway. If the rename or a later step
   fails, the log goes offline: it is never used half-truncated.
3. The producers' state at the new end is durable before that checkpoint, if the records are.
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
from headrace.log.recovery.interrupted import is_of_a_log
from headrace.log.recovery.leftovers import START, TEMPORARY, offset_of
from headrace.log.recovery.replay import producers_at, rebuild_aborted, snapshot_path
from headrace.log.scan import Walk
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
    _check_idle(log)
    if offset >= log.log_end_offset:
        return
    if offset <= log.segments.base_offsets[0]:
        start_at(log, offset, now_ms)
        return
    _prepare(log)
    kept = [segment for segment in log.segments.all if segment.base_offset < offset]
    removed = log.segments.all[len(kept) :]
    last = kept[-1]
    position, _ = last.locate(offset, last.size, True)
    cut = Walk(log.files, last.open().fd, position, last.size, False).next()
    if cut is not None and min(offset, cut.base_offset) < log.log_start_offset:
        start_at(log, int(cut.base_offset), now_ms)
        return
    # The log ends with the last batch that is kept: a new segment must follow it without a gap.
    offset = _end_before(log, last, position)
    producers = producers_at(
        log.files,
        log.path,
        kept,
        durable.snapshots,
        # If a power failure lost records below the log start, the state before them is stale.
        max(offset, int(log.log_start_offset)),
        log.settings.producers_max,
        durable.rolled,
    )
    if offset <= log.log_start_offset:
        # No record is left.
        start = int(log.log_start_offset)
        _start_at(log, start, now_ms, producers, start)
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
        kept_part = _part_of(log, last, position, aborted)
        checkpoint = _covering(log, checkpoint, kept_part, offset, producers)
    names = [info.name for info in log.files.list_directory(log.path)]
    with _discarding(log, checkpoint, offset) as directory_fd:
        for segment in reversed(removed):
            _remove(log, segment)
        _remove_beyond(log, names, offset)
        # Otherwise a power failure could restore a segment over a new one of the same name.
        log.files.sync_directory(log.path, directory_fd)
        log.files.truncate(file.fd, position)
        log.files.sync(file.fd)
        last.file = file
        last.is_sealed = False
        last.size = position
        last.reindex(log.config.index_interval_bytes)
        last.set_aborted(aborted)
    if durable.recovery_point > last.base_offset:
        durable.vouch(checkpoint.segments[-1])
    durable.forget_segments([last, *removed], last.base_offset)
    log.restart(kept, offset, producers)
    _LOG.info("log truncated: partition=%s offset=%d", log.partition, offset)


def _sync_kept(log: "Log", file: LogFile) -> None:
    """Sync the segment that will be truncated. A failed sync takes the log offline."""
    try:
        log.files.sync(file.fd)
    except OSError as error:
        log.go_offline(error)
        raise


def _part_of(log: "Log", segment: Segment, size: int, aborted: list[AbortedTransaction]) -> Segment:
    """A segment as it will be after its truncation, with its indexes."""
    part = Segment(log.files, log.cache, log.path, segment.base_offset, segment.created_ms)
    part.size = size
    part.first_timestamp = segment.first_timestamp
    part.reindex(log.config.index_interval_bytes)
    part.set_aborted(aborted)
    return part


def _covering(
    log: "Log", checkpoint: LogCheckpoint, last: Segment, offset: int, producers: ProducerTable
) -> LogCheckpoint:
    """Write the files, except the records, of a log that ends with this segment.

    Returns its checkpoint.
    """
    for path, data in last.derived_files():
        log.files.write_file(path, data, sync=False)
    if offset not in log.durable.snapshots:
        snapshot = encode_snapshot(dict(producers.entries))
        log.files.write_file(snapshot_path(log.path, offset), snapshot, sync=True)
        log.durable.add_snapshot(offset)
    facts = [each for each in checkpoint.segments if each.base_offset < last.base_offset]
    facts += [durability.facts_of(last, last.size)] if offset > last.base_offset else []
    last.forget()
    start = checkpoint.log_start_offset
    return checkpoint_of(log.topic_id, start, offset, log.epochs.entries(), facts)


def _end_before(log: "Log", segment: Segment, position: int) -> int:
    """The end offset of the batches before a position."""
    positions = segment.index().positions
    before = bisect_left(positions, position) - 1
    walk = Walk(
        log.files, segment.open().fd, positions[before] if before >= 0 else 0, position, False
    )
    end = int(segment.base_offset)
    while (batch := walk.next()) is not None:
        end = int(batch.last_offset()) + 1
    return end


def start_at(log: "Log", offset: int, now_ms: int, base_offset: int = -1) -> None:
    """Empty a log. `base_offset` is lower if the next batch begins before the log start.

    After a crash without that batch, the log is empty and starts at `offset` again.
    """
    _check_idle(log)
    _prepare(log)
    producers = ProducerTable(log.settings.producers_max)
    _start_at(log, offset, now_ms, producers, offset if base_offset < 0 else base_offset)


def _start_at(
    log: "Log", offset: int, now_ms: int, producers: ProducerTable, base_offset: int
) -> None:
    """Replace all segments by an empty one."""
    checkpoint = checkpoint_of(log.topic_id, offset, base_offset)
    files = log.files
    segment = Segment(files, log.cache, log.path, base_offset, now_ms)
    segment_path = segment.path(".log")
    path = snapshot_path(log.path, offset)
    files.write_file(segment_path + TEMPORARY, b"", sync=False)
    file = LogFile(files, segment_path, files.open(segment_path + TEMPORARY, write=True))
    if producers.entries:
        files.write_file(path + TEMPORARY, encode_snapshot(dict(producers.entries)), sync=True)
    names = [info.name for info in files.list_directory(log.path)]
    with _discarding(log, checkpoint, 0) as directory_fd:
        for each in log.segments.all:
            each.forget()
        for name in reversed(names):
            if is_of_a_log(name):
                files.remove(f"{log.path}/{name}")
        files.sync_directory(log.path, directory_fd)
        files.rename(segment_path + TEMPORARY, segment_path)
        segment.begin_with(file)
        log.durable.empty()
        if producers.entries:
            files.rename(path + TEMPORARY, path)
            log.durable.add_snapshot(offset)
    log.set_start(offset)
    log.epochs.cut_end(0)
    log.restart([segment], offset, producers)
    _LOG.info("log emptied: partition=%s log_start_offset=%d", log.partition, offset)


def is_first_batch(log: "Log", batch: Batch) -> bool:
    """Whether the log start is inside a batch, and the log can begin with that batch."""
    active = log.active()
    return (
        active.size == 0
        and bool(active.base_offset <= batch.base_offset)
        and bool(batch.last_offset() >= log.log_end_offset)
    )


def skip_to(log: "Log", offset: int, now_ms: int) -> None:
    """Move an empty active segment to a higher offset, and make all earlier segments durable.

    If no other segment exists, the log start moves too, because no record is below.
    """
    durable = log.durable
    if durable.job is not None:
        raise errors.busy(log.partition)
    empty = log.active()
    segment = Segment(log.files, log.cache, log.path, offset, now_ms)
    try:
        segment.create()
    except OSError as error:
        raise errors.not_written(log.partition, error) from None
    durable.move_rolled(empty.base_offset, offset)
    if len(log.segments.all) == 1:
        log.set_start(offset)
    log.restart([*log.segments.all[:-1], segment], offset, log.producers)
    durable.request_checkpoint()
    while durable.recovery_point < offset and not log.is_offline:
        job = durability.next_job(log, now_ms)
        if job is not None:
            job.run()
            durability.done(log, job)
        if job is None or job.error is not None:
            # Without a checkpoint above the gap, start-up would take it for lost segments.
            log.go_offline((job and job.error) or OSError(EIO, "no checkpoint was written"))
            raise errors.offline(log.partition)
    _remove(log, empty)


def _check_idle(log: "Log") -> None:
    assert log.durable.job is None, "a job is in progress"
    assert not log.has_staged, "batches are staged"


def _prepare(log: "Log") -> None:
    """Invalidate segments that a cleaner has created, and settle a replacement in progress."""
    durable = log.durable
    if durable.replacement is not None:
        durable.replacement.settle()
    log.invalidate_cleanings()
    if not durable.is_named:
        # The next checkpoint must not be the first, because a checkpoint implies a durable
        # directory.
        durability.name_now(log)


@contextmanager
def _discarding(log: "Log", checkpoint: LogCheckpoint, offset: int) -> Iterator[int]:
    """Make the removal of offsets from here on atomic. If a step fails, the log goes offline.

    Yields a descriptor of the directory.
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
    log.durable.truncation_written(checkpoint.recovery_point)


def _remove(log: "Log", segment: Segment) -> None:
    segment.forget()
    for path in segment.paths():
        log.files.remove(path)


def _remove_beyond(log: "Log", names: list[str], offset: int) -> None:
    """Remove the snapshots and `.start` files of offsets beyond this one.

    Failed jobs can leave files that are in neither `snapshots` nor `noted_start`. A later start
    would load the sequences of such a snapshot, which come from truncated batches.
    """
    durable = log.durable
    for name in names:
        at = offset_of(name)
        if at > offset and name.endswith((".snapshot", START)):
            if name.endswith(".snapshot") and at in durable.snapshots:
                durable.remove_snapshot(at)
            log.files.remove(f"{log.path}/{name}")
    if durable.noted_start > offset:
        durable.note_start(-1)
