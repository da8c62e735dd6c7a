"""The sockets of clients and of other brokers, in an epoll nested in the event loop.  # HOT

asyncio watches only this epoll's descriptor. A loop iteration (turn) reads all sockets with
input, and then writes, acknowledges and wakes long polls once for all requests. The hot APIs need
no task, future or callback per request. Turns are bounded, so that timers and tasks can run.
"""

import asyncio
import logging
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i16_be, read_i32_be
from mypy_extensions import i64

from headrace.handlers.fetch import FetchHandler
from headrace.handlers.offset_commit import CommitHandler
from headrace.handlers.produce import ProduceHandler
from headrace.model.errors import ApiError
from headrace.replication.append_queue import AppendQueue
from headrace.replication.leader_sessions import LeaderSessions
from headrace.replication.produce_exchange import ProduceExchange
from headrace.runtime.exchange import Exchange
from headrace.runtime.quota import (
    FETCH_REQUEST,
    NOT_LIMITED,
    OTHER_REQUEST,
    PRODUCE_REQUEST,
    Limits,
    QuotaTable,
    in_ms,
)
from headrace.server.connection import EPOLLIN, EPOLLRDHUP, Connection
from headrace.server.memory import RequestMemory
from headrace.server.read_buffers import SCRATCH_BYTES, ReadBuffers
from headrace.server.request_ends import Observe, RequestEnds
from headrace.server.response_queue import EPOLLOUT
from headrace.server.transport import STEP_BYTES
from headrace.wire import fetch as fetch_codec
from headrace.wire import offset_commit as commit_codec
from headrace.wire import produce as produce_codec
from headrace.wire.apis import (
    FETCH,
    OFFSET_COMMIT,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from headrace.wire.cursor import Cursor

if TYPE_CHECKING:
    from headrace.runtime.worker import Worker
    from headrace.server.listener import Listener

ROUNDS_MAX: Final = 64
ROUNDS_SECONDS_MAX: Final = 0.002
TURN_BYTES_MAX: Final = 8 * 1024 * 1024
COLD_WORK: Final = 50
"""The work of a request that is not of a hot API: see `Peer.work`."""
BYTES_PER_WORK: Final = 64
SPIN_REQUESTS_MAX: Final = 2
SENDERS_PER_ROUND_MAX: Final = 4
THROTTLE_SLACK_S: Final = 0.001
HELD_SECONDS_MAX: Final = 5.0
"""The longest wait of a held Produce or Fetch request: no known client times out earlier."""
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
EPOLLERR: Final = 0x008
EPOLLHUP: Final = 0x010

_log = logging.getLogger(__name__)

ColdHandler = Callable[[Connection, bytes], "bytes | Awaitable[bytes]"]


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
        self.cold = cold
        self.reader = reader
        self.monotonic = monotonic
        self.request_bytes_max: i64 = request_bytes_max
        self.response_bytes_max: i64 = response_bytes_max
        self.spin_seconds: float = spin_seconds
        self.quotas = quotas
        self.on_close = on_close
        self.memory = RequestMemory(queued_bytes_max)
        self.epoll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.listeners: dict[int, Listener] = {}
        self.buffers = ReadBuffers()
        self.sending: list[Connection] = []
        """Connections to serve at the end of this turn."""
        self.writable: deque[Connection] = deque()
        """Connections whose sockets accept more of a long response."""
        self.send_left: i64 = STEP_BYTES
        """The bytes of long responses that this round can send; after that, steps are short."""
        self.postponed: list[Connection] = []
        """Connections to serve after the other ones and the event loop."""
        self.turn_bytes: i64 = 0
        """The bytes read since the last flush, in this turn."""
        self.tasks: dict[Connection, asyncio.Task[None]] = {}
        self.now: float = monotonic()
        self.ends = RequestEnds(observe, monotonic)
        self.is_draining = False
        self.completed: list[Exchange] = []
        """Exchanges of this loop iteration with a response; every connection adds to it."""

    # One quota_wait.

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
            self.send_left = STEP_BYTES
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
                    self._fault(connection)
                if self.turn_bytes > TURN_BYTES_MAX:
                    self.deliver()
            self.deliver()
            if self.writable:
                self._send_more()

    def _send_more(self) -> None:
        """Send one more step of each long response, after the responses to new requests."""
        self.send_left = STEP_BYTES
        for _ in range(min(len(self.writable), SENDERS_PER_ROUND_MAX)):
            connection = self.writable.popleft()
            connection.is_writable = False
            self.queue(connection)
            self.deliver()
            if self.send_left <= 0:
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

    def _fault(self, connection: Connection) -> None:
        """An internal error closes only the connection that caused it."""
        _log.exception("connection failed with an internal error: connection=%s", connection.name)
        self.close(connection, "an internal error of the broker")

    def _event(self, connection: Connection, mask: i64) -> None:
        if mask & EPOLLOUT and not connection.is_writable:
            connection.is_writable = True
            self.writable.append(connection)
        if mask & EPOLLIN and not connection.closed:
            connection.readable()
        elif mask & (EPOLLERR | EPOLLHUP) and not connection.closed:
            self.close(connection, "")
        elif mask & EPOLLRDHUP and not connection.closed:
            connection.pause_reading(True)

    def deliver(self) -> None:
        """End a turn: write, acknowledge, wake, send. Repeat while this allows more parsing."""
        appends = self.appends
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
                    self.queue(connection)
                    self.memory.deferred -= exchange.deferred_bytes
                    exchange.deferred_bytes = 0
                    if connection.closed and exchange.request_bytes > 0:
                        self.release_memory(connection, exchange.request_bytes)
                        exchange.request_bytes = 0
            sending = self.sending
            if not sending:
                return
            self.sending = []
            for connection in sending:
                try:
                    self._serve(connection)
                except Exception:  # noqa: BLE001 (other connections continue)
                    self._fault(connection)

    def defer(self, connection: Connection, exchange: Exchange, kept_bytes: i64) -> None:
        """Count only the remaining bytes of a waiting request in the memory budget."""
        exchange.deferred_bytes = kept_bytes
        self.memory.deferred += kept_bytes
        if exchange.request_bytes > 0:
            self.release_memory(connection, exchange.request_bytes)
            exchange.request_bytes = 0

    def queue(self, connection: Connection) -> None:
        if not connection.is_sending and not connection.closed:
            connection.is_sending = True
            self.sending.append(connection)

    def _serve(self, connection: Connection) -> None:
        """Send complete responses, then handle the requests that waited for this."""
        connection.is_sending = False
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
        self.queue(connection)
        self.deliver()

    def postpone(self, connection: Connection) -> None:
        """Continue a connection's requests after the other connections and the event loop."""
        if connection.is_postponed:
            return
        if not self.postponed:
            asyncio.get_running_loop().call_soon(self._resume_postponed)
        connection.is_postponed = True
        self.postponed.append(connection)

    def _resume_postponed(self) -> None:
        postponed = self.postponed
        self.postponed = []
        self.now = self.monotonic()
        self.appends.update_time()
        for connection in postponed:
            connection.is_postponed = False
            connection.work = 0
            self.queue(connection)
        self.deliver()

    # Requests.

    def request(self, connection: Connection, data: bytes, at: i64, end: i64) -> None:
        self.ends.recent += 1
        waiting: i64 = len(connection.exchanges)
        if self.quotas.is_active and not connection.is_internal:
            self._limited(connection, data, at, end)
        else:
            self._dispatch(connection, data, at, end)
        if len(connection.exchanges) > waiting:
            self.ends.begin(connection.exchanges[-1], i64(read_i16_be(data, at)), self.now)

    def _dispatch(self, connection: Connection, data: bytes, at: i64, end: i64) -> None:
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
            self._cold(connection, data[at:end])

    def _limited(self, connection: Connection, data: bytes, at: i64, end: i64) -> None:
        """Handle a request of a client that can have quotas, and count it."""
        limits = self._limits_of(connection, data, at)
        quota_wait = connection.quota_wait
        kind = _kind_of(data, at)
        wait_s: float = quota_wait.wait_s(limits, kind, end - at, self.now)
        if wait_s > 0.0:
            self._hold(connection, data, at, end, kind, wait_s)
            return
        if limits.request_time is not None:
            connection.began = self.monotonic()
        self._dispatch(connection, data, at, end)
        if connection.closed:
            return
        reserved_s: float = quota_wait.reserved_for(kind)
        if reserved_s > 0.0:
            quota_wait.reserved_s = 0.0
        throttle_ms: i64 = 0
        last: Exchange | None = connection.exchanges[-1] if connection.exchanges else None
        produced = last if isinstance(last, ProduceExchange) else None
        if produced is not None and limits.limits_produce():
            records: i64 = 0
            if limits.producer_records is not None:
                records = produced.record_count()
            throttle_ms = limits.charge_produce(end - at, records, self.now, reserved_s)
        if connection.began > 0.0:
            now: float = self.monotonic()
            time_ms: i64 = limits.charge_time(now - connection.began, now, reserved_s)
            throttle_ms = time_ms if time_ms > throttle_ms else throttle_ms
            connection.began = 0.0
        if throttle_ms > 0:
            if produced is not None:
                produced.throttle_ms = throttle_ms
            self.throttle(connection, throttle_ms)

    def _hold(
        self, connection: Connection, data: bytes, at: i64, end: i64, kind: i64, wait_s: float
    ) -> None:
        """Keep a request until the wait ends. If the wait is too long, do not execute it."""
        wait_ms = in_ms(wait_s)
        self.throttle(connection, wait_ms)
        is_full = self.memory.held_for_quotas + end - at > HELD_BYTES_MAX
        if kind == OTHER_REQUEST and is_full:
            self.close(connection, "too many requests wait for the quotas of their clients")
        elif kind == OTHER_REQUEST or (wait_s <= HELD_SECONDS_MAX and not is_full):
            connection.quota_wait.request = data[at:end]
            self.memory.held_for_quotas += end - at
        else:
            version: i64 = i64(read_i16_be(data, at + 2))
            correlation_id: i64 = i64(read_i32_be(data, at + 4))
            if kind == PRODUCE_REQUEST:
                body = _skip_header(data, at + 8, end, version >= produce_codec.FLEXIBLE_SINCE)
                self.produce.postpone(connection, correlation_id, version, data, body, end, wait_ms)
            else:
                body = _skip_header(data, at + 8, end, version >= fetch_codec.FLEXIBLE_SINCE)
                self.fetch.postpone(connection, correlation_id, version, data, body, end, wait_ms)

    def _limits_of(self, connection: Connection, data: bytes, at: i64) -> Limits:
        """The limits of a request's client, looked up once per client id and version."""
        size: i64 = i64(read_i16_be(data, at + 8)) if len(data) >= at + 10 else 0
        client_id = data[at + 10 : at + 10 + size] if size > 0 else b""
        quotas = self.quotas
        limits = connection.limits
        if (
            limits is None
            or connection.limits_version != quotas.version
            or connection.limits_client != client_id
        ):
            if connection.limits_client != client_id:
                connection.quota_wait.cancel(self.now)
            limits = quotas.limits_of(connection.principal, client_id)
            connection.limits = limits
            connection.limits_version = quotas.version
            connection.limits_client = client_id
        return limits

    def throttle(self, connection: Connection, throttle_ms: i64) -> None:
        """Do not read from a connection for a time."""
        if throttle_ms <= 0 or connection.closed:
            return
        connection.is_throttled = True
        until: float = self.monotonic() + float(throttle_ms) / 1000
        quota_wait = connection.quota_wait
        if until > quota_wait.until:
            quota_wait.until = until
        asyncio.get_running_loop().call_later(throttle_ms / 1000, self._end_throttle, connection)

    def _end_throttle(self, connection: Connection) -> None:
        if connection.closed or not connection.is_throttled:
            return
        self.now = self.monotonic()
        left: float = connection.quota_wait.until - self.now
        if left > THROTTLE_SLACK_S:
            # A longer time was added, or the clock of the loop was behind.
            asyncio.get_running_loop().call_later(left, self._end_throttle, connection)
            return
        connection.is_throttled = False
        self.appends.update_time()
        if connection.quota_wait.request and not self.is_draining:
            self.memory.held_for_quotas -= len(connection.quota_wait.request)
            try:
                connection.handle_held()
            except Exception:  # noqa: BLE001 (other connections continue)
                self._fault(connection)
        self.resume(connection)

    def quotas_changed(self) -> None:
        """Look limits up again, and end the waits that are due to former limits."""
        self.now = self.monotonic()
        changed: list[Connection] = []
        for connection in self.connections.values():
            former = connection.limits
            connection.limits = None
            if connection.is_throttled:
                limits = self.quotas.limits_of(connection.principal, connection.limits_client)
                if former is None or not limits.is_same(former):
                    changed.append(connection)
                connection.limits = limits
                connection.limits_version = self.quotas.version
        for connection in changed:
            connection.quota_wait.cancel(self.now)
            self._end_throttle(connection)

    def _flush_own_writes(self, connection: Connection) -> None:
        """Write the staged batches first: a request sees the earlier writes of its connection."""
        if connection.exchanges and self.appends.produced:
            self.appends.flush()

    def _cold(self, connection: Connection, frame: bytes) -> None:
        exchange = Exchange(connection, 0, 0)
        connection.exchanges.append(exchange)
        response = self.cold(connection, frame)
        connection.work += COLD_WORK
        if isinstance(response, bytes):
            connection.work += len(response) // BYTES_PER_WORK
            exchange.respond([len(response).to_bytes(4, "big"), response])
            return
        connection.muted = True
        task = asyncio.get_running_loop().create_task(self._finish(connection, exchange, response))
        self.tasks[connection] = task

    async def _finish(
        self, connection: Connection, exchange: Exchange, response: Awaitable[bytes]
    ) -> None:
        # No `finally` here: mypyc would use a value that is still None as the response.
        try:
            frame = await response
        except ApiError as error:
            self._end_task(connection)
            self.close(connection, str(error))
            self.deliver()
            return
        except BaseException:
            self._end_task(connection)
            self.close(connection, "an internal error; see the broker's log")
            self.deliver()
            raise
        self._end_task(connection)
        connection.work += len(frame) // BYTES_PER_WORK
        exchange.respond([len(frame).to_bytes(4, "big"), frame])
        self.deliver()

    def _end_task(self, connection: Connection) -> None:
        self.tasks.pop(connection, None)
        connection.muted = False

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
        task = self.tasks.get(connection)
        if task is not None:
            # No client waits for the response. The task might not have started: cancel it later.
            asyncio.get_running_loop().call_soon(task.cancel)
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
        connection.quota_wait.cancel(self.now)
        self.memory.held_for_quotas -= len(connection.quota_wait.request)
        connection.quota_wait.request = b""
        self.memory.leave(connection, kept)
        self._wake_waiting()
        self.on_close(connection, reason)

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


def _kind_of(data: bytes, at: i64) -> i64:
    """The kind of a request, which determines the quotas that limit it."""
    api_key: i64 = i64(read_i16_be(data, at))
    version: i64 = i64(read_i16_be(data, at + 2))
    if api_key == PRODUCE and produce_codec.OLDEST <= version <= produce_codec.NEWEST:
        return PRODUCE_REQUEST
    if api_key == FETCH and fetch_codec.OLDEST <= version <= fetch_codec.NEWEST:
        return FETCH_REQUEST
    # Logins do not wait: a late login would end the session.
    return NOT_LIMITED if api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE) else OTHER_REQUEST
