"""The connection to ZooKeeper, in the thread of kazoo. No other module uses kazoo.

Sends requests, receives responses and watch events, and converts between the values of kazoo and
those of the store. It does not use the state of the broker. It passes all results, watch events and
session changes to `call_on_loop` from one thread, so that they arrive on the loop in order. kazoo's
two worker threads, one for results and one for watches, are not started, because they would lose
that order.

1. A request is accepted only for the connection of which the loop has been notified (`accept`).
   kazoo would keep a request until it is connected again, maybe with another session.
2. A request that was not accepted was certainly not sent. Any other request without a response has
   an unknown outcome (B5).
3. The loop is notified of a session change before the pending requests fail. So when a caller
   receives UnknownOutcome, the store is already suspended.
4. Only connecting is retried here. Within the session timeout, each server can be tried three
   times, because a server that is starting accepts a connection and closes it.
"""

import logging
import select
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from headrace.coordination.access import ZooKeeperAccess
from headrace.coordination.former_session import Session
from headrace.coordination.node_acl import NodeAcl
from headrace.coordination.port import (
    ANY_VERSION,
    AccessDenied,
    BadVersion,
    Create,
    Delete,
    EventType,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SessionState,
    Set,
    StoreError,
    StoreUnavailable,
    WatchEvent,
)

CallOnLoop = Callable[..., None]
OnResult = Callable[[Any, Exception | None], None]

RECONNECT_DELAY_S = 0.05
_ATTEMPT_S_MIN = 1.0
_HANDSHAKE_S_MIN = 0.1
_CHUNK_BYTES = 65536
_HEADER = struct.Struct(">iii")
RECONNECT_DELAY_S_MAX = 1.0
_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}
_EVENTS = {kind.name: kind for kind in EventType} | {"CHILD": EventType.CHILDREN}
_PORT_ERRORS: dict[type[Exception], type[StoreError]] = {
    exceptions.NoNodeError: NoNode,
    exceptions.NodeExistsError: NodeExists,
    exceptions.BadVersionError: BadVersion,
    exceptions.NotEmptyError: NotEmpty,
    exceptions.NoChildrenForEphemeralsError: NoChildrenForEphemerals,
}
_ROLLED_BACK = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
_ACLS: dict[NodeAcl, list[Any]] = {
    NodeAcl.OPEN: OPEN_ACL_UNSAFE,
    NodeAcl.READABLE: CREATOR_ALL_ACL + READ_ACL_UNSAFE,
    NodeAcl.SECRET: CREATOR_ALL_ACL,
}
_log = logging.getLogger(__name__)


def _is_logged(line: logging.LogRecord) -> bool:
    """Whether a log line of kazoo is written.

    kazoo logs each attempt to connect; these lines are written only with --log-level debug. It also
    logs requests and responses, at debug level. They contain secrets, and are never written.
    """
    if line.levelno <= logging.DEBUG:
        return False
    return line.levelno >= logging.ERROR or _log.isEnabledFor(logging.DEBUG)


_log.addFilter(_is_logged)


class NotSent(Exception):
    """The connection was closed before the request was accepted."""


def port_error(error: Exception, path: str) -> StoreError | StoreUnavailable | None:
    """Convert an error of the server to one of the store; None for other errors."""
    if isinstance(error, exceptions.NoAuthError | exceptions.InvalidACLError):
        return AccessDenied(
            f"ZooKeeper denies access to {path}. Its nodes belong to other credentials than those "
            "of this process: check headrace.zookeeper.digest.file."
        )
    kind = _PORT_ERRORS.get(type(error))
    return None if kind is None else kind(path)


def failed_operation(results: Sequence[Any]) -> tuple[int, Exception] | None:
    """The index and error of the operation that made a transaction fail; None if none failed.

    kazoo returns errors among the results, also for the operations that were rolled back.
    """
    errors = [(index, one) for index, one in enumerate(results) if isinstance(one, Exception)]
    causes = [(index, one) for index, one in errors if not isinstance(one, _ROLLED_BACK)]
    return next(iter(causes or errors), None)


def write_request(op: Op, path: str, acl: NodeAcl) -> Any:
    """The request for one operation. `acl` is that of a node that the operation creates."""
    if isinstance(op, Create):
        return serialization.Create2(path, op.data, _ACLS[acl], int(op.ephemeral))
    return _operation(op, path, acl)


def multi_request(parts: Sequence[tuple[Op, str, NodeAcl]]) -> Any:
    return serialization.Transaction([_operation(op, path, acl) for op, path, acl in parts])


def acl_request(path: str) -> Any:
    return serialization.GetACL(path)


def acl_entries(response: Any) -> list[tuple[str, str, int]]:
    """Scheme, id and permissions of each entry, from the response to `acl_request`."""
    return [(acl.id.scheme, acl.id.id, int(acl.perms)) for acl in response[0]]


def set_acl_request(path: str, acl: NodeAcl) -> Any:
    return serialization.SetACL(path, _ACLS[acl], ANY_VERSION)


def _operation(op: Op, path: str, acl: NodeAcl) -> Any:
    if isinstance(op, Create):
        return serialization.Create(path, op.data, _ACLS[acl], int(op.ephemeral))
    if isinstance(op, Set):
        return serialization.SetData(path, op.data, op.version)
    if isinstance(op, Delete):
        return serialization.Delete(path, op.version)
    return serialization.CheckVersion(path, op.version)


def sync_request(path: str) -> Any:
    return serialization.Sync(path)


def attempt_timeout_s(session_timeout_ms: int, hosts: int) -> float:
    """The timeout for connecting to one server, and for its first response, in seconds.

    kazoo would wait for a complete session timeout. If a server does not respond, the session would
    then have expired.
    """
    return max(_ATTEMPT_S_MIN, session_timeout_ms / 1000 / 3 / hosts)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs callbacks directly on the thread of the connection, because each only passes data on."""

    def __init__(self, connect_s_max: float, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self.connect_s_max = connect_s_max
        self._tls = tls

    def create_connection(self, *args: Any, timeout: float, hostname: str, **kwargs: Any) -> Any:
        timeout = min(timeout, self.connect_s_max)
        end = time.monotonic() + timeout
        connection = super().create_connection(*args, timeout=timeout, **kwargs)
        if self._tls is None:
            return connection
        # kazoo's own TLS would read the certificate files again for each connection.
        try:
            connection.settimeout(max(end - time.monotonic(), _HANDSHAKE_S_MIN))
            return self._tls.wrap_socket(connection, server_hostname=hostname)
        except BaseException:
            connection.close()
            raise

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def select(
        self, readers: list[Any], writers: list[Any], _: list[Any], timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        # kazoo's version opens a file descriptor per call.
        poll = select.poll()
        for reader in readers:
            poll.register(reader, select.POLLIN)
        for writer in writers:
            poll.register(writer, select.POLLOUT)
        ready = {number for number, _ in poll.poll(None if timeout is None else timeout * 1000)}
        return (
            [reader for reader in readers if reader.fileno() in ready],
            [writer for writer in writers if writer.fileno() in ready],
            [],
        )


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """Stores the negotiated timeout and the last connection error, which kazoo does not store.

    It also reads and writes many frames per system call. kazoo needs five system calls per frame.
    """

    negotiated_timeout_ms = 0
    failure = "no response"
    _received = bytearray()
    _xid = 0

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        is_first = isinstance(request, serialization.Connect)
        if is_first:
            timeout = min(timeout, self.handler.connect_s_max)
        response = super()._invoke(timeout, request, xid)
        if is_first:
            self.negotiated_timeout_ms = int(response[0].time_out)
        return response

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self._received = bytearray()
        try:
            return super()._connect(host, hostip, port)
        except Exception as error:
            self.failure = str(error).removeprefix("socket connection error: ") or "no response"
            raise

    def _expand_client_hosts(self) -> Any:
        expanded = super()._expand_client_hosts()
        if not expanded:
            self.failure = "unknown host"
        return expanded

    def _read(self, length: int, timeout: float) -> bytes:
        received = self._received
        with self._socket_error_handling():
            while len(received) < length:
                try:
                    chunk = self._socket.recv(_CHUNK_BYTES)
                except (BlockingIOError, ssl.SSLWantReadError):
                    if not self.handler.select([self._socket], [], [], timeout)[0]:
                        raise self.handler.timeout_exception("no data received in time") from None
                    continue
                if not chunk:
                    raise exceptions.ConnectionDropped("the server closed the connection")
                received += chunk
        taken = bytes(received[:length])
        del received[:length]
        return taken

    def _read_socket(self, read_timeout: float) -> Any:
        response = super()._read_socket(read_timeout)
        # Read all responses in the buffer: the caller then waits for the socket only.
        while self._received and response != CLOSE_RESPONSE:
            response = super()._read_socket(read_timeout)
        return response

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        # Read the pipe before the queue: a request is queued before its byte is written.
        self._read_sock.recv(_CHUNK_BYTES)
        queue, pending = self.client._queue, self.client._pending
        frames = bytearray()
        while queue:
            request, response = queue.popleft()
            self._xid = self._xid % 0x7FFFFFFF + 1
            body = request.serialize()
            frames += _HEADER.pack(8 + len(body), self._xid, request.type)
            frames += body
            # From now on, the outcome of the request is unknown, even if the write below fails.
            pending.append((request, response, self._xid))
        if frames:
            self._write(frames, connect_timeout)


class _Response:
    """Receives the result of a request. Replaces kazoo's AsyncResult, which uses a lock."""

    __slots__ = ("_done",)

    def __init__(self, done: OnResult) -> None:
        self._done = done

    def set(self, value: Any = None) -> None:
        self._done(value, None)

    def set_exception(self, error: Exception) -> None:
        self._done(None, error)


class Client(KazooClient):  # type: ignore[misc]
    """The sessions with an ensemble, one at a time. The loop calls the public methods."""

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        access: ZooKeeperAccess,
        call_on_loop: CallOnLoop,
        on_state: Callable[[SessionState, int, Session, int], None],
        on_event: Callable[[WatchEvent], None],
    ) -> None:
        self._request_lock = threading.Lock()
        self._connection_number = 0
        self._accepted_connection = -1
        self._call_on_loop = call_on_loop
        self._failed_requests: list[tuple[OnResult, tuple[Any, ...]]] | None = None
        self._on_state = on_state
        self._on_event = on_event
        retry = KazooRetry(
            max_tries=-1, delay=RECONNECT_DELAY_S, backoff=1.5, max_delay=RECONNECT_DELAY_S_MAX
        )
        super().__init__(
            hosts,
            timeout=session_timeout_ms / 1000,
            handler=_Handler(
                attempt_timeout_s(session_timeout_ms, hosts.count(",") + 1), access.tls
            ),
            auth_data=[("digest", access.digest)] if access.digest else None,
            connection_retry=retry,
            logger=_log,
        )
        self._connection = _Connection(self, self._conn_retry.copy(), logger=_log)
        self.add_listener(self._changed)

    @property
    def failure(self) -> str:
        """Why the last attempt to connect failed."""
        return str(self._connection.failure)

    @property
    def has_ended(self) -> bool:
        """Whether the thread of kazoo has ended, because of an internal error."""
        return bool(self._state == KeeperState.CLOSED)

    def accept(self, number: int) -> None:
        """Accept requests from now on, if the connection still has this number."""
        self._accepted_connection = number

    def submit(self, request: Any, done: OnResult) -> None:
        """Queue a request. `done` is called on the loop with its result or error, in order."""
        self._call(request, _Response(partial(self._responded, done)))

    def data_request(self, path: str, *, watch: bool) -> Any:
        return serialization.GetData(path, self._watched if watch else None)

    def exists_request(self, path: str, *, watch: bool) -> Any:
        return serialization.Exists(path, self._watched if watch else None)

    def children_request(self, path: str, *, watch: bool) -> Any:
        return serialization.GetChildren(path, self._watched if watch else None)

    def end(self) -> None:
        """Close the session and wait for the thread. Blocks."""
        self.stop()
        self.close()

    def _call(self, request: Any, async_object: Any) -> Any:
        with self._request_lock:
            if self._accepted_connection == self._connection_number:
                return super()._call(request, async_object)
            async_object.set_exception(NotSent())
        return False

    def _session_callback(self, state: Any) -> None:
        with self._request_lock:
            if state not in (KeeperState.CONNECTED, KeeperState.CONNECTED_RO):
                # No request may be added while the pending ones fail.
                self._connection_number += 1
            self._failed_requests = []
            super()._session_callback(state)
            failed, self._failed_requests = self._failed_requests, None
            for done, response in failed:
                self._call_on_loop(done, *response)

    def _responded(self, done: OnResult, *response: Any) -> None:
        if self._failed_requests is None:
            self._call_on_loop(done, *response)
        else:
            self._failed_requests.append((done, response))

    def _changed(self, state: Any) -> None:
        self._call_on_loop(
            self._on_state,
            _STATES[state],
            self._connection_number,
            Session(self._session_id or 0, self._session_passwd),
            self._connection.negotiated_timeout_ms,
        )

    def _watched(self, event: Any) -> None:
        kind = _EVENTS.get(event.type)
        if kind is not None:
            self._call_on_loop(self._on_event, WatchEvent(kind, event.path))
