"""Networks that fail between the brokers of a test cluster, and between them and ZooKeeper.

Owns a proxy for each way and the thread that they run in. A cut is silence, as of a pulled cable:
connections stay open, new ones are taken, and nothing arrives until the cut is healed; then it all
does. (A broker that is dead behind its proxy does not refuse connections, it ends them.)
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

ZOOKEEPER = 0
"""The end of a link that is no broker."""
_CHUNK_BYTES = 256 * 1024


class Links:
    """`cut(1, 2)`, `cut(1, ZOOKEEPER)`, `heal()`; `add` puts a proxy on a way."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._cut: set[frozenset[int]] = set()
        self._healed = asyncio.Event()
        self._servers: list[asyncio.Server] = []

    def add(
        self, host: str, port: int, target: tuple[str, int], ends: Callable[[int], tuple[int, int]]
    ) -> None:
        """Listen, and pass on. `ends` tells whose a connection is by the port it comes from."""

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # Cancelled only when all of it ends; asyncio's streams make an error of that.
            with contextlib.suppress(OSError, LookupError, asyncio.CancelledError):
                await self._carry(reader, writer, target, ends)
            writer.transport.abort()

        listening = asyncio.start_server(accepted, host, port)
        self._servers.append(asyncio.run_coroutine_threadsafe(listening, self._loop).result())

    def cut(self, one: int, *others: int) -> None:
        """Nothing passes between the first and each of the others, either way."""
        self._loop.call_soon_threadsafe(
            self._cut.update, [frozenset((one, other)) for other in others]
        )

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
        for server in self._servers:
            server.close()
        # What was accepted at the last moment needs its transport to be closed by.
        for _ in range(3):
            await asyncio.sleep(0)
        current = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        target: tuple[str, int],
        ends: Callable[[int], tuple[int, int]],
    ) -> None:
        pair = frozenset(ends(writer.get_extra_info("peername")[1]))
        await self._pass(pair)
        far_reader, far_writer = await asyncio.open_connection(*target)
        both = [
            asyncio.ensure_future(self._pump(pair, reader, far_writer)),
            asyncio.ensure_future(self._pump(pair, far_reader, writer)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            # That an end is gone does not arrive through a cut, either.
            await self._pass(pair)
        finally:
            for pump in both:
                pump.cancel()
            far_writer.transport.abort()

    async def _pump(
        self, pair: frozenset[int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._pass(pair)
                writer.write(chunk)
                await writer.drain()

    async def _pass(self, pair: frozenset[int]) -> None:
        while pair in self._cut:
            await self._healed.wait()


def owner_of(port: int, pids: dict[int, int]) -> int:
    """Which of these processes, by their keys, has the connection with this local port."""
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
    raise LookupError(f"the connection from port {port} is of none of {pids}")
