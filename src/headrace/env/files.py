"""The file system, as an interface that tests can replace.

The log uses only `Files`. `SystemFiles` is the real implementation.
`headrace.testing.disk.SimulatedFiles` simulates torn writes and power failures. Paths are strings,
descriptors are integers, and each failure is an OSError with its errno.

1. `append` writes all buffers or raises. After a failure, any part of them can be in the file.
2. The bytes of a file are durable after `sync`, its name after `sync_directory`. `replace_file`
   does both.
3. No method retries a failed sync: the kernel has already dropped the dirty pages (fsyncgate).
"""

import errno
import fcntl
import os
import re
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

Bytes = bytes | bytearray | memoryview
"""Types that can be written."""

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PIECES_MAX = 1024
"""The maximum number of pieces per writev (IOV_MAX on Linux)."""
_FLOCK = "hhqqi"
"""The layout of C's struct flock: type, whence, start, length, pid."""
_JOINED_BYTES_MAX = 65_536
"""Up to this size, joining small pieces is faster than passing them to writev."""


class FileInfo(NamedTuple):
    name: str
    size: int
    modified_ms: int
    is_directory: bool


class DirectoryInUse(OSError):
    """Another process holds the lock; `holder` is the content of the lock file."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(errno.EAGAIN, "locked by another process", path)
        self.holder = holder


class Files(Protocol):
    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file for reading, or with `write` also for appending. Returns its descriptor."""

    def close(self, fd: int) -> None: ...

    def append(self, fd: int, buffers: Sequence[Bytes]) -> None: ...

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def pread_cached(self, fd: int, size: int, position: int) -> bytes | None:
        """As `pread`; None if the read would wait for the disk."""

    def truncate(self, fd: int, size: int) -> None: ...

    def sync(self, fd: int) -> None:
        """Make the content and size of the file survive a power failure."""

    def size(self, fd: int) -> int: ...

    def drop_cached(self, fd: int, position: int, size: int) -> None:
        """Tell the kernel that these synced bytes will not be read soon."""

    def read_ahead(self, fd: int, position: int, size: int) -> None:
        """Tell the kernel that these bytes will be read soon."""

    def disable_read_ahead(self, fd: int) -> None:
        """Disable the kernel's automatic read-ahead for this descriptor."""

    def open_directory(self, path: str) -> int:
        """Open a directory. Returns a descriptor for `sync_directory`."""

    def sync_directory(self, path: str, fd: int = -1) -> None:
        """Make the names in a directory survive a power failure.

        With the descriptor of the open directory, this needs no further descriptor.
        """

    def sync_file_system(self, fd: int, paths: Sequence[str]) -> None:
        """Make all files on the file system of an open file survive a power failure.

        Reports every failed write since the file was opened. ENOSYS: the system cannot report that.
        EXDEV: one of the directories is on another file system.
        """

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, if they do not exist."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def list_directory(self, path: str) -> list[FileInfo]:
        """The entries of a directory, sorted by name."""

    def exists(self, path: str) -> bool: ...

    def identity(self, path: str) -> str:
        """An identifier of a file. A copy of the file has another one."""

    def page_cache_id(self, path: str) -> str:
        """An identifier of the page cache of the file system at `path`; "" if unknown.

        While it stays the same, everything that a process wrote to this file system can be read.
        """

    def read_file(self, path: str) -> bytes: ...

    def write_file(self, path: str, data: Bytes, *, sync: bool) -> None:
        """Write a complete file. Replaces an existing one.

        After a crash, any part of it can be missing.
        """

    def replace_file(self, path: str, data: Bytes) -> None:
        """Write a complete file durably. After a crash, the file is the old or the new one."""

    def create_file(self, path: str, data: Bytes) -> None:
        """Write a complete file durably, if it does not exist."""

    def lock(self, path: str, holder: str) -> int:
        """Hold a lock file until `close`, or raise DirectoryInUse."""


class SystemFiles:
    """The operating system's files."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_APPEND if write else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def close(self, fd: int) -> None:
        os.close(fd)

    def append(self, fd: int, buffers: Sequence[Bytes]) -> None:
        if len(buffers) > 1:
            size = sum(map(len, buffers))
            if size <= _JOINED_BYTES_MAX:
                buffers = (b"".join(buffers),)
        if len(buffers) == 1:
            data = buffers[0]
            written = os.write(fd, data)
            if written != len(data):
                self._append_rest(fd, [memoryview(data)[written:]])
            return
        for at in range(0, len(buffers), _PIECES_MAX):
            pieces = buffers[at : at + _PIECES_MAX]
            written = os.writev(fd, pieces)
            if written != sum(map(len, pieces)):
                self._append_rest(fd, _remaining(pieces, written))

    def _append_rest(self, fd: int, pieces: list[memoryview]) -> None:
        """Continue after a short write. Its cause now raises OSError, for example ENOSPC."""
        while pieces:
            written = os.writev(fd, pieces)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            pieces = _remaining(pieces, written)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        try:
            return self._pread(fd, size, position)
        except OSError as error:
            raise _with_path(error, fd) from None

    def _pread(self, fd: int, size: int, position: int) -> bytes:
        data = os.pread(fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(fd, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_cached(self, fd: int, size: int, position: int) -> bytes | None:
        buffer = bytearray(size)
        try:
            got = os.preadv(fd, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise _with_path(error, fd) from None
            return self.pread(fd, size, position)
        if got < size:
            # Either the file ends here, or the next page is not cached. The file size decides.
            if position + got < os.fstat(fd).st_size:
                return None
            del buffer[got:]
        return bytes(buffer)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def drop_cached(self, fd: int, position: int, size: int) -> None:
        os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)

    def read_ahead(self, fd: int, position: int, size: int) -> None:
        os.posix_fadvise(fd, position, size, os.POSIX_FADV_WILLNEED)

    def disable_read_ahead(self, fd: int) -> None:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def open_directory(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_directory(self, path: str, fd: int = -1) -> None:
        if fd >= 0:
            os.fsync(fd)
            return
        fd = self.open_directory(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_file_system(self, fd: int, paths: Sequence[str]) -> None:
        # Older kernels do not report failed writes here.
        if _kernel() < (5, 8):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        device = os.fstat(fd).st_dev
        if any(os.stat(path).st_dev != device for path in paths):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def list_directory(self, path: str) -> list[FileInfo]:
        found: list[FileInfo] = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    stat = entry.stat(follow_symlinks=True)
                except FileNotFoundError:
                    continue
                is_directory = entry.is_dir()
                modified_ms = stat.st_mtime_ns // 1_000_000
                found.append(FileInfo(entry.name, stat.st_size, modified_ms, is_directory))
        found.sort()
        return found

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def identity(self, path: str) -> str:
        stat = os.stat(path)
        return f"{stat.st_ino}:{stat.st_ctime_ns}"

    def page_cache_id(self, path: str) -> str:
        try:
            with open(_BOOT_ID, encoding="ascii") as file:
                boot_id = file.read().strip()
            device = os.stat(path).st_dev
        except OSError:
            return ""
        return f"{boot_id}:{device}:{_mount_id(device)}"

    def read_file(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self.pread(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)

    def write_file(self, path: str, data: Bytes, *, sync: bool) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags, 0o644)
        try:
            if len(data):
                self.append(fd, (data,))
            if sync:
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def replace_file(self, path: str, data: Bytes) -> None:
        temporary = _temporary(path)
        self.write_file(temporary, data, sync=True)
        os.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def create_file(self, path: str, data: Bytes) -> None:
        temporary = _temporary(path)
        self.write_file(temporary, data, sync=True)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:
            # The file system does not support hard links.
            if not os.path.exists(path):
                os.rename(temporary, path)
        self.remove(temporary)
        self.sync_directory(os.path.dirname(path))

    def lock(self, path: str, holder: str) -> int:
        while True:
            fd = self._lock(path, holder)
            # The last holder could have removed the file before this process locked it.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
            os.close(fd)

    def _lock(self, path: str, holder: str) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # flock excludes other Headrace processes; lockf excludes Apache Kafka, which uses POSIX
            # locks.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            other = os.pread(fd, 200, 0).decode(errors="replace").strip()
            os.close(fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise DirectoryInUse(path, other) from None
            raise
        # The content is only for error messages, so a full disk does not matter.
        with suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, holder.encode(), 0)
        return fd


def lock_holder(path: str) -> int | None:
    """The process that holds a lock file of `SystemFiles.lock`. Does not take the lock.

    None if no process of this machine holds it, or the file cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        wanted = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, wanted))
    except OSError:
        return None
    finally:
        os.close(fd)
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def _mount_id(device: int) -> int:
    """A number that changes with each mount of a file system; 0 if unknown.

    The kernel creates /sys/fs/TYPE/DEVICE at the mount, with a new inode number. The kernel's mount
    id is not suitable, because it differs between containers and between services.
    """
    block = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    try:
        name = os.path.basename(os.readlink(block))
    except OSError:
        return 0
    for kind in ("ext4", "xfs", "f2fs"):
        try:
            return os.stat(f"/sys/fs/{kind}/{name}").st_ino
        except OSError:
            continue
    return 0


def _kernel() -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _with_path(error: OSError, fd: int) -> OSError:
    """Add the path of a file to an error, because a call with a descriptor does not add it."""
    with suppress(OSError):
        error.filename = os.readlink(f"/proc/self/fd/{fd}")
    return error


def _temporary(path: str) -> str:
    """A temporary path. Each thread has its own, because two threads can write the same file."""
    return f"{path}.{threading.get_ident():x}.tmp"


def _remaining(pieces: Sequence[Bytes], written: int) -> list[memoryview]:
    """The pieces that remain after `written` bytes."""
    rest: list[memoryview] = []
    for piece in pieces:
        if written >= len(piece):
            written -= len(piece)
        else:
            rest.append(memoryview(piece)[written:])
            written = 0
    return rest
