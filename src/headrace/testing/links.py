"""Network faults between the brokers of a test cluster, and between them and ZooKeeper.

Owns a proxy per connection path, and the thread in which they run. During a cut, connections stay
open and new ones are accepted, but no data passes until the cut is healed. Then all delayed data
arrives. If the target broker is dead, its proxy still accepts connections, and then closes them.
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

ZOOKEEPER = 0
"""The number of ZooKeeper as an end of a link. Other ends are broker ids."""
_CHUNK_BYTES = 256 * 1024


class Links:
    """The proxies. `cut(1, 2)` or `cut(1, ZOOKEEPER)` blocks data until `heal()`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._cut: set[frozenset[int]] = set()
        self._healed = asyncio.Event()
        # All open sockets, so that `close` can close them.
        self._sockets: set[socket.socket] = set()
        self._forwarders: set[asyncio.Task[None]] = set()

    def add(
        self, host: str, port: int, target: tuple[str, int], ends: Callable[[int], tuple[int, int]]
    ) -> None:
        """Create a proxy. `ends` maps the source port of a connection to its two ends."""
        listener = socket.create_server((host, port))
        listener.setblocking(False)

        def accept() -> None:
            with contextlib.suppress(OSError):
                near, (_, from_port) = listener.accept()
                near.setblocking(False)
                self._sockets.add(near)
                forwarder = self._loop.create_task(self._forward(near, from_port, target, ends))
                self._forwarders.add(forwarder)
                forwarder.add_done_callback(self._forwarders.discard)

        def listen() -> None:
            self._sockets.add(listener)
            self._loop.add_reader(listener, accept)

        self._loop.call_soon_threadsafe(listen)

    def cut(self, one: int, *others: int) -> None:
        """Block all data between the first and each of the others, in both directions."""
        # Set directly, not on the loop: data that is sent after this call must be blocked.
        self._cut.update(frozenset((one, other)) for other in others)

    def heal(self) -> None:
        def heal() -> None:
            self._cut.clear()
            self._healed.set()
            self._healed = asyncio.Event()

        self._loop.call_soon_threadsafe(heal)

    def close(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        for each in self._sockets:
            self._loop.remove_reader(each)
        forwarders = list(self._forwarders)
        for forwarder in forwarders:
            forwarder.cancel()
        await asyncio.gather(*forwarders, return_exceptions=True)
        for each in self._sockets:
            each.close()

    async def _forward(
        self,
        near: socket.socket,
        from_port: int,
        target: tuple[str, int],
        ends: Callable[[int], tuple[int, int]],
    ) -> None:
        far = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        far.setblocking(False)
        self._sockets.add(far)
        copiers: list[asyncio.Task[None]] = []
        try:
            with contextlib.suppress(OSError, LookupError):
                pair = frozenset(ends(from_port))
                await self._wait_until_healed(pair)
                await self._loop.sock_connect(far, target)
                for source, sink in ((near, far), (far, near)):
                    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    copiers.append(self._loop.create_task(self._copy(pair, source, sink)))
                await asyncio.wait(copiers, return_when=asyncio.FIRST_COMPLETED)
                # During a cut, the end of a connection is also delayed.
                await self._wait_until_healed(pair)
        finally:
            for copier in copiers:
                copier.cancel()
            await asyncio.gather(*copiers, return_exceptions=True)
            for each in (near, far):
                each.close()
                self._sockets.discard(each)

    async def _copy(self, pair: frozenset[int], source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := await self._loop.sock_recv(source, _CHUNK_BYTES):
                await self._wait_until_healed(pair)
                await self._loop.sock_sendall(sink, chunk)

    async def _wait_until_healed(self, pair: frozenset[int]) -> None:
        while pair in self._cut:
            await self._healed.wait()


def owner_of(port: int, pids: dict[int, int]) -> int:
    """The key of the process that has the connection with this local port."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    for key, pid in pids.items():
        directory = f"/proc/{pid}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):
                with contextlib.suppress(OSError):
                    if os.readlink(f"{directory}/{name}") in inodes:
                        return key
    raise LookupError(f"no process of {pids} has the connection from port {port}")
