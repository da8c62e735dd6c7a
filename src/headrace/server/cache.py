"""Whether a stretch of a file would be read without waiting for the disk, and how to see to it."""

import os

READ_AHEAD_BYTES = 4 * 1024 * 1024
_STEP_BYTES = 256 * 1024
_probe = bytearray(1)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def is_cached(fd: int, position: int, size: int) -> bool:
    """Look at both ends: what lies between was read with them, or written with them."""
    if not _NOWAIT:
        return True
    try:
        os.preadv(fd, [_probe], position, _NOWAIT)
        os.preadv(fd, [_probe], position + size - 1, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # Not every file system can say; sendfile will wait.
    return True


def warm(fd: int, position: int, end: int) -> None:
    """Bring up to READ_AHEAD_BYTES into the page cache. Runs on a thread and may block there."""
    stop = min(end, position + READ_AHEAD_BYTES)
    os.posix_fadvise(fd, position, stop - position, os.POSIX_FADV_WILLNEED)
    scratch = bytearray(_STEP_BYTES)
    while position < stop:
        size = os.preadv(fd, [memoryview(scratch)[: min(_STEP_BYTES, stop - position)]], position)
        if size == 0:
            return
        position += size
