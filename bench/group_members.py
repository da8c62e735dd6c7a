"""Runs the members of one group on raw sockets: one thread, and one connection per member.

Owns the connections and the timers of the members. A member has at most one request in flight. It
joins, gets its assignment and sends heartbeats, and joins again when the response requires it.

1. A classic group is stable when all members have their assignment in the same generation.
2. A group with the consumer protocol is stable when all members have the same epoch, own each
   partition exactly once, own equally many partitions (or one more), and have reported this to the
   coordinator.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import time
from collections.abc import Callable, Sequence

from bench import frames, group_frames
from bench.load import ask, connect

HEARTBEAT_S = 0.1
_STALL_S = 60.0


class Member:
    """A member of the group, and its connection."""

    def __init__(self, group: Group, number: int) -> None:
        self.group = group
        self.number = number
        self.member_id = ""
        self.socket: socket.socket = connect(group.host, group.port)
        self.socket.setblocking(False)
        self.has_left = False
        self.is_waiting = False
        self._data = b""

    def ask(self, request: bytes) -> None:
        self.is_waiting = True
        self.socket.sendall(request)

    def readable(self) -> None:
        self._data += self.socket.recv(1 << 20)
        while len(self._data) >= 4:
            end = 4 + int.from_bytes(self._data[:4], "big")
            if len(self._data) < end:
                return
            response, self._data = self._data[4:end], self._data[end:]
            self.is_waiting = False
            self.received(response)

    def start(self) -> None:
        raise NotImplementedError

    def received(self, response: bytes) -> None:
        raise NotImplementedError

    def heartbeat(self) -> None:
        raise NotImplementedError

    def leave_request(self) -> bytes:
        """The request with which this member leaves the group."""
        raise NotImplementedError


class ClassicMember(Member):
    generation = -1
    """The generation of the assignment; -1 without an assignment."""
    _joined_generation = -1
    _request = ""

    def start(self) -> None:
        self.generation = -1
        self._request = "join"
        metadata = group_frames.encode_subscription(self.group.topic)
        self.ask(group_frames.join(self.group.name, self.member_id, metadata))

    def received(self, response: bytes) -> None:
        if self._request == "join":
            self._received_join(group_frames.read_join(response))
        elif self._request == "sync":
            error = group_frames.read_error(response)
            if error == group_frames.REBALANCE_IN_PROGRESS:
                self.start()
                return
            _check(error, "SyncGroup")
            self.generation = self._joined_generation
            self.group.schedule_heartbeat(self)
        else:
            error = group_frames.read_error(response)
            if error == group_frames.REBALANCE_IN_PROGRESS:
                self.start()
                return
            _check(error, "Heartbeat")
            self.group.schedule_heartbeat(self)

    def _received_join(self, joined: group_frames.JoinResult) -> None:
        self.member_id = joined.member_id
        if joined.error == group_frames.MEMBER_ID_REQUIRED:
            self.start()
            return
        _check(joined.error, "JoinGroup")
        self._joined_generation = joined.generation
        assignments: dict[str, bytes] = {}
        count = len(joined.members)
        for number, member_id in enumerate(joined.members):
            partitions = range(number, self.group.partitions, count)
            assignments[member_id] = group_frames.encode_assignment(self.group.topic, partitions)
        self._request = "sync"
        name, generation = self.group.name, joined.generation
        self.ask(group_frames.sync(name, generation, self.member_id, assignments))

    def heartbeat(self) -> None:
        if self.generation >= 0:
            self._request = "heartbeat"
            self.ask(group_frames.heartbeat(self.group.name, self.generation, self.member_id))

    def leave_request(self) -> bytes:
        return group_frames.leave(self.group.name, self.member_id)


class ConsumerMember(Member):
    epoch = 0
    is_reported = True

    def __init__(self, group: Group, number: int) -> None:
        super().__init__(group, number)
        self.owned: group_frames.Assignment = {}

    def start(self) -> None:
        self.member_id = f"bench-{self.group.name}-{self.number}"
        self.owned = {}
        self.is_reported = True
        self.ask(self._frame(0, topic=self.group.topic, owned={}))

    def _frame(
        self,
        epoch: int,
        topic: str | None = None,
        owned: group_frames.Assignment | None = None,
    ) -> bytes:
        group = self.group.name
        return group_frames.consumer_heartbeat(
            group, self.member_id, epoch, topic=topic, owned=owned
        )

    def received(self, response: bytes) -> None:
        result = group_frames.read_consumer_heartbeat(response)
        _check(result.error, "ConsumerGroupHeartbeat")
        self.epoch = result.epoch
        if self.epoch < 0:
            return
        if result.assignment is not None and result.assignment != self.owned:
            self.owned = result.assignment
            self.is_reported = False
            self.ask(self._frame(self.epoch, owned=self.owned))
            return
        self.is_reported = True
        self.group.schedule_heartbeat(self)

    def heartbeat(self) -> None:
        self.ask(self._frame(self.epoch))

    def leave_request(self) -> bytes:
        return self._frame(-1)


class Group:
    """The members of one group, and their event loop."""

    def __init__(
        self,
        host: str,
        port: int,
        name: str,
        topic: str,
        partitions: int,
        kind: type[Member],
        count: int,
    ) -> None:
        self.host, self.port = host, port
        self.name, self.topic, self.partitions = name, topic, partitions
        self.kind = kind
        self._generation_before = 0
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Member]] = []
        self.members = [kind(self, number) for number in range(count)]
        for member in self.members:
            self._selector.register(member.socket, selectors.EVENT_READ, member)

    def start(self) -> None:
        for member in self.members:
            member.start()

    def schedule_heartbeat(self, member: Member) -> None:
        heapq.heappush(self._timers, (time.monotonic() + HEARTBEAT_S, id(member), member))

    def is_quiet(self) -> bool:
        """Whether no member waits for a response."""
        return not any(member.is_waiting for member in self.members)

    def remove_one(self) -> float:
        """Make the last member leave. Return the time of its request."""
        leaving = self.members[-1]
        self.run_until(lambda: not leaving.is_waiting)
        self.members.pop()
        self._generation_before = max((member.generation for member in self._classic()), default=0)
        started = time.monotonic()
        self._leave(leaving)
        return started

    def _leave(self, member: Member) -> None:
        member.has_left = True
        member.socket.settimeout(_STALL_S)
        ask(member.socket, member.leave_request())
        member.socket.close()

    def run_until(self, is_met: Callable[[], bool]) -> float:
        """Run the event loop until the condition is met. Return the time."""
        deadline = time.monotonic() + _STALL_S
        while not is_met():
            now = time.monotonic()
            if now > deadline:
                raise frames.ResponseError(
                    f"the group {self.name} was not stable within {_STALL_S:g} s"
                )
            while self._timers and self._timers[0][0] <= now:
                member = heapq.heappop(self._timers)[2]
                if not member.has_left:
                    member.heartbeat()
            wait_s = max(self._timers[0][0] - now, 0) if self._timers else 1.0
            for key, _ in self._selector.select(wait_s):
                key.data.readable()
        return time.monotonic()

    def is_stable(self) -> bool:
        if issubclass(self.kind, ClassicMember):
            generations = [member.generation for member in self._classic()]
            return generations[0] > self._generation_before and _agree(generations)
        members = [member for member in self.members if isinstance(member, ConsumerMember)]
        if not _agree([member.epoch for member in members]):
            return False
        owned = [part for member in members for parts in member.owned.values() for part in parts]
        if sorted(owned) != list(range(self.partitions)):
            return False
        sizes = [sum(map(len, member.owned.values())) for member in members]
        return max(sizes) - min(sizes) <= 1 and all(member.is_reported for member in members)

    def _classic(self) -> list[ClassicMember]:
        return [member for member in self.members if isinstance(member, ClassicMember)]

    def commit_for(self, seconds: float) -> float:
        """The number of commits per second. Each member sends its commits sequentially."""
        requests = {
            member.socket.fileno(): group_frames.commit(
                self.name,
                self.topic,
                [member.number],
                1,
                generation=member.generation,
                member_id=member.member_id,
            )
            for member in self._classic()
        }
        sockets = {member.socket.fileno(): member.socket for member in self.members}
        for number, connection in sockets.items():
            connection.sendall(requests[number])
        count = 0
        started = now = time.monotonic()
        left = len(sockets)
        while left:
            for key, _ in self._selector.select(_STALL_S):
                # The response for one partition is small: one read returns it. It ends with the
                # error code.
                response = sockets[key.fd].recv(4096)
                size = 4 + int.from_bytes(response[:4], "big")
                if response[-2:] != b"\0\0" or len(response) != size:
                    raise frames.ResponseError(f"unexpected response to OffsetCommit: {response!r}")
                count += 1
                if now - started < seconds:
                    sockets[key.fd].sendall(requests[key.fd])
                else:
                    left -= 1
            now = time.monotonic()
        return count / (now - started)

    def close(self) -> None:
        """Make all members leave, so that they do not disturb the next measurement."""
        self._selector.close()
        for member in self.members:
            self._leave(member)


def _agree(numbers: Sequence[int]) -> bool:
    """Whether all numbers are equal and positive."""
    return numbers[0] > 0 and len(set(numbers)) == 1


def _check(error: int, api: str) -> None:
    if error:
        raise frames.ResponseError(f"{api} returned error code {error}")
