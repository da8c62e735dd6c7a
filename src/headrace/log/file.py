# HOT
"""An open log file, a slice of one, and the limit of open segments.

1. The file descriptor is closed with the last reference to its LogFile. So a response in progress
   keeps the file of a deleted segment open.
2. The kernel's automatic read-ahead is off, because any read on the loop could wait for megabytes
   of uncached data. Sequential readers request read-ahead from a worker thread.
3. At most `open_max` segments have an open file or indexes that can be loaded again.
"""

from typing import TYPE_CHECKING, final

from mypy_extensions import i64, mypyc_attr

from headrace.env.files import Files

if TYPE_CHECKING:
    from headrace.log.segment import Segment


@final
class LogFile:
    __slots__ = ("fd", "files", "path")

    def __init__(self, files: Files, path: str, fd: int) -> None:
        self.files: Files = files
        self.path: str = path
        self.fd: int = fd
        files.disable_read_ahead(fd)

    def __del__(self) -> None:
        self.files.close(self.fd)


@mypyc_attr(allow_interpreted_subclasses=True)
class Slice:
    """A part of a response that is not in memory."""

    def __init__(self, size: i64) -> None:
        self.size: i64 = size

    def read(self) -> bytes:
        """Return the bytes. Can wait for the disk, so a worker thread calls it."""
        raise NotImplementedError


@final
class FileSlice(Slice):
    """A range of a log file, which can be sent without copying."""

    def __init__(self, file: LogFile, position: i64, size: i64) -> None:
        super().__init__(size)
        self.file: LogFile = file
        self.position: i64 = position

    def read(self) -> bytes:
        return self.file.files.pread(self.file.fd, self.size, self.position)


class NotCached(Exception):
    """A read would wait for the disk. A worker thread must `run()` this before the next attempt."""

    def __init__(self, file: LogFile, position: int, size: int, path: str) -> None:
        """Store which bytes to read: the file at `path`, or this range of `file` if it is empty."""
        super().__init__(path or file.path)
        self._file = file
        self._position = position
        self._size = size
        self._path = path

    def run(self) -> None:
        """Read the bytes into the page cache. Uses no state of the loop."""
        files = self._file.files
        if self._path:
            try:
                files.read_file(self._path)
            except FileNotFoundError:
                return
        else:
            files.read_ahead(self._file.fd, self._position, self._size)
            files.pread(self._file.fd, self._size, self._position)


@final
class OpenSegments:
    """The open segments of all logs. Closes segments that were not used recently."""

    __slots__ = ("_hand", "_segments", "open_max")

    def __init__(self, open_max: int = 512) -> None:
        self.open_max: i64 = open_max
        self._segments: list[Segment] = []
        self._hand: i64 = 0

    def add(self, segment: "Segment") -> None:
        """Add a segment that was opened. If the limit is reached, close another one."""
        if segment.is_tracked:
            return
        segment.is_tracked = True
        segments = self._segments
        if len(segments) < self.open_max:
            segments.append(segment)
            return
        # The CLOCK algorithm: a segment that was used since the last pass stays for one more pass.
        while True:
            if self._hand >= len(segments):
                self._hand = 0
            candidate = segments[self._hand]
            if not candidate.is_recently_used or not candidate.is_open():
                break
            candidate.is_recently_used = False
            self._hand += 1
        candidate.close()
        candidate.is_tracked = False
        segments[self._hand] = segment
        self._hand += 1

    def count(self) -> int:
        """The number of open segments."""
        return sum(1 for segment in self._segments if segment.is_open())
