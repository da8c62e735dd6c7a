"""Whether a stretch of a file would be read without waiting for the disk, and how to see to it.

The kernel reads nothing of a log ahead by itself (see `log.file`): a reader of old data has the
disk read on for it, a few megabytes before what is being sent, by a thread.
"""

import os

WARM_BYTES = 1024 * 1024
READ_AHEAD_BYTES = 4 * 1024 * 1024
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
    read_ahead(fd, position)
    stop = min(end, position + WARM_BYTES)
    touched = bytearray(1)
    # A byte at both ends is waited for, and no more is copied: what lies between comes with them.
    # Few calls: each takes the interpreter from the loop for a moment.
    os.preadv(fd, [touched], stop - 1)
    os.preadv(fd, [touched], position)


def read_ahead(fd: int, position: int) -> None:
    """Have the disk read on, whoever sends it. For a thread: finding the pages takes a while."""
    os.posix_fadvise(fd, position, READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
