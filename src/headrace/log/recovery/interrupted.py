"""Finishes a truncation that a crash interrupted, before the log is recovered.

The checkpoint contains `discard_from`, the offset of the truncation. The replica has appended
nothing since it wrote this checkpoint, so all records from this offset on can be removed.
"""

from headrace.env.files import Files
from headrace.log.recovery.leftovers import CLEANED, DELETED, START, SWAP, offset_of
from headrace.log.scan import BatchWalk
from headrace.log.segment import SUFFIXES
from headrace.log.upkeep.checkpoints import LOG_CHECKPOINT, LogCheckpoint, encode_log_checkpoint

_STATES = ("", CLEANED, SWAP, DELETED)
_ENDINGS = (*(kind + state for kind in SUFFIXES for state in _STATES), ".snapshot", START)


def is_log_file(name: str) -> bool:
    """Whether the name is that of a segment file, a snapshot or a `.start` file."""
    return offset_of(name) >= 0 and name.endswith(_ENDINGS)


def finish_truncation(files: Files, path: str, checkpoint: LogCheckpoint) -> LogCheckpoint:
    """Remove all records from `discard_from` on. Returns the new checkpoint."""
    offset = checkpoint.discard_from
    last = -1
    for info in reversed(files.list_directory(path)):
        base_offset = offset_of(info.name)
        if not is_log_file(info.name):
            continue
        is_kept_at_end = info.name.endswith((".snapshot", START)) and base_offset == offset > 0
        if base_offset >= offset and not is_kept_at_end:
            files.remove(f"{path}/{info.name}")
        elif info.name.endswith(".log"):
            last = max(last, base_offset)
    files.sync_directory(path)
    if last >= 0:
        _cut(files, f"{path}/{last:020d}.log", offset)
    else:
        # `RecordedPartitions` treats a log without segments as removed by another program.
        files.write_file(f"{path}/{checkpoint.recovery_point:020d}.log", b"", sync=True)
    finished = checkpoint._replace(discard_from=-1)
    files.replace_file(f"{path}/{LOG_CHECKPOINT}", encode_log_checkpoint(finished))
    return finished


def _cut(files: Files, path: str, offset: int) -> None:
    """Truncate a file before the first batch with an offset to remove.

    If the file is damaged before that batch, recovery cuts it there: the damage is above the
    recovery point.
    """
    fd = files.open(path, write=True)
    try:
        size = files.size(fd)
        walk = BatchWalk(files, fd, 0, size, False)
        position = 0
        while (batch := walk.next()) is not None and batch.last_offset() < offset:
            position = int(walk.position)
        if batch is not None:
            files.truncate(fd, position)
        # Also sync a file that was truncated before the crash: the truncation might not be durable.
        files.sync(fd)
    finally:
        files.close(fd)
