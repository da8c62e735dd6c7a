"""Appends a leader's bytes to a follower's log, unchanged.  # HOT

Every batch is checked before it is staged, including its checksum: bytes that a disk or the network
has changed are not replicated (B15).
"""

from mypy_extensions import i64

from headrace.log.log import Log
from headrace.log.upkeep.truncation import is_first_batch
from headrace.model.errors import ApiError, ErrorCode
from headrace.record.batch import batch_end, read_batch


def append_fetched(
    log: Log, frame: bytes, start: i64, end: i64, leader_epoch: i64, wall_ms: i64
) -> None:
    """Append the complete batches of frame[start:end] that the log lacks, with one write.

    If this raises, the batches before the error are in the log, up to `log_end_offset`.
    """
    rejection: ApiError | None = None
    try:
        _stage(log, frame, start, end, leader_epoch, wall_ms)
    except ApiError as error:
        rejection = error
    log.write(wall_ms)
    if rejection is not None:
        raise rejection


def base_offset_below_start(log: Log, frame: bytes, at: i64, end: i64) -> i64:
    """The base offset of the first batch, if an empty log must begin with it; otherwise -1.

    A leader sends complete batches. The log start can be inside the first one (DeleteRecords).
    """
    if log.log_end_offset > log.log_start_offset:
        return -1
    stop: i64 = batch_end(frame, at, end)
    if stop < 0:
        return -1
    batch = read_batch(frame, at, stop, False)
    if not batch.base_offset < log.log_start_offset <= batch.last_offset():
        return -1
    return -1 if is_first_batch(log, batch) else batch.base_offset


def _stage(log: Log, frame: bytes, at: i64, end: i64, leader_epoch: i64, wall_ms: i64) -> None:
    while True:
        stop: i64 = batch_end(frame, at, end)
        if stop < 0:
            return
        batch = read_batch(frame, at, stop, False)
        at = stop
        if batch.last_offset() < log.log_end_offset:
            continue
        if batch.leader_epoch > leader_epoch:
            # No checksum covers the epoch. With a wrong one, every later batch would look fenced.
            raise ApiError(
                ErrorCode.CORRUPT_MESSAGE,
                f"A batch has leader epoch {batch.leader_epoch}, but its leader has epoch "
                f"{leader_epoch}.",
            )
        log.stage_replica(batch, wall_ms)
