"""Plans replica placement: onto new brokers, off a broker, or with another replication factor.

Pure: the input is an assignment and the racks of the brokers, the output the changed partitions.

1. A partition never has two replicas on one broker. The number of replicas changes only on request.
2. A replica moves only if necessary. The preferred leader can change without a move.
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


_Stock = dict[tuple[bool, str], list[TopicPartition]]
"""The replicas of one broker by topic, separately for leaders and followers."""


class ImpossibleError(Exception):
    """There are too few brokers; the message has the details."""


class _Board:
    """The changing assignment, with the replicas, leaders and replicas per topic of each broker."""

    def __init__(self, assignment: Assignment, racks: Racks) -> None:
        self.before = {partition: tuple(nodes) for partition, nodes in assignment.items()}
        self.after = dict(self.before)
        self.racks = racks
        self.held: Counter[int] = Counter(dict.fromkeys(racks, 0))
        self.led: Counter[int] = Counter(dict.fromkeys(racks, 0))
        self.of_topic: Counter[tuple[str, int]] = Counter()
        self._size: Counter[str] = Counter()
        for partition, nodes in self.before.items():
            self._count(partition, nodes, 1)
            self._size[partition.topic] += len(nodes)

    def _count(self, partition: TopicPartition, nodes: Sequence[int], by: int) -> None:
        for node in nodes:
            self.held[node] += by
            self.of_topic[partition.topic, node] += by
        if nodes:
            self.led[nodes[0]] += by

    def put(self, partition: TopicPartition, nodes: Iterable[int]) -> None:
        self._count(partition, self.after[partition], -1)
        self.after[partition] = tuple(nodes)
        self._count(partition, self.after[partition], 1)

    def part_of(self, topic: str, node: int) -> float:
        """The share of a topic's replicas on a broker, which is large for a small topic."""
        return self.of_topic[topic, node] / self._size[topic]

    def racks_of(self, nodes: Iterable[int]) -> int:
        return len({self.racks.get(node) for node in nodes})

    def swapped(self, partition: TopicPartition, old: int, new: int) -> tuple[int, ...]:
        return tuple(new if node == old else node for node in self.after[partition])

    def best_home(
        self, partition: TopicPartition, staying: Collection[int], barred: int = -1
    ) -> int:
        """The broker for another replica: on a new rack, then with the fewest replicas."""
        able = [node for node in self.racks if node not in staying and node != barred]
        if not able:
            raise ImpossibleError(
                f"{partition} needs a broker for replica {len(staying) + 1}, but the number of "
                f"available brokers is {len([node for node in self.racks if node != barred])}: "
                "start another broker"
            )
        return min(
            able,
            key=lambda node: (
                -self.racks_of((*staying, node)),
                self.held[node],
                self.of_topic[partition.topic, node],
                node,
            ),
        )

    def lead_by_least(self, partition: TopicPartition) -> None:
        """Make the replica with the fewest leaders the preferred leader."""
        nodes = self.after[partition]
        first = min(nodes, key=lambda node: self.led[node] - (node == nodes[0]))
        self.put(partition, (first, *(node for node in nodes if node != first)))

    def changes(self) -> Changes:
        return {
            partition: nodes
            for partition, nodes in self.after.items()
            if nodes != self.before[partition]
        }


def add_brokers(assignment: Assignment, racks: Racks, new: Collection[int]) -> Changes:
    """Move a fair share of replicas and leaders to new brokers, from those with the most."""
    board = _Board(assignment, racks)
    share = sum(map(len, board.before.values())) // len(racks)
    leading = len(board.before) // len(racks)
    stock = _stock(board)
    is_open = set(new)
    while is_open := {node for node in is_open if board.held[node] < share}:
        node = min(is_open, key=lambda each: (board.held[each], each))
        if not _take_one(board, stock, node, new, wants_lead=board.led[node] < leading):
            is_open.remove(node)
    for node in sorted(new):
        _take_leads(board, node, leading)
    return board.changes()


def _stock(board: _Board) -> dict[int, _Stock]:
    stock: dict[int, _Stock] = defaultdict(lambda: defaultdict(list))
    for partition, nodes in sorted(board.before.items()):
        for node in nodes:
            stock[node][node == nodes[0], partition.topic].append(partition)
    return stock


def _take_one(
    board: _Board, stock: dict[int, _Stock], node: int, new: Collection[int], *, wants_lead: bool
) -> bool:
    """Move one replica to this broker from the fullest broker that has a suitable one."""
    has_racks = len(set(board.racks.values())) > 1

    def fits(partition: TopicPartition, donor: int) -> bool:
        nodes = board.after[partition]
        if node in nodes:
            return False
        swapped = board.swapped(partition, donor, node)
        return not has_racks or board.racks_of(swapped) >= board.racks_of(nodes)

    donors = [d for d in board.held if d not in new and board.held[d] > board.held[node] + 1]
    for donor in sorted(donors, key=lambda each: (-board.held[each], -board.led[each], each)):
        kinds = sorted(
            stock[donor],
            key=lambda kind: (
                kind[0] != wants_lead,
                board.part_of(kind[1], node),
                -board.part_of(kind[1], donor),
                kind[1],
            ),
        )
        for kind in kinds:
            for where in stock[donor][kind]:
                if fits(where, donor):
                    stock[donor][kind].remove(where)
                    board.put(where, board.swapped(where, donor, node))
                    return True
    return False


def _take_leads(board: _Board, node: int, share: int) -> None:
    """Become preferred leader of local replicas whose current one leads at least two more."""
    while board.led[node] < share:
        offers = [
            partition
            for partition, nodes in board.after.items()
            if node in nodes[1:] and board.led[nodes[0]] > board.led[node] + 1
        ]
        if not offers:
            return
        partition = min(offers, key=lambda each: (-board.led[board.after[each][0]], each))
        board.put(partition, (node, *(other for other in board.after[partition] if other != node)))


def drain_broker(assignment: Assignment, racks: Racks, node: int) -> Changes:
    """Move all replicas of a broker to the other brokers with the fewest replicas."""
    board = _Board(assignment, racks)
    leaving = [partition for partition, nodes in board.before.items() if node in nodes]
    homes: dict[TopicPartition, int] = {}
    for partition in leaving:
        staying = [other for other in board.after[partition] if other != node]
        homes[partition] = board.best_home(partition, staying, barred=node)
        board.put(partition, board.swapped(partition, node, homes[partition]))
    _even_out(board, homes, node)
    for partition in leaving:
        if board.before[partition][0] == node:
            board.lead_by_least(partition)
    return board.changes()


def _even_out(board: _Board, homes: dict[TopicPartition, int], barred: int) -> None:
    """Choose another target for a replica while that makes two brokers more equal."""
    is_changed = True
    while is_changed:
        is_changed = False
        for partition, home in list(homes.items()):
            staying = [other for other in board.after[partition] if other != home]
            board.put(partition, staying)
            better = board.best_home(partition, staying, barred)
            is_better = board.held[better] < board.held[home]
            chosen = better if is_better else home
            at = board.before[partition].index(barred)
            board.put(partition, (*staying[:at], chosen, *staying[at:]))
            if is_better:
                homes[partition] = chosen
                is_changed = True


def change_factor(
    assignment: Assignment, racks: Racks, partitions: Collection[TopicPartition], factor: int
) -> Changes:
    """Set the number of replicas of these partitions; the first replica stays first."""
    if factor < 1:
        raise ImpossibleError(f"the replication factor must be at least 1, not {factor}")
    board = _Board(assignment, racks)
    for partition in partitions:
        while len(board.after[partition]) < factor:
            nodes = board.after[partition]
            board.put(partition, (*nodes, board.best_home(partition, nodes)))
        while len(board.after[partition]) > factor:
            board.put(partition, _without_one(board, board.after[partition]))
    return board.changes()


def _without_one(board: _Board, nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Remove the follower on the fullest broker, preferably one whose rack has other replicas."""

    def without(gone: int) -> tuple[int, ...]:
        return tuple(node for node in nodes if node != gone)

    gone = max(
        nodes[1:],
        key=lambda node: (
            node not in board.racks,
            board.racks_of(without(node)),
            board.held[node],
            node,
        ),
    )
    return without(gone)
