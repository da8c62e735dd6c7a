"""Tests whether part of a file is in the page cache, and reads it into the cache.

The kernel does not read logs ahead (see `log.file`). For a reader of old data, a thread reads a few
megabytes ahead of the position that is being sent.
"""

import os
import time

STRETCH_BYTES = 128 * 1024
READ_AHEAD_BYTES = 4 * 1024 * 1024
PROBE_STEP_BYTES = 256 * 1024
_probe = bytearray(1)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def is_cached(fd: int, position: int, size: int) -> bool:
    """Check one byte per PROBE_STEP_BYTES, and the last one. Assume the same of the others."""
    if not _NOWAIT:
        return True
    try:
        for at in range(position, position + size, PROBE_STEP_BYTES):
            os.preadv(fd, [_probe], at, _NOWAIT)
        os.preadv(fd, [_probe], position + size - 1, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # Some file systems cannot report this; then sendfile waits.
    return True


def warm(fd: int, position: int, end: int) -> None:
    """Read the next stretch into the page cache. Blocks, so it runs on a thread.

    It requests more than it waits for: the disk reads the rest while this stretch is sent.
    """
    for at in range(position, position + READ_AHEAD_BYTES, STRETCH_BYTES):
        read_ahead(fd, at)
    touched = bytearray(1)
    # Reads only the first and the last byte: the kernel reads the bytes in between as well.
    os.preadv(fd, [touched], min(end, position + STRETCH_BYTES) - 1)
    os.preadv(fd, [touched], position)


def read_ahead(fd: int, position: int) -> None:
    """Read a stretch from disk ahead of time. Blocks, so it runs on a thread.

    A kernel without preemption blocks the core during a read. So each call reads little, and
    other threads can use the core between two calls.
    """
    os.posix_fadvise(fd, position, STRETCH_BYTES, os.POSIX_FADV_WILLNEED)
    time.sleep(0)
