"""Scripts: faults in an order in which a certain rule matters, at times that the seed chooses.

Each is the only kind of fault of its seed. A script begins when all replicas are in sync, and waits
for events in the store: a leader is elected, or the ISR grows. Only `refill` looks into a broker.

- `cut_off`, `silence`: a leader loses its followers, or also the store (`cutoffs`).
- `delete_and_kill`: a leader that its followers do not hear deletes records, and is killed.
- `lost_response`: the response to a larger ISR is lost, and the leader gets no news of it.
- `spoiled_restart`: a broker loses data and restarts before the controller has noticed.
- `leader_returns`: leadership moves to another live replica and back, while frames are held back.
- `refill`: a leader cleans a segment, is deposed, truncates to its end, and writes to it again.
- `disagreement`: the leader demands fewer in-sync replicas than the controller, and loses all.
- `shrunk_move`: a reassignment removes an eligible leader replica, and the leader's disk is lost.
- `older_ids`: the next producer id is restored from an older copy of the store.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from headrace.coordination import layout
from headrace.coordination.port import Set
from headrace.model.topics import PartitionState, TopicPartition
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster, Options
from tests.simulation.cutoffs import cut_off, cut_off_for
from tests.simulation.ensemble import NAME as ZOOKEEPER
from tests.simulation.machines import restart_later, spoil
from tests.simulation.topics import EVENTS, STATE

WAIT_S = 3.0
"""How long a script waits for an event."""
SCRIPT_S = 6.0
ROOM_BYTES = range(95, 170)
"""Of a segment: enough for a batch of one record, and too little for a batch of several."""
REFILL_S = 20.0


def _later(cluster: Cluster, seconds: float, call: Callable[..., object], *args: object) -> None:
    cluster.ensemble.process.at(cluster.world.now + seconds, call, *args)


def _pick(cluster: Cluster) -> TopicPartition:
    return TopicPartition(EVENTS, cluster.world.random.randrange(cluster.options.partitions))


def _when(cluster: Cluster, is_met: Callable[[], bool], call: Callable[[], object]) -> None:
    """Call `call` when a change of the store has met the condition, within WAIT_S."""
    world, ensemble = cluster.world, cluster.ensemble
    deadline, seen = world.now + WAIT_S, -1

    def check() -> bool:
        nonlocal seen
        if ensemble.zxid != seen:
            seen = ensemble.zxid
            if is_met():
                call()
                return True
        return world.now >= deadline

    world.watch(check)


def _state(cluster: Cluster, where: TopicPartition) -> PartitionState:
    return cluster.stored(where.topic)[where.partition]


def _begin(cluster: Cluster) -> None:
    """No other fault, nor the end of a cut, until this script is over."""
    cluster.calm_until = cluster.world.now + SCRIPT_S
    _later(cluster, SCRIPT_S - 1.0, cluster.network.heal)


def _kill(cluster: Cluster, broker: SimulatedBroker) -> None:
    cluster.note(f"kill {broker.name}")
    broker.kill()
    restart_later(cluster, broker)


def _cut_off(cluster: Cluster) -> str:
    return cut_off(cluster, _pick(cluster))


def _silence(cluster: Cluster) -> str:
    """Only followers are lost, for longer than it may take until writes continue.

    The controller is not one of them: it would mark the leader as dead.
    """
    generator, controller_id = cluster.world.random, cluster.controller_id()
    if controller_id is None or not cluster.is_in_full_sync():
        return ""
    states = enumerate(cluster.stored())
    indexes = [index for index, state in states if controller_id not in state.replicas]
    if not indexes:
        _kill(cluster, cluster.brokers[controller_id - 1])
        return "let another broker become the controller"
    where = TopicPartition(EVENTS, generator.choice(indexes))
    direction = generator.choice(("to", "from", "both"))
    return cut_off_for(cluster, where, "followers", direction, generator.uniform(16, 25))


def _delete_and_kill(cluster: Cluster) -> str:
    """DeleteRecords at a leader that its followers do not hear, and kill -9 after the response."""
    network, trimmer, where = cluster.network, cluster.trimmer, _pick(cluster)
    leader = cluster.leaders().get((where.topic, where.partition))
    if trimmer is None or leader is None:
        return ""
    _begin(cluster)
    broker = cluster.brokers[int(leader.node_id) - 1]
    for other in cluster.brokers:
        if other is not broker:
            network.cut(broker.name, other.name)

    async def delete() -> None:
        trimmer.leaders[where.partition] = (broker.host, int(leader.leader_epoch))
        await trimmer.trim(where.partition)
        _later(cluster, 0, strike)

    def strike() -> None:
        _kill(cluster, broker)
        network.heal()

    trimmer.process.spawn(delete())
    return f"delete records of {where} at {broker.name}"


def _lost_response(cluster: Cluster) -> str:
    """A follower leaves the ISR and returns. At that moment the leader gets no more news."""
    generator, network, where = cluster.world.random, cluster.network, _pick(cluster)
    controller_id, state = cluster.controller_id(), _state(cluster, where)
    if controller_id is None or not cluster.is_in_full_sync():
        return ""
    if controller_id == state.leader:
        _kill(cluster, cluster.brokers[controller_id - 1])
        return "let another broker lead than the controller"
    leader, controller = cluster.brokers[state.leader - 1], cluster.brokers[controller_id - 1]
    nodes = [each for each in state.replicas if each not in (state.leader, controller_id)]
    chosen = generator.choice(nodes)
    follower = cluster.brokers[chosen - 1]

    def begin() -> None:
        network.heal_one(leader.name, follower.name)
        _when(cluster, lambda: chosen in _state(cluster, where).isr, strike)

    def strike() -> None:
        if generator.random() < 0.8:
            network.cut(ZOOKEEPER, leader.name)
        if generator.random() < 0.5:
            network.cut(controller.name, leader.name)
        else:
            network.reset_between(controller.name, leader.name)
        if generator.random() < 0.5:
            network.cut(leader.name, follower.name)
        after = generator.uniform(0.05, 0.8)
        if generator.random() < 0.7:
            _later(cluster, after, _kill, cluster, leader)
        _later(cluster, after + generator.uniform(0.0, 1.0), network.heal)

    _begin(cluster)
    network.cut(leader.name, follower.name)
    _when(cluster, lambda: chosen not in _state(cluster, where).isr, begin)
    return f"{follower.name} leaves the ISR of {where} and returns; {leader.name} gets no news"


def _spoiled_restart(cluster: Cluster) -> str:
    """One broker is killed, or all are. One of them loses data, and restarts before the others.

    If only one was killed, it restarts before the controller has noticed, and a leader is killed.
    """
    generator, where = cluster.world.random, _pick(cluster)
    state = _state(cluster, where)
    if state.leader < 0 or not cluster.is_in_full_sync():
        return ""
    broker = cluster.brokers[generator.choice((state.leader, *state.replicas)) - 1]
    how = generator.choice(("wipe", "remove", "power", "restore"))
    if how == "restore" and broker.backup is None:
        broker.back_up()
        return f"back up {broker.name}"
    _begin(cluster)
    others = [each for each in cluster.brokers if each is not broker]
    if generator.random() < 0.5:
        kind, others = "all are killed", generator.sample(others, len(others))
        for each in others:
            each.kill()
    else:
        kind, others = "one is killed", []
        _blind_controller(cluster, broker.node_id)
        if generator.random() < 0.7:
            _later(cluster, generator.uniform(0.0, 0.5), _kill_leader, cluster, where, broker)
    broker.kill()
    spoil(cluster, broker, how)
    after = generator.choice((0.001, 0.05))
    for each in (broker, *others):
        after = generator.uniform(0.0, after)
        _later(cluster, after, each.start_again)
        after += generator.choice((0.05, 0.5, 3.0))
    return f"{kind}, {broker.name} restarts first: {how}"


def _blind_controller(cluster: Cluster, killed: int) -> None:
    """Hold the store's news back from the controller, for less than its session lasts."""
    generator, controller_id = cluster.world.random, cluster.controller_id()
    if controller_id in (None, killed) or generator.random() < 0.3:
        return
    assert controller_id is not None
    name = cluster.brokers[controller_id - 1].name
    cluster.network.cut(ZOOKEEPER, name)
    seconds = generator.uniform(0.1, 0.7) * cluster.options.session_timeout_s
    _later(cluster, seconds, cluster.network.heal_one, ZOOKEEPER, name)


def _kill_leader(cluster: Cluster, where: TopicPartition, spared: SimulatedBroker) -> None:
    leader = _state(cluster, where).leader
    if leader > 0 and leader != spared.node_id:
        _kill(cluster, cluster.brokers[leader - 1])


def _leader_returns(cluster: Cluster) -> str:
    """A live replica that is behind is elected on request and killed; the former leader returns.

    Fetches of the third replica are held back. The former leader gets them in its new leader epoch,
    and is killed soon after.
    """
    generator, network, where = cluster.world.random, cluster.network, _pick(cluster)
    state = _state(cluster, where)
    if len(state.replicas) < 3 or not cluster.is_in_full_sync():
        return ""
    others = [node for node in state.replicas if node != state.leader]
    generator.shuffle(others)
    former, behind, third = (cluster.brokers[node - 1] for node in (state.leader, *others))
    cluster.mover.move(where.partition, [behind.node_id, former.node_id, third.node_id])

    def begin() -> None:
        network.cut(former.name, behind.name)
        _later(cluster, generator.uniform(0.05, 0.3), hold)

    def hold() -> None:
        network.cut(third.name, former.name)
        if generator.random() < 0.7:
            network.cut(behind.name, former.name)
        _later(cluster, generator.uniform(0.0, 0.1), cluster.mover.elect_preferred, where)
        _when(cluster, lambda: _state(cluster, where).leader == behind.node_id, depose)

    def depose() -> None:
        _later(cluster, generator.uniform(0.0, 0.2), _kill, cluster, behind)
        _when(cluster, lambda: _state(cluster, where).leader == former.node_id, strike)

    def strike() -> None:
        after = generator.uniform(0.0, 0.3)
        _later(cluster, after, network.heal)
        _later(cluster, after + generator.uniform(0.0, 0.03), _kill, cluster, former)

    _begin(cluster)
    _when(cluster, lambda: _state(cluster, where).replicas[0] == behind.node_id, begin)
    return f"elect {behind.name} for {where}, then {former.name} again"


def _refill(cluster: Cluster) -> str:
    """Depose a leader that cleans its last full segment, if its tail begins the next segment.

    The leader truncates its tail. The cleaned segment becomes the active one. A small batch of the
    next leader fits into it, before the cleaning ends. Producers pause during other cleanings.
    """
    world, network, where = cluster.world, cluster.network, TopicPartition(STATE, 0)
    if not cluster.is_in_full_sync():
        return ""
    leader = cluster.leaders()[where]
    broker = cluster.brokers[int(leader.node_id) - 1]
    log, deadline = leader.log, world.now + REFILL_S
    others = [each.name for each in cluster.brokers if each is not broker]
    cluster.calm_until = deadline

    def end() -> bool:
        _later(cluster, 0, network.heal)
        cluster.calm_until = world.now + 1.0
        return True

    def await_full() -> bool:
        """Cut the leader off when everything is committed, and the active segment is full."""
        if world.now >= deadline or not leader.is_leader:
            return end()
        if not broker.is_compaction_idle():
            cluster.hush(0.05)
            return False
        room = int(leader.log.config.segment_bytes - log.active().size)
        if leader.high_watermark != log.log_end_offset or room not in ROOM_BYTES:
            return False
        for other in (*others, ZOOKEEPER):
            network.cut(broker.name, other)
            network.cut(other, broker.name)
        world.watch(partial(await_cleaning, int(log.log_end_offset), world.now + WAIT_S))
        return True

    def await_cleaning(end_offset: int, last: float) -> bool:
        """Heal when the full segment is being cleaned, and another broker is the leader."""
        if log.log_end_offset > end_offset and end_offset not in log.segments.base_offsets:
            return end()
        if world.now >= last:
            return end()
        if broker.is_compaction_idle() or _state(cluster, where).leader == broker.node_id:
            return False
        _later(cluster, 0, network.heal)
        world.watch(partial(await_refill, int(log.truncation_count), end_offset))
        return True

    def await_refill(truncations: int, end_offset: int) -> bool:
        """Let producers pause until the cleaning has ended: they could hide what it removed."""
        if log.truncation_count > truncations and log.segments.base_offsets[-1] > end_offset:
            cluster.hush(0.05)
        return end() if world.now >= deadline or broker.is_compaction_idle() else False

    world.watch(await_full)
    return f"{broker.name} truncates {where} while it cleans the segment before"


def _let_bystander_control(cluster: Cluster, state: PartitionState) -> str:
    """Restart all brokers, first the one without a replica: it becomes the controller."""
    bystander = next(each for each in cluster.brokers if each.node_id not in state.replicas)
    if cluster.controller_id() == bystander.node_id:
        return ""
    _begin(cluster)
    for broker in cluster.brokers:
        broker.kill()
        _later(cluster, 0.0 if broker is bystander else 1.0, broker.start_again)
    return f"let {bystander.name} become the controller"


def _disagreement(cluster: Cluster) -> str:
    """Only the controller's broker demands two in-sync replicas. All followers leave the ISR.

    The leader gets no news of it from the store, and is killed soon after.
    """
    generator, network, where = cluster.world.random, cluster.network, _pick(cluster)
    state = _state(cluster, where)
    if not cluster.is_in_full_sync():
        return ""
    for node in state.replicas:
        cluster.brokers[node - 1].configure("min.insync.replicas", "1")
    told = _let_bystander_control(cluster, state)
    if told:
        return told
    leader = cluster.brokers[state.leader - 1]

    def strike() -> None:
        _later(cluster, generator.uniform(0.0, 0.3), end)

    def end() -> None:
        _kill(cluster, leader)
        network.heal()

    _begin(cluster)
    network.cut(ZOOKEEPER, leader.name)
    for node in state.replicas:
        if node != state.leader:
            network.cut(leader.name, cluster.brokers[node - 1].name)
    _when(cluster, lambda: _state(cluster, where).isr == (state.leader,), strike)
    return f"all followers of {where} leave the ISR; {leader.name} gets no news"


def _shrunk_move(cluster: Cluster) -> str:
    """One follower leaves the ISR, then the other, which is an eligible leader replica now.

    A reassignment shall remove the latter. Then the leader's directory is lost.
    """
    generator, network, where = cluster.world.random, cluster.network, _pick(cluster)
    state = _state(cluster, where)
    if not cluster.is_in_full_sync():
        return ""
    if len(state.replicas) < 3:
        cluster.mover.move(where.partition, [1, 2, 3])
        return f"move {where} to three brokers again"
    told = _let_bystander_control(cluster, state)
    if told:
        return told
    others = [node for node in state.replicas if node != state.leader]
    generator.shuffle(others)
    leader, first, last = (cluster.brokers[node - 1] for node in (state.leader, *others))
    is_early = generator.random() < 0.5

    def move() -> None:
        cluster.mover.move(where.partition, [leader.node_id, first.node_id])

    def cut_last() -> None:
        if is_early:
            move()
        network.cut(leader.name, last.name)
        _when(cluster, lambda: _state(cluster, where).isr == (leader.node_id,), strike)

    def strike() -> None:
        if not is_early:
            move()
        _later(cluster, generator.uniform(0.1, 1.0), end)

    def end() -> None:
        cluster.note(f"wipe {leader.name}")
        spoil(cluster, leader, "wipe")
        restart_later(cluster, leader)
        network.heal()

    _begin(cluster)
    network.cut(leader.name, first.name)
    _when(cluster, lambda: first.node_id not in _state(cluster, where).isr, cut_last)
    return f"remove {last.name} from {where} while only {leader.name} is in sync"


def _older_ids(cluster: Cluster) -> str:
    """Restore the next producer id of the first call, and restart all brokers."""
    ensemble = cluster.ensemble
    if not cluster.is_in_full_sync():
        return ""
    if not cluster.older_ids:
        cluster.older_ids = ensemble.tree.nodes[layout.PRODUCER_IDS].data
    else:
        ensemble.commit(0, [Set(layout.PRODUCER_IDS, cluster.older_ids)])
    for broker in cluster.brokers:
        _kill(cluster, broker)
    return "restore the next producer id from an older copy"


SCRIPTS: dict[str, Callable[[Cluster], str]] = {
    "cut_off": _cut_off,
    "silence": _silence,
    "delete_and_kill": _delete_and_kill,
    "lost_response": _lost_response,
    "spoiled_restart": _spoiled_restart,
    "leader_returns": _leader_returns,
    "refill": _refill,
    "disagreement": _disagreement,
    "shrunk_move": _shrunk_move,
    "older_ids": _older_ids,
}


def choose_script(options: Options, generator: Random) -> None:
    """Make a script the only fault, with options under which it can do harm."""
    name = generator.choice([*SCRIPTS])
    options.faults = (name,)
    options.noise = True
    options.slow_replica = 0
    options.min_insync_replicas = 2
    options.retention_ms = options.retention_bytes = 0
    options.restart_s_max = min(options.restart_s_max, 5.0)
    if name in ("cut_off", "silence"):
        options.fault_s = 40.0
        options.brokers = generator.choice((3, 4))
        options.partitions = generator.choice((1, 2))
        options.lag_ms_max = generator.choice((500, 2000, 30_000))
        if name == "silence":
            options.fault_s, options.brokers, options.lag_ms_max = 20.0, 4, 30_000
        options.fault_gap_s = 1.0
        return
    options.partitions = 1
    options.fault_gap_s = 0.5
    options.delay_s_max = generator.choice((0.005, 0.05))
    options.lag_ms_max = 500
    if name == "refill":
        # Elections are quick, and a follower appends one batch at a time.
        options.features = tuple(dict.fromkeys((*options.features, "compaction")))
        options.segment_bytes, options.keys = 2000, 100
        options.session_timeout_s, options.delay_s_max = 1.0, 0.005
        options.settings["replica.fetch.max.bytes"] = "100"
        options.fault_s = 60.0
    if name in ("disagreement", "shrunk_move"):
        options.brokers = 4
        options.session_timeout_s, options.fault_s = 4.0, 40.0
        options.has_topic_minimum = name != "disagreement"
    if name == "older_ids":
        options.renews_producers = True
        options.restart_s_max, options.fault_s = 0.5, 40.0
    if name == "delete_and_kill":
        options.features = tuple(dict.fromkeys((*options.features, "delete_records")))
