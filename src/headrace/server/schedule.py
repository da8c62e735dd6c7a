"""The order in which connections are served.  # HOT

Three lists, in this order: connections with responses or requests of this turn, connections that
can send more of a long response, and connections to serve after the event loop. A connection is in
each list at most once.
"""

from collections import deque
from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from headrace.server.transport import STEP_BYTES

if TYPE_CHECKING:
    from headrace.server.connection import Connection


@final
class Schedule:
    def __init__(self) -> None:
        self.send_left: i64 = STEP_BYTES
        """The bytes of long responses that this round can send; after that, steps are short."""
        self._queued: list[Connection] = []
        """Connections to serve at the end of this turn."""
        self._writable: deque[Connection] = deque()
        """Connections whose sockets accept more of a long response."""
        self._postponed: list[Connection] = []
        """Connections to serve after the other ones and the event loop."""

    def begin_round(self) -> None:
        self.send_left = STEP_BYTES

    def queue(self, connection: "Connection") -> None:
        if not connection.is_queued and not connection.closed:
            connection.is_queued = True
            self._queued.append(connection)

    def take_queued(self) -> "list[Connection]":
        queued = self._queued
        if queued:
            self._queued = []
        return queued

    def add_writable(self, connection: "Connection") -> None:
        if not connection.is_writable:
            connection.is_writable = True
            self._writable.append(connection)

    def writable_count(self) -> int:
        return len(self._writable)

    def queue_writable(self) -> None:
        """Queue the connection that has waited longest to send more."""
        connection = self._writable.popleft()
        connection.is_writable = False
        self.queue(connection)

    def postpone(self, connection: "Connection") -> bool:
        """Returns whether no other connection was postponed before."""
        if connection.is_postponed:
            return False
        connection.is_postponed = True
        self._postponed.append(connection)
        return len(self._postponed) == 1

    def queue_postponed(self) -> None:
        postponed = self._postponed
        self._postponed = []
        for connection in postponed:
            connection.is_postponed = False
            connection.work = 0
            self.queue(connection)
