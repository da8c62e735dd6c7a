"""Sets aside files that recovery cannot use, and detects logs that it must not open.

Recovery deletes no acknowledged record. A file, or a part of one, that does not fit into the log
stays in the log's directory as `<name>.lost-<time>`, with the time in milliseconds. Only an
operator removes such a file; `headrace log check` lists them.

After a crash, the unsynced end of a log can be torn or missing. A crash does not explain a synced
file that is missing or shorter. The log then stays offline, and its files stay unchanged.
"""

import logging
from collections.abc import Mapping, Sequence

from headrace.env.files import FileInfo, Files
from headrace.log.segment import SUFFIXES, Segment
from headrace.log.upkeep.checkpoints import LogCheckpoint
from headrace.record.batch import HEADER_SIZE, LENGTH_OVERHEAD

_LOG = logging.getLogger(__name__)

LOST = ".lost-"
_COPY_BYTES = 1 << 20


class LogOffline(Exception):
    """The log cannot be opened; the message has the reason."""


def is_lost(name: str) -> bool:
    return LOST in name


def lost_files(listing: list[FileInfo]) -> list[FileInfo]:
    return [info for info in listing if is_lost(info.name) and not info.is_directory]


def set_aside(
    files: Files, directory: str, segments: Sequence[Segment], reason: str, now_ms: int
) -> int:
    """Rename segments that do not fit into the log. Returns their number. Removes empty ones."""
    count = 0
    for segment in reversed(segments):
        segment.close()
        path = f"{segment.stem}.log"
        if segment.size == 0:
            files.remove(path)
        else:
            kept = _unused_path(files, path, now_ms)
            files.rename(path, kept)
            count += 1
            _LOG.error("segment set aside: file=%s reason=%s kept_as=%s", path, reason, kept)
        for suffix in SUFFIXES[1:]:
            files.remove(segment.stem + suffix)
    # Otherwise a power failure could restore a segment over a new one of the same name.
    files.sync_directory(directory)
    return count


def cut_tail(files: Files, segment: Segment, end_offset: int, error: str, now_ms: int) -> int:
    """Durably truncate a file after its last valid batch. Returns the number of files set aside.

    Removed data is copied to another file, unless it consists of zeros, or is a batch that a kill
    has torn.
    """
    fd, position = segment.open().fd, int(segment.size)
    path = f"{segment.stem}.log"
    kept = ""
    if _is_torn(files, fd, position):
        message = "torn batch cut off: file=%s position=%d offset=%d reason=%s"
        _LOG.warning(message, path, position, end_offset, error)
    else:
        target = _unused_path(
            files, f"{segment.stem.rpartition('/')[0]}/{end_offset:020d}.log", now_ms
        )
        try:
            kept = _copy_tail(files, fd, position, target)
        except OSError as failure:
            raise LogOffline(f"the damaged end of {path} cannot be kept: {failure}") from None
        message = "damaged end of a log cut off: file=%s position=%d offset=%d reason=%s kept_as=%s"
        _LOG.error(message, path, position, end_offset, error, kept or "(only zeros)")
    files.truncate(fd, position)
    files.sync(fd)
    return 1 if kept else 0


def _copy_tail(files: Files, fd: int, position: int, target: str) -> str:
    """Durably copy the end of a file; returns the target, or "" if the end consists of zeros."""
    pieces = range(position, files.size(fd), _COPY_BYTES)
    if not any(files.pread(fd, _COPY_BYTES, at).strip(b"\0") for at in pieces):
        return ""
    copy = files.open(target, write=True, create=True)
    try:
        for at in pieces:
            files.append(copy, [files.pread(fd, _COPY_BYTES, at)])
        files.sync(copy)
    finally:
        files.close(copy)
    files.sync_directory(target.rpartition("/")[0])
    return target


def _is_torn(files: Files, fd: int, position: int) -> bool:
    """Whether the file ends inside the batch at a position, as after a kill during a write.

    Such a batch was never acknowledged.
    """
    left = files.size(fd) - position
    if left < HEADER_SIZE:
        return True
    header = files.pread(fd, LENGTH_OVERHEAD, position)
    return int.from_bytes(header[8:12], signed=True) + LENGTH_OVERHEAD > left


def _unused_path(files: Files, path: str, now_ms: int) -> str:
    while files.exists(f"{path}{LOST}{now_ms}"):
        now_ms += 1
    return f"{path}{LOST}{now_ms}"


def contradiction(checkpoint: LogCheckpoint, start: int, sizes: Mapping[int, int]) -> str:
    """Why no crash explains the segments on disk; "" if one does.

    `start` is the log start. `sizes` has the size of each segment by base offset.
    """
    point = checkpoint.recovery_point
    bases = sorted(sizes)
    if not bases:
        return f"offsets {start} to {point - 1} have no segment" if point > start else ""
    if bases[0] > start:
        return f"the first segment begins at offset {bases[0]}, after the log start {start}"
    if point <= start:
        return ""  # All synced records are deleted.
    first_needed = max(each for each in bases if each <= start)
    for facts in checkpoint.segments:
        base = facts.base_offset
        if base < first_needed:
            continue
        if base not in sizes:
            return f"{base:020d}.log is missing"
        if sizes[base] < facts.size:
            return f"{base:020d}.log has {sizes[base]} bytes, but {facts.size} were synced"
    return ""
