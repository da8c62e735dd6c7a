"""Tests whether part of a file is in the page cache, and reads it into the cache.

The kernel reads nothing of a log ahead by itself (see `log.file`): a reader of old data has the
disk read on for it, a few megabytes before what is being sent, by a thread.
"""

import os
import time

STRETCH_BYTES = 128 * 1024
READ_AHEAD_BYTES = 4 * 1024 * 1024
PROBE_STEP_BYTES = 256 * 1024
_probe = bytearray(1)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def is_cached(fd: int, position: int, size: int) -> bool:
    """Look at a byte in each stretch: what lies between was read or written with them."""
    if not _NOWAIT:
        return True
    try:
        for at in range(position, position + size, PROBE_STEP_BYTES):
            os.preadv(fd, [_probe], at, _NOWAIT)
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
    for at in range(position, position + READ_AHEAD_BYTES, STRETCH_BYTES):
        read_ahead(fd, at)
    touched = bytearray(1)
    # A byte at both ends is waited for, and no more is copied: what lies between comes with them.
    os.preadv(fd, [touched], min(end, position + STRETCH_BYTES) - 1)
    os.preadv(fd, [touched], position)


def read_ahead(fd: int, position: int) -> None:
    """Have the disk read a stretch, whoever sends it. For a thread: it takes a while.

    A kernel that does not preempt itself gives the core to nobody meanwhile. So it is asked for
    little at a time, and then those that wait for a core come first, whoever's they are.
    """
    os.posix_fadvise(fd, position, STRETCH_BYTES, os.POSIX_FADV_WILLNEED)
    time.sleep(0)
