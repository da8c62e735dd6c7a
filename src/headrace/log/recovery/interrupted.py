"""Finishes a truncation that a crash interrupted, before the log is recovered.

The checkpoint has `discard_from`: the replica had decided to remove all records from this offset
on, and has appended nothing since. So the files that are removed here have no other records.
"""

from headrace.env.files import Files
from headrace.log.recovery.leftovers import CLEANED, DELETED, START, SWAP, offset_of
from headrace.log.scan import Walk
from headrace.log.segment import SUFFIXES
from headrace.log.upkeep.checkpoints import LOG_CHECKPOINT, LogCheckpoint, encode_log_checkpoint

_STATES = ("", CLEANED, SWAP, DELETED)
_ENDINGS = (*(kind + state for kind in SUFFIXES for state in _STATES), ".snapshot", START)


def is_of_a_log(name: str) -> bool:
    """Whether the name is that of a segment file, a snapshot or a `.start` file."""
    return offset_of(name) >= 0 and name.endswith(_ENDINGS)


def finish_truncation(files: Files, path: str, checkpoint: LogCheckpoint) -> LogCheckpoint:
    """Remove the offsets from `discard_from` on, and return the new checkpoint."""
    offset = checkpoint.discard_from
    last = -1
    for info in reversed(files.list_directory(path)):
        base_offset = offset_of(info.name)
        if not is_of_a_log(info.name):
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
        # `recorded` treats a log without segments as removed by another program.
        files.write_file(f"{path}/{checkpoint.recovery_point:020d}.log", b"", sync=True)
    finished = checkpoint._replace(discard_from=-1)
    files.replace_file(f"{path}/{LOG_CHECKPOINT}", encode_log_checkpoint(finished))
    return finished


def _cut(files: Files, path: str, offset: int) -> None:
    """Truncate a file before the first batch with an offset to remove.

    If the file is damaged before that batch, recovery cuts it there, because it is above the
    recovery point.
    """
    fd = files.open(path, write=True)
    try:
        size = files.size(fd)
        walk = Walk(files, fd, 0, size, False)
        position = 0
        while (batch := walk.next()) is not None and batch.last_offset() < offset:
            position = int(walk.position)
        if batch is not None:
            files.truncate(fd, position)
        # Also sync a file that was truncated before the crash: the truncation might not be durable.
        files.sync(fd)
    finally:
        files.close(fd)
