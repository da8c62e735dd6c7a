"""The budget for request frames that have not arrived whole.

An announced size is no reason to allocate: a large frame's buffer grows with the bytes that came.
Frames of up to 64 KiB never wait for the budget. When it is full, growing frames wait, and frames
that make no progress are closed, largest first, so that silent peers cannot hold up the others.

M1  used == the sum of the capacities of all large frames under way
M2  used <= bytes_max
"""

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

if TYPE_CHECKING:
    from headrace.server.connection import Connection

STALL_SECONDS = 1.0


@final
class RequestMemory:
    def __init__(self, bytes_max: i64) -> None:
        self.bytes_max: i64 = bytes_max
        self.used: i64 = 0
        self.growing: dict[Connection, int] = {}
        """Capacity taken by each connection's large frame."""
        self.waiting: dict[Connection, None] = {}

    def grow(self, connection: "Connection", capacity: i64) -> bool:
        """Let a frame's buffer grow to `capacity`; False: it has to wait for room."""
        held: i64 = self.growing.get(connection, 0)
        if self.used + capacity - held > self.bytes_max:
            self.waiting[connection] = None
            return False
        self.used += capacity - held
        self.growing[connection] = capacity
        return True

    def release(self, connection: "Connection") -> None:
        self.waiting.pop(connection, None)
        self.used -= self.growing.pop(connection, 0)

    def ready(self) -> "list[Connection]":
        """Who may try again, after something was released."""
        waiting = list(self.waiting)
        self.waiting.clear()
        return waiting

    def stalled(self, now: float) -> "Connection | None":
        """Whom to close while others wait: the largest frame that does not move.

        Those that wait are only asked when nobody else can make room.
        """
        if not self.waiting:
            return None
        candidates = [
            connection
            for connection in self.growing
            if connection not in self.waiting and now - connection.moved_at > STALL_SECONDS
        ]
        if not candidates and all(connection in self.waiting for connection in self.growing):
            candidates = list(self.growing)
        if not candidates:
            return None
        return max(candidates, key=lambda connection: self.growing[connection])
