"""The store that several brokers share: a session with a ZooKeeper ensemble.

Owns the pending requests, the watches and the state of the session. Only the loop uses them. The
thread of kazoo passes calls to the loop through one queue (`_loop_calls`).

1. Results and events are handled in the order in which they happened. A watch is set before its
   event arrives, and an event arrives before the result of a later write.
2. A write without a response raises UnknownOutcome, unless it was certainly not sent.
3. When the session leaves CONNECTED, all watches are removed and all pending requests fail.
4. At most REQUESTS_IN_FLIGHT_MAX requests are passed to kazoo. The others wait here, in order.
   kazoo writes one byte to a pipe per request, and a full pipe would block the loop.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.coordination.access import ANONYMOUS, ZooKeeperAccess
from headrace.coordination.former_session import Session, SessionFile, end_session
from headrace.coordination.layout import CLUSTER_ID, is_sensitive
from headrace.coordination.node_acl import WRITE_PERMISSIONS, NodeAcl
from headrace.coordination.port import (
    ANY_VERSION,
    AccessDenied,
    Check,
    ConnectionLost,
    Create,
    Delete,
    EventType,
    MultiFailed,
    NodeExists,
    NotEmpty,
    Op,
    SessionExpired,
    SessionListener,
    SessionState,
    Set,
    Stat,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
    Watch,
    WatchEvent,
    check_ops,
    check_path,
)
from headrace.env.extras import install_command

SESSION_TIMEOUT_MS = 6000
REQUESTS_IN_FLIGHT_MAX = 100
CLOSE_S_MAX = 5.0
_RETRY_S = 0.05
_log = logging.getLogger(__name__)


class _PendingRequest:
    """A request without a response, which may or may not have been passed to kazoo."""

    __slots__ = ("is_write", "path", "request", "response", "watch_to_add")

    def __init__(
        self,
        path: str,
        request: Any,
        response: "asyncio.Future[Any]",
        *,
        is_write: bool,
        watch_to_add: "tuple[dict[str, dict[Watch, None]], Watch] | None" = None,
    ) -> None:
        self.path = path
        self.request = request
        self.response = response
        self.is_write = is_write
        self.watch_to_add = watch_to_add

    def fail(self, error: Exception) -> None:
        if not self.response.done():
            self.response.set_exception(error)


def parse_connect(connect: str) -> tuple[str, str]:
    """Split `host:port,host:port/chroot`; the chroot is empty or begins with "/"."""
    hosts, _, rest = connect.strip().partition("/")
    chroot = "/" + rest.strip("/") if rest.strip("/") else ""
    try:
        check_path(chroot or "/")
        for host in hosts.split(","):
            name, colon, port = host.strip().rpartition(":")
            if not (name if colon else port) or (colon and not 0 < int(port) < 65536):
                raise ValueError(host)
    except ValueError:
        raise StoreUnavailable(
            f"zookeeper.connect is {connect!r}. It must be host:port, several separated by commas, "
            "optionally followed by a /path."
        ) from None
    return ",".join(host.strip() for host in hosts.split(",")), chroot


class ZooKeeperStore:
    """The Store port over ZooKeeper; see `open`."""

    def __init__(
        self,
        connect: str,
        session_timeout_ms: int,
        session_file: SessionFile | None,
        access: ZooKeeperAccess,
    ) -> None:
        try:
            from headrace.coordination import kazoo_client
        except ImportError:
            raise StoreUnavailable(
                "A cluster requires kazoo, which is not installed. "
                f"Run: {install_command('cluster')}"
            ) from None
        self._kazoo = kazoo_client
        self._hosts, self._chroot = parse_connect(connect)
        self._session_file = session_file
        self._access = access
        self._loop = asyncio.get_running_loop()
        self._loop_calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_drain_scheduled = False
        self._state = SessionState.LOST
        self._session_id = 0
        self._session_timeout_ms = session_timeout_ms
        self._listeners: list[SessionListener] = []
        self._data_watches: dict[str, dict[Watch, None]] = {}
        self._child_watches: dict[str, dict[Watch, None]] = {}
        self._unsent: deque[_PendingRequest] = deque()
        self._in_flight_count = 0
        self._connected = asyncio.Event()
        self._closing: asyncio.Future[None] | None = None
        self._client = kazoo_client.Client(
            self._hosts,
            session_timeout_ms,
            access,
            self._call_on_loop,
            self._session_changed,
            self._fire,
        )

    @classmethod
    async def open(
        cls,
        connect: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        connection_timeout_ms: int | None = None,
        session_path: str | None = None,
        access: ZooKeeperAccess = ANONYMOUS,
    ) -> "ZooKeeperStore":
        """Open a session and create the chroot. Raises StoreUnavailable.

        The default connection timeout is the session timeout, as in Kafka. `session_path` is the
        file of the session. If it contains the session of a dead process, that session is ended
        first. The caller must hold a lock on the directory of the file.
        """
        file = None if session_path is None else SessionFile(session_path)
        store = cls(connect, session_timeout_ms, file, access)
        seconds = (connection_timeout_ms or session_timeout_ms) / 1000
        try:
            async with asyncio.timeout(seconds):
                await store._end_former_session()
                store._client.start_async()
                await store._connected.wait()
                await store._make_chroot()
                await store._secure_root()
        except TimeoutError:
            failure = store._client.failure
            await store.close()
            raise StoreUnavailable(
                f"ZooKeeper did not respond at {connect} within {seconds:g} s ({failure}). Start "
                "it, or correct zookeeper.connect."
            ) from None
        except BaseException:
            await store.close()
            raise
        return store

    async def _end_former_session(self) -> None:
        former = self._session_file.read() if self._session_file is not None else None
        if former is not None:
            await end_session(self._hosts, former, self._access.tls)

    async def _make_chroot(self) -> None:
        names = self._chroot.split("/")[1:]
        chroot, self._chroot = self._chroot, ""
        for depth in range(1, len(names) + 1):
            path = "/" + "/".join(names[:depth])
            while True:
                try:
                    # Read first: creating a node that exists fails with AccessDenied if the ACL of
                    # its parent does not allow it.
                    if await self.exists(path) is None:
                        await self.create(path)
                    break
                except NodeExists:
                    break
                except AccessDenied:
                    raise
                except StoreUnavailable:
                    await asyncio.sleep(_RETRY_S)
        self._chroot = chroot

    async def _secure_root(self) -> None:
        """Set the ACL of the root of a new tree, because it decides who can delete its nodes."""
        while self._access.sets_acls:
            try:
                acl = await self.get_acl("/")
                if all(
                    scheme != "world" or not bits & WRITE_PERMISSIONS for scheme, _, bits in acl
                ):
                    return
                if await self.exists(CLUSTER_ID) is None:
                    await self.set_acl("/", NodeAcl.READABLE)
                else:
                    _log.warning(
                        "every client of ZooKeeper can change the tree: path=%s "
                        "next_step='run headrace zookeeper secure'",
                        self._chroot or "/",
                    )
                return
            except AccessDenied:
                raise
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_S)

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        """The timeout that the ensemble has accepted. It has its own limits."""
        return self._session_timeout_ms

    def on_session(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        request = self._client.data_request(self._full(path), watch=watch is not None)
        data, stat = await self._read(path, request, self._data_watches, watch)
        return data, _stat_of(stat)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        request = self._client.exists_request(self._full(path), watch=watch is not None)
        stat = await self._read(path, request, self._data_watches, watch)
        return None if stat is None else _stat_of(stat)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        request = self._client.children_request(self._full(path), watch=watch is not None)
        return sorted(await self._read(path, request, self._child_watches, watch))

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Stat:
        _, stat = await self._write(Create(path, data, ephemeral))
        return _stat_of(stat)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return _stat_of(await self._write(Set(path, data, version)))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        if path == "/":
            raise NotEmpty("/ cannot be deleted")
        await self._write(Delete(path, version))

    async def multi(self, ops: Sequence[Op]) -> list[Stat | None]:
        check_ops(ops)
        if not ops:
            return []
        request = self._kazoo.multi_request(
            [(op, self._full(op.path), self._acl_of(op)) for op in ops]
        )
        results = await self._send_and_wait("multi", request, is_write=True)
        failed = self._kazoo.failed_operation(results)
        if failed is not None:
            index, error = failed
            op = ops[index]
            kind = self._kazoo.port_error(error, _description(op))
            if isinstance(kind, AccessDenied):
                raise kind
            if not isinstance(kind, StoreError):
                kind = StoreError(f"{type(error).__name__} {error}")
            raise MultiFailed(index, op, kind)
        if len(results) != len(ops):
            raise UnknownOutcome(f"{len(results)} results for {len(ops)} operations")
        return [
            _stat_of(result) if isinstance(op, Set) else None
            for op, result in zip(ops, results, strict=True)
        ]

    async def sync(self) -> None:
        await self._send_and_wait("/", self._kazoo.sync_request(self._full("/")), is_write=False)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._loop.create_future()
            threading.Thread(
                target=self._close_session, name="headrace-zookeeper", daemon=True
            ).start()
        # Without a connection, do not wait: the session ends by its timeout.
        await asyncio.wait(
            [self._closing], timeout=CLOSE_S_MAX if self._state is SessionState.CONNECTED else 0
        )
        if self._closing.done() and self._session_file is not None:
            self._session_file.remove()
        self._change_state(SessionState.LOST)

    def _close_session(self) -> None:
        try:
            self._client.end()
        except Exception as error:  # noqa: BLE001 - a session that cannot be closed times out
            _log.warning("ZooKeeper session not closed: error=%s", error)
        self._call_on_loop(self._session_closed)

    def _session_closed(self) -> None:
        assert self._closing is not None
        if not self._closing.done():
            self._closing.set_result(None)

    def _full(self, path: str) -> str:
        check_path(path)
        return path if not self._chroot else self._chroot + (path if path != "/" else "")

    async def _read(
        self,
        path: str,
        request: Any,
        watches: dict[str, dict[Watch, None]],
        watch: Watch | None,
    ) -> Any:
        return await self._send_and_wait(
            path, request, is_write=False, watch_to_add=watch and (watches, watch)
        )

    async def _write(self, op: Op) -> Any:
        check_ops([op])
        request = self._kazoo.write_request(op, self._full(op.path), self._acl_of(op))
        return await self._send_and_wait(_description(op), request, is_write=True)

    def _acl_of(self, op: Op) -> NodeAcl:
        """The ACL of the node that an operation creates."""
        if not self._access.sets_acls:
            return NodeAcl.OPEN
        return NodeAcl.SECRET if is_sensitive(op.path) else NodeAcl.READABLE

    async def get_acl(self, path: str) -> list[tuple[str, str, int]]:
        """Scheme, id and permissions of each entry of a node's ACL."""
        return self._kazoo.acl_entries(
            await self._send_and_wait(
                path, self._kazoo.acl_request(self._full(path)), is_write=False
            )
        )

    async def set_acl(self, path: str, acl: NodeAcl) -> None:
        request = self._kazoo.set_acl_request(self._full(path), acl)
        await self._send_and_wait(path, request, is_write=True)

    async def _send_and_wait(
        self,
        path: str,
        request: Any,
        *,
        is_write: bool,
        watch_to_add: tuple[dict[str, dict[Watch, None]], Watch] | None = None,
    ) -> Any:
        if self._state is not SessionState.CONNECTED:
            raise self._unavailable()
        pending = _PendingRequest(
            path, request, self._loop.create_future(), is_write=is_write, watch_to_add=watch_to_add
        )
        self._unsent.append(pending)
        self._send_unsent()
        return await pending.response

    def _send_unsent(self) -> None:
        while self._unsent and self._in_flight_count < REQUESTS_IN_FLIGHT_MAX:
            pending = self._unsent.popleft()
            self._in_flight_count += 1
            self._client.submit(pending.request, partial(self._responded, pending))

    def _unavailable(self) -> StoreUnavailable:
        if self._state is SessionState.LOST:
            return SessionExpired("the ZooKeeper session has ended")
        return ConnectionLost("ZooKeeper is not connected")

    def _call_on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        """Run a callback on the loop, in order. Can be called on any thread."""
        self._loop_calls.append((callback, args))
        if not self._is_drain_scheduled:
            self._is_drain_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                # The loop is closed: no caller waits for the result.
                self._loop_calls.clear()

    def _drain(self) -> None:
        # Reset the flag first. A callback that is appended later is then called now, or schedules
        # another drain.
        self._is_drain_scheduled = False
        while self._loop_calls:
            callback, args = self._loop_calls.popleft()
            callback(*args)

    def _responded(self, pending: _PendingRequest, value: Any, error: Exception | None) -> None:
        self._in_flight_count -= 1
        if error is not None:
            pending.fail(self._error_of(pending, error))
        else:
            if pending.watch_to_add is not None:
                watches, watch = pending.watch_to_add
                watches.setdefault(pending.path, {})[watch] = None
            if not pending.response.done():
                pending.response.set_result(value)
        self._send_unsent()

    def _error_of(self, pending: _PendingRequest, error: Exception) -> Exception:
        if isinstance(error, self._kazoo.NotSent):
            return ConnectionLost(
                "the connection to ZooKeeper was lost before the request was sent"
            )
        known = self._kazoo.port_error(error, pending.path)
        if known is not None:
            return known
        reason = str(error) or type(error).__name__
        if pending.is_write:
            return UnknownOutcome(f"ZooKeeper did not respond ({reason})")
        return ConnectionLost(f"ZooKeeper did not respond ({reason})")

    def _fire(self, event: WatchEvent) -> None:
        path = event.path
        if self._chroot:
            path = path[len(self._chroot) :] or "/"
            event = WatchEvent(event.type, path)
        watches: dict[Watch, None] = {}
        if event.type is not EventType.CHILDREN:
            watches |= self._data_watches.pop(path, {})
        if event.type in (EventType.CHILDREN, EventType.DELETED):
            watches |= self._child_watches.pop(path, {})
        for watch in watches:
            try:
                watch(event)
            except Exception as error:  # noqa: BLE001 - a watcher's bug must not stop the store
                self._report(error, watch)

    def _session_changed(
        self, state: SessionState, connection: int, session: Session, timeout_ms: int
    ) -> None:
        if state is SessionState.CONNECTED:
            self._client.accept(connection)
            if self._session_file is not None and session.session_id != self._session_id:
                self._session_file.write(session)
            self._session_id = session.session_id
            self._session_timeout_ms = timeout_ms
            self._connected.set()
        else:
            self._connected.clear()
        if self._closing is None:
            self._change_state(state)
            if state is SessionState.LOST and self._client.has_ended:
                _log.error("ZooKeeper connection failed with an internal error, reconnecting")
                self._loop.run_in_executor(None, self._client.start_async)

    def _change_state(self, state: SessionState) -> None:
        if state is self._state:
            return
        if self._closing is None:
            _log.info(
                "ZooKeeper session changed: session=%x state=%s", self._session_id, state.value
            )
        self._state = state
        if state is not SessionState.CONNECTED:
            self._data_watches.clear()
            self._child_watches.clear()
            unsent, self._unsent = self._unsent, deque()
            for pending in unsent:
                pending.fail(self._unavailable())
        for listener in self._listeners.copy():
            try:
                listener(state)
            except Exception as error:  # noqa: BLE001 - a listener's bug must not stop the store
                self._report(error, listener)

    def _report(self, error: Exception, callback: object) -> None:
        self._loop.call_exception_handler(
            {"message": f"a callback of the store failed: {callback!r}", "exception": error}
        )


def _description(op: Op) -> str:
    """The text about an operation in an error."""
    if isinstance(op, Set | Delete | Check) and op.version != ANY_VERSION:
        return f"{op.path}, expected at version {op.version}"
    return op.path


def _stat_of(stat: Any) -> Stat:
    return Stat(
        stat.czxid,
        stat.mzxid,
        stat.pzxid,
        stat.version,
        stat.cversion,
        stat.ephemeralOwner,
        stat.ctime,
    )
