"""Runs the engine with plain sockets, in the caller's thread.

It makes no decisions. Sockets are read and written, and timers run, only while a call waits.
`_TlsSocket` encrypts a connection.

1. The engine's clock stops while the program makes no call for long. So a response that has arrived
   in the meantime is not late.
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
from headrace.client.core.transport import describe_failure, tune
from headrace.client.core.waiting import Patience, Waiting
from headrace.model.topics import TopicPartition

T = TypeVar("T")
_READ_SIZE = 1 << 20
_WHOLE_SIZE_MAX = 1 << 26
# The longest time that the rest of a response can block all other work.
_STALL_MS_MAX = 20
_TIMEVAL = Struct("ll")
_PIECES_MAX = 64
_GAP_MS_MAX = 1_000.0
_LOOK_MS = 500.0
_WORK_INTERVAL_MS = 2.0
_AWAY_S = 1.0
_WORK_S = 0.1
_ONE_THREAD = "a blocking client can be used by only one thread at a time"


class Awaited(Protocol):
    @property
    def done(self) -> bool: ...


OnPartitions = Callable[[tuple[TopicPartition, ...]], None]
"""A function that receives partitions."""


def notify(callback: OnPartitions | None, partitions: tuple[TopicPartition, ...]) -> None:
    """Call a function of the program."""
    if callback is not None:
        callback(partitions)


class Opener:
    """The part of the client that creates its driver."""

    _report: Callable[[float, str], None] | None = None

    def report_waiting(self, report: Callable[[float, str], None]) -> None:
        """Call `report(seconds, reason)` while a call waits: after 2 s, then less often.

        For commands and programs with a user; call it before the client is opened.
        """
        self._report = report

    def _new_driver(self, options: ClientOptions) -> "Driver":
        return Driver(options, self._report)


class Absence:
    """The time that a program spends outside of calls, in which no I/O is done."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._worked_s = time.monotonic()

    def end(self, hurry: Callable[[], None]) -> None:
        """Do the work that was delayed while the program was busy."""
        away_s = time.monotonic() - self._worked_s
        if away_s >= _AWAY_S:
            # The engine's clock was stopped, but not the coordinator's.
            hurry()
        if away_s >= _WORK_S:
            self._driver.work()
            self.waited()

    def waited(self) -> None:
        self._worked_s = time.monotonic()


class Driver:
    def __init__(
        self, options: ClientOptions, report: Callable[[float, str], None] | None = None
    ) -> None:
        self._skipped_ms = 0.0
        self._left_ms = time.monotonic() * 1000
        self._busy = threading.Lock()
        self.engine = Engine(options, random=SystemRandom(), now_ms=self.now_ms())
        self._tls = options.ssl
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[int, _Socket] = {}
        self.report = report
        """Called while a call waits, with the seconds and the reason."""
        self._appended_ms = 0.0
        self._patience = Patience()
        self._look_ms = 0.0

    def now_ms(self) -> float:
        """The time of the engine."""
        now_ms = time.monotonic() * 1000
        if not self._busy.locked():
            now_ms = min(now_ms, self._left_ms + _GAP_MS_MAX)
        return now_ms - self._skipped_ms

    @contextmanager
    def _working(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(_ONE_THREAD)
        try:
            gap_ms = time.monotonic() * 1000 - self._left_ms
            self._skipped_ms += max(gap_ms - _GAP_MS_MAX, 0)
            yield
        finally:
            self._left_ms = time.monotonic() * 1000
            self._busy.release()

    def run(self, operation: Operation[T]) -> T:
        """Wait for an operation; if the wait is interrupted, the operation is cancelled."""
        if self._busy.locked():
            raise RuntimeError(_ONE_THREAD)
        outcome = self.engine.start(operation)
        try:
            return self.wait(outcome)
        finally:
            if not outcome.done:
                self.engine.cancel(outcome)

    def wait(self, outcome: Outcome[T]) -> T:
        self.work_until(outcome)
        return outcome.result()

    def work_until(
        self, awaited: Awaited, deadline_ms: float | None = None, *, is_poll: bool = False
    ) -> bool:
        """Do I/O until something is done or the deadline has passed; returns whether it is done.

        A poll can wait long without a problem: only errors are reported, not slow responses.
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
                    self._look(None if is_poll else started_ms, now_ms)
                    times.append(self._look_ms)
                wake_ms = min((at_ms for at_ms in times if at_ms is not None), default=None)
                self._select(None if wake_ms is None else max(wake_ms - now_ms, 0) / 1000)

    def _look(self, started_ms: float | None, now_ms: float) -> None:
        """Report why a call waits. With `started_ms`, a missing response is also a reason."""
        if now_ms < self._look_ms:
            return
        self._look_ms = now_ms + _LOOK_MS
        waiting = self.engine.retry_cause()
        if started_ms is not None:
            reason = waiting.reason if waiting is not None else self.engine.unanswered()
            waiting = Waiting(started_ms, reason) if reason else None
        if self._patience.is_due(now_ms, None if waiting is None else waiting.since_ms):
            assert self.report is not None
            assert waiting is not None
            self.report((now_ms - waiting.since_ms) / 1000, waiting.reason)

    def poll_until(self, ready: Outcome[None], deadline_ms: float | None) -> bool:
        """Wait for data; false after the deadline."""
        is_ready = self.work_until(ready, deadline_ms, is_poll=True)
        ready.abandoned = ready.abandoned or not is_ready
        return is_ready

    def work(self) -> None:
        """Do the I/O that is possible without waiting."""
        with self._working():
            self._select(0)
            self._carry_out(self.engine.poll(self.now_ms()))

    def wake(self) -> None:
        """The engine has new work; the next call does it."""

    def appended(self, is_full: bool, now_ms: float) -> None:
        """A record was added to a batch, which may be full: do I/O then, and every 2 ms."""
        if is_full or now_ms - self._appended_ms >= _WORK_INTERVAL_MS:
            self.work()
            self._appended_ms = self.now_ms()

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

    # Opening: try the addresses of the host one by one.

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

    def _open_next(self, connection: "_Socket", trouble: OSError) -> None:
        while connection.addresses:
            family, address = connection.addresses.popleft()
            try:
                connection.connect(family, address)
            except OSError as error:
                connection.close()
                trouble = error
                continue
            self._selector.register(connection.socket, selectors.EVENT_WRITE, connection)
            return
        del self._sockets[connection.link]
        self.engine.failed(connection.link, describe_failure(trouble), self.now_ms())

    def _finish_opening(self, connection: "_Socket") -> None:
        before = connection.socket
        try:
            events = connection.advance()
        except OSError as error:
            self._selector.unregister(before)
            connection.close()
            self._open_next(connection, error)
            return
        # A handshake replaces the socket object.
        self._selector.unregister(before)
        self._selector.register(connection.socket, events or selectors.EVENT_READ, connection)
        if events:
            return
        self.engine.opened(connection.link, self.now_ms())

    # Reading and writing.

    def _read(self, connection: "_Socket") -> None:
        try:
            data = connection.read(self.engine.wanted(connection.link))
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
    """One socket. A call waits only for the rest of a long response, for at most 20 ms."""

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
        """Continue to open; returns the events to wait for, or 0 if the connection is open."""
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, "")
        tune(self.socket)
        self.opened()
        return 0

    def opened(self) -> None:
        self.opening = False
        self.socket.setblocking(True)
        stall = _TIMEVAL.pack(0, _STALL_MS_MAX * 1000)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stall)

    def read(self, wanted: int) -> bytes:
        """Read that many bytes, or fewer if they are delayed; for 0, read all available bytes."""
        if wanted:
            return self.socket.recv(min(wanted, _WHOLE_SIZE_MAX), socket.MSG_WAITALL)
        return self.socket.recv(_READ_SIZE, socket.MSG_DONTWAIT)

    def write(self) -> None:
        """Write as many bytes as the kernel accepts."""
        output = self.output
        while output:
            pieces = [output[at] for at in range(min(len(output), _PIECES_MAX))]
            try:
                left = self.socket.sendmsg(pieces, (), socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            while left:
                piece = output[0]
                if left < len(piece):
                    output[0] = piece[left:]
                    return
                left -= len(piece)
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
        """Read what has arrived. OpenSSL must keep nothing, because the selector cannot see it."""
        tls = self._tls
        assert tls is not None
        limit = min(max(wanted, _READ_SIZE), _WHOLE_SIZE_MAX)
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
