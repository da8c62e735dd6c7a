"""The memory budget of requests (queued.max.request.bytes).

The buffer of a large frame grows with the bytes received, not with the announced size. Frames of
up to 64 KiB never wait for memory. When the budget is used up, growing frames wait. Frames that
make no progress are then closed, largest first. A large request is counted until its response.
The oldest incomplete frame has priority for free memory, so that frames complete one by one.

A Produce request whose response waits for followers or a sync releases its frame. The rest, a row
per partition, is counted in `deferred`. While `deferred` is above half of the budget, the broker
reads nothing from connections that wait for a response. Other connections can send one request.

1. used == the sum of `held`.
2. used <= bytes_max.
3. The memory that the oldest incomplete frame still needs is available to this frame only.
4. deferred <= bytes_max / 2 + the requests of one loop iteration + one request per connection.
"""

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

if TYPE_CHECKING:
    from headrace.server.connection import Connection

STALL_SECONDS = 1.0
ROOM_SHARE = 4
"""Stalled frames are closed until a quarter of the budget is free."""
DEFERRED_SHARE = 2
"""`deferred` can use half of the budget."""
UNLIMITED = 1 << 62


@final
class RequestMemory:
    def __init__(self, bytes_max: i64) -> None:
        self.bytes_max: i64 = bytes_max if bytes_max > 0 else UNLIMITED
        self.used: i64 = 0
        self.deferred: i64 = 0
        """The bytes of released Produce requests that wait for their responses."""
        self.held: dict[Connection, int] = {}
        self.waiting: dict[Connection, None] = {}
        self.incomplete: dict[Connection, None] = {}
        """Connections with an incomplete large frame, oldest first."""

    def grow(self, connection: "Connection", size: i64) -> bool:
        """Reserve `size` more bytes for a connection; false if too little memory is free."""
        room: i64 = self.bytes_max - self.used - self.deferred
        for oldest in self.incomplete:
            large = oldest.large
            if oldest is not connection and large is not None:
                room -= large.size - large.held
            break
        if size > room:
            return False
        self.used += size
        self.held[connection] = self.held.get(connection, 0) + size
        return True

    def defers_too_much(self) -> bool:
        return self.deferred > self.bytes_max // DEFERRED_SHARE

    def wait(self, connection: "Connection") -> None:
        """Let a connection try again when memory is free."""
        self.waiting[connection] = None

    def shrink(self, connection: "Connection", size: i64) -> None:
        self.used -= size
        left: i64 = self.held[connection] - size
        if left > 0:
            self.held[connection] = left
        else:
            del self.held[connection]

    def leave(self, connection: "Connection", kept: i64) -> None:
        """The connection is closed; requests that are still executed hold `kept` bytes."""
        self.waiting.pop(connection, None)
        self.incomplete.pop(connection, None)
        self.used += kept - self.held.pop(connection, 0)
        if kept > 0:
            self.held[connection] = kept

    def ready(self) -> "list[Connection]":
        """The connections that can try again after a release."""
        waiting = list(self.waiting)
        self.waiting.clear()
        return waiting

    def stalled(self, now: float) -> "list[Connection]":
        """The connections to close while others wait: those without progress, the largest first,
        until much of the memory is free.

        Waiting connections are closed only if no other connection can release memory.
        """
        if not self.waiting:
            return []
        candidates: list[Connection] = []
        can_move = self.deferred > 0  # The next responses release memory.
        for connection in self.held:
            if connection in self.waiting:
                continue
            if connection.is_incomplete() and now - connection.progressed_at > STALL_SECONDS:
                candidates.append(connection)
            else:
                can_move = True  # This request is being received or executed.
        for oldest in self.incomplete:
            if oldest in candidates:
                return [oldest]  # The memory that it lacks is reserved for it.
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
