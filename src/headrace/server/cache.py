"""Whether a stretch of a file would be read without waiting for the disk, and how to see to it."""

import os

WARM_BYTES = 1024 * 1024
READ_AHEAD_BYTES = 8 * 1024 * 1024
_STEP_BYTES = 32 * 1024
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
    """Bring the next stretch into the page cache. Runs on a thread and may block there.

    More is asked for than is waited for: the disk reads on while what is here is sent.
    """
    os.posix_fadvise(fd, position, min(end - position, READ_AHEAD_BYTES), os.POSIX_FADV_WILLNEED)
    stop = min(end, position + WARM_BYTES)
    touched = bytearray(1)
    for at in (*range(position, stop, _STEP_BYTES), stop - 1):
        # A byte of each piece is waited for, and none is copied.
        os.preadv(fd, [touched], at)
