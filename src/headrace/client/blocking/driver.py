"""Runs the engine with non-blocking sockets, in the thread of the program.

The engine makes all decisions. Sockets are read and written, and timers run, only during calls of
the program. `_TlsSocket` encrypts a connection.

1. Between two calls, the engine's clock advances by at most 1 s. So a response that arrived between
   them is not late.
2. If two threads use a client simultaneously, it raises RuntimeError.
"""

import errno
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import SystemRandom
from struct import Struct
from typing import Any, Protocol, TypeVar

from headrace.client.core.engine import Engine
from headrace.client.core.network import Effect, Open, Write
from headrace.client.core.operation import Operation, Outcome
from headrace.client.core.options import ClientOptions
from headrace.client.core.sockets import describe_failure, set_socket_options
from headrace.client.core.wait_reports import ReportTimer, WaitReason
from headrace.model.topics import TopicPartition

T = TypeVar("T")
_READ_SIZE = 1 << 20
_LONG_READ_SIZE_MAX = 1 << 26
# The longest time that reading the rest of a response can delay all other work.
_READ_WAIT_MS_MAX = 20
_TIMEVAL = Struct("ll")
_BUFFERS_PER_WRITE_MAX = 64
_CLOCK_GAP_MS_MAX = 1_000.0
_REPORT_CHECK_MS = 500.0
_APPEND_IO_INTERVAL_MS = 2.0
_HEARTBEAT_GAP_S = 1.0
_IO_GAP_S = 0.1
_USED_BY_TWO_THREADS = "a blocking client can be used by only one thread at a time"


class Awaited(Protocol):
    @property
    def done(self) -> bool: ...


OnPartitions = Callable[[tuple[TopicPartition, ...]], None]
"""A function of the program. Its argument is a tuple of partitions."""


def notify(callback: OnPartitions | None, partitions: tuple[TopicPartition, ...]) -> None:
    """Call a callback of the program, if it is set."""
    if callback is not None:
        callback(partitions)


class DriverFactory:
    """The base class of Client that creates its driver."""

    _report: Callable[[float, str], None] | None = None

    def report_waiting(self, report: Callable[[float, str], None]) -> None:
        """Call `report(seconds, reason)` while a call waits: after 2 s, then less often.

        For commands and programs with a user; call it before the client is opened.
        """
        self._report = report

    def _new_driver(self, options: ClientOptions) -> "Driver":
        return Driver(options, self._report)


class TimeBetweenCalls:
    """Does the I/O that was delayed between two calls of the program."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._last_io_s = time.monotonic()

    def call_started(self, request_heartbeat: Callable[[], None]) -> None:
        """Do the delayed I/O. After a long gap, also send a heartbeat."""
        gap_s = time.monotonic() - self._last_io_s
        if gap_s >= _HEARTBEAT_GAP_S:
            # The coordinator measures the complete gap, but the engine's clock does not.
            request_heartbeat()
        if gap_s >= _IO_GAP_S:
            self._driver.do_io()
            self.call_waited()

    def call_waited(self) -> None:
        self._last_io_s = time.monotonic()


class Driver:
    def __init__(
        self, options: ClientOptions, report: Callable[[float, str], None] | None = None
    ) -> None:
        self._skipped_ms = 0.0
        self._last_call_ms = time.monotonic() * 1000
        self._busy = threading.Lock()
        self.engine = Engine(options, random=SystemRandom(), now_ms=self.now_ms())
        self._tls = options.ssl
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[int, _Socket] = {}
        self.report = report
        """Called with the seconds and the reason while a call waits."""
        self._io_ms = 0.0
        self._report_timer = ReportTimer()
        self._report_check_ms = 0.0

    def now_ms(self) -> float:
        """The time of the engine."""
        now_ms = time.monotonic() * 1000
        if not self._busy.locked():
            now_ms = min(now_ms, self._last_call_ms + _CLOCK_GAP_MS_MAX)
        return now_ms - self._skipped_ms

    @contextmanager
    def _working(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(_USED_BY_TWO_THREADS)
        try:
            gap_ms = time.monotonic() * 1000 - self._last_call_ms
            self._skipped_ms += max(gap_ms - _CLOCK_GAP_MS_MAX, 0)
            yield
        finally:
            self._last_call_ms = time.monotonic() * 1000
            self._busy.release()

    def run(self, operation: Operation[T]) -> T:
        """Run an operation. If the wait is interrupted, the operation is cancelled."""
        if self._busy.locked():
            raise RuntimeError(_USED_BY_TWO_THREADS)
        outcome = self.engine.start(operation)
        try:
            return self.wait(outcome)
        finally:
            if not outcome.done:
                self.engine.cancel(outcome)

    def wait(self, outcome: Outcome[T]) -> T:
        self.do_io_until(outcome)
        return outcome.result()

    def do_io_until(
        self, awaited: Awaited, deadline_ms: float | None = None, *, is_poll: bool = False
    ) -> bool:
        """Do I/O until something is done or the deadline has passed; returns whether it is done.

        With `is_poll`, waiting is normal: only errors are reported, not missing responses.
        """
        with self._working():
            self._select(0)
            started_ms = self.now_ms()
            while True:
                self._carry_out(self.engine.poll(self.now_ms()))
                if awaited.done:
                    return True
                now_ms = self.now_ms()
                if deadline_ms is not None and now_ms >= deadline_ms:
                    return False
                times = [self.engine.next_wakeup_ms(), deadline_ms]
                if self.report is not None:
                    self._report_wait(None if is_poll else started_ms, now_ms)
                    times.append(self._report_check_ms)
                wake_ms = min((at_ms for at_ms in times if at_ms is not None), default=None)
                self._select(None if wake_ms is None else max(wake_ms - now_ms, 0) / 1000)

    def _report_wait(self, started_ms: float | None, now_ms: float) -> None:
        """Report why a call waits. With `started_ms`, a missing response is also a reason."""
        if now_ms < self._report_check_ms:
            return
        self._report_check_ms = now_ms + _REPORT_CHECK_MS
        waiting = self.engine.retry_cause()
        if started_ms is not None:
            reason = waiting.reason if waiting is not None else self.engine.oldest_wait()
            waiting = WaitReason(started_ms, reason) if reason else None
        if self._report_timer.is_due(now_ms, None if waiting is None else waiting.since_ms):
            assert self.report is not None
            assert waiting is not None
            self.report((now_ms - waiting.since_ms) / 1000, waiting.reason)

    def poll_until(self, ready: Outcome[None], deadline_ms: float | None) -> bool:
        """Wait until `ready` is done. Returns False after the deadline."""
        is_ready = self.do_io_until(ready, deadline_ms, is_poll=True)
        ready.abandoned = ready.abandoned or not is_ready
        return is_ready

    def do_io(self) -> None:
        """Do the I/O that is possible without waiting."""
        with self._working():
            self._select(0)
            self._carry_out(self.engine.poll(self.now_ms()))

    def wake(self) -> None:
        """Let the engine start new work. The next call of the program does it."""

    def record_appended(self, is_full: bool, now_ms: float) -> None:
        """A record was added to a batch. Do I/O if the batch is full, but at least every 2 ms."""
        if is_full or now_ms - self._io_ms >= _APPEND_IO_INTERVAL_MS:
            self.do_io()
            self._io_ms = self.now_ms()

    def close(self) -> None:
        if not self.engine.closed:
            self._carry_out(self.engine.close(self.now_ms()))
            for link in list(self._sockets):
                self._drop(link)
            self._selector.close()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Open):
                self._open(effect)
            elif isinstance(effect, Write):
                connection = self._sockets.get(effect.link)
                if connection is not None:
                    connection.output.extend(map(memoryview, effect.data))
                    self._flush(connection)
            else:
                self._drop(effect.link)

    def _select(self, timeout_s: float | None) -> None:
        for key, events in self._selector.select(timeout_s):
            connection: _Socket = key.data
            if self._sockets.get(connection.link) is not connection:
                continue
            if connection.opening:
                self._finish_opening(connection)
                continue
            if events & selectors.EVENT_READ:
                self._read(connection)
            if events & selectors.EVENT_WRITE and connection.link in self._sockets:
                self._flush(connection)

    # Opening. A host can have several addresses, which are tried sequentially.

    def _open(self, effect: Open) -> None:
        try:
            found = socket.getaddrinfo(effect.host, effect.port, type=socket.SOCK_STREAM)
        except OSError as error:
            self.engine.failed(effect.link, describe_failure(error), self.now_ms())
            return
        addresses: deque[tuple[int, Any]] = deque((entry[0], entry[4]) for entry in found)
        if self._tls is None:
            connection = _Socket(effect.link, addresses)
        else:
            connection = _TlsSocket(effect.link, addresses, self._tls, effect.host)
        self._sockets[effect.link] = connection
        self._open_next(connection, OSError(f"{effect.host} has no address"))

    def _open_next(self, connection: "_Socket", failure: OSError) -> None:
        while connection.addresses:
            family, address = connection.addresses.popleft()
            try:
                connection.connect(family, address)
            except OSError as error:
                connection.close()
                failure = error
                continue
            self._selector.register(connection.socket, selectors.EVENT_WRITE, connection)
            return
        del self._sockets[connection.link]
        self.engine.failed(connection.link, describe_failure(failure), self.now_ms())

    def _finish_opening(self, connection: "_Socket") -> None:
        before = connection.socket
        try:
            events = connection.advance()
        except OSError as error:
            self._selector.unregister(before)
            connection.close()
            self._open_next(connection, error)
            return
        # The TLS handshake replaces the socket object.
        self._selector.unregister(before)
        self._selector.register(connection.socket, events or selectors.EVENT_READ, connection)
        if events:
            return
        self.engine.opened(connection.link, self.now_ms())

    # Reading and writing.

    def _read(self, connection: "_Socket") -> None:
        try:
            data = connection.read(self.engine.bytes_to_read(connection.link))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(connection, describe_failure(error))
            return
        if data:
            self.engine.received(connection.link, data, self.now_ms())
        else:
            self._lost(connection, "the broker closed the connection")

    def _flush(self, connection: "_Socket") -> None:
        try:
            connection.write()
        except OSError as error:
            self._lost(connection, describe_failure(error))
            return
        events = selectors.EVENT_READ
        if connection.output:
            events |= selectors.EVENT_WRITE
        if events != connection.events:
            connection.events = events
            self._selector.modify(connection.socket, events, connection)

    def _lost(self, connection: "_Socket", reason: str) -> None:
        self._drop(connection.link)
        self.engine.lost(connection.link, reason, self.now_ms())

    def _drop(self, link: int) -> None:
        connection = self._sockets.pop(link, None)
        if connection is None:
            return
        # Ctrl-C can interrupt `_open` before the socket exists or is registered.
        with suppress(AttributeError, KeyError):
            self._selector.unregister(connection.socket)
        with suppress(AttributeError):
            connection.close()


class _Socket:
    """One socket. Only `read` can block: for the rest of a long response, for at most 20 ms."""

    def __init__(self, link: int, addresses: deque[tuple[int, Any]]) -> None:
        self.link = link
        self.addresses = addresses
        self.opening = True
        self.output: deque[memoryview] = deque()
        self.events = selectors.EVENT_READ
        self.socket: socket.socket

    def connect(self, family: int, address: Any) -> None:
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        code = self.socket.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, "")

    def advance(self) -> int:
        """Continue to open. Returns the events to wait for, or 0 if the connection is open."""
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, "")
        set_socket_options(self.socket)
        self.opened()
        return 0

    def opened(self) -> None:
        self.opening = False
        self.socket.setblocking(True)
        timeout = _TIMEVAL.pack(0, _READ_WAIT_MS_MAX * 1000)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    def read(self, wanted: int) -> bytes:
        """Read `wanted` bytes, or fewer if they are delayed; if 0, the available bytes."""
        if wanted:
            return self.socket.recv(min(wanted, _LONG_READ_SIZE_MAX), socket.MSG_WAITALL)
        return self.socket.recv(_READ_SIZE, socket.MSG_DONTWAIT)

    def write(self) -> None:
        """Write as many bytes as the kernel accepts."""
        output = self.output
        while output:
            pieces = [output[at] for at in range(min(len(output), _BUFFERS_PER_WRITE_MAX))]
            try:
                sent = self.socket.sendmsg(pieces, (), socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            while sent:
                piece = output[0]
                if sent < len(piece):
                    output[0] = piece[sent:]
                    return
                sent -= len(piece)
                output.popleft()
            while output and not len(output[0]):
                output.popleft()

    def close(self) -> None:
        self.socket.close()


class _TlsSocket(_Socket):
    """One encrypted socket. It never blocks."""

    def __init__(
        self, link: int, addresses: deque[tuple[int, Any]], context: ssl.SSLContext, host: str
    ) -> None:
        super().__init__(link, addresses)
        self._context = context
        self._host = host
        self._tls: ssl.SSLSocket | None = None

    def connect(self, family: int, address: Any) -> None:
        self._tls = None
        super().connect(family, address)

    def advance(self) -> int:
        if self._tls is None:
            super().advance()
            self.opening = True
        tls = self._tls
        assert tls is not None
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        self.opening = False
        return 0

    def opened(self) -> None:
        self.socket = self._tls = self._context.wrap_socket(
            self.socket, server_hostname=self._host, do_handshake_on_connect=False
        )

    def read(self, wanted: int) -> bytes:
        """Read the bytes that have arrived.

        Reads all bytes that OpenSSL has buffered, because the selector does not report them.
        """
        tls = self._tls
        assert tls is not None
        limit = min(max(wanted, _READ_SIZE), _LONG_READ_SIZE_MAX)
        pieces: list[bytes] = []
        size = 0
        while size < limit or tls.pending():
            try:
                data = tls.recv(limit)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not pieces:
                    raise BlockingIOError from None
                break
            if not data:
                break
            pieces.append(data)
            size += len(data)
        return b"".join(pieces)

    def write(self) -> None:
        output = self.output
        while output:
            piece = output[0]
            if len(piece):
                try:
                    sent = self.socket.send(piece)
                except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    return
                if sent < len(piece):
                    output[0] = piece[sent:]
                    continue
            output.popleft()
