"""The responses of one connection that are not sent yet.  # HOT

Responses are sent through the connection's transport. A file slice that is not in the page cache
is read by a thread first, so that one reader of old data does not delay the others.

1. Bytes are sent in the order in which they were added.
2. After a malformed request, the connection is closed when all responses to earlier requests are
   sent. Clients need them: they might otherwise send a request again that was executed.
"""

import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from headrace.log.file import FileSlice, LogFile, Slice
from headrace.server.cache import (
    READ_AHEAD_BYTES,
    STRETCH_BYTES,
    is_cached,
    read_ahead,
    warm,
)
from headrace.server.transport import SHORT_STEP_BYTES, Transport

if TYPE_CHECKING:
    from headrace.server.connection import Connection
    from headrace.server.plane import Plane

EPOLLOUT = 0x004
SEND_GATHER_MAX = 512
PROBE_BYTES_MAX = 256 * 1024
"""The bytes of a file that one check of the page cache covers, unless a step is longer."""


@final
class ResponseQueue:
    def __init__(self, connection: "Connection", plane: "Plane", transport: Transport) -> None:
        self._connection = connection
        self._plane = plane
        self._transport = transport
        self._pieces: deque[object] = deque()
        """Bytes in memory, and slices of files."""
        self.memory_bytes: i64 = 0
        """The bytes of responses in memory; slices of files take none."""
        self.is_reading = False
        """Whether a thread reads the data that is sent next."""
        self.is_last = False
        """Whether the connection is closed after the responses to its earlier requests."""
        self.close_reason = ""
        self._slice_sent: i64 = 0
        """The bytes of the first slice that are sent."""
        self._cached_end: i64 = 0
        """The position up to which the current file slice was found in the page cache."""
        self._ahead_fd: int = -1
        """The file descriptor that is read ahead for this reader of old data; -1 if none.

        It is not the file object: an idle reader must not keep a deleted segment open.
        """
        self._ahead_end: i64 = 0
        """The position up to which the file is read ahead."""

    def is_empty(self) -> bool:
        return not self._pieces and self._transport.unsent == 0

    def add(self, pieces: list[object]) -> None:
        for piece in pieces:
            self._pieces.append(piece)
            if isinstance(piece, bytes):
                self.memory_bytes += len(piece)

    def clear(self) -> None:
        self._pieces.clear()

    def close_when_sent(self, reason: str) -> None:
        self.is_last = True
        self.close_reason = reason
        self._close_if_sent()

    def _close_if_sent(self) -> None:
        if self.is_last and not self._connection.exchanges and self.is_empty():
            self._plane.close(self._connection, self.close_reason)

    def send(self) -> None:
        """Send until the socket is full, or other connections must be served."""
        connection = self._connection
        plane = self._plane
        transport = self._transport
        left: i64 = transport.step_bytes if plane.schedule.send_left > 0 else SHORT_STEP_BYTES
        try:
            while self._pieces and not connection.closed and not self.is_reading:
                if left <= 0:
                    connection.watch(connection.events | EPOLLOUT)
                    return
                piece = self._pieces[0]
                if isinstance(piece, bytes):
                    left -= self._send_bytes(piece)
                elif isinstance(piece, FileSlice):
                    left -= self._send_file(piece, left)
                else:
                    assert isinstance(piece, Slice)
                    self._load(piece)
            if transport.unsent > 0 and not connection.closed:
                transport.flush()
        except BlockingIOError:
            connection.watch(connection.events | EPOLLOUT)
            return
        except ConnectionError:
            plane.close(connection, "")
            return
        except OSError as error:
            plane.close(connection, f"write failed: {error.strerror}")
            return
        if connection.events & EPOLLOUT:
            connection.watch(connection.events & ~EPOLLOUT)
        if self.is_last:
            self._close_if_sent()

    def _send_bytes(self, data: bytes) -> i64:
        """Send adjacent pieces in memory with one call."""
        pieces = self._pieces
        pieces.popleft()
        adjacent = [data]
        more = False
        # Use a local: mypyc would treat a second pieces[0] as the first one.
        while pieces:
            following: object = pieces[0]
            if not isinstance(following, bytes):
                more = True
                break
            if len(adjacent) == SEND_GATHER_MAX:
                break
            adjacent.append(following)
            pieces.popleft()
        if len(adjacent) > 1:
            data = b"".join(adjacent)
        try:
            sent: i64 = self._transport.send(data, more)
        except BlockingIOError:
            pieces.appendleft(data)
            raise
        self.memory_bytes -= sent
        self._connection.progressed_at = self._plane.now
        if sent < len(data):
            pieces.appendleft(data[sent:])
        return sent

    def _send_file(self, piece: FileSlice, size_max: i64) -> i64:
        at: i64 = piece.position + self._slice_sent
        left: i64 = piece.size - self._slice_sent
        fd: int = piece.file.fd
        if fd == self._ahead_fd and size_max > SHORT_STEP_BYTES:
            # Data from disk is sent in short steps: see _read_further.
            size_max = SHORT_STEP_BYTES
        size: i64 = left if left < size_max else size_max
        if self._slice_sent == 0 or at + size > self._cached_end:
            if left > PROBE_BYTES_MAX:
                left = size if size > PROBE_BYTES_MAX else PROBE_BYTES_MAX
            if not is_cached(fd, at, left):
                self._warm(piece, at)
                return 0
            self._cached_end = at + left
        sent: i64 = self._transport.send_slice(piece.file, at, size)
        if sent == 0:
            # The segment is shorter than announced: it was truncated while a slow reader read it.
            self._plane.close(self._connection, "the log was truncated during this read")
            return 0
        self._slice_sent += sent
        self._plane.schedule.send_left -= sent
        self._connection.progressed_at = self._plane.now
        if self._slice_sent == piece.size:
            self._slice_sent = 0
            self._pieces.popleft()
        if fd == self._ahead_fd and at + READ_AHEAD_BYTES > self._ahead_end:
            self._read_further(piece.file)
        if sent < size and not self.is_reading:
            # Do not try again now: the call would send little, or fail.
            raise BlockingIOError(errno.EAGAIN, "the socket is full")
        return sent

    def _load(self, piece: Slice) -> None:
        """Have a thread read a slice that is not in a local file, then send its bytes."""
        self.is_reading = True

        def done(data: object, error: BaseException | None) -> None:
            self.is_reading = False
            if self._connection.closed:
                return
            if not isinstance(data, bytes) or len(data) != piece.size:
                reason = error or "it is too short"
                self._plane.close(self._connection, f"read of a slice failed: {reason}")
                return
            self._pieces[0] = data
            self.memory_bytes += len(data)
            self._plane.resume(self._connection)

        self._plane.reader.submit(piece.read, done)

    def _warm(self, piece: FileSlice, at: i64) -> None:
        """Read the next stretch of the file into the page cache, on a thread."""
        file = piece.file
        self._ahead_fd = file.fd
        self._ahead_end = at + READ_AHEAD_BYTES
        end: i64 = piece.position + piece.size

        def job() -> object:
            warm(file.fd, at, end)
            return False

        self._send_after(job, file.fd)

    def _read_further(self, file: LogFile) -> None:
        """Read the next stretch from disk on a thread. Sending continues after that.

        If the stretch is already in the page cache, reading ahead ends. Sending pauses after each
        stretch, because other threads need the cores.
        """
        at: i64 = self._ahead_end
        self._ahead_end = at + STRETCH_BYTES

        def job() -> object:
            if is_cached(file.fd, at, 1):
                return True
            read_ahead(file.fd, at)
            return False

        self._send_after(job, file.fd)

    def _send_after(self, job: Callable[[], object], fd: int) -> None:
        """Run a job on a thread, then send more. The job returns whether reading ahead ends."""
        self.is_reading = True

        def job_if_open() -> object:
            return self._connection.closed or job()

        def done(is_finished: object, error: BaseException | None) -> None:
            self.is_reading = False
            if is_finished is True and self._ahead_fd == fd:
                self._ahead_fd = -1
            if error is not None:
                self._plane.close(self._connection, f"read of the log failed: {error}")
            elif not self._connection.closed:
                self._plane.resume(self._connection)

        self._plane.reader.submit(job_if_open, done)
