"""A simulated disk for tests: `Files` in memory with crashes, power failures and errors.

Each file and directory has two states: the cached one, which processes see, and the durable one,
which was synced. Each change and each sync is an operation with a number. A test runs a workload
once to count the operations, and then again with a crash or an error at each of them.

1. A kill keeps the cached state. A power failure keeps synced data, and a random subset of the
   rest: sectors of 512 bytes, sizes, names. Bytes that were never written read as zeros. A rename
   within a directory is atomic, as on all journalling file systems.
2. The operation during a crash takes effect completely, partly, or not at all.
3. All random choices come from one seeded generator.
"""

import errno
import itertools
import os
import random
from collections.abc import Callable, Sequence

from headrace.env.files import Bytes, DirectoryInUse, FileInfo

SECTOR_SIZE = 512


class SimulatedCrash(BaseException):
    """The machine stops. Not an Exception, so that no code under test handles it."""


_inodes = itertools.count(1)


class _File:
    __slots__ = ("cached", "durable", "inode", "modified_ms")

    def __init__(self) -> None:
        self.inode = next(_inodes)
        self.cached = bytearray()
        self.durable = b""
        self.modified_ms = 0


class _Directory:
    __slots__ = ("cached", "durable", "renames")

    def __init__(self) -> None:
        self.renames: list[tuple[str, str]] = []
        """Renames since the last sync. A power failure undoes a rename completely or not at all."""
        self.cached: dict[str, _File | _Directory] = {}
        self.durable: dict[str, _File | _Directory] = {}


class SimulatedFiles:
    """An empty disk. `killed()` and `power_lost()` return the disk for the next process."""

    def __init__(self, seed: int = 0, capacity: int | None = None) -> None:
        self.random = random.Random(seed)
        self.capacity = capacity
        """The size in bytes; None for no limit."""
        self.open_max: int | None = None
        """The limit of open files: opening another one raises EMFILE."""
        self.wall_ms = 0
        """The current time, for modification times."""
        self.operations = 0
        """The number of changes and syncs."""
        self.crash_at = -1
        """The operation (counted from 1) at which the machine stops."""
        self.fail_at: dict[int, int] = {}
        """Maps an operation to the errno that it fails with."""
        self.exhausted_from = -1
        """From this operation on, the disk is full and no file can be opened."""
        self.trace: list[str] = []
        """Kind and path of each operation."""
        self.failed: list[str] = []
        """Kind and path of the operations that failed because of `fail_at`."""
        self.uncached: set[str] = set()
        """Paths for which `pread_cached` returns None."""
        self.unreadable: set[str] = set()
        """Paths of files that cannot be opened: EIO."""
        self.boots = 0
        """The number of power failures."""
        self._root = _Directory()
        self._open: dict[int, tuple[_File, str]] = {}
        self._open_directories: set[int] = set()
        self._next_fd = 1000
        self._locks: set[str] = set()

    # Calls of tests

    def killed(self) -> "SimulatedFiles":
        """The disk after the process was killed. It has all writes of the process."""
        return self._successor(self._root)

    def power_lost(self, seed: int = 0) -> "SimulatedFiles":
        """The disk after a power failure."""
        generator = random.Random(seed)
        successor = self._successor(_directory_after_power_failure(self._root, generator))
        successor.boots += 1
        return successor

    def _successor(self, root: _Directory) -> "SimulatedFiles":
        successor = SimulatedFiles(self.random.randrange(1 << 30), self.capacity)
        successor.wall_ms = self.wall_ms
        successor.boots = self.boots
        successor._root = root
        return successor

    def patch(self, path: str, position: int, data: bytes) -> None:
        """Change bytes without an operation: bit rot."""
        file = self._file(path)
        file.cached[position : position + len(data)] = data
        file.durable = bytes(file.cached)

    def used_bytes(self) -> int:
        return _size_of(self._root)

    def open_count(self) -> int:
        return len(self._open) + len(self._open_directories)

    def open_descriptors(self) -> set[int]:
        return {*self._open, *self._open_directories}

    def set_modified(self, path: str, modified_ms: int) -> None:
        self._file(path).modified_ms = modified_ms

    def copied(self) -> "SimulatedFiles":
        """A backup: another disk with the cached state of this one, synced."""
        return self._successor(_copied(self._root))

    # Operations

    def _operate(self, kind: str, path: str) -> None:
        """Count an operation; raise if a crash or an error is set for it."""
        self.operations += 1
        self.trace.append(f"{kind} {path}")
        if self.operations == self.crash_at:
            raise SimulatedCrash(f"operation {self.operations}: {kind} {path}")
        if self.operations == self.exhausted_from:
            self.capacity = self.open_max = 0
        code = self.fail_at.get(self.operations)
        if code is not None:
            self.failed.append(self.trace[-1])
            raise OSError(code, os.strerror(code), path)

    def _is_applied_in_crash(self) -> bool:
        """Whether the operation at the crash takes effect. Random."""
        return self.operations == self.crash_at and self.random.random() < 0.5

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        self._check_descriptor_limit(path)
        self._check_readable(path)
        directory, name = self._parent(path)
        node = directory.cached.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            try:
                self._operate("create", path)
            except SimulatedCrash:
                if self._is_applied_in_crash():
                    directory.cached[name] = _File()
                raise
            node = directory.cached[name] = _File()
            node.modified_ms = self.wall_ms
        if isinstance(node, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._next_fd += 1
        self._open[self._next_fd] = (node, path)
        return self._next_fd

    def _check_descriptor_limit(self, path: str) -> None:
        if self.open_max is not None and self.open_count() >= self.open_max:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    def _check_readable(self, path: str) -> None:
        if path in self.unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def close(self, fd: int) -> None:
        if fd in self._open_directories:
            self._open_directories.remove(fd)
            return
        _, path = self._open.pop(fd)
        self._locks.discard(path)

    def append(self, fd: int, buffers: Sequence[Bytes]) -> None:
        file, path = self._open[fd]
        data = b"".join(buffers)
        try:
            self._operate("append", path)
        except (SimulatedCrash, OSError):
            # An interrupted write stores a random prefix.
            file.cached += data[: self.random.randrange(len(data) + 1)]
            raise
        if self.capacity is not None:
            space = max(self.capacity - self.used_bytes(), 0)
            if space < len(data):
                file.cached += data[:space]
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        file.cached += data
        file.modified_ms = self.wall_ms

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return bytes(self._open[fd][0].cached[position : position + size])

    def pread_cached(self, fd: int, size: int, position: int) -> bytes | None:
        return None if self._open[fd][1] in self.uncached else self.pread(fd, size, position)

    def truncate(self, fd: int, size: int) -> None:
        file, path = self._open[fd]
        try:
            self._operate("truncate", path)
        except SimulatedCrash:
            if self._is_applied_in_crash():
                del file.cached[size:]
            raise
        del file.cached[size:]
        file.cached += bytes(size - len(file.cached))

    def sync(self, fd: int) -> None:
        file, path = self._open[fd]
        try:
            self._operate("sync", path)
        except SimulatedCrash:
            if self._is_applied_in_crash():
                file.durable = bytes(file.cached)
            raise
        file.durable = bytes(file.cached)

    def size(self, fd: int) -> int:
        return len(self._open[fd][0].cached)

    def drop_cached(self, fd: int, position: int, size: int) -> None:
        assert fd in self._open

    def read_ahead(self, fd: int, position: int, size: int) -> None:
        self.uncached.discard(self._open[fd][1])

    def disable_read_ahead(self, fd: int) -> None:
        assert fd in self._open

    def open_directory(self, path: str) -> int:
        self._check_descriptor_limit(path)
        self._directory(path)
        self._next_fd += 1
        self._open_directories.add(self._next_fd)
        return self._next_fd

    def sync_directory(self, path: str, fd: int = -1) -> None:
        if fd < 0:
            self._check_descriptor_limit(path)
        assert fd < 0 or fd in self._open_directories
        directory = self._directory(path)
        try:
            self._operate("sync_directory", path)
        except SimulatedCrash:
            if self._is_applied_in_crash():
                directory.durable = dict(directory.cached)
                directory.renames.clear()
            raise
        directory.durable = dict(directory.cached)
        directory.renames.clear()

    def sync_file_system(self, fd: int, paths: Sequence[str]) -> None:
        assert fd in self._open
        try:
            self._operate("sync_file_system", "/")
        except SimulatedCrash:
            _sync_tree(self._root, lambda: self.random.random() < 0.5)
            raise
        _sync_tree(self._root, lambda: True)

    def rename(self, source: str, target: str) -> None:
        from_directory, from_name = self._parent(source)
        if from_name not in from_directory.cached:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        to_directory, to_name = self._parent(target)
        if from_directory is to_directory:
            from_directory.renames.append((from_name, to_name))
        try:
            self._operate("rename", target)
        except SimulatedCrash:
            if self._is_applied_in_crash():
                to_directory.cached[to_name] = from_directory.cached.pop(from_name)
            raise
        to_directory.cached[to_name] = from_directory.cached.pop(from_name)

    def remove(self, path: str) -> None:
        directory, name = self._parent(path)
        if name not in directory.cached:
            return
        try:
            self._operate("remove", path)
        except SimulatedCrash:
            if self._is_applied_in_crash():
                del directory.cached[name]
            raise
        del directory.cached[name]

    def make_directory(self, path: str) -> None:
        directory = self._root
        for name in path.strip("/").split("/"):
            node = directory.cached.get(name)
            if node is None:
                self._operate("make_directory", path)
                node = directory.cached[name] = _Directory()
            if isinstance(node, _File):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            directory = node

    def remove_directory(self, path: str) -> None:
        directory, name = self._parent(path)
        node = directory.cached[name]
        if isinstance(node, _Directory) and node.cached:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._operate("remove_directory", path)
        del directory.cached[name]

    def list_directory(self, path: str) -> list[FileInfo]:
        self._check_descriptor_limit(path)
        found: list[FileInfo] = []
        for name, node in sorted(self._directory(path).cached.items()):
            if isinstance(node, _File):
                found.append(FileInfo(name, len(node.cached), node.modified_ms, False))
            else:
                found.append(FileInfo(name, 0, 0, True))
        return found

    def exists(self, path: str) -> bool:
        try:
            directory, name = self._parent(path)
        except FileNotFoundError:
            return False
        return name in directory.cached

    def identity(self, path: str) -> str:
        return f"{self._file(path).inode:016x}"

    def page_cache_id(self, path: str) -> str:
        assert self.exists(path)
        return f"boot-{self.boots}"

    def read_file(self, path: str) -> bytes:
        self._check_descriptor_limit(path)
        self.uncached.discard(path)
        return bytes(self._file(path).cached)

    def write_file(self, path: str, data: Bytes, *, sync: bool) -> None:
        fd = self.open(path, write=True, create=True)
        try:
            if self.size(fd):
                self.truncate(fd, 0)
            if len(data):
                self.append(fd, (data,))
            if sync:
                self.sync(fd)
        finally:
            self.close(fd)

    def replace_file(self, path: str, data: Bytes) -> None:
        self.write_file(path + ".tmp", data, sync=True)
        self.rename(path + ".tmp", path)
        self.sync_directory(path.rpartition("/")[0])

    def create_file(self, path: str, data: Bytes) -> None:
        self.write_file(path + ".tmp", data, sync=True)
        if self.exists(path):
            self.remove(path + ".tmp")
        else:
            self.rename(path + ".tmp", path)
        self.sync_directory(path.rpartition("/")[0])

    def lock(self, path: str, holder: str) -> int:
        if path in self._locks:
            raise DirectoryInUse(path, bytes(self._file(path).cached).decode().strip())
        fd = self.open(path, write=True, create=True)
        self._locks.add(path)
        file = self._open[fd][0]
        file.cached[:] = holder.encode()
        # Durable immediately: random choices must not depend on a process id.
        file.durable = bytes(file.cached)
        return fd

    # Names

    def _directory(self, path: str) -> _Directory:
        node: _File | _Directory = self._root
        for name in filter(None, path.split("/")):
            found = node.cached.get(name) if isinstance(node, _Directory) else None
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = found
        if isinstance(node, _File):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _file(self, path: str) -> _File:
        directory, name = self._parent(path)
        node = directory.cached.get(name)
        if not isinstance(node, _File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node


def _copied(directory: _Directory) -> _Directory:
    copy = _Directory()
    for name, node in directory.cached.items():
        if isinstance(node, _Directory):
            copy.cached[name] = _copied(node)
            continue
        file = copy.cached[name] = _File()
        file.cached = bytearray(node.cached)
        file.durable = bytes(node.cached)
        file.modified_ms = node.modified_ms
    copy.durable = dict(copy.cached)
    return copy


def _sync_tree(node: _File | _Directory, is_synced: Callable[[], bool]) -> None:
    """Sync a directory tree. In a crash, `is_synced` selects a random part of it."""
    if isinstance(node, _File):
        if is_synced():
            node.durable = bytes(node.cached)
        return
    for each in list(node.cached.values()):
        _sync_tree(each, is_synced)
    if is_synced():
        node.durable = dict(node.cached)
        node.renames.clear()


def _size_of(directory: _Directory) -> int:
    nodes = directory.cached.values()
    return sum(len(n.cached) if isinstance(n, _File) else _size_of(n) for n in nodes)


def _directory_after_power_failure(directory: _Directory, generator: random.Random) -> _Directory:
    """The directory after a power failure: each name has its synced or its cached state."""
    survivor = _Directory()
    done: dict[int, _File | _Directory] = {}
    together = _renamed_together(directory)
    is_old: dict[str, bool] = {}
    for name in sorted({*directory.cached, *directory.durable}):
        before, after = directory.durable.get(name), directory.cached.get(name)
        if name not in is_old:
            is_old.update(dict.fromkeys(together.get(name, [name]), generator.random() < 0.5))
        node = before if is_old[name] else after
        if node is None:
            continue
        if id(node) not in done:
            if isinstance(node, _Directory):
                done[id(node)] = _directory_after_power_failure(node, generator)
            else:
                done[id(node)] = _file_after_power_failure(node, generator)
        survivor.cached[name] = done[id(node)]
    survivor.durable = dict(survivor.cached)
    return survivor


def _renamed_together(directory: _Directory) -> dict[str, list[str]]:
    """Map each renamed name to all names that a power failure changes together."""
    groups: dict[str, list[str]] = {}
    for source, target in directory.renames:
        names = sorted({*groups.get(source, [source]), *groups.get(target, [target])})
        groups.update(dict.fromkeys(names, names))
    return groups


def _file_after_power_failure(file: _File, generator: random.Random) -> _File:
    """The file after a power failure: each sector, and the size, is old or new."""
    survivor = _File()
    survivor.inode = file.inode
    survivor.modified_ms = file.modified_ms
    old, new = file.durable, bytes(file.cached)
    if old == new:
        content = new
    else:
        low, high = sorted((len(old), len(new)))
        size = generator.choice((len(old), len(new), generator.randint(low, high)))
        sectors = []
        for at in range(0, size, SECTOR_SIZE):
            source = generator.choice((old, new))
            sectors.append(source[at : at + SECTOR_SIZE].ljust(SECTOR_SIZE, b"\0"))
        content = b"".join(sectors)[:size]
    survivor.cached = bytearray(content)
    survivor.durable = content
    return survivor
