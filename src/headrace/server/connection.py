"""One client connection: reads requests, writes responses.  # HOT

Reads go through one scratch buffer that all connections share. The bytes of a read become one
`bytes` object, from which requests are parsed in place. Responses are sent in the order of their
requests, through the connection's transport. A file slice that is not in the page cache is read by
a thread first, so that one reader of old data does not delay the others.

1. The connection holds at most the unparsed input of one read. It reads nothing while it cannot
   parse.
2. Bytes are sent in the order in which their exchanges were queued.
"""

import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from headrace.log.file import FileSlice, LogFile, Slice
from headrace.model.errors import ApiError
from headrace.runtime.exchange import Exchange, Peer
from headrace.security.session import ANONYMOUS_SESSION, Session
from headrace.server.cache import (
    READ_AHEAD_BYTES,
    STRETCH_BYTES,
    is_cached,
    read_ahead,
    warm,
)
from headrace.server.foreign import reason_to_reject
from headrace.server.transport import SHORT_STEP_BYTES, Transport
from headrace.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.cursor import MalformedRequest

if TYPE_CHECKING:
    from headrace.server.plane import Plane

EPOLLIN = 0x001
EPOLLOUT = 0x004
EPOLLRDHUP = 0x2000
REQUEST_SIZE_MIN = 8
SMALL_FRAME_BYTES_MAX = 64 * 1024
LARGE_START_BYTES = 256 * 1024
PROGRESS_BYTES_MIN = 64 * 1024
SEND_GATHER_MAX = 512
PROBE_BYTES_MAX = 256 * 1024
"""The bytes of a file that one check of the page cache covers, unless a step is longer."""
EXCHANGES_MAX = 1000
WORK_MAX = 5000


@final
class Connection(Peer):
    def __init__(
        self,
        plane: "Plane",
        transport: Transport,
        name: str,
        listener: str,
        is_internal: bool,
        now: float,
        session: Session = ANONYMOUS_SESSION,
    ) -> None:
        super().__init__(plane.completed)
        self.plane = plane
        self.transport = transport
        self.fd: int = transport.fd
        self.name = name
        self.listener = listener
        self.is_internal = is_internal
        self.session = session
        self.expires_at: float = session.expires_at
        """The time by which its client must log in again; 0 if it need not."""
        self.principal = session.principal
        self.host = name.rpartition(":")[0].strip("[]")
        self.events: i64 = EPOLLIN | EPOLLRDHUP
        self.input = b""
        self.input_at: i64 = 0
        self.has_backlog = False
        """Complete requests can remain in `input`: parsing stopped until responses are sent."""
        self.large: bytearray | None = None
        self.large_size: i64 = 0
        self.large_fill: i64 = 0
        self.marked_fill: i64 = 0
        """The received bytes of the large request at `moved_at`."""
        self.large_held: i64 = 0
        """The bytes of the large request in the memory budget."""
        self.input_held: i64 = 0
        """The bytes of `input` in the memory budget."""
        self.out: deque[object] = deque()
        self.out_bytes: i64 = 0
        """The bytes of responses in memory; file slices take none."""
        self.slice_sent: i64 = 0
        self.cached_end: i64 = 0
        """The position up to which the current file slice was found in the page cache."""
        self.is_warming = False
        self.ahead_fd: int = -1
        """The file that is read ahead for this reader of old data, and up to which position.

        A number, not the file: an idle reader must not keep a deleted segment.
        """
        self.ahead_end: i64 = 0
        self.is_writable = False
        """Whether it is in the plane's list of connections that can send more."""
        self.is_sending = False
        """Whether it is in the plane's list of connections to serve in this loop iteration."""
        self.is_postponed = False
        """Whether it is in the plane's list of connections to continue after the others."""
        self.is_throttled = False
        """Not read until `throttled_until`: its client is beyond its quota."""
        self.throttled_until: float = 0.0
        self.limits_client = b""
        self.limits_version: i64 = -1
        """The client id and the version of the quotas that `limits` belong to."""
        self.moved_at: float = now
        """The last time of progress: a request, much of a large one, or sent response bytes."""

    # Reading.

    def can_parse(self) -> bool:
        return not (
            self.muted
            or self.is_throttled
            or self.closed
            or self.out_bytes > self.plane.response_bytes_max
            or len(self.exchanges) >= EXCHANGES_MAX
            or (len(self.exchanges) > 0 and self.plane.memory.defers_too_much())
        )

    def readable(self) -> None:
        if not self.has_backlog:
            self.work = 0
        if self.has_backlog or not self.can_parse():
            self.pause_reading(False)
            return
        if self.large is not None:
            self._read_large()
            return
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except ConnectionError:
            self.plane.close(self, "")
            return
        except OSError as error:
            self.plane.close(self, f"read failed: {error.strerror}")
            return
        if not data:
            self.plane.close(self, "")
            return
        if self.input:
            data = self.input + data
        self.input = data
        self.input_at = 0
        self.parse()

    def _receive(self) -> bytes:
        size: i64 = self.transport.receive_into(self.plane.scratch_view())
        self.plane.turn_bytes += size
        return bytes(self.plane.scratch[:size])

    def pause_reading(self, has_ended: bool) -> None:
        """Stop reading input that cannot be parsed yet, but notice the end of the connection.

        Requests that arrived before the end are executed: a client that sends with acks=0 can
        disconnect immediately.
        """
        try:
            is_empty = self.transport.is_ended()
        except OSError:
            self.plane.close(self, "")
            return
        if is_empty and not self.has_backlog:
            self.plane.close(self, "")
            return
        if has_ended or is_empty:
            self.watch(self.events & ~(EPOLLIN | EPOLLRDHUP))
            self.plane.fetch.abandon(self)
        else:
            self.watch(self.events & ~EPOLLIN)

    def watch(self, events: i64) -> None:
        if events != self.events and not self.closed:
            self.events = events
            self.plane.epoll.modify(self.fd, events)

    def parse(self) -> None:
        """Handle every complete request in the input, while responses can be queued."""
        data = self.input
        at: i64 = self.input_at
        size: i64 = len(data)
        self.has_backlog = False
        if self.input_held > 0:
            self.plane.release_memory(self, self.input_held)
            self.input_held = 0
        while size - at >= 4:
            if self.work >= WORK_MAX or not self.can_parse():
                self._keep_backlog(data, at)
                return
            length: i64 = i64(read_i32_be(data, at))
            if length > self.plane.request_bytes_max or length < REQUEST_SIZE_MIN:
                self.plane.close(self, reason_to_reject(data, at, length))
                return
            if size - at - 4 < length:
                if length > SMALL_FRAME_BYTES_MAX:
                    self._begin_large(data, at + 4, length)
                    self._resume_reading()
                    return
                break
            at += 4 + length
            self.input_at = at
            self._handle(data, at - length, at)
            if self.closed:
                return
        self.input = data[at:] if at < size else b""
        self.input_at = 0
        if at > 0:
            self.moved_at = self.plane.now
        self._resume_reading()

    def _resume_reading(self) -> None:
        """Read again, after a pause while requests could not be parsed."""
        if self.events & EPOLLIN == 0 and self.can_parse():
            self.watch(self.events | EPOLLIN)

    def _keep_backlog(self, data: bytes, at: i64) -> None:
        """Parsing stops before `at`: keep the rest, and count it if it is large."""
        if at > len(data) // 2:
            data = data[at:]
            at = 0
        size: i64 = len(data)
        if size > SMALL_FRAME_BYTES_MAX and self.plane.memory.grow(self, size):
            self.input_held = size
        self.input = data
        self.input_at = at
        self.has_backlog = True
        if self.work >= WORK_MAX:
            self.plane.postpone(self)

    def is_incomplete(self) -> bool:
        """Whether its part of the memory budget waits for the peer."""
        return (self.large is not None or self.input_held > 0) and not self.is_throttled

    def _handle(self, data: bytes, at: i64, end: i64) -> None:
        if self.expires_at > 0.0 and self.plane.now >= self.expires_at and not _is_login(data, at):
            self.plane.close(self, "its session has expired, and it did not log in again")
            return
        try:
            self.plane.request(self, data, at, end)
        except (MalformedRequest, ApiError) as error:
            # If the response of the API has no field for the error, the connection is closed.
            self.plane.close(self, str(error))

    def _begin_large(self, data: bytes, at: i64, length: i64) -> None:
        self.input = b""
        self.input_at = 0
        self.large_size = length
        self.large_held = 0
        self.plane.memory.under_way[self] = None
        have = data[at:]
        self.large_fill = len(have)
        self.marked_fill = self.large_fill
        self.moved_at = self.plane.now
        buffer = self.plane.spare_buffer(length, self.large_fill)
        if not self.plane.memory.grow(self, len(buffer)):
            # No memory is left: keep the bytes of one small read, and wait.
            self.plane.memory.wait(self)
            self.large = bytearray(have)
            return
        self.large_held = len(buffer)
        buffer[: len(have)] = have
        self.large = buffer

    def _read_large(self) -> None:
        buffer = self.large
        assert buffer is not None
        capacity: i64 = len(buffer)
        if self.large_fill == capacity:
            capacity = max(capacity * 2, LARGE_START_BYTES)
            if capacity > self.large_size:
                capacity = self.large_size
            if not self.plane.memory.grow(self, capacity - self.large_held):
                self.plane.memory.wait(self)
                self.watch(self.events & ~EPOLLIN)
                return
            self.large_held = capacity
            buffer.extend(bytes(capacity - self.large_fill))
        end: i64 = capacity if capacity < self.large_size else self.large_size
        try:
            with memoryview(buffer) as view:
                size: i64 = self.transport.receive_into(view[self.large_fill : end])
        except BlockingIOError:
            return
        except ConnectionError:
            self.plane.close(self, "")
            return
        except OSError as error:
            self.plane.close(self, f"read failed: {error.strerror}")
            return
        if size == 0:
            self.plane.close(self, "the client closed the connection in the middle of a request")
            return
        self.plane.turn_bytes += size
        self.large_fill += size
        if self.large_fill - self.marked_fill >= PROGRESS_BYTES_MIN:
            self.marked_fill = self.large_fill
            self.moved_at = self.plane.now
        if self.large_fill == self.large_size:
            self._end_large(buffer)
        if self.transport.pending > 0:
            # No event of the socket announces these bytes.
            self.plane.postpone(self)

    def _end_large(self, buffer: bytearray) -> None:
        """Handle a large request; its memory is counted until its response."""
        with memoryview(buffer) as view:
            data = bytes(view[: self.large_size])
        self.large = None
        del self.plane.memory.under_way[self]
        if self.large_held > self.large_size:
            self.plane.release_memory(self, self.large_held - self.large_size)
        self.plane.keep_buffer(buffer)
        self._handle_large(data)

    def _handle_large(self, data: bytes) -> None:
        """`large_size` bytes of the memory budget are reserved for this request."""
        self.moved_at = self.plane.now
        before: i64 = len(self.exchanges)
        self._handle(data, 0, len(data))
        if self.closed:
            return
        if len(self.exchanges) > before:
            self.exchanges[-1].request_bytes = self.large_size
        else:
            self.plane.release_memory(self, self.large_size)

    # Responses.

    def collect(self) -> None:
        """Queue the responses that are complete, up to the first one that is not."""
        exchanges = self.exchanges
        while exchanges:
            pieces = exchanges[0].pieces
            if pieces is None:
                return
            answered = exchanges.popleft()
            self.plane.ends.end(answered)
            if answered.request_bytes > 0:
                self.plane.release_memory(self, answered.request_bytes)
                answered.request_bytes = 0
            for piece in pieces:
                self.out.append(piece)
                if isinstance(piece, bytes):
                    self.out_bytes += len(piece)

    def pump(self) -> None:
        """Send until the socket is full, or other connections must be served."""
        transport = self.transport
        left: i64 = transport.step_bytes if self.plane.send_left > 0 else SHORT_STEP_BYTES
        try:
            while self.out and not self.closed and not self.is_warming:
                if left <= 0:
                    self.watch(self.events | EPOLLOUT)
                    return
                piece = self.out[0]
                if isinstance(piece, bytes):
                    left -= self._send_bytes(piece)
                elif isinstance(piece, FileSlice):
                    left -= self._send_file(piece, left)
                else:
                    assert isinstance(piece, Slice)
                    self._load(piece)
            if transport.unsent > 0 and not self.closed:
                transport.flush()
        except BlockingIOError:
            self.watch(self.events | EPOLLOUT)
            return
        except ConnectionError:
            self.plane.close(self, "")
            return
        except OSError as error:
            self.plane.close(self, f"write failed: {error.strerror}")
            return
        if self.events & EPOLLOUT:
            self.watch(self.events & ~EPOLLOUT)

    def _send_bytes(self, data: bytes) -> i64:
        """Send adjacent pieces in memory with one call."""
        out = self.out
        out.popleft()
        pieces = [data]
        more = False
        # Use a local: mypyc would treat a second out[0] as the first one.
        while out:
            following: object = out[0]
            if not isinstance(following, bytes):
                more = True
                break
            if len(pieces) == SEND_GATHER_MAX:
                break
            pieces.append(following)
            out.popleft()
        if len(pieces) > 1:
            data = b"".join(pieces)
        try:
            sent: i64 = self.transport.send(data, more)
        except BlockingIOError:
            out.appendleft(data)
            raise
        self.out_bytes -= sent
        self.moved_at = self.plane.now
        if sent < len(data):
            out.appendleft(data[sent:])
        return sent

    def _send_file(self, piece: FileSlice, size_max: i64) -> i64:
        at: i64 = piece.position + self.slice_sent
        left: i64 = piece.size - self.slice_sent
        fd: int = piece.file.fd
        if fd == self.ahead_fd and size_max > SHORT_STEP_BYTES:
            # Data from disk is sent in short steps: see _read_on.
            size_max = SHORT_STEP_BYTES
        size: i64 = left if left < size_max else size_max
        if self.slice_sent == 0 or at + size > self.cached_end:
            if left > PROBE_BYTES_MAX:
                left = size if size > PROBE_BYTES_MAX else PROBE_BYTES_MAX
            if not is_cached(fd, at, left):
                self._warm(piece, at)
                return 0
            self.cached_end = at + left
        sent: i64 = self.transport.send_slice(piece.file, at, size)
        if sent == 0:
            # The segment is shorter than announced: it was truncated while a slow reader read it.
            self.plane.close(self, "the log was truncated during this read")
            return 0
        self.slice_sent += sent
        self.plane.send_left -= sent
        self.moved_at = self.plane.now
        if self.slice_sent == piece.size:
            self.slice_sent = 0
            self.out.popleft()
        if fd == self.ahead_fd and at + READ_AHEAD_BYTES > self.ahead_end:
            self._read_on(piece.file)
        if sent < size and not self.is_warming:
            # Another call would send little, or only report this.
            raise BlockingIOError(errno.EAGAIN, "the socket is full")
        return sent

    def _load(self, piece: Slice) -> None:
        """Have a thread read a slice that is not in a local file, then send its bytes."""
        self.is_warming = True

        def done(data: object, error: BaseException | None) -> None:
            self.is_warming = False
            if self.closed:
                return
            if not isinstance(data, bytes) or len(data) != piece.size:
                self.plane.close(self, f"read of a slice failed: {error or 'it is too short'}")
                return
            self.out[0] = data
            self.out_bytes += len(data)
            self.plane.resume(self)

        self.plane.reader.submit(piece.read, done)

    def _warm(self, piece: FileSlice, at: i64) -> None:
        """Read the next stretch of the file into the page cache, on a thread."""
        file = piece.file
        self.ahead_fd = file.fd
        self.ahead_end = at + READ_AHEAD_BYTES
        end: i64 = piece.position + piece.size

        def job() -> object:
            warm(file.fd, at, end)
            return False

        self._send_after(job, file.fd)

    def _read_on(self, file: LogFile) -> None:
        """Read ahead from disk, up to data in the page cache, and pause sending until then.

        Data from disk is sent one stretch at a time: other threads need the cores in between.
        """
        at: i64 = self.ahead_end
        self.ahead_end = at + STRETCH_BYTES

        def job() -> object:
            if is_cached(file.fd, at, 1):
                return True
            read_ahead(file.fd, at)
            return False

        self._send_after(job, file.fd)

    def _send_after(self, job: Callable[[], object], fd: int) -> None:
        """Continue after a job of a thread, which returns whether the next data is cached."""
        self.is_warming = True

        def job_if_open() -> object:
            return self.closed or job()

        def done(is_met: object, error: BaseException | None) -> None:
            self.is_warming = False
            if is_met is True and self.ahead_fd == fd:
                self.ahead_fd = -1
            if error is not None:
                self.plane.close(self, f"read of the log failed: {error}")
            elif not self.closed:
                self.plane.resume(self)

        self.plane.reader.submit(job_if_open, done)

    def drop_unsent(self) -> None:
        """Discard the responses that the client does not read, when the connection is closed."""
        self.transport.reset_on_close()

    def throttle(self, throttle_ms: i64) -> None:
        self.plane.throttle(self, throttle_ms)

    def fail(self, reason: str) -> None:
        self.plane.close(self, reason)

    def defer(self, exchange: Exchange, kept_bytes: i64) -> None:
        self.plane.defer(self, exchange, kept_bytes)


def _is_login(data: bytes, at: i64) -> bool:
    key: i64 = i64(read_i16_be(data, at))
    return key in (SASL_HANDSHAKE, SASL_AUTHENTICATE)
