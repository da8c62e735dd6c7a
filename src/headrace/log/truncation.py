"""Taking the end off a log, or all of it: what a follower does when its leader says so.

Rare, and it waits for the disk: the checkpoint must stop vouching for what goes before it goes.
No job may be under way and nothing staged.
"""

import logging
from typing import TYPE_CHECKING

from headrace.log import errors, upkeep
from headrace.log.checkpoints import LOG_CHECKPOINT, LogCheckpoint, encode_log_checkpoint
from headrace.log.producers import ProducerTable
from headrace.log.replay import producers_at, snapshot_path
from headrace.log.scan import Walk
from headrace.log.segment import Segment

if TYPE_CHECKING:
    from headrace.log.log import Log

_LOG = logging.getLogger(__name__)


def truncate_to(log: "Log", offset: int, now_ms: int) -> None:
    _check_idle(log)
    if offset >= log.log_end_offset:
        return
    _abort_cleaning(log)
    if offset <= log.base_offsets[0]:
        start_at(log, offset, now_ms)
        return
    kept = [segment for segment in log.segments if segment.base_offset < offset]
    removed = log.segments[len(kept) :]
    last = kept[-1]
    if log.recovery_point > last.base_offset:
        _vouch(log, kept[:-1], last.base_offset)
    for segment in reversed(removed):
        _remove(log, segment)
    # Or a power cut brings back a file in the place of a new one of that name.
    log.files.sync_directory(log.path)
    position, _ = last.locate(offset, last.size, True)
    cut = Walk(log.files, last.open().fd, position, last.size, False).next()
    if cut is not None:
        # A batch goes whole: then the log ends with the one before.
        offset = min(offset, cut.base_offset)
    aborted = [each for each in last.aborted() or [] if each.last_offset < offset]
    last.file = None
    last.is_sealed = False
    log.files.truncate(last.open().fd, position)
    log.files.sync(last.open().fd)
    last.size = position
    last.reindex(log.config.index_interval_bytes)
    last.set_aborted(aborted)
    _cut_snapshots(log, offset)
    log.producers = producers_at(
        log.files, log.path, kept, log.snapshots, offset, log.settings.producers_max
    )
    log.epochs.cut_end(offset)
    log.unsettled = [segment for segment in log.unsettled if segment in kept[:-1]]
    log.rolled = [each for each in log.rolled if each[0] <= last.base_offset]
    _take(log, kept, offset)
    _LOG.info("%s: truncated to offset %d", log.partition, offset)


def start_at(log: "Log", offset: int, now_ms: int) -> None:
    _check_idle(log)
    _abort_cleaning(log)
    log.log_start_offset = offset
    _vouch(log, [], offset)
    for segment in reversed(log.segments):
        _remove(log, segment)
    _cut_snapshots(log, -1)
    log.files.sync_directory(log.path)
    segment = Segment(log.files, log.cache, log.path, offset, now_ms)
    segment.create()
    log.producers = ProducerTable(log.settings.producers_max)
    log.epochs.cut_end(0)
    log.unsettled.clear()
    log.rolled.clear()
    _take(log, [segment], offset)
    _LOG.info("%s: starts anew at offset %d", log.partition, offset)


def skip_to(log: "Log", offset: int, now_ms: int) -> None:
    """Move an empty active segment to a higher offset, and make all before it durable."""
    if log.job is not None:
        raise errors.busy(log.partition)
    empty = log.active()
    segment = Segment(log.files, log.cache, log.path, offset, now_ms)
    try:
        segment.create()
    except OSError as error:
        raise errors.not_written(log.partition, error) from None
    log.rolled = [(offset if at == empty.base_offset else at, e) for at, e in log.rolled]
    _take(log, [*log.segments[:-1], segment], offset)
    log.checkpoint_asked = True
    job = upkeep.next_job(log, now_ms)
    if job is not None:
        job.run()
        upkeep.done(log, job)
    _remove(log, empty)


def _check_idle(log: "Log") -> None:
    assert log.job is None, "a job is under way"
    assert not log.has_staged, "batches are staged"


def _abort_cleaning(log: "Log") -> None:
    """Reject the segments that a cleaner has made of the log as it was; settle one that began."""
    if log.replacement is not None:
        log.replacement.settle()
    log.truncations += 1


def _vouch(log: "Log", segments: list[Segment], recovery_point: int) -> None:
    """Durably take back what the checkpoint says of offsets that are about to change."""
    checkpoint = LogCheckpoint(
        log.topic_id,
        log.log_start_offset,
        recovery_point,
        [entry for entry in log.epochs.entries() if entry[1] < recovery_point],
        [upkeep.facts_of(segment, segment.size) for segment in segments],
    )
    log.files.replace_file(f"{log.path}/{LOG_CHECKPOINT}", encode_log_checkpoint(checkpoint))
    log.recovery_point = recovery_point
    log.synced_offset = min(log.synced_offset, recovery_point)
    log.target_start_offset = log.log_start_offset
    log.vouched = None


def _remove(log: "Log", segment: Segment) -> None:
    segment.forget()
    for path in segment.paths():
        log.files.remove(path)


def _cut_snapshots(log: "Log", offset: int) -> None:
    for at in [each for each in log.snapshots if each > offset]:
        log.snapshots.remove(at)
        log.files.remove(snapshot_path(log.path, at))


def _take(log: "Log", segments: list[Segment], log_end_offset: int) -> None:
    """Let the log be these segments and end here."""
    log.segments = segments
    log.base_offsets = [int(segment.base_offset) for segment in segments]
    log.sealed_bytes = sum(segment.size for segment in segments[:-1])
    log.log_end_offset = log_end_offset
    log.written_end_offset = log_end_offset
    log.synced_offset = min(log.synced_offset, log_end_offset)
    log.first_dirty_offset = min(log.first_dirty_offset, log_end_offset)
    log.leader_epoch = log.epochs.latest()
    log.use_active(segments[-1])
    log.wants_job = True
