"""The sockets of clients and of other brokers, in an epoll nested in the event loop.  # HOT

asyncio watches only this epoll's descriptor. A loop iteration (turn) reads all sockets with
input, and then writes, acknowledges and wakes long polls once for all requests. The hot APIs need
no task, future or callback per request. Turns are bounded, so that timers and tasks can run.
"""

import asyncio
import logging
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from headrace.handlers.fetch import FetchHandler
from headrace.handlers.offset_commit import CommitHandler
from headrace.handlers.produce import ProduceHandler
from headrace.replication.append_queue import AppendQueue
from headrace.replication.leader_sessions import LeaderSessions
from headrace.replication.produce_exchange import ProduceExchange
from headrace.runtime.exchange import Exchange
from headrace.runtime.quota import QuotaTable
from headrace.server.cold_requests import ColdHandler, ColdRequests
from headrace.server.connection import EPOLLIN, EPOLLRDHUP, Connection
from headrace.server.memory import RequestMemory
from headrace.server.read_buffers import SCRATCH_BYTES, ReadBuffers
from headrace.server.request_ends import Observe, RequestEnds
from headrace.server.response_queue import EPOLLOUT
from headrace.server.schedule import Schedule
from headrace.server.throttling import Throttling
from headrace.wire import fetch as fetch_codec
from headrace.wire import offset_commit as commit_codec
from headrace.wire import produce as produce_codec
from headrace.wire.apis import FETCH, OFFSET_COMMIT, PRODUCE
from headrace.wire.cursor import Cursor

if TYPE_CHECKING:
    from headrace.runtime.worker import Worker
    from headrace.server.listener import Listener

ROUNDS_MAX: Final = 64
ROUNDS_SECONDS_MAX: Final = 0.002
TURN_BYTES_MAX: Final = 8 * 1024 * 1024
SPIN_REQUESTS_MAX: Final = 2
SENDERS_PER_ROUND_MAX: Final = 4
EPOLLERR: Final = 0x008
EPOLLHUP: Final = 0x010

_log = logging.getLogger(__name__)


@final
class Plane:
    def __init__(
        self,
        *,
        appends: AppendQueue,
        produce: ProduceHandler,
        fetch: FetchHandler,
        sessions: LeaderSessions | None,
        commits: CommitHandler,
        cold: ColdHandler,
        reader: "Worker",
        monotonic: Callable[[], float],
        request_bytes_max: i64,
        queued_bytes_max: i64,
        response_bytes_max: i64,
        spin_seconds: float,
        quotas: QuotaTable,
        on_close: Callable[[Connection, str], None],
        observe: Observe | None = None,
    ) -> None:
        """`cold` handles all requests that are not of a hot API.

        `observe` is called at the end of each request: see request_ends.py.
        """
        self.appends = appends
        self.produce = produce
        self.fetch = fetch
        self.sessions = sessions
        self.commits = commits
        self._cold = ColdRequests(self, cold)
        self.reader = reader
        self.monotonic = monotonic
        self.request_bytes_max: i64 = request_bytes_max
        self.response_bytes_max: i64 = response_bytes_max
        self.spin_seconds: float = spin_seconds
        self.throttling = Throttling(self, quotas)
        self.on_close = on_close
        self.memory = RequestMemory(queued_bytes_max)
        self.epoll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.listeners: dict[int, Listener] = {}
        self.buffers = ReadBuffers()
        self.schedule = Schedule()
        self.turn_bytes: i64 = 0
        """The bytes read since the last flush, in this turn."""
        self.now: float = monotonic()
        self.ends = RequestEnds(observe, monotonic)
        self.is_draining = False
        self.completed: list[Exchange] = []
        """Exchanges of this loop iteration with a response; every connection adds to it."""

    # Turns.

    def run(self) -> None:
        """Called by the event loop when a socket is ready."""
        rounds: i64 = 0
        began: float = self.monotonic()
        while rounds < ROUNDS_MAX:
            rounds += 1
            events = self.epoll.poll(0, 256)
            if not events and 0 < self.ends.recent <= SPIN_REQUESTS_MAX and self.spin_seconds > 0:
                events = self._spin()
            if not events:
                return
            self.ends.recent = 0
            self.now = self.monotonic()
            if rounds > 1 and self.now - began > ROUNDS_SECONDS_MAX:
                return
            self.appends.update_time()
            self.schedule.begin_round()
            for fd, mask in events:
                connection = self.connections.get(fd)
                if connection is None:
                    listener = self.listeners.get(fd)
                    if listener is not None:
                        listener.accept()
                    continue
                try:
                    self._event(connection, mask)
                except Exception:  # noqa: BLE001 (other connections continue)
                    self.fault(connection)
                if self.turn_bytes > TURN_BYTES_MAX:
                    self.deliver()
            self.deliver()
            if self.schedule.writable_count() > 0:
                self._send_more()

    def _send_more(self) -> None:
        """Send one more step of each long response, after the responses to new requests."""
        schedule = self.schedule
        schedule.begin_round()
        for _ in range(min(schedule.writable_count(), SENDERS_PER_ROUND_MAX)):
            schedule.queue_writable()
            self.deliver()
            if schedule.send_left <= 0:
                return

    def _spin(self) -> list[tuple[int, int]]:
        """Poll for some time: the next request of a single client arrives sooner than a wake-up."""
        give_up: float = self.monotonic() + self.spin_seconds
        while self.monotonic() < give_up:
            events = self.epoll.poll(0, 256)
            if events:
                return events
        self.ends.recent = 0
        return []

    def fault(self, connection: Connection) -> None:
        """An internal error closes only the connection that caused it."""
        _log.exception("connection failed with an internal error: connection=%s", connection.name)
        self.close(connection, "an internal error of the broker")

    def _event(self, connection: Connection, mask: i64) -> None:
        if mask & EPOLLOUT:
            self.schedule.add_writable(connection)
        if mask & EPOLLIN and not connection.closed:
            connection.readable()
        elif mask & (EPOLLERR | EPOLLHUP) and not connection.closed:
            self.close(connection, "")
        elif mask & EPOLLRDHUP and not connection.closed:
            connection.pause_reading(True)

    def deliver(self) -> None:
        """End a turn: write, acknowledge, wake, send. Repeat while this allows more parsing."""
        appends = self.appends
        schedule = self.schedule
        self.turn_bytes = 0
        while True:
            appends.flush()
            if self.sessions is not None:
                self.sessions.retry_woken()
            self.fetch.retry_woken()
            if self.completed:
                completed = self.completed.copy()
                self.completed.clear()
                for exchange in completed:
                    connection = exchange.peer
                    assert isinstance(connection, Connection)
                    schedule.queue(connection)
                    self.memory.deferred -= exchange.deferred_bytes
                    exchange.deferred_bytes = 0
                    if connection.closed and exchange.request_bytes > 0:
                        self.release_memory(connection, exchange.request_bytes)
                        exchange.request_bytes = 0
            queued = schedule.take_queued()
            if not queued:
                return
            for connection in queued:
                try:
                    self._serve(connection)
                except Exception:  # noqa: BLE001 (other connections continue)
                    self.fault(connection)

    def defer(self, connection: Connection, exchange: Exchange, kept_bytes: i64) -> None:
        """Count only the remaining bytes of a waiting request in the memory budget."""
        exchange.deferred_bytes = kept_bytes
        self.memory.deferred += kept_bytes
        if exchange.request_bytes > 0:
            self.release_memory(connection, exchange.request_bytes)
            exchange.request_bytes = 0

    def _serve(self, connection: Connection) -> None:
        """Send complete responses, then handle the requests that waited for this."""
        connection.is_queued = False
        if connection.closed:
            return
        connection.collect()
        connection.responses.send()
        if connection.closed or not connection.can_parse() or self.is_draining:
            return
        if connection.has_backlog:
            if not connection.is_postponed:
                connection.parse()
            return
        if connection.events & EPOLLIN == 0:
            connection.watch(connection.events | EPOLLIN)
        if connection.transport.pending > 0:
            connection.readable()

    def resume(self, connection: Connection) -> None:
        """Serve a connection without new input, because it can send or parse again."""
        self.schedule.queue(connection)
        self.deliver()

    def postpone(self, connection: Connection) -> None:
        """Continue a connection's requests after the other connections and the event loop."""
        if self.schedule.postpone(connection):
            asyncio.get_running_loop().call_soon(self._resume_postponed)

    def _resume_postponed(self) -> None:
        self.now = self.monotonic()
        self.appends.update_time()
        self.schedule.queue_postponed()
        self.deliver()

    # Requests.

    def request(self, connection: Connection, data: bytes, at: i64, end: i64) -> None:
        self.ends.recent += 1
        waiting: i64 = len(connection.exchanges)
        if self.throttling.quotas.is_active and not connection.is_internal:
            self.throttling.handle(connection, data, at, end)
        else:
            self.dispatch(connection, data, at, end)
        if len(connection.exchanges) > waiting:
            self.ends.begin(connection.exchanges[-1], i64(read_i16_be(data, at)), self.now)

    def dispatch(self, connection: Connection, data: bytes, at: i64, end: i64) -> None:
        """Pass a request to the handler of its API."""
        api_key: i64 = i64(read_i16_be(data, at))
        version: i64 = i64(read_i16_be(data, at + 2))
        correlation_id: i64 = i64(read_i32_be(data, at + 4))
        if api_key == PRODUCE and version <= produce_codec.NEWEST:
            flexible = version >= produce_codec.FLEXIBLE_SINCE
            body: i64 = _skip_header(data, at + 8, end, flexible)
            self.produce.handle(connection, correlation_id, version, data, body, end)
            return
        self._flush_own_writes(connection)
        if api_key == FETCH and fetch_codec.OLDEST <= version <= fetch_codec.NEWEST:
            flexible = version >= fetch_codec.FLEXIBLE_SINCE
            body = _skip_header(data, at + 8, end, flexible)
            sessions = self.sessions
            if (
                sessions is None
                or not connection.is_internal
                or not sessions.handle(connection, correlation_id, version, data, body, end)
            ):
                self.fetch.handle(connection, correlation_id, version, data, body, end)
        elif api_key == OFFSET_COMMIT and commit_codec.OLDEST <= version <= commit_codec.NEWEST:
            flexible = version >= commit_codec.FLEXIBLE_SINCE
            body = _skip_header(data, at + 8, end, flexible)
            self.commits.handle(connection, correlation_id, version, data, body, end)
        else:
            self._cold.handle(connection, data[at:end])

    def respond_unexecuted(
        self, connection: Connection, data: bytes, at: i64, end: i64, wait_ms: i64
    ) -> None:
        """Respond to Produce or Fetch: the client must wait for its quota, and send it again."""
        api_key: i64 = i64(read_i16_be(data, at))
        version: i64 = i64(read_i16_be(data, at + 2))
        correlation_id: i64 = i64(read_i32_be(data, at + 4))
        if api_key == PRODUCE:
            body = _skip_header(data, at + 8, end, version >= produce_codec.FLEXIBLE_SINCE)
            self.produce.postpone(connection, correlation_id, version, data, body, end, wait_ms)
        else:
            body = _skip_header(data, at + 8, end, version >= fetch_codec.FLEXIBLE_SINCE)
            self.fetch.postpone(connection, correlation_id, version, data, body, end, wait_ms)

    def _flush_own_writes(self, connection: Connection) -> None:
        """Write the staged batches first: a request sees the earlier writes of its connection."""
        if connection.exchanges and self.appends.has_requests():
            self.appends.flush()

    # Connections.

    def add(self, connection: Connection) -> None:
        self.connections[connection.fd] = connection
        self.epoll.register(connection.fd, EPOLLIN | EPOLLRDHUP)

    def close(self, connection: Connection, reason: str) -> None:
        """Close a connection. A reason means that the peer broke the protocol, and is logged."""
        if connection.closed:
            return
        connection.closed = True
        del self.connections[connection.fd]
        self.epoll.unregister(connection.fd)
        connection.transport.close()
        self.fetch.forget(connection)
        if connection.is_internal and self.sessions is not None:
            self.sessions.forget(connection)
        self._cold.cancel(connection)
        kept: i64 = 0
        for exchange in connection.exchanges:
            self.ends.end(exchange)
            # Requests with acks=0 are written although the client has disconnected.
            if exchange.pieces is None and isinstance(exchange, ProduceExchange):
                kept += exchange.request_bytes
            else:
                exchange.request_bytes = 0
        connection.exchanges.clear()
        connection.responses.clear()
        connection.input = b""
        connection.large = None
        self.throttling.forget(connection)
        self.memory.leave(connection, kept)
        self._wake_waiting()
        self.on_close(connection, reason or connection.responses.close_reason)

    def release_memory(self, connection: Connection, size: i64) -> None:
        self.memory.shrink(connection, size)
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        if self.memory.waiting and not self.is_draining:
            for other in self.memory.ready():
                other.watch(other.events | EPOLLIN)
                if other.transport.pending > 0:
                    self.postpone(other)

    def scratch_view(self) -> memoryview:
        """The buffer for the next read; small while memory is short."""
        memory = self.memory
        return self.buffers.scratch_view(memory.used + SCRATCH_BYTES > memory.bytes_max)

    def listen(self, listener: "Listener", sock: socket.socket) -> None:
        self.listeners[sock.fileno()] = listener
        self.epoll.register(sock.fileno(), EPOLLIN)


def _skip_header(data: bytes, at: i64, end: i64, flexible: bool) -> i64:
    """Skip the client id and the tags of a flexible header: the hot APIs need neither."""
    cursor = Cursor(data, at, end)
    size: i64 = cursor.read_i16()
    if size != -1:
        cursor.take(size)
    if flexible:
        cursor.skip_tags()
    return cursor.at
