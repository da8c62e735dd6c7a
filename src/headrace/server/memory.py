"""The budget for requests that take more than a little memory.

An announced size is no reason to allocate: a large frame's buffer grows with the bytes that came.
Frames of up to 64 KiB never wait for the budget. When it is full, growing frames wait, and frames
that make no progress are closed, largest first, so that silent peers cannot hold up the others.
What a large request takes is given back when it is answered. The oldest frame under way has first
call on what is free, so that honest peers who are many get through one after the other.

M1  used == the sum of what all connections hold
M2  used <= bytes_max
M3  nobody but the oldest frame takes what it lacks to be whole
"""

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

if TYPE_CHECKING:
    from headrace.server.connection import Connection

STALL_SECONDS = 1.0
ROOM_SHARE = 4
UNLIMITED = 1 << 62


@final
class RequestMemory:
    def __init__(self, bytes_max: i64) -> None:
        self.bytes_max: i64 = bytes_max if bytes_max > 0 else UNLIMITED
        self.used: i64 = 0
        self.held: dict[Connection, int] = {}
        self.waiting: dict[Connection, None] = {}
        self.under_way: dict[Connection, None] = {}
        """Those with a large frame that is not whole, oldest first."""

    def grow(self, connection: "Connection", size: i64) -> bool:
        """Take `size` bytes more for a connection; False: there is no room now."""
        room: i64 = self.bytes_max - self.used
        for oldest in self.under_way:
            if oldest is not connection:
                room -= oldest.large_size - oldest.large_held
            break
        if size > room:
            return False
        self.used += size
        self.held[connection] = self.held.get(connection, 0) + size
        return True

    def wait(self, connection: "Connection") -> None:
        """Have a connection try again when there is room."""
        self.waiting[connection] = None

    def shrink(self, connection: "Connection", size: i64) -> None:
        self.used -= size
        left: i64 = self.held[connection] - size
        if left > 0:
            self.held[connection] = left
        else:
            del self.held[connection]

    def leave(self, connection: "Connection", kept: i64) -> None:
        """The connection is gone; `kept` bytes are of requests that are still carried out."""
        self.waiting.pop(connection, None)
        self.under_way.pop(connection, None)
        self.used += kept - self.held.pop(connection, 0)
        if kept > 0:
            self.held[connection] = kept

    def ready(self) -> "list[Connection]":
        """Who may try again, after something was released."""
        waiting = list(self.waiting)
        self.waiting.clear()
        return waiting

    def stalled(self, now: float) -> "list[Connection]":
        """Whom to close while others wait: of those that do not move the largest, until a good
        part of the memory is free.

        Those that wait are only asked when nobody else can make room.
        """
        if not self.waiting:
            return []
        candidates: list[Connection] = []
        can_move = False
        for connection in self.held:
            if connection in self.waiting:
                continue
            if connection.is_incomplete() and now - connection.moved_at > STALL_SECONDS:
                candidates.append(connection)
            else:
                can_move = True  # It is being received, or carried out.
        for oldest in self.under_way:
            if oldest in candidates:
                return [oldest]  # What it lacks is kept for it.
            break
        if not candidates and not can_move:
            candidates = [connection for connection in self.waiting if connection in self.held]
        candidates.sort(key=lambda connection: self.held[connection], reverse=True)
        wanted: i64 = self.bytes_max // ROOM_SHARE - (self.bytes_max - self.used)
        victims: list[Connection] = []
        for connection in candidates:
            victims.append(connection)
            wanted -= self.held[connection]
            if wanted <= 0:
                break
        return victims
