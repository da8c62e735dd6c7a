"""Builds the requests of group members, and reads the responses.

Does no I/O, and uses no code of the broker. Uses the newest versions that are not flexible:
JoinGroup 5, SyncGroup 3, Heartbeat 3, LeaveGroup 3, OffsetCommit 7, OffsetFetch 5, FindCoordinator
2, CreateTopics 4. All versions of ConsumerGroupHeartbeat are flexible; this module uses version 1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.frames import CLIENT_ID, CORRELATION_ID, compact, uvarint

SESSION_MS = 45_000
REBALANCE_MS = 60_000
PROTOCOL = "range"
Assignment = Mapping[bytes, Sequence[int]]
"""The partitions of each topic, by the 16 bytes of the topic id."""

MEMBER_ID_REQUIRED = 79
REBALANCE_IN_PROGRESS = 27


def request(api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    header = struct.pack(">hhih", api_key, version, CORRELATION_ID, len(CLIENT_ID)) + CLIENT_ID
    payload = header + (b"\0" if flexible else b"") + body
    return struct.pack(">i", len(payload)) + payload


def text(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def encode_assignment(topic: str, partitions: Sequence[int]) -> bytes:
    """An assignment in the format of consumers (ConsumerProtocolAssignment 0)."""
    listed = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hi", 0, 1) + text(topic) + listed + struct.pack(">i", -1)


def encode_subscription(topic: str) -> bytes:
    return struct.pack(">hi", 0, 1) + text(topic) + struct.pack(">i", -1)


# Requests.


def create_topic(topic: str, partitions: int) -> bytes:
    row = text(topic) + struct.pack(">ihii", partitions, 1, 0, 0)
    return request(19, 4, struct.pack(">i", 1) + row + struct.pack(">ib", 30_000, 0))


def find_coordinator(group: str) -> bytes:
    return request(10, 2, text(group) + b"\0")


def join(group: str, member_id: str, metadata: bytes) -> bytes:
    protocols = struct.pack(">i", 1) + text(PROTOCOL) + blob(metadata)
    head = text(group) + struct.pack(">ii", SESSION_MS, REBALANCE_MS)
    return request(11, 5, head + text(member_id) + text(None) + text("consumer") + protocols)


def sync(group: str, generation: int, member_id: str, assignments: Mapping[str, bytes]) -> bytes:
    rows = b"".join(text(member) + blob(assigned) for member, assigned in assignments.items())
    body = text(group) + struct.pack(">i", generation) + text(member_id) + text(None)
    return request(14, 3, body + struct.pack(">i", len(assignments)) + rows)


def heartbeat(group: str, generation: int, member_id: str) -> bytes:
    return request(
        12, 3, text(group) + struct.pack(">i", generation) + text(member_id) + text(None)
    )


def leave(group: str, member_id: str) -> bytes:
    return request(13, 3, text(group) + struct.pack(">i", 1) + text(member_id) + text(None))


def commit(
    group: str,
    topic: str,
    partitions: Sequence[int],
    offset: int,
    *,
    generation: int = -1,
    member_id: str = "",
) -> bytes:
    rows = b"".join(struct.pack(">iqi", at, offset, -1) + text("") for at in partitions)
    head = text(group) + struct.pack(">i", generation) + text(member_id) + text(None)
    topics = struct.pack(">i", 1) + text(topic) + struct.pack(">i", len(partitions)) + rows
    return request(8, 7, head + topics)


def fetch_offset(group: str, topic: str, partition: int) -> bytes:
    topics = struct.pack(">i", 1) + text(topic) + struct.pack(">ii", 1, partition)
    return request(9, 5, text(group) + topics)


def consumer_heartbeat(
    group: str,
    member_id: str,
    epoch: int,
    *,
    topic: str | None = None,
    owned: Assignment | None = None,
) -> bytes:
    """A heartbeat. With a topic, it is that of a joining member."""
    names = b"\0" if topic is None else b"\x02" + compact(topic.encode())
    timeout_ms = -1 if topic is None else REBALANCE_MS
    rows = b"\0"
    if owned is not None:
        rows = uvarint(len(owned) + 1) + b"".join(
            topic_id + uvarint(len(parts) + 1) + struct.pack(f">{len(parts)}i", *parts) + b"\0"
            for topic_id, parts in owned.items()
        )
    body = compact(group.encode()) + compact(member_id.encode()) + struct.pack(">i", epoch)
    body += b"\0\0" + struct.pack(">i", timeout_ms) + names + b"\0\0" + rows + b"\0"
    return request(68, 1, body, flexible=True)


# Responses, from the correlation id on.


class Reader:
    def __init__(self, data: bytes, at: int = 4) -> None:
        self.data = data
        self.at = at

    def number(self, form: str) -> int:
        value: int = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def raw(self, size: int) -> bytes:
        self.at += max(size, 0)
        return self.data[self.at - max(size, 0) : self.at]

    def text(self) -> str:
        return self.raw(self.number(">h")).decode()

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(">B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value


@dataclass(frozen=True, slots=True)
class JoinResult:
    error: int
    generation: int
    leader: str
    member_id: str
    members: tuple[str, ...]


def read_join(data: bytes) -> JoinResult:
    reader = Reader(data, 8)
    error, generation = reader.number(">h"), reader.number(">i")
    reader.text()
    leader, member_id = reader.text(), reader.text()
    members = []
    for _ in range(reader.number(">i")):
        members.append(reader.text())
        reader.text()
        reader.raw(reader.number(">i"))
    return JoinResult(error, generation, leader, member_id, tuple(members))


def read_error(data: bytes) -> int:
    """The error code of a response that begins with a throttle time and an error code."""
    return Reader(data, 8).number(">h")


def read_offset(data: bytes) -> tuple[int, int]:
    """The offset of the only partition, and the error of the group or of the partition."""
    reader = Reader(data, 8)
    offset, error = -1, 0
    for _ in range(reader.number(">i")):
        reader.text()
        for _ in range(reader.number(">i")):
            reader.number(">i")
            offset = reader.number(">q")
            reader.number(">i")
            reader.text()
            error = reader.number(">h")
    return offset, reader.number(">h") or error


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    error: int
    epoch: int
    interval_ms: int
    assignment: Assignment | None


def read_consumer_heartbeat(data: bytes) -> HeartbeatResult:
    reader = Reader(data, 9)
    error = reader.number(">h")
    for _ in range(2):
        reader.raw(reader.uvarint() - 1)
    epoch, interval_ms = reader.number(">i"), reader.number(">i")
    if reader.number(">b") < 0:
        return HeartbeatResult(error, epoch, interval_ms, None)
    assignment: dict[bytes, tuple[int, ...]] = {}
    for _ in range(reader.uvarint() - 1):
        topic_id = reader.raw(16)
        count = reader.uvarint() - 1
        assignment[topic_id] = struct.unpack(f">{count}i", reader.raw(4 * count))
        reader.uvarint()
    return HeartbeatResult(error, epoch, interval_ms, assignment)
