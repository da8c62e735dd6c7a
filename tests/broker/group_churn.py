"""Ten members of one group, one per thread, which join, read, commit, pause, leave and fail.

They send the requests themselves, so that the test can check each generation and each response.
"""

import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol
from uuid import UUID, uuid4

from headrace.model.errors import ErrorCode
from headrace.testing import RunningBroker
from headrace.wire.codec import Message
from tests.broker.group_member import (
    CONSUMER_GROUP_HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    RawMember,
    join_body,
    make_offsets_topic,
)
from tests.broker.raw import RawConnection, eventually, one_batch, values_of

GROUP = "churning"
TOPIC = "churned"
PARTITIONS = 12
SESSION_MS = 1_000
REBALANCE_MS = 3_000
HEARTBEAT_S = 0.1
MEMBERS = 10
SEED = int(os.environ.get("HEADRACE_CHURN_SEED", "1"))
SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
}


@dataclass
class Record:
    """What all members saw, and what must never be seen."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    delivered: set[bytes] = field(default_factory=set)
    generations: set[int] = field(default_factory=set)
    troubles: list[str] = field(default_factory=list)
    topic_id: UUID | None = None

    def own(self, generation: int, partition: int, member_id: str) -> None:
        with self.lock:
            self.generations.add(generation)
            owner = self.owners.setdefault((generation, partition), member_id)
            if owner != member_id:
                self.troubles.append(f"generation {generation}: two owners of {partition}")


class Churning(Protocol):
    """A member with its own thread."""

    thread: threading.Thread
    is_over: threading.Event
    is_calm: threading.Event
    """Set when no more members are killed."""


def churn(
    data_dir: Path, seconds: float, member: Callable[[RunningBroker, int, Record], Churning]
) -> Record:
    """Write for this time while members change. Then wait until they have read all records."""
    record = Record()
    with (
        RunningBroker.start(data_dir, settings=SETTINGS) as broker,
        RawConnection(broker.port) as wire,
    ):
        wire.create_topic(TOPIC, PARTITIONS)
        make_offsets_topic(wire)
        is_over = threading.Event()
        watcher = threading.Thread(target=_watch, args=(broker.port, is_over, record))
        watcher.start()
        members = [member(broker, number, record) for number in range(MEMBERS)]
        try:
            written = _write_for(wire, seconds)
            for each in members:
                each.is_calm.set()
            eventually(
                "every record is delivered",
                lambda: written <= record.delivered or bool(record.troubles),
                REBALANCE_MS / 1000 + 60,
            )
        finally:
            is_over.set()
            for each in members:
                each.is_over.set()
            for each in members:
                each.thread.join()
            watcher.join()
    assert record.troubles == []
    assert record.delivered == written
    return record


def _watch(port: int, is_over: threading.Event, record: Record) -> None:
    """Look at the committed offsets all the time: none may go back."""
    seen: dict[int, int] = {}
    with RawConnection(port) as wire:
        while not is_over.is_set():
            for partition, offset in fetch_offsets(wire, list(range(PARTITIONS))).items():
                if offset < seen.get(partition, 0):
                    record.troubles.append(f"{partition} went back from {seen[partition]}")
                seen[partition] = offset
            is_over.wait(0.01)


def _write_for(wire: RawConnection, seconds: float) -> set[bytes]:
    written: set[bytes] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = numbered(len(written))
        answer = wire.produce(TOPIC, one_batch(value), partition=len(written) % PARTITIONS)
        assert answer["error_code"] == 0
        written.add(value)
        threading.Event().wait(0.005)
    return written


class Rejoin(Exception):
    """The generation is over."""


class ChurningMember:
    commit_version = 7

    def __init__(self, port: int, number: int, record: Record) -> None:
        self.port = port
        self.name = f"member {number}"
        self.record = record
        self.random = Random(f"{SEED} {number}")
        self.is_over = threading.Event()
        self.is_calm = threading.Event()
        self.offsets: dict[int, int] = {}
        self.thread = threading.Thread(target=self._live_and_die, name=self.name)
        self.thread.start()

    def _live_and_die(self) -> None:
        try:
            while not self.is_over.is_set():
                with RawMember(self.port, GROUP) as member:
                    self._live(member)
                self.is_over.wait(self.random.uniform(0, 0.5))
        except Exception as error:  # noqa: BLE001 (the test reports it)
            self.record.troubles.append(f"{self.name}: {error!r}")

    def _live(self, member: RawMember) -> None:
        """Use one connection. It ends with LeaveGroup, or without it."""
        end = time.monotonic() + self.random.uniform(0.3, 4)
        while not self.is_over.is_set():
            try:
                self._join(member)
                while not self.is_over.is_set():
                    self._read_and_commit(member)
                    if not self.is_calm.is_set() and time.monotonic() > end:
                        if self.random.random() < 0.5:
                            self._leave(member)
                        return
                    if not self.is_calm.is_set() and self.random.random() < 0.01:
                        self.is_over.wait(self.random.uniform(0, 2 * SESSION_MS / 1000))
                    self.is_over.wait(HEARTBEAT_S)
                    if member.heartbeat():
                        raise Rejoin
            except Rejoin:
                continue
        self._leave(member)

    def _join(self, member: RawMember) -> None:
        fields = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS}
        wire = member.connection
        reply = wire.ask(JOIN_GROUP, 5, join_body(GROUP, member.member_id, **fields))
        if reply["error_code"]:
            is_required = reply["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
            member.member_id = reply["member_id"] if is_required else ""
            raise Rejoin
        member.member_id, member.generation = reply["member_id"], reply["generation_id"]
        assignments: dict[str, bytes] = {}
        for partition in range(PARTITIONS if reply["members"] else 0):
            owner = reply["members"][partition % len(reply["members"])]["member_id"]
            assignments[owner] = assignments.get(owner, b"") + bytes((partition,))
        synced = member.sync(assignments)
        if synced["error_code"]:
            if synced["error_code"] != ErrorCode.REBALANCE_IN_PROGRESS:
                member.member_id = ""
            raise Rejoin
        for partition in synced["assignment"]:
            self.record.own(member.generation, partition, member.member_id)
        self.offsets = fetch_offsets(wire, list(synced["assignment"]))

    def _read_and_commit(self, member: RawMember) -> None:
        read: list[bytes] = []
        for partition, offset in self.offsets.items():
            found = member.connection.fetch(TOPIC, offset, partition=partition)
            values = [value for value in values_of(found["records"] or b"") if value is not None]
            read += values
            self.offsets[partition] = offset + len(values)
        if read and commit_offsets(member, self.offsets, self.commit_version):
            raise Rejoin
        with self.record.lock:
            self.record.delivered.update(read)

    def _leave(self, member: RawMember) -> None:
        identity = {"member_id": member.member_id, "group_instance_id": None}
        member.connection.ask(LEAVE_GROUP, 3, {"group_id": GROUP, "members": [identity]})


def fetch_offsets(wire: RawConnection, partitions: list[int]) -> dict[int, int]:
    topics = [{"name": TOPIC, "partition_indexes": partitions}]
    reply = wire.ask(OFFSET_FETCH, 5, {"group_id": GROUP, "topics": topics})
    found = reply["topics"][0]["partitions"]
    return {part["partition_index"]: max(part["committed_offset"], 0) for part in found}


class ConsumerChurningMember(ChurningMember):
    """The same by the newer protocol (KIP-848): every heartbeat may bring another assignment."""

    commit_version = 9

    def _live(self, member: RawMember) -> None:
        member.member_id, member.generation = str(uuid4()), 0
        self.offsets = {}
        end = time.monotonic() + self.random.uniform(0.3, 4)
        while not self.is_over.is_set():
            self._beat(member)
            try:
                self._read_and_commit(member)
            except Rejoin:
                # The group has a new epoch. Continue at the committed offsets of all members.
                self.offsets = fetch_offsets(member.connection, list(self.offsets))
            if not self.is_calm.is_set() and time.monotonic() > end:
                if self.random.random() < 0.5:
                    self._leave(member)
                return
            if not self.is_calm.is_set() and self.random.random() < 0.01:
                self.is_over.wait(self.random.uniform(0, 2 * SESSION_MS / 1000))
            self.is_over.wait(HEARTBEAT_S)
        self._leave(member)

    def _beat(self, member: RawMember) -> None:
        topic_id = self._topic_id(member)
        owned = [{"topic_id": topic_id, "partitions": list(self.offsets)}] if self.offsets else []
        reply = self._send(member, member.generation, topic_partitions=owned)
        if reply["error_code"]:
            fenced = ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID
            assert reply["error_code"] in fenced, reply
            member.generation = 0
            self.offsets = {}
            return
        member.generation = reply["member_epoch"]
        if reply["assignment"] is not None:
            topics = reply["assignment"]["topic_partitions"]
            given = {index for each in topics for index in each["partitions"]}
            kept = {index: offset for index, offset in self.offsets.items() if index in given}
            self.offsets = kept | fetch_offsets(member.connection, sorted(given - kept.keys()))
        for partition in self.offsets:
            self.record.own(member.generation, partition, member.member_id)

    def _send(self, member: RawMember, epoch: int, **fields: Any) -> Message:
        body = {
            "group_id": GROUP,
            "member_id": member.member_id,
            "member_epoch": epoch,
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": [TOPIC],
            **fields,
        }
        return member.connection.ask(CONSUMER_GROUP_HEARTBEAT, 1, body)

    def _topic_id(self, member: RawMember) -> UUID:
        if self.record.topic_id is None:
            asked = {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}
            reply = member.connection.ask(METADATA, 12, asked)
            self.record.topic_id = reply["topics"][0]["topic_id"]
        return self.record.topic_id

    def _leave(self, member: RawMember) -> None:
        self._send(member, -1)


def commit_offsets(member: RawMember, offsets: dict[int, int], version: int) -> int:
    parts = [
        {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        for partition, offset in offsets.items()
    ]
    body = {
        "group_id": GROUP,
        "generation_id_or_member_epoch": member.generation,
        "member_id": member.member_id,
        "group_instance_id": None,
        "topics": [{"name": TOPIC, "partitions": parts}],
    }
    reply = member.connection.ask(OFFSET_COMMIT, version, body)
    code: int = reply["topics"][0]["partitions"][0]["error_code"]
    return code


def numbered(number: int) -> bytes:
    return struct.pack(">q", number)
