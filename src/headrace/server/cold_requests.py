"""Executes the requests of cold APIs. A request that must wait has a task.  # HOT

A connection has at most one such task, and reads its next request only after the response.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, final

from headrace.model.errors import ApiError
from headrace.runtime.exchange import Exchange
from headrace.server.connection import Connection

if TYPE_CHECKING:
    from headrace.server.plane import Plane

COLD_WORK: Final = 50
"""Added to `Peer.work` for each request."""
BYTES_PER_WORK: Final = 64
"""So many bytes of the response add 1 to `Peer.work`."""

ColdHandler = Callable[[Connection, bytes], "bytes | Awaitable[bytes]"]


@final
class ColdRequests:
    def __init__(self, plane: "Plane", handle: ColdHandler) -> None:
        self._plane = plane
        self._handle = handle
        self._tasks: dict[Connection, asyncio.Task[None]] = {}

    def handle(self, connection: Connection, frame: bytes) -> None:
        exchange = Exchange(connection, 0, 0)
        connection.exchanges.append(exchange)
        response = self._handle(connection, frame)
        connection.work += COLD_WORK
        if isinstance(response, bytes):
            connection.work += len(response) // BYTES_PER_WORK
            exchange.respond([len(response).to_bytes(4, "big"), response])
            return
        connection.muted = True
        task = asyncio.get_running_loop().create_task(self._finish(connection, exchange, response))
        self._tasks[connection] = task

    async def _finish(
        self, connection: Connection, exchange: Exchange, response: Awaitable[bytes]
    ) -> None:
        # No `finally` here: mypyc would use a value that is still None as the response.
        plane = self._plane
        try:
            frame = await response
        except ApiError as error:
            self._end_task(connection)
            plane.close(connection, str(error))
            plane.deliver()
            return
        except BaseException:
            self._end_task(connection)
            plane.close(connection, "an internal error; see the broker's log")
            plane.deliver()
            raise
        self._end_task(connection)
        connection.work += len(frame) // BYTES_PER_WORK
        exchange.respond([len(frame).to_bytes(4, "big"), frame])
        plane.deliver()

    def _end_task(self, connection: Connection) -> None:
        self._tasks.pop(connection, None)
        connection.muted = False

    def cancel(self, connection: Connection) -> None:
        """Cancel the request of a closed connection: no client waits for its response."""
        task = self._tasks.get(connection)
        if task is not None:
            # The task might not have started: cancel it later.
            asyncio.get_running_loop().call_soon(task.cancel)
