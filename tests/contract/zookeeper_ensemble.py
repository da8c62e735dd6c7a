"""A live ZooKeeper for the contract tests: one server for all tests, and a proxy per session.

The proxy injects faults: it closes or refuses connections, and drops a request or its response.
"""

import asyncio
import atexit
import contextlib
import shutil
import struct
import tempfile
import uuid
from functools import cache
from pathlib import Path

from headrace.coordination.former_session import Session, end_session
from headrace.coordination.port import Store
from headrace.coordination.zookeeper import ZooKeeperStore
from headrace.ensemble.zookeeper import LocalZooKeeper, free_port

SESSION_TIMEOUT_MS = 4000


@cache
def server() -> LocalZooKeeper:
    """One server for the complete test run. It ends with the interpreter."""
    directory = tempfile.mkdtemp(prefix="headrace-zookeeper-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    zookeeper = LocalZooKeeper(Path(directory), [free_port()], durable=False)
    atexit.register(zookeeper.kill)
    zookeeper.start()
    return zookeeper


class Proxy:
    """A proxy between one store and the server. It decodes the frames and their headers."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.address = ""
        self.refuses = False
        self.new_sessions = asyncio.Event()
        self.new_sessions.set()
        self.next_outcome: bool | None = None
        """Drop the next write, or its response if this is true, and close the connection."""
        self._xid_swallowed: int | None = None
        self._links: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self.cut()
        self._listener.close()
        # A connection that was accepted last becomes a task only in the next loop iteration.
        for _ in range(5):
            await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for link in self._links:
            for writer in link:
                writer.transport.abort()
        self._links.clear()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                if not self.refuses:
                    await self._serve(reader, writer)
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await _frame(reader)
        (session_id,) = struct.unpack_from(">q", hello, 20)
        if session_id == 0:
            await self.new_sessions.wait()
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        link = (writer, server_writer)
        self._links.add(link)
        server_writer.write(hello)
        try:
            writer.write(await _frame(server_reader))
            await asyncio.gather(
                self._requests(reader, server_writer), self._answers(server_reader, writer)
            )
        finally:
            self._links.discard(link)
            server_writer.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await _frame(reader)
            xid, kind = struct.unpack_from(">ii", frame, 4)
            if self.next_outcome is not None and kind in (1, 2, 5, 14, 15):
                applied, self.next_outcome = self.next_outcome, None
                if not applied:
                    self.cut()
                    return
                self._xid_swallowed = xid
            writer.write(frame)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await _frame(reader)
            (xid,) = struct.unpack_from(">i", frame, 4)
            if xid == self._xid_swallowed:
                self._xid_swallowed = None
                self.cut()
                return
            writer.write(frame)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size))


class ZooKeeperEnsemble:
    def __init__(self, _: Path) -> None:
        self._chroot = f"/contract/{uuid.uuid4().hex}"
        self._started_before = False
        self._stores: dict[ZooKeeperStore, Proxy] = {}

    async def start(self) -> None:
        if self._started_before:
            await asyncio.to_thread(server().restart, 1)
        self._started_before = True
        await asyncio.to_thread(server)

    async def stop(self) -> None:
        for store, proxy in self._stores.items():
            await store.close()
            await proxy.stop()
        self._stores.clear()

    async def session(self) -> Store:
        proxy = Proxy(server().nodes[0].port)
        await proxy.start()
        store = await ZooKeeperStore.open(
            proxy.address + self._chroot, session_timeout_ms=SESSION_TIMEOUT_MS
        )
        self._stores[store] = proxy
        return store

    async def suspend(self, store: Store) -> None:
        proxy = self._proxy(store)
        proxy.refuses = True
        proxy.cut()

    async def resume(self, store: Store) -> None:
        self._proxy(store).refuses = False

    async def expire(self, store: Store) -> None:
        """Take the session over, as its rightful owner could, and close it."""
        assert isinstance(store, ZooKeeperStore)
        proxy = self._proxy(store)
        proxy.new_sessions.clear()
        owner = store._client
        session = Session(owner._session_id, owner._session_passwd)
        await end_session(server().connect, session)
        # Otherwise, the store would notice it only at its next ping.
        proxy.cut()

    async def renew(self, store: Store) -> None:
        self._proxy(store).new_sessions.set()

    def leave_next_outcome_unknown(self, store: Store, *, applied: bool) -> None:
        self._proxy(store).next_outcome = applied

    def _proxy(self, store: Store) -> Proxy:
        assert isinstance(store, ZooKeeperStore)
        return self._stores[store]
