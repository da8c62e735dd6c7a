"""Starts reassignments, waits until they are complete, and shows their progress.

A reassignment continues in the cluster after the command has ended.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.connection import describe
from headrace.cli.failure import Failure
from headrace.cli.output import Progress, plural, size_text

if TYPE_CHECKING:
    from headrace.client import Client, Reassignment, RequestFailed, TopicPartition
    from headrace.client.admin.replica_plan import Assignment

_CHECK_S = 0.25
_IDLE_CHECKS_MAX = 20
_BAR_WIDTH = 24

Sizes = dict[tuple["TopicPartition", int], int]
"""Bytes of a partition on a broker."""


@dataclass(frozen=True)
class Placement:
    """The replicas of every partition, and the reassignments in progress."""

    replicas: "dict[TopicPartition, tuple[int, ...]]"
    reassignments: "dict[TopicPartition, Reassignment]"

    def target_replicas(self) -> "dict[TopicPartition, tuple[int, ...]]":
        """The replicas after all reassignments in progress."""
        return {
            partition: self.reassignments[partition].target
            if partition in self.reassignments
            else nodes
            for partition, nodes in self.replicas.items()
        }

    def state(self, partition: "TopicPartition", target: Sequence[int]) -> str:
        """The state of a partition compared with its target."""
        if partition in self.reassignments:
            return (
                "moving"
                if self.reassignments[partition].target == tuple(target)
                else "moving to other brokers"
            )
        return "done" if self.replicas[partition] == tuple(target) else "not started"


def read_placement(client: "Client") -> Placement:
    from headrace.client import TopicPartition

    # Reassignments first: one that ends in between is then listed with its new replicas only.
    reassignments = client.list_reassignments()
    replicas = {
        TopicPartition(topic.name, part.index): part.replicas
        for topic in client.list_topics().values()
        for part in topic.partitions
    }
    return Placement(
        replicas,
        {partition: move for partition, move in reassignments.items() if partition in replicas},
    )


def sizes(client: "Client") -> Sizes:
    """The size of each replica. Omits replicas on brokers that do not respond."""
    from headrace.client import ClientError, TopicPartition

    found: Sizes = {}
    for broker in client.describe_cluster().brokers:
        try:
            directories = client.describe_log_dirs(broker.node_id)
        except ClientError:
            continue
        for directory in directories:
            for part in directory.partitions:
                partition = TopicPartition(part.topic, part.partition)
                found[partition, broker.node_id] = part.size_bytes
    return found


def size_of(partition: "TopicPartition", known: Sizes, nodes: Collection[int]) -> int:
    """The bytes of the largest of these replicas, which is complete."""
    return max((known.get((partition, node), 0) for node in nodes), default=0)


def bytes_to_move(before: "Assignment", targets: "Assignment", known: Sizes) -> int:
    return sum(
        size_of(partition, known, before[partition]) * len(set(nodes) - set(before[partition]))
        for partition, nodes in targets.items()
    )


def begin(client: "Client", targets: "Mapping[TopicPartition, Sequence[int]]") -> int:
    """Start the reassignments that are not complete or in progress; return their number."""
    placement = read_placement(client)
    check_partitions_exist(placement, targets)
    wanted = {
        partition: nodes
        for partition, nodes in targets.items()
        if placement.state(partition, nodes) in ("not started", "moving to other brokers")
    }
    errors = client.alter_reassignments(wanted) if wanted else {}
    if errors:
        raise Failure(
            f"{_reason(errors)}. {len(wanted) - len(errors):,} other reassignments have started."
        )
    return len(wanted)


def check_partitions_exist(placement: Placement, targets: "Collection[TopicPartition]") -> None:
    unknown = [partition for partition in targets if partition not in placement.replicas]
    if unknown:
        raise Failure(f"Unknown partition {unknown[0]}.", 2)


def _reason(errors: "Mapping[TopicPartition, RequestFailed]") -> str:
    partition, error = next(iter(errors.items()))
    more = f" and {len(errors) - 1:,} more" if len(errors) > 1 else ""
    return f"Cannot reassign {partition}{more}: {describe(error).rstrip('.')}"


def wait_until_reassigned(
    client: "Client", targets: "Mapping[TopicPartition, Sequence[int]]", resume: str
) -> None:
    """Wait until all reassignments are complete. `resume` is a command that shows them later."""
    with Progress() as progress:
        meter = _Meter(client, targets) if progress.visible else None
        idle = 0
        try:
            while True:
                placement = read_placement(client)
                left = {w: n for w, n in targets.items() if placement.state(w, n) != "done"}
                if not left:
                    break
                # Brokers list a reassignment slightly later than the controller.
                idle = (
                    0
                    if any(partition in placement.reassignments for partition in left)
                    else idle + 1
                )
                if idle > _IDLE_CHECKS_MAX:
                    partition = next(iter(left))
                    raise Failure(
                        f"Reassignments ended early: {partition} and {len(left) - 1:,} others. "
                        f"Were they cancelled? {resume}"
                    )
                if meter is not None:
                    progress.show(meter.text(placement, left))
                time.sleep(_CHECK_S)
        except KeyboardInterrupt:
            progress.say(f"The reassignment continues. {resume}")
            raise
    # Leaders rebalance automatically within minutes; elect now because a user is waiting.
    client.elect_leaders(list(targets))


class _Meter:
    """Measures the copied bytes, the rate and the remaining time."""

    def __init__(self, client: "Client", targets: "Mapping[TopicPartition, Sequence[int]]") -> None:
        self._client = client
        self._count = len(targets)
        self._began_s = time.monotonic()
        self._began_bytes: int | None = None
        self._adding: dict[TopicPartition, tuple[int, ...]] = {}
        self._full_sizes: dict[TopicPartition, int] = {}

    def text(self, placement: Placement, left: "Collection[TopicPartition]") -> str:
        known = sizes(self._client)
        for partition in left:
            if partition in placement.reassignments:
                move = placement.reassignments[partition]
                self._adding[partition] = move.adding
                staying = [node for node in move.replicas if node not in move.adding]
                self._full_sizes[partition] = size_of(partition, known, staying)
        total = sum(
            self._full_sizes[partition] * len(nodes) for partition, nodes in self._adding.items()
        )
        done = 0
        for partition, nodes in self._adding.items():
            full_size = self._full_sizes[partition]
            for node in nodes:
                done += (
                    min(known.get((partition, node), 0), full_size)
                    if partition in left
                    else full_size
                )
        if self._began_bytes is None:
            self._began_bytes = done
        seconds = time.monotonic() - self._began_s
        rate = (done - self._began_bytes) / seconds if seconds > 0 else 0.0
        reassigned_count = self._count - len(left)
        return progress_text(reassigned_count, self._count, done, total, rate)


def progress_text(reassigned_count: int, count: int, done: int, total: int, rate: float) -> str:
    """One line: a bar, complete partitions, copied bytes, the rate and the remaining time."""
    part = done / total if total else reassigned_count / count
    filled = int(part * _BAR_WIDTH)
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    left = f", {_duration_text((total - done) / rate)} left" if rate > 0 and done < total else ""
    return (
        f"{bar} {part:4.0%}  {reassigned_count} of {plural(count, 'partition')}, "
        f"{size_text(done)} of {size_text(total)}, {size_text(int(rate))}/s{left}"
    )


def _duration_text(seconds: float) -> str:
    if seconds < 60:
        return f"{max(int(seconds), 1)} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
