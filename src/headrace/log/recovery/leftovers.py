"""Finishes or undoes work in a partition's directory that a crash interrupted.

Compaction replaces segments with Kafka's names and order. It writes new files as `.cleaned`, and
renames them to `.swap` when all of them are durable. Then it removes the old segments, and removes
`.swap` from the names. At start-up:

1. If a `.cleaned` file exists, the replacement had not begun, and is undone.
2. If only `.swap` files exist, the replacement had begun, and is finished.
3. `.deleted` and temporary files are removed.
"""

import logging

from headrace.env.files import FileInfo, Files
from headrace.log.scan import BatchWalk
from headrace.log.segment import SUFFIXES

_LOG = logging.getLogger(__name__)

CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
TEMPORARY = ".tmp"
START = ".start"
"""A file `<offset>.start` means that the log starts at this offset or later.

A job writes it on a full disk, instead of a checkpoint.
"""


def start_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset:020d}{START}"


def offset_of(name: str) -> int:
    """The offset in a file name; -1 for other names."""
    head, dot, _ = name.partition(".")
    if not (dot and len(head) == 20 and head.isascii() and head.isdigit()):
        return -1
    offset = int(head)
    return offset if offset < 1 << 63 else -1


def finish_or_undo_replacement(files: Files, path: str) -> tuple[list[FileInfo], range]:
    """Finish or undo a replacement, and remove temporary files.

    Returns the remaining files, and the offsets of a finished replacement.
    """
    listing = files.list_directory(path)
    names = [info.name for info in listing if not info.is_directory]
    leftovers = [name for name in names if name.endswith((DELETED, TEMPORARY, CLEANED))]
    swapped = [name for name in names if name.endswith(SWAP)]
    cleaned = [offset_of(name) for name in leftovers if name.endswith(CLEANED)]
    if cleaned:
        undone = [
            name
            for name in swapped
            if offset_of(name) >= min(cleaned) and f"{name[:20]}.log" in names
        ]
        leftovers += undone
        swapped = [name for name in swapped if name not in undone]
    if not leftovers and not swapped:
        return listing, range(0)
    for name in leftovers:
        files.remove(f"{path}/{name}")
    replaced = range(0)
    if swapped:
        replaced = _finish_replacement(files, path, names, swapped)
    files.sync_directory(path)
    return files.list_directory(path), replaced


def _finish_replacement(files: Files, path: str, names: list[str], swapped: list[str]) -> range:
    # A name can be in memory only. Make all names durable before the old segments are removed.
    files.sync_directory(path)
    logs = [name for name in swapped if name.endswith(".log" + SWAP)]
    replaced = range(0)
    if logs:
        start = min(map(offset_of, logs))
        end = max(_end_of(files, f"{path}/{name}", offset_of(name)) for name in logs)
        replaced = range(start, end)
        _LOG.info(
            "completing an interrupted replacement of segments: partition=%s first_offset=%d "
            "last_offset=%d",
            path,
            start,
            end - 1,
        )
        for name in names:
            is_old = name.endswith(SUFFIXES) and start <= offset_of(name) < end
            if is_old and name + SWAP not in swapped:
                files.remove(f"{path}/{name}")
        files.sync_directory(path)
    for name in swapped:
        files.rename(f"{path}/{name}", f"{path}/{name.removesuffix(SWAP)}")
    return replaced


def _end_of(files: Files, path: str, base_offset: int) -> int:
    """The end offset of a segment's batches."""
    fd = files.open(path)
    try:
        walk = BatchWalk(files, fd, 0, files.size(fd), False)
        end = base_offset
        while (batch := walk.next()) is not None:
            end = batch.last_offset() + 1
        return end
    finally:
        files.close(fd)
