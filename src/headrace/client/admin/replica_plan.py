"""Plans replica placement: onto new brokers, off a broker, or with another replication factor.

Pure: the input is an assignment and the racks of the brokers, the output the changed partitions.

1. A partition never has two replicas on one broker. The number of replicas changes only on request.
2. A replica moves only if necessary. The preferred leader can change although no replica moves.
3. Replicas are on as many racks as possible. Their number of racks decreases only if a rack is
   emptied.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from headrace.model.topics import TopicPartition

Assignment = Mapping[TopicPartition, Sequence[int]]
Changes = dict[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]
"""The racks of all brokers that can have replicas; None if a broker has no rack."""


_ReplicasByTopic = dict[tuple[bool, str], list[TopicPartition]]
"""The replicas of one broker. The key is (whether it is the preferred leader, topic)."""


class ImpossibleError(Exception):
    """No plan is possible. The message has the reason, for example too few brokers."""


class _Plan:
    """The assignment before and after the changes. Counts the replicas and leaders per broker."""

    def __init__(self, assignment: Assignment, racks: Racks) -> None:
        self.before = {partition: tuple(nodes) for partition, nodes in assignment.items()}
        self.after = dict(self.before)
        self.racks = racks
        self.replica_counts: Counter[int] = Counter(dict.fromkeys(racks, 0))
        self.leader_counts: Counter[int] = Counter(dict.fromkeys(racks, 0))
        self.topic_replica_counts: Counter[tuple[str, int]] = Counter()
        self._topic_sizes: Counter[str] = Counter()
        for partition, nodes in self.before.items():
            self._count(partition, nodes, 1)
            self._topic_sizes[partition.topic] += len(nodes)

    def _count(self, partition: TopicPartition, nodes: Sequence[int], by: int) -> None:
        for node in nodes:
            self.replica_counts[node] += by
            self.topic_replica_counts[partition.topic, node] += by
        if nodes:
            self.leader_counts[nodes[0]] += by

    def set_replicas(self, partition: TopicPartition, nodes: Iterable[int]) -> None:
        self._count(partition, self.after[partition], -1)
        self.after[partition] = tuple(nodes)
        self._count(partition, self.after[partition], 1)

    def topic_share(self, topic: str, node: int) -> float:
        """The share of a topic's replicas on a broker, which is large for a small topic."""
        return self.topic_replica_counts[topic, node] / self._topic_sizes[topic]

    def rack_count(self, nodes: Iterable[int]) -> int:
        return len({self.racks.get(node) for node in nodes})

    def replaced(self, partition: TopicPartition, old: int, new: int) -> tuple[int, ...]:
        return tuple(new if node == old else node for node in self.after[partition])

    def best_broker(
        self, partition: TopicPartition, remaining: Collection[int], excluded: int = -1
    ) -> int:
        """The broker for another replica. Prefers new racks, then brokers with few replicas."""
        candidates = [node for node in self.racks if node not in remaining and node != excluded]
        if not candidates:
            raise ImpossibleError(
                f"{partition} needs a broker for replica {len(remaining) + 1}, but the number of "
                f"available brokers is {len([node for node in self.racks if node != excluded])}: "
                "start another broker"
            )
        return min(
            candidates,
            key=lambda node: (
                -self.rack_count((*remaining, node)),
                self.replica_counts[node],
                self.topic_replica_counts[partition.topic, node],
                node,
            ),
        )

    def prefer_least_loaded_leader(self, partition: TopicPartition) -> None:
        """Make the replica with the fewest leaders the preferred leader."""
        nodes = self.after[partition]
        first = min(nodes, key=lambda node: self.leader_counts[node] - (node == nodes[0]))
        self.set_replicas(partition, (first, *(node for node in nodes if node != first)))

    def changes(self) -> Changes:
        return {
            partition: nodes
            for partition, nodes in self.after.items()
            if nodes != self.before[partition]
        }


def add_brokers(assignment: Assignment, racks: Racks, new: Collection[int]) -> Changes:
    """Move a fair share of replicas and leaders to new brokers, from those with the most."""
    plan = _Plan(assignment, racks)
    share = sum(map(len, plan.before.values())) // len(racks)
    leading = len(plan.before) // len(racks)
    replicas = _replicas_by_topic(plan)
    unfilled = set(new)
    while unfilled := {node for node in unfilled if plan.replica_counts[node] < share}:
        node = min(unfilled, key=lambda each: (plan.replica_counts[each], each))
        if not _move_one_replica(
            plan, replicas, node, new, prefers_leaders=plan.leader_counts[node] < leading
        ):
            unfilled.remove(node)
    for node in sorted(new):
        _move_leaders(plan, node, leading)
    return plan.changes()


def _replicas_by_topic(plan: _Plan) -> dict[int, _ReplicasByTopic]:
    replicas: dict[int, _ReplicasByTopic] = defaultdict(lambda: defaultdict(list))
    for partition, nodes in sorted(plan.before.items()):
        for node in nodes:
            replicas[node][node == nodes[0], partition.topic].append(partition)
    return replicas


def _move_one_replica(
    plan: _Plan,
    replicas: dict[int, _ReplicasByTopic],
    node: int,
    new: Collection[int],
    *,
    prefers_leaders: bool,
) -> bool:
    """Move one replica to this broker from the fullest broker that has a suitable one."""
    has_racks = len(set(plan.racks.values())) > 1

    def fits(partition: TopicPartition, donor: int) -> bool:
        nodes = plan.after[partition]
        if node in nodes:
            return False
        replaced = plan.replaced(partition, donor, node)
        return not has_racks or plan.rack_count(replaced) >= plan.rack_count(nodes)

    donors = [
        d
        for d in plan.replica_counts
        if d not in new and plan.replica_counts[d] > plan.replica_counts[node] + 1
    ]
    for donor in sorted(
        donors, key=lambda each: (-plan.replica_counts[each], -plan.leader_counts[each], each)
    ):
        groups = sorted(
            replicas[donor],
            key=lambda group: (
                group[0] != prefers_leaders,
                plan.topic_share(group[1], node),
                -plan.topic_share(group[1], donor),
                group[1],
            ),
        )
        for group in groups:
            for partition in replicas[donor][group]:
                if fits(partition, donor):
                    replicas[donor][group].remove(partition)
                    plan.set_replicas(partition, plan.replaced(partition, donor, node))
                    return True
    return False


def _move_leaders(plan: _Plan, node: int, share: int) -> None:
    """Become preferred leader of local replicas whose current one leads at least two more."""
    while plan.leader_counts[node] < share:
        candidates = [
            partition
            for partition, nodes in plan.after.items()
            if node in nodes[1:] and plan.leader_counts[nodes[0]] > plan.leader_counts[node] + 1
        ]
        if not candidates:
            return
        partition = min(
            candidates, key=lambda each: (-plan.leader_counts[plan.after[each][0]], each)
        )
        plan.set_replicas(
            partition, (node, *(other for other in plan.after[partition] if other != node))
        )


def drain_broker(assignment: Assignment, racks: Racks, node: int) -> Changes:
    """Move all replicas of a broker to the other brokers with the fewest replicas."""
    plan = _Plan(assignment, racks)
    leaving = [partition for partition, nodes in plan.before.items() if node in nodes]
    targets: dict[TopicPartition, int] = {}
    for partition in leaving:
        remaining = [other for other in plan.after[partition] if other != node]
        targets[partition] = plan.best_broker(partition, remaining, excluded=node)
        plan.set_replicas(partition, plan.replaced(partition, node, targets[partition]))
    _balance(plan, targets, node)
    for partition in leaving:
        if plan.before[partition][0] == node:
            plan.prefer_least_loaded_leader(partition)
    return plan.changes()


def _balance(plan: _Plan, targets: dict[TopicPartition, int], excluded: int) -> None:
    """Choose another target for a replica while that makes two brokers more equal."""
    is_changed = True
    while is_changed:
        is_changed = False
        for partition, target in list(targets.items()):
            remaining = [other for other in plan.after[partition] if other != target]
            plan.set_replicas(partition, remaining)
            better = plan.best_broker(partition, remaining, excluded)
            is_better = plan.replica_counts[better] < plan.replica_counts[target]
            chosen = better if is_better else target
            at = plan.before[partition].index(excluded)
            plan.set_replicas(partition, (*remaining[:at], chosen, *remaining[at:]))
            if is_better:
                targets[partition] = chosen
                is_changed = True


def change_factor(
    assignment: Assignment, racks: Racks, partitions: Collection[TopicPartition], factor: int
) -> Changes:
    """Set the number of replicas of these partitions; the first replica stays first."""
    if factor < 1:
        raise ImpossibleError(f"the replication factor must be at least 1, not {factor}")
    plan = _Plan(assignment, racks)
    for partition in partitions:
        while len(plan.after[partition]) < factor:
            nodes = plan.after[partition]
            plan.set_replicas(partition, (*nodes, plan.best_broker(partition, nodes)))
        while len(plan.after[partition]) > factor:
            plan.set_replicas(partition, _without_one(plan, plan.after[partition]))
    return plan.changes()


def _without_one(plan: _Plan, nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Remove the follower on the fullest broker, preferably one whose rack has other replicas."""

    def without(removed: int) -> tuple[int, ...]:
        return tuple(node for node in nodes if node != removed)

    removed = max(
        nodes[1:],
        key=lambda node: (
            node not in plan.racks,
            plan.rack_count(without(node)),
            plan.replica_counts[node],
            node,
        ),
    )
    return without(removed)
