"""A cluster of simulated brokers, and what must hold of it at every moment and at the end."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from headrace.coordination import layout
from headrace.coordination.port import Set
from headrace.log.directory import STRAY_SUFFIX
from headrace.model.topics import PartitionState
from headrace.record.decode import read_batches
from headrace.replication.partition import Partition
from tests.simulation.broker import SimulatedBroker
from tests.simulation.clients import TOPIC
from tests.simulation.ensemble import Ensemble
from tests.simulation.history import History, Violation
from tests.simulation.moves import Mover
from tests.simulation.network import Simulated
from tests.simulation.world import World


@dataclass
class Options:
    brokers: int = 3
    partitions: int = 2
    replicas: int = 3
    min_insync_replicas: int = 2
    fault_s: float = 20.0
    fault_gap_s: float = 1.5
    delay_s_max: float = 0.05
    session_timeout_s: float = 2.0
    lag_ms_max: int = 2000
    segment_bytes: int = 1 << 20
    syncs: bool = False
    noise: bool = True
    ends_former_sessions: bool = True
    faults: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    """Of all brokers, beyond those of the simulator."""


class Cluster:
    def __init__(self, world: World, options: Options) -> None:
        self.world = world
        self.options = options
        self.network = Simulated(world, options.delay_s_max)
        self.ensemble = Ensemble(world, self.network, options.session_timeout_s)
        settings = {
            "replica.lag.time.max.ms": str(options.lag_ms_max),
            "replica.fetch.wait.max.ms": "300",
            "replica.fetch.backoff.ms": "100",
            "replica.socket.timeout.ms": "1000",
            "offsets.topic.num.partitions": "2",
            "num.replica.fetchers": "1",
            **options.settings,
        }
        self.brokers = [
            SimulatedBroker(world, self.network, self.ensemble, node_id, settings)
            for node_id in range(1, options.brokers + 1)
        ]
        for broker in self.brokers:
            broker.ends_former_session = options.ends_former_sessions
        self.history = History()
        self.mover = Mover(
            world, self.network, "mover", [b.host for b in self.brokers], self.history
        )
        self.calm_until = 0.0
        """Nothing else may go wrong before: this would be more than was promised to survive."""
        self.log: list[str] = []
        self._controller_epoch = 0
        self._written = 0
        self._leaders: dict[tuple[int, int], int] = {}

    def note(self, what: str) -> None:
        self.log.append(f"{self.world.now:9.3f} {what}")

    def partitions_of(self, broker: SimulatedBroker) -> list[Partition]:
        if not broker.is_running or broker.broker is None:
            return []
        return list(broker.broker._table.by_topic.get(TOPIC, {}).values())

    def check_now(self) -> None:
        """What must hold at every moment: I9, I10, I11."""
        stored = self.stored()
        for broker in self.brokers:
            for partition in self.partitions_of(broker):
                if not partition.is_leader:
                    continue
                index, epoch = int(partition.index), int(partition.leader_epoch)
                leader = self._leaders.setdefault((index, epoch), broker.node_id)
                if leader != broker.node_id:
                    raise Violation(f"I10: {leader} and {broker.node_id} lead {index} in {epoch}")
                if stored[index].leader_epoch == epoch:
                    told = stored[index].isr
                    maximal = {*partition.isr, *(partition.proposed or ())}
                    # The controller alone renews the epoch of a member that restarted cleanly.
                    if not set(told) <= _members(maximal):
                        raise Violation(f"I9: {index}: {told} is stored, {maximal} is heeded")
        for _, op in self.ensemble.history[self._written :]:
            if isinstance(op, Set) and op.path == layout.CONTROLLER_EPOCH:
                epoch = layout.decode_controller_epoch(op.data)
                if epoch <= self._controller_epoch:
                    raise Violation(
                        f"I11: controller epoch {epoch} follows {self._controller_epoch}"
                    )
                self._controller_epoch = epoch
        self._written = len(self.ensemble.history)

    def stored(self) -> list[PartitionState]:
        """The partitions as the ensemble has them."""
        nodes = self.ensemble.tree.nodes
        topic = nodes.get(layout.topic_path(TOPIC))
        path = layout.states_path(TOPIC, 0)
        if topic is None or path not in nodes:
            return []
        topic_id, assignment, moves = layout.decode_topic(TOPIC, topic.data)
        states = layout.decode_states(path, nodes[path].data, topic_id, assignment)
        for index, (adding, removing) in moves.items():
            states[index] = replace(states[index], adding=adding, removing=removing)
        return states

    def controller_id(self) -> int | None:
        node = self.ensemble.tree.nodes.get(layout.CONTROLLER)
        return None if node is None else layout.decode_controller(node.data)

    def is_healthy(self) -> bool:
        """Every partition has a leader, and all its replicas are in sync."""
        leaders: dict[int, Partition] = {}
        for broker in self.brokers:
            for partition in self.partitions_of(broker):
                if partition.is_leader:
                    leaders[int(partition.index)] = partition
        stored = self.stored()
        return len(leaders) == self.options.partitions and all(
            _members(partition.isr) == {*stored[index].replicas}
            and partition.proposed is None
            and partition.high_watermark == partition.log.log_end_offset
            for index, partition in leaders.items()
        )

    def is_in_full_sync(self) -> bool:
        return all(broker.is_running for broker in self.brokers) and self.is_healthy()

    def has_settled(self) -> bool:
        """No move is under way, and no broker has a directory that is not a replica's.

        But for those that a power loss made nameless: they are kept for whoever can read them.
        """
        stored = self.stored()
        wanted = [(node, f"{TOPIC}-{i}") for i, s in enumerate(stored) for node in s.replicas]
        found = [
            (broker.node_id, info.name)
            for broker in self.brokers
            for info in broker.files.list_directory("/data")
            if info.name.startswith(f"{TOPIC}-") and not info.name.endswith(STRAY_SUFFIX)
        ]
        is_moving = any(state.adding or state.removing for state in stored)
        return not is_moving and sorted(found) == sorted(wanted)

    def check_replicas(self) -> None:
        """I8 and I14: below the lowest high watermark all replicas have the same bytes."""
        replicas: dict[int, list[tuple[int, Partition]]] = {}
        for broker in self.brokers:
            for partition in self.partitions_of(broker):
                replicas.setdefault(int(partition.index), []).append((broker.node_id, partition))
        for index, held in replicas.items():
            low = min(int(partition.high_watermark) for _, partition in held)
            contents = {node: _digest(_bytes_of(partition, low)) for node, partition in held}
            if len(set(contents.values())) != 1:
                raise Violation(f"I8: the replicas of partition {index} differ: {contents}")
            for node, partition in held:
                _check_epochs(node, partition)


def _members(isr: Iterable[tuple[int, int]]) -> set[int]:
    return {member for member, _ in isr}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _bytes_of(partition: Partition, end: int) -> bytes:
    log, offset, pieces = partition.log, int(partition.log.log_start_offset), []
    while offset < end:
        found = log.read(offset, 1 << 30, end, True)
        assert found is not None
        data = found.read()
        pieces.append(data)
        for batch in read_batches(data):
            offset = int(batch.base_offset + batch.last_offset_delta) + 1
    return b"".join(pieces)


def _check_epochs(node: int, partition: Partition) -> None:
    log = partition.log
    scanned: list[tuple[int, int]] = []
    for batch in read_batches(_bytes_of(partition, int(log.written_end_offset))):
        epoch = int(batch.leader_epoch)
        if scanned and epoch < scanned[-1][0]:
            raise Violation(f"I14: epochs fall in {partition.index} of {node}: {scanned}, {epoch}")
        if not scanned or epoch != scanned[-1][0]:
            scanned.append((epoch, int(batch.base_offset)))
    if log.epochs.entries() != scanned:
        raise Violation(
            f"I14: the cache of {partition.index} of {node} is {log.epochs.entries()}, "
            f"the log has {scanned}"
        )
