"""Members of one group on raw sockets: one thread, one selector, one connection for each.

Owns the connections and the members' timers. A member has one request in flight and does what
every client does: join, let the leader divide, synchronise, send heartbeats, join again when told.

1. A classic group is stable when every member has its part in one and the same generation.
2. A group of the consumer protocol is stable when all members have one epoch, own every partition
   between them, none twice and nobody more than one more than others, and have said so.
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
    """A connection, and what the member behind it waits for."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self.crowd = crowd
        self.number = number
        self.member_id = ""
        self.socket: socket.socket = connect(crowd.host, crowd.port)
        self.socket.setblocking(False)
        self.is_gone = False
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
            answer, self._data = self._data[4:end], self._data[end:]
            self.is_waiting = False
            self.answered(answer)

    def start(self) -> None:
        raise NotImplementedError

    def answered(self, answer: bytes) -> None:
        raise NotImplementedError

    def beat(self) -> None:
        raise NotImplementedError

    def goodbye(self) -> bytes:
        """The request by which it leaves."""
        raise NotImplementedError


class ClassicMember(Member):
    generation = -1
    """In which it has its part; -1 while it has none."""
    _joined = -1
    _asked = ""

    def start(self) -> None:
        self.generation = -1
        self._asked = "join"
        metadata = group_frames.subscription(self.crowd.topic)
        self.ask(group_frames.join(self.crowd.group, self.member_id, metadata))

    def answered(self, answer: bytes) -> None:
        if self._asked == "join":
            self._answer_join(group_frames.read_join(answer))
        elif self._asked == "sync":
            error = group_frames.read_error(answer)
            if error == group_frames.REBALANCE_IN_PROGRESS:
                self.start()
                return
            _check(error, "SyncGroup")
            self.generation = self._joined
            self.crowd.beat_later(self)
        else:
            error = group_frames.read_error(answer)
            if error == group_frames.REBALANCE_IN_PROGRESS:
                self.start()
                return
            _check(error, "Heartbeat")
            self.crowd.beat_later(self)

    def _answer_join(self, joined: group_frames.Joined) -> None:
        self.member_id = joined.member_id
        if joined.error == group_frames.MEMBER_ID_REQUIRED:
            self.start()
            return
        _check(joined.error, "JoinGroup")
        self._joined = joined.generation
        given: dict[str, bytes] = {}
        count = len(joined.members)
        for number, member_id in enumerate(joined.members):
            mine = range(number, self.crowd.partitions, count)
            given[member_id] = group_frames.partitions_of(self.crowd.topic, mine)
        self._asked = "sync"
        self.ask(group_frames.sync(self.crowd.group, joined.generation, self.member_id, given))

    def beat(self) -> None:
        if self.generation >= 0:
            self._asked = "heartbeat"
            self.ask(group_frames.heartbeat(self.crowd.group, self.generation, self.member_id))

    def goodbye(self) -> bytes:
        return group_frames.leave(self.crowd.group, self.member_id)


class ConsumerMember(Member):
    epoch = 0
    is_reported = True

    def __init__(self, crowd: Crowd, number: int) -> None:
        super().__init__(crowd, number)
        self.owned: group_frames.Assignment = {}

    def start(self) -> None:
        self.member_id = f"bench-{self.crowd.group}-{self.number}"
        self.owned = {}
        self.is_reported = True
        self.ask(self._frame(0, topic=self.crowd.topic, owned={}))

    def _frame(
        self,
        epoch: int,
        topic: str | None = None,
        owned: group_frames.Assignment | None = None,
    ) -> bytes:
        group = self.crowd.group
        return group_frames.consumer_heartbeat(
            group, self.member_id, epoch, topic=topic, owned=owned
        )

    def answered(self, answer: bytes) -> None:
        reply = group_frames.read_beat(answer)
        _check(reply.error, "ConsumerGroupHeartbeat")
        self.epoch = reply.epoch
        if self.epoch < 0:
            return
        if reply.assignment is not None and reply.assignment != self.owned:
            self.owned = reply.assignment
            self.is_reported = False
            self.ask(self._frame(self.epoch, owned=self.owned))
            return
        self.is_reported = True
        self.crowd.beat_later(self)

    def beat(self) -> None:
        self.ask(self._frame(self.epoch))

    def goodbye(self) -> bytes:
        return self._frame(-1)


class Crowd:
    """Members of one group, and the loop that they live on."""

    def __init__(
        self,
        host: str,
        port: int,
        group: str,
        topic: str,
        partitions: int,
        kind: type[Member],
        count: int,
    ) -> None:
        self.host, self.port = host, port
        self.group, self.topic, self.partitions = group, topic, partitions
        self.kind = kind
        self._generation_left = 0
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Member]] = []
        self.members = [kind(self, number) for number in range(count)]
        for member in self.members:
            self._selector.register(member.socket, selectors.EVENT_READ, member)

    def start(self) -> None:
        for member in self.members:
            member.start()

    def beat_later(self, member: Member) -> None:
        heapq.heappush(self._timers, (time.monotonic() + HEARTBEAT_S, id(member), member))

    def is_quiet(self) -> bool:
        """Whether no member waits for an answer."""
        return not any(member.is_waiting for member in self.members)

    def remove_one(self) -> float:
        """The last one leaves; returns the moment at which it says so."""
        gone = self.members[-1]
        self.run_until(lambda: not gone.is_waiting)
        self.members.pop()
        self._generation_left = max((member.generation for member in self._classic()), default=0)
        started = time.monotonic()
        self._leave(gone)
        return started

    def _leave(self, member: Member) -> None:
        member.is_gone = True
        member.socket.settimeout(_STALL_S)
        ask(member.socket, member.goodbye())
        member.socket.close()

    def run_until(self, is_so: Callable[[], bool]) -> float:
        """Returns the moment at which it was so."""
        deadline = time.monotonic() + _STALL_S
        while not is_so():
            now = time.monotonic()
            if now > deadline:
                raise frames.AnswerError(f"the group {self.group} is not stable in {_STALL_S} s")
            while self._timers and self._timers[0][0] <= now:
                member = heapq.heappop(self._timers)[2]
                if not member.is_gone:
                    member.beat()
            wait_s = max(self._timers[0][0] - now, 0) if self._timers else 1.0
            for key, _ in self._selector.select(wait_s):
                key.data.readable()
        return time.monotonic()

    def is_stable(self) -> bool:
        if issubclass(self.kind, ClassicMember):
            generations = [member.generation for member in self._classic()]
            return generations[0] > self._generation_left and _is_one(generations)
        members = [member for member in self.members if isinstance(member, ConsumerMember)]
        if not _is_one([member.epoch for member in members]):
            return False
        owned = [part for member in members for parts in member.owned.values() for part in parts]
        if sorted(owned) != list(range(self.partitions)):
            return False
        sizes = [sum(map(len, member.owned.values())) for member in members]
        return max(sizes) - min(sizes) <= 1 and all(member.is_reported for member in members)

    def _classic(self) -> list[ClassicMember]:
        return [member for member in self.members if isinstance(member, ClassicMember)]

    def commit_for(self, seconds: float) -> float:
        """Commits a second, each member one after the other."""
        requests = {
            member.socket.fileno(): group_frames.commit(
                self.group,
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
                # One partition's answer is one small frame, and its last two bytes are the error.
                answer = sockets[key.fd].recv(4096)
                if answer[-2:] != b"\0\0" or len(answer) != 4 + int.from_bytes(answer[:4], "big"):
                    raise frames.AnswerError(f"a commit was answered with {answer!r}")
                count += 1
                if now - started < seconds:
                    sockets[key.fd].sendall(requests[key.fd])
                else:
                    left -= 1
            now = time.monotonic()
        return count / (now - started)

    def close(self) -> None:
        """All leave, so that nothing of them disturbs what is measured next."""
        self._selector.close()
        for member in self.members:
            self._leave(member)


def _is_one(numbers: Sequence[int]) -> bool:
    """Whether all have the same number, and it is one."""
    return numbers[0] > 0 and len(set(numbers)) == 1


def _check(error: int, what: str) -> None:
    if error:
        raise frames.AnswerError(f"{what} was answered with error {error}")
