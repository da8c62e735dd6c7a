"""One client connection: reads requests, and queues their responses.  # HOT

Reads go through one scratch buffer that all connections share. The bytes of a read become one
`bytes` object, from which requests are parsed in place. Responses are queued in the order of their
requests; `ResponseQueue` sends them.

1. The connection holds at most the unparsed input of one read. It reads nothing while it cannot
   parse.
"""

from typing import TYPE_CHECKING, final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from headrace.model.errors import ApiError
from headrace.runtime.exchange import Exchange, Peer
from headrace.security.session import ANONYMOUS_SESSION, Session
from headrace.server.foreign import reason_to_reject
from headrace.server.read_buffers import LargeRequest
from headrace.server.response_queue import ResponseQueue
from headrace.server.transport import Transport
from headrace.wire.apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from headrace.wire.cursor import MalformedRequest

if TYPE_CHECKING:
    from headrace.server.plane import Plane

EPOLLIN = 0x001
EPOLLRDHUP = 0x2000
REQUEST_SIZE_MIN = 8
SMALL_FRAME_BYTES_MAX = 64 * 1024
LARGE_START_BYTES = 256 * 1024
PROGRESS_BYTES_MIN = 64 * 1024
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
        """Whether parsing pauses until responses are sent. `input` can have complete requests."""
        self.large: LargeRequest | None = None
        """A request that is larger than one read, until all of it has arrived."""
        self.input_held: i64 = 0
        """The bytes of `input` in the memory budget."""
        self.responses = ResponseQueue(self, plane, transport)
        self.is_writable = False
        """Whether it is in the list of connections that can send more."""
        self.is_queued = False
        """Whether it is in the list of connections to serve in this loop iteration."""
        self.is_postponed = False
        """Whether it is in the list of connections to continue after the others."""
        self.progressed_at: float = now
        """The time of the last request, 64 KiB of a large request, or sent bytes."""

    # Reading.

    def can_parse(self) -> bool:
        return not (
            self.muted
            or self.quota.is_throttled
            or self.closed
            or self.responses.is_last
            or self.responses.memory_bytes > self.plane.response_bytes_max
            or len(self.exchanges) >= EXCHANGES_MAX
            or (len(self.exchanges) > 0 and self.plane.memory.defers_too_much())
        )

    def readable(self) -> None:
        """Read from the socket once, and handle the complete requests."""
        if not self.has_backlog:
            self.work = 0
        if self.has_backlog or not self.can_parse():
            self.pause_reading(False)
            return
        large = self.large
        if large is not None:
            self._read_large(large)
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
        return bytes(self.plane.buffers.scratch[:size])

    def pause_reading(self, has_ended: bool) -> None:
        """Stop reading input that cannot be parsed yet, but notice the end of the connection.

        Requests that arrived before the end are executed: a client that sends with acks=0 can
        disconnect immediately.
        """
        try:
            no_more_input = self.transport.is_ended()
        except OSError:
            self.plane.close(self, "")
            return
        if no_more_input and not self.has_backlog and not self.quota.wait.request:
            self.plane.close(self, "")
            return
        if has_ended or no_more_input:
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
                self._end(reason_to_reject(data, at, length))
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
            if self.closed or self.responses.is_last:
                return
        self.input = data[at:] if at < size else b""
        self.input_at = 0
        if at > 0:
            self.progressed_at = self.plane.now
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
        """Whether it uses memory for a request until the peer sends or reads more."""
        return (self.large is not None or self.input_held > 0) and not self.quota.is_throttled

    def _handle(self, data: bytes, at: i64, end: i64) -> None:
        if self.expires_at > 0.0 and self.plane.now >= self.expires_at and not _is_login(data, at):
            self.plane.close(self, "its session has expired, and it did not log in again")
            return
        before: i64 = len(self.exchanges)
        try:
            self.plane.request(self, data, at, end)
        except (MalformedRequest, ApiError) as error:
            # Raised only if the response of the API has no field for the error.
            while len(self.exchanges) > before:
                self.plane.ends.end(self.exchanges.pop())
            self._end(str(error))

    def _end(self, reason: str) -> None:
        """Parse nothing more. Close the connection after the responses to earlier requests."""
        self.input = b""
        self.input_at = 0
        self.responses.close_when_sent(reason)

    def _begin_large(self, data: bytes, at: i64, size: i64) -> None:
        self.input = b""
        self.input_at = 0
        have = data[at:]
        large = LargeRequest(size, len(have))
        self.large = large
        memory = self.plane.memory
        memory.incomplete[self] = None
        self.progressed_at = self.plane.now
        buffer = self.plane.buffers.spare(size, large.received)
        if not memory.grow(self, len(buffer)):
            # No memory is left: keep the bytes of one small read, and wait.
            memory.wait(self)
            large.buffer = bytearray(have)
            return
        large.held = len(buffer)
        buffer[: len(have)] = have
        large.buffer = buffer

    def _read_large(self, large: LargeRequest) -> None:
        buffer = large.buffer
        capacity: i64 = len(buffer)
        if large.received == capacity:
            capacity = max(capacity * 2, LARGE_START_BYTES)
            if capacity > large.size:
                capacity = large.size
            if not self.plane.memory.grow(self, capacity - large.held):
                self.plane.memory.wait(self)
                self.watch(self.events & ~EPOLLIN)
                return
            large.held = capacity
            buffer.extend(bytes(capacity - large.received))
        end: i64 = capacity if capacity < large.size else large.size
        try:
            with memoryview(buffer) as view:
                size: i64 = self.transport.receive_into(view[large.received : end])
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
        large.received += size
        if large.received - large.received_at_progress >= PROGRESS_BYTES_MIN:
            large.received_at_progress = large.received
            self.progressed_at = self.plane.now
        if large.received == large.size:
            self._end_large(large)
        if self.transport.pending > 0:
            # No event of the socket announces these bytes.
            self.plane.postpone(self)

    def _end_large(self, large: LargeRequest) -> None:
        """Handle a large request; its memory is counted until its response."""
        with memoryview(large.buffer) as view:
            data = bytes(view[: large.size])
        self.large = None
        del self.plane.memory.incomplete[self]
        if large.held > large.size:
            self.plane.release_memory(self, large.held - large.size)
        self.plane.buffers.keep(large.buffer)
        self._handle_counted(data)

    def _handle_counted(self, data: bytes) -> None:
        """Handle a request that is counted in the memory budget."""
        self.progressed_at = self.plane.now
        size: i64 = len(data)
        before: i64 = len(self.exchanges)
        self._handle(data, 0, size)
        if self.closed:
            return
        if self.quota.wait.request:
            self.quota.counted_bytes = size
        elif len(self.exchanges) > before:
            self.exchanges[-1].request_bytes = size
        else:
            self.plane.release_memory(self, size)

    def handle_held(self) -> None:
        """Handle the request that waited for the quota of its client."""
        data = self.quota.take_request()
        if self.quota.counted_bytes > 0:
            self.quota.counted_bytes = 0
            self._handle_counted(data)
        else:
            self._handle(data, 0, len(data))

    # Responses.

    def collect(self) -> None:
        """Queue the responses that are complete, up to the first one that is not."""
        exchanges = self.exchanges
        while exchanges:
            pieces = exchanges[0].pieces
            if pieces is None:
                return
            exchange = exchanges.popleft()
            self.plane.ends.end(exchange)
            if exchange.request_bytes > 0:
                self.plane.release_memory(self, exchange.request_bytes)
                exchange.request_bytes = 0
            self.responses.add(pieces)

    def drop_unsent(self) -> None:
        """Discard unsent responses when the connection is closed: the client does not read them."""
        self.transport.reset_on_close()

    def throttle(self, throttle_ms: i64) -> None:
        self.plane.throttling.throttle(self, throttle_ms)

    def fail(self, reason: str) -> None:
        self.plane.close(self, reason)

    def defer(self, exchange: Exchange, kept_bytes: i64) -> None:
        self.plane.defer(self, exchange, kept_bytes)


def _is_login(data: bytes, at: i64) -> bool:
    key: i64 = i64(read_i16_be(data, at))
    return key in (SASL_HANDSHAKE, SASL_AUTHENTICATE)
