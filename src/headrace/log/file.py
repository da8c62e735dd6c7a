# HOT
"""An open log file, a slice of one, and the bound on how many are open.

1. A descriptor is closed when the last reference to its LogFile goes: a response that is still
   being sent holds a deleted segment open, and nothing else has to know.
2. The kernel reads nothing ahead by itself: it would do so inside of whatever call happens upon
   cold data, on the loop, and megabytes at a time. Who reads on asks for it, from a thread.
3. At most `open_max` segments keep a file and indexes in memory. The cache forgets a segment's
   file, it never closes it: see 1.
"""

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

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
        files.leave_read_ahead_to_us(fd)

    def __del__(self) -> None:
        self.files.close(self.fd)


@final
class FileSlice:
    """Bytes of a log file that may be sent as they are."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: LogFile, position: i64, size: i64) -> None:
        self.file: LogFile = file
        self.position: i64 = position
        self.size: i64 = size

    def read(self) -> bytes:
        """The bytes themselves, for those who do not send them."""
        return self.file.files.pread(self.file.fd, self.size, self.position)


class NotCached(Exception):
    """A read would wait for the disk. Let a worker thread `run()` this, then read again."""

    def __init__(self, file: LogFile, position: int, size: int, path: str) -> None:
        super().__init__(path or file.path)
        self._file = file
        self._position = position
        self._size = size
        self._path = path

    def run(self) -> None:
        """Bring the bytes into the page cache. Touches nothing that the loop owns."""
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
    """Which segments are open, over all logs. Gives up those that nobody used lately."""

    __slots__ = ("_hand", "_segments", "open_max")

    def __init__(self, open_max: int = 512) -> None:
        self.open_max: i64 = open_max
        self._segments: list[Segment] = []
        self._hand: i64 = 0

    def opened(self, segment: "Segment") -> None:
        """Count a segment that was just opened, and make room for it."""
        if segment.is_listed:
            return
        segment.is_listed = True
        segments = self._segments
        if len(segments) < self.open_max:
            segments.append(segment)
            return
        # Second chance: a use since the hand last passed saves a segment for one more round.
        while True:
            if self._hand >= len(segments):
                self._hand = 0
            candidate = segments[self._hand]
            if not candidate.used or not candidate.is_open():
                break
            candidate.used = False
            self._hand += 1
        candidate.forget()
        candidate.is_listed = False
        segments[self._hand] = segment
        self._hand += 1

    def count(self) -> int:
        return sum(1 for segment in self._segments if segment.is_open())
