"""The store for one process: a tree in memory, made durable by SQLite in a separate thread.

Owns the order of writes, the sessions with their watches and ephemeral nodes, and fault injection
for tests. It never waits for the disk on the loop.

1. Reads return only durable data. A write changes `_pending_tree` when it is validated, and `tree`
   when its commit has succeeded. Reads and watches use only `tree`.
2. At most one commit is in flight. It contains all writes that were queued when it started.
3. A zxid consists of an epoch (the upper 32 bits), which is new each time the file is opened, and a
   counter. The epoch is durable before its first zxid is returned, so zxids are unique even after a
   crash.
4. After a commit with an unknown outcome, all sessions are permanently LOST (B13).
"""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from headrace.coordination.database import Database
from headrace.coordination.port import (
    ANY_VERSION,
    ConnectionLost,
    Create,
    Delete,
    EventType,
    MultiFailed,
    Op,
    SessionExpired,
    SessionListener,
    SessionState,
    Set,
    Stat,
    StoreFull,
    UnknownOutcome,
    Watch,
    WatchEvent,
    check_ops,
    check_path,
)
from headrace.coordination.tree import Change, Commit, Tree
from headrace.env.rate_limited_log import RecurringProblem

STORE_FILE = "headrace-store.db"
_COUNTER_BITS = 32
_log = logging.getLogger(__name__)


class _Write:
    """One write request. It is queued, validated, made durable, and then completed."""

    __slots__ = ("commit", "completed", "ends_session", "error", "is_applied", "ops", "session_id")

    def __init__(
        self, session_id: int, ops: Sequence[Op], completed: "asyncio.Future[None]"
    ) -> None:
        self.session_id = session_id
        self.ops = ops
        self.is_applied = True
        """False if a test injects the loss of this request."""
        self.ends_session = False
        """Whether the request deletes the ephemeral nodes of its session, and ends it."""
        self.commit = Commit()
        self.error: Exception | None = None
        self.completed = completed

    def complete(self, error: Exception | None = None) -> None:
        self.error = error or self.error
        if not self.completed.done():
            self.completed.set_result(None)


class EmbeddedServer:
    """The tree, its file and the queue of writes. Several sessions can share it."""

    def __init__(self, database: Database, executor: ThreadPoolExecutor) -> None:
        self.tree = Tree()
        """The durable nodes, and the ephemeral nodes of all sessions."""
        self.failure: str | None = None
        """Why the file cannot be written, after an error that is not temporary."""
        self._loop = asyncio.get_running_loop()
        self._database = database
        self._executor = executor
        self._pending_tree = Tree()
        """The tree after all validated writes."""
        self._zxid = 0
        self._durable_epoch = 0
        """The epoch in the file. Zxids of later epochs are not returned yet."""
        self._queue: list[_Write] = []
        self._committing: list[_Write] | None = None
        """The writes of the commit in flight."""
        self._is_commit_scheduled = False
        self._sessions: list[EmbeddedStore] = []
        self._ended_sessions: set[int] = set()
        self._disk_full = RecurringProblem(_log)

    @classmethod
    async def open(cls, path: str) -> "EmbeddedServer":
        """Raises StoreFileError, with a message for the user."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-store")
        return await cls.open_database(Database(path), executor)

    @classmethod
    async def open_database(
        cls, database: Database, executor: ThreadPoolExecutor
    ) -> "EmbeddedServer":
        server = cls(database, executor)
        try:
            epoch, nodes = await server._loop.run_in_executor(executor, database.open)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        server.tree = Tree(nodes)
        server._pending_tree = server.tree.copy()
        server._durable_epoch = epoch
        server._zxid = (epoch + 1) << _COUNTER_BITS
        return server

    def session(self) -> "EmbeddedStore":
        store = EmbeddedStore(self)
        self._sessions.append(store)
        return store

    def remove_session(self, store: "EmbeddedStore") -> None:
        if store in self._sessions:
            self._sessions.remove(store)

    async def close(self) -> None:
        for store in self._sessions.copy():
            await store.close()
        await self._loop.run_in_executor(self._executor, self._database.close)
        self._executor.shutdown(wait=True)

    def next_zxid(self) -> int:
        self._zxid += 1
        return self._zxid

    def submit(self, session_id: int, ops: Sequence[Op], *, applied: bool = True) -> _Write:
        write = _Write(session_id, ops, self._loop.create_future())
        write.is_applied = applied
        self._enqueue(write)
        return write

    async def end_session(self, session_id: int) -> None:
        """Remove the ephemeral nodes of the session, after its earlier writes."""
        write = _Write(session_id, (), self._loop.create_future())
        write.ends_session = True
        self._enqueue(write)
        await write.completed

    def _enqueue(self, write: _Write) -> None:
        if self.failure is not None:
            write.complete(SessionExpired(self.failure))
            return
        self._queue.append(write)
        self._commit_soon()

    def _commit_soon(self) -> None:
        # Commit at the end of this loop iteration, so that other writes share the commit.
        if not self._is_commit_scheduled and self._committing is None:
            self._is_commit_scheduled = True
            self._loop.call_soon(self._commit_queue)

    def _commit_queue(self) -> None:
        self._is_commit_scheduled = False
        self._committing, self._queue = self._queue, []
        changes: list[Change] = []
        for write in self._committing:
            changes += self._decide(write)
        epoch = self._zxid >> _COUNTER_BITS
        if not changes or (
            epoch == self._durable_epoch and not any(change.is_durable for change in changes)
        ):
            self._commit_succeeded()
            return
        job = self._loop.run_in_executor(self._executor, self._database.commit, changes, epoch)
        job.add_done_callback(self._commit_returned)

    def _decide(self, write: _Write) -> list[Change]:
        """Validate a write, and apply it to `_pending_tree`."""
        if not write.is_applied:
            return []
        if write.session_id in self._ended_sessions and not write.ends_session:
            write.error = SessionExpired("the session with the store has ended")
            return []
        if write.ends_session:
            self._ended_sessions.add(write.session_id)
            write.ops = [Delete(path) for path in self._pending_tree.owned_by(write.session_id)]
        try:
            write.commit = self._pending_tree.commit(write.ops, write.session_id, self._zxid + 1)
        except MultiFailed as error:
            write.error = error
        if write.commit.changes:
            self._zxid += 1
        return write.commit.changes

    def _commit_returned(self, job: "asyncio.Future[None]") -> None:
        error = job.exception()
        if error is None:
            self._durable_epoch = self._zxid >> _COUNTER_BITS
            self._disk_full.end("store has free space again")
            self._commit_succeeded()
            return
        if isinstance(error, StoreFull):
            self._disk_full.log(str(error))
            self._commit_failed(error)
            return
        _log.error("%s", error)
        self.failure = str(error)
        self._commit_failed(UnknownOutcome(self.failure))
        for store in self._sessions.copy():
            store.faults.lose()

    def _commit_succeeded(self) -> None:
        writes, self._committing = self._committing or [], None
        for write in writes:
            self.tree.replay(write.commit.changes)
            for event in write.commit.events:
                for store in self._sessions.copy():
                    store.fire(event)
            write.complete()
        if self._queue:
            self._commit_soon()

    def _commit_failed(self, error: Exception) -> None:
        """Discard the writes of a commit that failed or has an unknown outcome."""
        writes, self._committing = self._committing or [], None
        self._pending_tree = self.tree.copy()
        for write in writes:
            if write.ends_session and self.failure is None:
                self._queue.insert(0, write)
            else:
                write.complete(error)
        if self.failure is not None:
            writes, self._queue = self._queue, []
            for write in writes:
                write.complete(SessionExpired(self.failure))
        elif self._queue:
            self._commit_soon()


class EmbeddedStore:
    """One session: the Store port over an EmbeddedServer."""

    def __init__(self, server: EmbeddedServer, *, owns_server: bool = False) -> None:
        self._server = server
        self._owns_server = owns_server
        self._loop = asyncio.get_running_loop()
        self._state = SessionState.CONNECTED
        self._session_id = server.next_zxid()
        self._listeners: list[SessionListener] = []
        self._data_watches: dict[str, dict[Watch, None]] = {}
        self._child_watches: dict[str, dict[Watch, None]] = {}
        self._last_completed: asyncio.Future[None] | None = None
        self._pending_responses: dict[asyncio.Future[None], None] = {}
        self._is_closed = False
        self.faults = Faults(self, server)

    @classmethod
    async def open(cls, path: str) -> "EmbeddedStore":
        """Open a server with one session. `close` closes both. Raises StoreFileError."""
        store = (await EmbeddedServer.open(path)).session()
        store._owns_server = True
        return store

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        return 0

    def on_session(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        await self._ready_to_read(path)
        node = self._server.tree.node(path)
        self._set_watch(self._data_watches, path, watch)
        return node.data, node.stat

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        await self._ready_to_read(path)
        node = self._server.tree.nodes.get(path)
        self._set_watch(self._data_watches, path, watch)
        return None if node is None else node.stat

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        await self._ready_to_read(path)
        names = self._server.tree.children(path)
        self._set_watch(self._child_watches, path, watch)
        return names

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Stat:
        changes = (await self._write_one(Create(path, data, ephemeral))).changes
        assert changes[0].node is not None
        return changes[0].node.stat

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        stat = (await self._write_one(Set(path, data, version))).results[0]
        assert stat is not None
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write_one(Delete(path, version))

    async def multi(self, ops: Sequence[Op]) -> list[Stat | None]:
        return (await self._write(ops)).results

    async def sync(self) -> None:
        await self._ready_to_read("/")

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._server.end_session(self._session_id)
            self.change_state(SessionState.LOST)
            self._server.remove_session(self)
        if self._owns_server:
            self._owns_server = False
            await self._server.close()

    async def _write_one(self, op: Op) -> Commit:
        try:
            return await self._write([op])
        except MultiFailed as failed:
            raise failed.error from None

    async def _write(self, ops: Sequence[Op]) -> Commit:
        check_ops(ops)
        self._check_state()
        unknown, applied = self.faults.next_outcome()
        write = self._server.submit(self._session_id, ops, applied=applied)
        response: asyncio.Future[None] = self._loop.create_future()
        self._pending_responses[response] = None
        self._last_completed = write.completed

        def completed(_: object) -> None:
            self._pending_responses.pop(response, None)
            if not response.done():
                response.set_result(None)

        write.completed.add_done_callback(completed)
        await response
        if unknown:
            raise UnknownOutcome("the connection was lost before the response arrived")
        if write.error is not None:
            raise write.error
        return write.commit

    async def _ready_to_read(self, path: str) -> None:
        check_path(path)
        self._check_state()
        if self._last_completed is not None and not self._last_completed.done():
            await asyncio.shield(self._last_completed)
            self._check_state()

    def _check_state(self) -> None:
        if self._state is SessionState.SUSPENDED:
            raise ConnectionLost("the connection to the store is suspended")
        if self._state is SessionState.LOST:
            raise SessionExpired(self._server.failure or "the session with the store has ended")

    def _set_watch(
        self, table: dict[str, dict[Watch, None]], path: str, watch: Watch | None
    ) -> None:
        if watch is not None:
            table.setdefault(path, {})[watch] = None

    def fire(self, event: WatchEvent) -> None:
        """Call the watches of an event. The change is readable."""
        watches: dict[Watch, None] = {}
        if event.type is not EventType.CHILDREN:
            watches |= self._data_watches.pop(event.path, {})
        if event.type in (EventType.CHILDREN, EventType.DELETED):
            watches |= self._child_watches.pop(event.path, {})
        for watch in watches:
            try:
                watch(event)
            except Exception as error:  # noqa: BLE001 - a watcher's bug must not stop the store
                self._report(error, watch)

    def change_state(self, state: SessionState) -> None:
        if state is self._state:
            return
        self._state = state
        if state is not SessionState.CONNECTED:
            self._data_watches.clear()
            self._child_watches.clear()
            waiting, self._pending_responses = self._pending_responses, {}
            for response in waiting:
                if not response.done():
                    response.set_exception(
                        UnknownOutcome("the connection was lost during the write")
                    )
        for listener in self._listeners.copy():
            try:
                listener(state)
            except Exception as error:  # noqa: BLE001 - a listener's bug must not stop the store
                self._report(error, listener)

    def renew(self) -> None:
        self._session_id = self._server.next_zxid()
        self.change_state(SessionState.CONNECTED)

    def _report(self, error: Exception, callback: object) -> None:
        self._loop.call_exception_handler(
            {"message": f"a callback of the store failed: {callback!r}", "exception": error}
        )


class Faults:
    """Injects the faults of a ZooKeeper ensemble, for tests."""

    def __init__(self, store: EmbeddedStore, server: EmbeddedServer) -> None:
        self._store = store
        self._server = server
        self._is_expired = False
        self._next_unknown: bool | None = None

    def suspend(self) -> None:
        """Break the connection: writes in flight have an unknown outcome, watches are lost."""
        if self._store.state is SessionState.CONNECTED:
            self._store.change_state(SessionState.SUSPENDED)

    def resume(self) -> None:
        """Reconnect. The session continues, or is LOST if it has expired."""
        if self._store.state is SessionState.SUSPENDED:
            lost = self._is_expired
            self._store.change_state(SessionState.LOST if lost else SessionState.CONNECTED)

    async def expire(self) -> None:
        """End the session at the server. A suspended session becomes LOST when it resumes."""
        await self._server.end_session(self._store.session_id)
        self._is_expired = True
        if self._store.state is SessionState.CONNECTED:
            self.lose()

    def lose(self) -> None:
        self._is_expired = True
        self._store.change_state(SessionState.LOST)

    def renew(self) -> None:
        """After LOST: connect with a new session."""
        if self._store.state is SessionState.LOST and self._server.failure is None:
            self._is_expired = False
            self._store.renew()

    def leave_next_outcome_unknown(self, *, applied: bool) -> None:
        """Make the next write raise UnknownOutcome. `applied` decides whether it is applied."""
        self._next_unknown = applied

    def next_outcome(self) -> tuple[bool, bool]:
        """Whether the current write has an unknown outcome, and whether it is applied."""
        unknown, self._next_unknown = self._next_unknown, None
        return unknown is not None, unknown is not False
