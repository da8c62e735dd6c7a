"""A cluster of simulated brokers: its options, its topics, and the state that checks look at."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from uuid import UUID

from headrace.coordination import layout
from headrace.log.directory.log_directory import STRAY_SUFFIX
from headrace.model.topics import PartitionState, TopicPartition
from headrace.replication.partition import Partition
from tests.simulation import acls
from tests.simulation.broker import SimulatedBroker
from tests.simulation.checks import Checks, members
from tests.simulation.ensemble import Ensemble
from tests.simulation.history import History
from tests.simulation.moves import Mover
from tests.simulation.network import Simulated
from tests.simulation.operations import Throttler, Trimmer
from tests.simulation.topics import BRIEF, EVENTS, STATE, Topic
from tests.simulation.world import Process, World

_FOREVER = str(2**63 - 1)


@dataclass
class Options:
    brokers: int = 3
    partitions: int = 2
    replicas: int = 3
    min_insync_replicas: int = 2
    has_topic_minimum: bool = True
    """Whether topics set min.insync.replicas; if not, brokers can disagree about it."""
    fault_s: float = 20.0
    fault_gap_s: float = 1.5
    delay_s_max: float = 0.05
    session_timeout_s: float = 2.0
    lag_ms_max: int = 2000
    segment_bytes: int = 1 << 20
    syncs: bool = False
    noise: bool = True
    ends_former_sessions: bool = True
    in_flight_max: int = 1
    """Batches of one producer for one partition."""
    retention_ms: int = 0
    retention_bytes: int = 0
    """Of the topic of events; 0 for the default."""
    renews_producers: bool = False
    """Whether producers request new ids now and then."""
    keys: int = 8
    """Of the compacted topic. With few of them, a later value soon hides a lost one."""
    restart_s_max: float = 5.0
    slow_replica: int = 0
    """A broker whose connections to others are slow."""
    features: tuple[str, ...] = ()
    """Clients and operators beyond producers and one consumer, see FEATURES."""
    faults: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    """Of all brokers, beyond those of the simulator."""


FEATURES = ("delete_records", "compaction", "recreation", "groups", "rereads")
"""Another one, "acls", is chosen by the side generator: see options_of."""


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
            "min.insync.replicas": str(options.min_insync_replicas),
            "log.cleaner.enable": str("compaction" in options.features).lower(),
            "log.cleaner.backoff.ms": "200",
            "log.flush.interval.messages": "1" if options.syncs else _FOREVER,
            "log.retention.check.interval.ms": "1000",
            **options.settings,
            **(acls.SETTINGS if "acls" in options.features else {}),
        }
        self.brokers = [
            SimulatedBroker(world, self.network, self.ensemble, node_id, settings)
            for node_id in range(1, options.brokers + 1)
        ]
        for broker in self.brokers:
            broker.ends_former_session = options.ends_former_sessions
        if options.slow_replica:
            self.network.slow.add(f"broker-{options.slow_replica}")
        self.topics = {topic.name: topic for topic in _topics(options)}
        self.history = History()
        self.history.compacted = {t.name for t in self.topics.values() if t.is_compacted}
        hosts = [broker.host for broker in self.brokers]
        self.mover = Mover(world, self.network, "mover", hosts, self.history)
        self.throttler = Throttler(world, self.network, "throttler", hosts, self.history)
        self.calm_until = 0.0
        """No fault before this time: it would be more than the cluster promises to survive."""
        self.waits_for_sync = False
        """No fault until all replicas are in sync again."""
        self.elections_until = 0.0
        """A fault waits so long for a new leader, to kill it."""
        self.absent_until = 0.0
        """A broker that is down for minutes starts at this time."""
        self.cut_off_at: dict[tuple[TopicPartition, str], float] = {}
        """When a leader was cut off last, by partition and broker."""
        self.trimmer: Trimmer | None = None
        """The client that deletes records, if the options have one."""
        self.older_ids = b""
        """An older copy of the node with the next producer id."""
        self.writers: list[Process] = []
        """The processes of producers."""
        self.log: list[str] = []
        self.checks = Checks(self)
        self._states: dict[str, tuple[tuple[int, int], UUID, list[PartitionState]]] = {}

    def note(self, what: str) -> None:
        self.log.append(f"{self.world.now:9.3f} {what}")

    def hush(self, seconds: float) -> None:
        """Let all producers pause: a new leader has nothing to write."""
        for process in self.writers:
            process.paused_until = self.world.now + seconds

    def is_calm(self) -> bool:
        """Whether another fault must wait."""
        if self.waits_for_sync and self.is_in_full_sync():
            self.waits_for_sync = False
        if self.waits_for_sync:
            # With small segments, a slow replica would never have all records.
            self.network.slow.clear()
        return self.waits_for_sync or self.world.now < self.calm_until

    def partitions_of(self, broker: SimulatedBroker) -> list[Partition]:
        if not broker.is_running or broker.broker is None:
            return []
        return list(broker.broker._table)

    def replicas(self) -> Iterator[tuple[SimulatedBroker, Partition]]:
        """All replicas on brokers that run."""
        for broker in self.brokers:
            for partition in self.partitions_of(broker):
                yield broker, partition

    def log_end(self, where: TopicPartition) -> int:
        """The greatest log end offset of all running replicas and of all responses to clients."""
        ends = [
            int(partition.log.log_end_offset)
            for _, partition in self.replicas()
            if (partition.topic, partition.index) == where
        ]
        acked = [each.offset + 1 for each in self.history.acked if each.partition == where]
        return max(*ends, *acked, 0, 0)

    def out_of_sync(self, where: TopicPartition) -> set[int]:
        state = self.stored(where.topic)[where.partition]
        return {*state.replicas} - {*state.isr}

    def topic_names(self) -> list[str]:
        """The topics that exist in the store."""
        tree = self.ensemble.tree
        return sorted(tree.children(layout.TOPICS)) if layout.TOPICS in tree.nodes else []

    def stored(self, name: str = EVENTS) -> list[PartitionState]:
        """The partitions of a topic as the ensemble has them."""
        nodes = self.ensemble.tree.nodes
        topic = nodes.get(layout.topic_path(name))
        path = layout.states_path(name, 0)
        if topic is None or path not in nodes:
            return []
        version = (topic.stat.mzxid, nodes[path].stat.mzxid)
        known = self._states.get(name)
        if known is not None and known[0] == version:
            return known[2]
        topic_id, assignment, moves = layout.decode_topic(name, topic.data)
        states = layout.decode_states(path, nodes[path].data, topic_id, assignment)
        for index, (adding, removing) in moves.items():
            states[index] = replace(states[index], adding=adding, removing=removing)
        self._states[name] = version, topic_id, states
        return states

    def current_state(self, partition: Partition) -> PartitionState | None:
        """The stored state that a replica's own belongs to; None if a later one is stored."""
        states = self.stored(partition.topic)
        index = int(partition.index)
        if (
            index >= len(states)
            or self._states[partition.topic][1] != partition.topic_id
            or states[index].leader_epoch != partition.leader_epoch
        ):
            return None
        return states[index]

    def controller_id(self) -> int | None:
        node = self.ensemble.tree.nodes.get(layout.CONTROLLER)
        return None if node is None else layout.decode_controller(node.data)

    def leaders(self) -> dict[tuple[str, int], Partition]:
        """The leaders, as far as they know of it themselves."""
        found = {}
        for _, partition in self.replicas():
            if partition.is_leader and self.current_state(partition) is not None:
                found[partition.topic, int(partition.index)] = partition
        return found

    def is_healthy(self, *, is_final: bool = False) -> bool:
        """Every partition has a leader, and all its replicas are in sync."""
        leaders, names = self.leaders(), self.topic_names()
        for name in names:
            for index, state in enumerate(self.stored(name)):
                partition = leaders.get((name, index))
                if (
                    partition is None
                    or members(partition.replicas.isr) != {*state.replicas}
                    or {*state.isr} != {*state.replicas}
                    or partition.replicas.proposed is not None
                ):
                    return False
                if is_final and partition.high_watermark != partition.log.log_end_offset:
                    return False
        return set(self.topics) <= {*names, BRIEF}

    def is_in_full_sync(self) -> bool:
        return (
            all(broker.is_running and not broker.is_paused for broker in self.brokers)
            and not any(partition.log.is_offline for _, partition in self.replicas())
            and self.is_healthy()
        )

    def has_settled(self) -> bool:
        """No reassignment is in progress, and no broker has a directory that is not a replica's.

        Except those that a power loss left without a name: they are kept for an operator.
        """
        for name in (EVENTS, STATE):
            stored = self.stored(name)
            wanted = [(node, f"{name}-{i}") for i, s in enumerate(stored) for node in s.replicas]
            found = [
                (broker.node_id, info.name)
                for broker in self.brokers
                for info in broker.files.list_directory("/data")
                if info.name.startswith(f"{name}-") and not info.name.endswith(STRAY_SUFFIX)
            ]
            is_moving = any(state.adding or state.removing for state in stored)
            if is_moving or sorted(found) != sorted(wanted):
                return False
        return True


def _topics(options: Options) -> list[Topic]:
    common = {
        "internal.segment.bytes": str(options.segment_bytes),
        "flush.messages": "1" if options.syncs else _FOREVER,
        "message.timestamp.after.max.ms": _FOREVER,
        "leader.replication.throttled.replicas": "*",
        "follower.replication.throttled.replicas": "*",
    }
    if options.has_topic_minimum:
        common["min.insync.replicas"] = str(options.min_insync_replicas)
    retention = {}
    if options.retention_ms:
        retention["retention.ms"] = str(options.retention_ms)
    if options.retention_bytes:
        retention["retention.bytes"] = str(options.retention_bytes)
    topics = [Topic(EVENTS, options.partitions, {**common, **retention})]
    if "compaction" in options.features:
        compacted = {
            **common,
            "internal.segment.bytes": str(min(options.segment_bytes, 4096)),
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": str(365 * 86_400_000),
        }
        topics.append(Topic(STATE, 1, compacted, is_compacted=True, keys=options.keys))
    if "recreation" in options.features:
        topics.append(Topic(BRIEF, 1, common, is_recreated=True, incarnation=None))
    return topics
