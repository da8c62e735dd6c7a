"""Checks of the state of brokers: after each step of a run, and of all replicas at its end."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.coordination import layout
from headrace.coordination.port import Set
from headrace.coordinator.shard_runtime import Status
from headrace.model.topics import TopicPartition
from headrace.record.decode import read_batches, read_records
from headrace.replication.partition import Partition
from tests.simulation.history import Seen, Violation, seen
from tests.simulation.topics import Topic

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

EXPLAINED_S = 5.0
"""How long a new log start may lack an explanation: the leader that chose it may be dead."""
CLOCK_MS = 6000
"""How much earlier than its time retention may delete: small clock steps are tolerated."""

INVARIANTS_S = 0.2
"""How often the invariants of objects in memory are checked."""
VALUES_S = 1.0
"""How often compacted logs are read."""


class Checks:
    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._controller_epoch = 0
        self._written = 0
        self.leaders: dict[tuple[UUID, int, int], int] = {}
        """By topic id, partition and epoch."""
        self._ends: dict[tuple[UUID, int, int], int] = defaultdict(int)
        self._unexplained: dict[TopicPartition, float] = {}
        self._values_due = 0.0
        self._invariants_due = 0.0
        self._writes_by: dict[TopicPartition, tuple[int, float]] = {}
        """A record created since the first time (ms) is acknowledged before the second (s)."""

    def check_now(self) -> None:
        """The rules I6 (for leaders), I9, I10, I11 and I33."""
        for broker in self._cluster.brokers:
            broker.files.wall_ms = broker.clock.wall_ms()
            if broker.failed_start:
                raise Violation(f"I33: {broker.name} did not start: {broker.failed_start}")
        for broker, partition in self._cluster.replicas():
            if partition.is_leader:
                self._check_leader(broker.node_id, partition)
        self._assert_invariants()
        self._check_controllers()
        self._check_values()
        self._check_starts()
        self._check_writes()

    def _assert_invariants(self) -> None:
        """The invariants of partitions, logs and groups in memory (docs/INVARIANTS.md)."""
        if self._cluster.world.now < self._invariants_due:
            return
        self._invariants_due = self._cluster.world.now + INVARIANTS_S
        for each in self._cluster.brokers:
            broker = each.broker
            if broker is None:
                continue
            try:
                for partition in self._cluster.partitions_of(each):
                    partition.assert_invariants()
                service = None if broker._groups is None else broker._groups._service
                for runtime in () if service is None else service.shards:
                    if runtime.status is Status.ACTIVE:
                        runtime.shard.assert_invariants()
            except AssertionError as error:
                raise Violation(f"{each.name}: {error}") from error

    def _check_leader(self, node_id: int, partition: Partition) -> None:
        index, epoch = int(partition.index), int(partition.leader_epoch)
        key = partition.topic_id, index, epoch
        where = f"{partition.topic}-{index}"
        leader = self.leaders.setdefault(key, node_id)
        if leader != node_id:
            raise Violation(f"I10: {leader} and {node_id} are leaders of {where} in epoch {epoch}")
        end = int(partition.log.written_end_offset)
        if end < self._ends[key]:
            raise Violation(
                f"I6: the log of {where} ended at {self._ends[key]} and ends at {end} in {epoch}"
            )
        self._ends[key] = end
        state = self._cluster.current_state(partition)
        if state is None:
            return
        maximal = {*partition.replicas.isr, *(partition.replicas.proposed or ())}
        # The controller alone renews the epoch of a member that restarted cleanly.
        if not set(state.isr) <= members(maximal):
            raise Violation(f"I9: {where}: {state.isr} is stored, {maximal} is considered")
        self._check_deleted(node_id, partition)
        acked_to = self._cluster.history.acked_to[TopicPartition(partition.topic, index)]
        if end < acked_to:
            raise Violation(
                f"I1: offset {acked_to - 1} of {where} was acknowledged, and the log of its leader "
                f"{node_id} ends at {end} in epoch {epoch}"
            )

    def _check_values(self) -> None:
        """I1: each replica in sync has the last acknowledged record of each key, or a later one."""
        cluster, history = self._cluster, self._cluster.history
        if cluster.world.now < self._values_due:
            return
        self._values_due = cluster.world.now + VALUES_S
        for broker, partition in cluster.replicas():
            state = cluster.current_state(partition)
            if not partition.log.config.compacts or state is None or broker.broker is None:
                continue
            if broker.files.open_max is not None:
                continue  # This check opens files, too.
            epochs = dict(zip(state.isr, state.isr_epochs, strict=True))
            controller = broker.broker._controller
            # After a restart, the ISR names the former registration until the controller acts (B6).
            if controller is None or epochs.get(broker.node_id) != controller.broker_epoch:
                continue
            where = TopicPartition(partition.topic, int(partition.index))
            log = partition.log
            found = _last_values(partition, int(log.log_start_offset), int(log.written_end_offset))
            for key, (offset, content) in history.last_acked[where].items():
                if found.get(key, (-1,))[0] < offset:
                    raise Violation(
                        f"I1: {where}@{offset} was acknowledged as {content}, and {broker.name}, "
                        f"which is in sync, has neither it nor a later value"
                    )

    def _check_deleted(self, node_id: int, partition: Partition) -> None:
        history, where = (
            self._cluster.history,
            TopicPartition(partition.topic, int(partition.index)),
        )
        deleted_to, start = history.deleted_to[where], int(partition.log.log_start_offset)
        if start < deleted_to and node_id in history.deleted_without[where]:
            history.deleted_to[where] = start
        elif start < deleted_to:
            raise Violation(
                f"I6: records of {where} were deleted up to offset {deleted_to}, and the log of "
                f"its leader {node_id} starts at {start}"
            )

    def _check_controllers(self) -> None:
        ensemble = self._cluster.ensemble
        for _, op in ensemble.history[self._written :]:
            if isinstance(op, Set) and op.path == layout.CONTROLLER_EPOCH:
                epoch = layout.decode_controller_epoch(op.data)
                if epoch <= self._controller_epoch:
                    raise Violation(
                        f"I11: controller epoch {epoch} follows {self._controller_epoch}"
                    )
                self._controller_epoch = epoch
        self._written = len(ensemble.history)

    # Writes through a leader that is cut off.

    def expect_writes(self, where: TopicPartition, deadline: float) -> None:
        """From now on a record must be acknowledged before a time."""
        self._writes_by[where] = self._cluster.world.wall_ms(), deadline

    def _check_writes(self) -> None:
        world = self._cluster.world
        for where, (since_ms, deadline) in list(self._writes_by.items()):
            acked = reversed(self._cluster.history.acked)
            newest = next((each for each in acked if each.partition == where), None)
            if newest is not None and newest.timestamp > since_ms:
                del self._writes_by[where]
            elif world.now > deadline:
                raise Violation(f"I32: no write to {where} was acknowledged in time after a cut")

    # Where logs start.

    def _check_starts(self) -> None:
        cluster = self._cluster
        starts: dict[TopicPartition, list[Partition]] = defaultdict(list)
        for _, partition in cluster.replicas():
            where = TopicPartition(partition.topic, int(partition.index))
            topic = cluster.topics.get(partition.topic)
            if (
                topic is not None
                and not topic.is_recreated
                and partition.log.log_start_offset > cluster.history.removed_to[where]
            ):
                starts[where].append(partition)
        for where, partitions in starts.items():
            self._check_start(where, cluster.topics[where.topic], partitions)
        self._unexplained = {
            where: since for where, since in self._unexplained.items() if where in starts
        }

    def _check_start(
        self, where: TopicPartition, topic: Topic, partitions: list[Partition]
    ) -> None:
        history, now = self._cluster.history, self._cluster.world.now
        start = max(int(partition.log.log_start_offset) for partition in partitions)
        furthest = [each for each in partitions if each.log.log_start_offset == start]
        if self._is_old(where, topic, start) or _is_excess(topic, furthest):
            history.removed_to[where] = start
            return
        since = self._unexplained.setdefault(where, now)
        if now - since > EXPLAINED_S:
            raise Violation(f"I1: {where} starts at {start}, which nothing explains")

    def _is_old(self, where: TopicPartition, topic: Topic, start: int) -> bool:
        """Whether all records below an offset are as old as retention.ms demands."""
        history = self._cluster.history
        newest_ms = self._cluster.world.wall_ms() - topic.retention_ms + CLOCK_MS
        return all(
            acked.timestamp <= newest_ms
            for acked in history.acked
            if acked.partition == where and history.removed_to[where] <= acked.offset < start
        )

    # The end.

    def check_replicas(self) -> None:
        """I8 and I14: below the lowest high watermark all replicas have the same records."""
        held: dict[tuple[str, int], list[tuple[int, Partition]]] = defaultdict(list)
        for broker, partition in self._cluster.replicas():
            held[partition.topic, int(partition.index)].append((broker.node_id, partition))
        for (topic, index), replicas in held.items():
            start = max(int(partition.log.log_start_offset) for _, partition in replicas)
            end = min(int(partition.high_watermark) for _, partition in replicas)
            is_compacted = replicas[0][1].log.config.compacts
            contents = (_values if is_compacted else _digests)(replicas, start, end)
            if any(each != contents[replicas[0][0]] for each in contents.values()):
                raise Violation(f"I8: the replicas of {topic}-{index} differ: {contents}")
            for node, partition in replicas:
                _check_epochs(node, partition, is_compacted)


def members(isr: Iterable[tuple[int, int]]) -> set[int]:
    return {member for member, _ in isr}


def _is_excess(topic: Topic, partitions: list[Partition]) -> bool:
    """Whether one of these logs is still as large as retention.bytes allows, or nearly so."""
    if topic.retention_bytes < 0:
        return False
    slack = 2 * int(topic.configs["internal.segment.bytes"]) + 1000
    return any(each.log.size_bytes() + slack >= topic.retention_bytes for each in partitions)


def _digests(replicas: list[tuple[int, Partition]], start: int, end: int) -> dict[int, object]:
    return {
        node: hashlib.sha256(_bytes_of(partition, start, end)).hexdigest()
        for node, partition in replicas
    }


def _values(replicas: list[tuple[int, Partition]], start: int, end: int) -> dict[int, object]:
    """The last record of each key, of each replica, except keys with a record after the end.

    A replica with a higher high watermark may have removed their earlier records.
    """
    later: set[bytes] = set()
    for _, partition in replicas:
        later |= _last_values(partition, end, int(partition.log.log_end_offset)).keys()
    return {
        node: {
            key: value
            for key, value in _last_values(partition, start, end).items()
            if key not in later
        }
        for node, partition in replicas
    }


def _last_values(partition: Partition, start: int, end: int) -> dict[bytes, tuple[int, Seen]]:
    """The last record of each key, with its offset."""
    return {
        bytes(record.key or b""): (int(record.offset), seen(record.key, record.value))
        for batch in read_batches(_bytes_of(partition, start, end))
        for record in read_records(batch)
    }


def _bytes_of(partition: Partition, start: int, end: int) -> bytes:
    log, offset, pieces = partition.log, start, []
    while offset < end:
        found = log.read(offset, 1 << 30, end, True)
        assert found is not None
        data = found.read()
        if not data:
            break
        pieces.append(data)
        for batch in read_batches(data):
            offset = int(batch.base_offset + batch.last_offset_delta) + 1
    return b"".join(pieces)


def _check_epochs(node: int, partition: Partition, is_compacted: bool) -> None:
    log = partition.log
    start = int(log.log_start_offset)
    scanned: list[tuple[int, int]] = []
    for batch in read_batches(_bytes_of(partition, start, int(log.written_end_offset))):
        epoch = int(batch.leader_epoch)
        if scanned and epoch < scanned[-1][0]:
            raise Violation(f"I14: epochs fall in {partition.index} of {node}: {scanned}, {epoch}")
        if not scanned or epoch != scanned[-1][0]:
            scanned.append((epoch, max(int(batch.base_offset), start)))
    # Compaction may remove the first batch of an epoch, or all of them.
    if not is_compacted and scanned and log.epochs.entries() != scanned:
        raise Violation(
            f"I14: the cache of {partition.index} of {node} is {log.epochs.entries()}, "
            f"the log has {scanned}"
        )
