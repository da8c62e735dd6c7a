"""Faults of processes, networks and the store, and the options of a seed."""

from collections.abc import Callable
from random import Random

from headrace.model.topics import TopicPartition
from tests.simulation.broker import SimulatedBroker
from tests.simulation.bursts import Burst
from tests.simulation.cluster import FEATURES, Cluster, Options
from tests.simulation.ensemble import NAME as ZOOKEEPER
from tests.simulation.machines import MACHINE_FAULTS, restart_later
from tests.simulation.scripts import SCRIPTS, choose_script

_ROOM_BYTES = range(95, 170)
"""For a batch of one record, and not for a batch of several."""
CALM_S = 15.0
"""Longer than a controller waits for replicas that may come back."""

# Faults. Each returns without an effect while it is not allowed.


def _pick(cluster: Cluster) -> SimulatedBroker:
    return cluster.world.random.choice(cluster.brokers)


def _kill(cluster: Cluster) -> str:
    broker = _pick(cluster)
    broker.kill()
    restart_later(cluster, broker)
    return f"kill {broker.name}"


def _kill_all(cluster: Cluster) -> str:
    for broker in cluster.brokers:
        broker.kill()
        restart_later(cluster, broker)
    return "kill all"


def _lose_power(cluster: Cluster) -> str:
    broker = _pick(cluster)
    if not cluster.options.syncs and not cluster.is_in_full_sync():
        return ""  # The page cache of another may be the only one with a record.
    broker.lose_power()
    restart_later(cluster, broker)
    return f"power loss of {broker.name}"


def _stop(cluster: Cluster) -> str:
    broker = _pick(cluster)
    broker.stop()
    restart_later(cluster, broker)
    return f"stop {broker.name}"


def _pause(cluster: Cluster) -> str:
    broker = _pick(cluster)
    seconds = cluster.world.random.uniform(0.2, 3 * cluster.options.session_timeout_s)
    broker.pause(seconds)
    return f"pause {broker.name} for {seconds:.1f} s"


def _cut(cluster: Cluster) -> str:
    generator, network = cluster.world.random, cluster.network
    names = [broker.name for broker in cluster.brokers] + [ZOOKEEPER]
    one, other = generator.sample(names, 2)
    network.cut(one, other)
    if generator.random() < 0.7:
        network.cut(other, one)
    return f"cut {one} from {other}"


def _isolate(cluster: Cluster) -> str:
    victim = _pick(cluster).name
    for broker in cluster.brokers:
        if broker.name != victim:
            cluster.network.cut(victim, broker.name)
            cluster.network.cut(broker.name, victim)
    if cluster.world.random.random() < 0.5:
        cluster.network.cut(victim, ZOOKEEPER)
    return f"isolate {victim}"


def heal(cluster: Cluster) -> str:
    cluster.network.heal()
    return "heal"


def _reset(cluster: Cluster) -> str:
    cluster.network.reset_some(cluster.world.random.choice((0.1, 0.5)))
    return "reset connections"


def _refuse(cluster: Cluster) -> str:
    victim = _pick(cluster).name
    for broker in cluster.brokers:
        cluster.network.refusals.add((broker.name, victim))
    cluster.network.reset_some(0.3)
    return f"refuse connections to {victim}"


def _suspend(cluster: Cluster) -> str:
    broker = _pick(cluster)
    if (
        broker.is_running
        and broker.environment is not None
        and broker.environment.store is not None
    ):
        assert broker.process is not None
        broker.process.at(0, broker.environment.store.suspend)
    return f"break the store's connection of {broker.name}"


def _expire(cluster: Cluster) -> str:
    broker = _pick(cluster)
    if (
        broker.is_running
        and broker.environment is not None
        and broker.environment.store is not None
    ):
        cluster.ensemble.process.at(0, cluster.ensemble.expire, broker.environment.store.session_id)
    return f"expire the session of {broker.name}"


def _store_down(cluster: Cluster) -> str:
    cluster.ensemble.is_down = not cluster.ensemble.is_down
    return f"the ensemble is {'down' if cluster.ensemble.is_down else 'up'}"


def _move(cluster: Cluster) -> str:
    generator, options = cluster.world.random, cluster.options
    index = generator.randrange(options.partitions)
    nodes = [broker.node_id for broker in cluster.brokers]
    target = generator.sample(nodes, generator.choice((2, 3, 3)))
    cluster.mover.move(index, target)
    return f"move partition {index} to {target}"


def _cancel_move(cluster: Cluster) -> str:
    index = cluster.world.random.randrange(cluster.options.partitions)
    cluster.mover.move(index, None)
    return f"cancel the move of partition {index}"


def _kill_in_move(cluster: Cluster) -> str:
    """Reassign a partition, and soon kill its source, its target or the controller."""
    told, generator = _move(cluster), cluster.world.random
    by_id = {broker.node_id: broker for broker in cluster.brokers}

    def kill() -> None:
        moving = [state for state in cluster.stored() if state.adding or state.removing]
        kinds = [nodes for state in moving for nodes in (state.adding, state.removing) if nodes]
        controller_id = cluster.controller_id()
        if controller_id is not None:
            kinds.append((controller_id,))
        if kinds:
            victim = by_id[generator.choice(generator.choice(kinds))]
            victim.kill()
            restart_later(cluster, victim)
            cluster.note(f"kill {victim.name}, which takes part")

    cluster.ensemble.process.at(cluster.world.now + generator.uniform(0, 0.3), kill)
    return told


def _kill_all_and_tear_one(cluster: Cluster) -> str:
    """Kill all brokers. One of them loses its unsynced data. Then restart all without faults."""
    options = cluster.options
    if not cluster.is_in_full_sync() or not (options.syncs or options.min_insync_replicas > 1):
        return ""
    torn = _pick(cluster)
    torn.lose_power()
    cluster.network.heal()
    cluster.ensemble.is_down = False
    told = _kill_all(cluster)
    restart_later(cluster, torn)
    cluster.calm_until = cluster.world.now + CALM_S
    return f"{told}, with a power loss of {torn.name}"


def _burst(cluster: Cluster) -> str:
    return Burst(cluster, _pick_partition(cluster)).begin()


def _elections(cluster: Cluster) -> str:
    """Kill the leader of a partition as soon as it has written, three times within seconds."""
    where = _pick_partition(cluster)
    _kill_leaders(cluster, where, 3)
    return f"kill three leaders of {where}"


def _pick_partition(cluster: Cluster) -> TopicPartition:
    names = [topic.name for topic in cluster.topics.values() if not topic.is_recreated]
    # The compacted topic, if there is one, has more to lose.
    name = names[-1] if cluster.world.random.random() < 0.7 else names[0]
    index = cluster.world.random.randrange(cluster.topics[name].partitions)
    return TopicPartition(name, index)


def _kill_leaders(cluster: Cluster, where: TopicPartition, left: int, epoch: int = -1) -> None:
    """Kill the leader when it has records of its epoch, and then its successor."""
    generator, ensemble = cluster.world.random, cluster.ensemble
    leader = cluster.leaders().get((where.topic, where.partition))
    if (
        leader is None
        or leader.leader_epoch <= epoch
        or (epoch >= 0 and leader.log.log_end_offset == leader.epoch_start_offset)
    ):
        if cluster.world.now < cluster.elections_until:
            ensemble.process.at(
                cluster.world.now + 0.02, _kill_leaders, cluster, where, left, epoch
            )
        return
    broker = cluster.brokers[int(leader.node_id) - 1]
    broker.kill()
    if left == 1:
        # It returns before its successor has written.
        cluster.network.heal()
        if generator.random() < 0.7:
            cluster.hush(generator.uniform(0.5, 3.0))
    restart_after = generator.choice((0.05, 0.3, 2.0))
    ensemble.process.at(cluster.world.now + restart_after, broker.start_again)
    if left > 1:
        cluster.elections_until = cluster.world.now + 3.0
        epoch = int(leader.leader_epoch)
        ensemble.process.at(
            cluster.world.now + 0.02, _kill_leaders, cluster, where, left - 1, epoch
        )


def _diverge(cluster: Cluster) -> str:
    """Let two leaders in a row write records that the next leader does not have (KIP-279).

    Frames from the leader to the next leader are held back, and those of the next to the third.
    """
    generator, network = cluster.world.random, cluster.network
    where = _pick_partition(cluster)
    state = cluster.stored(where.topic)[where.partition]
    others = [node for node in state.isr if node != state.leader]
    if state.leader < 0 or not others:
        return ""
    names = {broker.node_id: broker.name for broker in cluster.brokers}
    # The first in-sync replica is elected.
    behind = next(node for node in state.replicas if node in others)
    network.cut(names[state.leader], names[behind])
    for other in others:
        if other != behind:
            network.cut(names[behind], names[other])
    when = cluster.world.now + generator.uniform(0.1, 0.4)
    cluster.ensemble.process.at(when, _kill_leaders, cluster, where, 2)
    cluster.ensemble.process.at(when + 3.0, network.heal)
    return f"let the logs of {where} diverge: broker-{behind} is behind"


def _depose(cluster: Cluster) -> str:
    """Cut a leader off until another leads. It writes a tail for clients, and truncates it.

    Often at the moment when everything is committed, and the next large batch begins a segment:
    then the truncation removes complete segments, and reopens one that may be in compaction. The
    next small batch of the new leader fits into that one.
    """
    where, generator = _pick_partition(cluster), cluster.world.random
    last = cluster.world.now + (6.0 if generator.random() < 0.7 else 0.0)
    _cut_off(cluster, where, last)
    return f"cut the leader of {where} off"


def _cut_off(cluster: Cluster, where: TopicPartition, last: float) -> None:
    world, network = cluster.world, cluster.network
    leader = cluster.leaders().get((where.topic, where.partition))
    if leader is None:
        return
    log = leader.log
    room = leader.log.config.segment_bytes - log.active().size
    is_at_end = leader.high_watermark == log.log_end_offset and int(room) in _ROOM_BYTES
    broker = cluster.brokers[int(leader.node_id) - 1]
    # The next cleaning begins soon, and has the segment that is full now.
    is_ready = is_at_end and broker.is_compaction_idle()
    if not is_ready and world.now < last:
        cluster.ensemble.process.at(world.now + 0.002, _cut_off, cluster, where, last)
        return
    name = broker.name
    for other in (*(each.name for each in cluster.brokers if each.name != name), ZOOKEEPER):
        network.cut(name, other)
        network.cut(other, name)
    seconds = world.random.uniform(1.0, 2.5) * max(cluster.options.session_timeout_s, 1.0)
    cluster.ensemble.process.at(world.now + seconds, network.heal)


def _reboot(cluster: Cluster) -> str:
    """A leader loses power and starts again before the controller has noticed.

    The controller restarts itself, or it cannot reach the store for a moment.
    """
    generator, network = cluster.world.random, cluster.network
    if not cluster.options.syncs and not cluster.is_in_full_sync():
        return ""
    leaders = sorted({int(partition.node_id) for partition in cluster.leaders().values()})
    controller_id = cluster.controller_id()
    if not leaders or controller_id is None:
        return ""
    broker = cluster.brokers[generator.choice(leaders) - 1]
    broker.lose_power()
    when = cluster.world.now + generator.uniform(0.0, 0.05)
    cluster.ensemble.process.at(when, broker.start_again)
    if broker.node_id != controller_id:
        name = cluster.brokers[controller_id - 1].name
        network.cut(name, ZOOKEEPER)
        when += generator.uniform(0.1, 0.5) * cluster.options.session_timeout_s
        cluster.ensemble.process.at(when, network.heal_one, name, ZOOKEEPER)
    return f"reboot {broker.name}"


def _lag(cluster: Cluster) -> str:
    """Hold back what one broker receives from another, so that it falls behind."""
    one, other = cluster.world.random.sample(cluster.brokers, 2)
    cluster.network.cut(other.name, one.name)
    seconds = cluster.world.random.uniform(0.3, 2.0)
    cluster.ensemble.process.at(
        cluster.world.now + seconds, cluster.network.heal_one, other.name, one.name
    )
    return f"hold back frames from {other.name} to {one.name} for {seconds:.1f} s"


FAULTS: dict[str, Callable[[Cluster], str]] = {
    **MACHINE_FAULTS,
    **SCRIPTS,
    "burst": _burst,
    "elections": _elections,
    "reboot": _reboot,
    "lag": _lag,
    "diverge": _diverge,
    "depose": _depose,
    "kill": _kill,
    "kill_all": _kill_all,
    "power": _lose_power,
    "stop": _stop,
    "pause": _pause,
    "cut": _cut,
    "isolate": _isolate,
    "reset": _reset,
    "refuse": _refuse,
    "suspend": _suspend,
    "expire": _expire,
    "store_down": _store_down,
    "move": _move,
    "cancel_move": _cancel_move,
    "kill_in_move": _kill_in_move,
    "kill_all_and_tear_one": _kill_all_and_tear_one,
}


THEMES: tuple[tuple[str, ...], ...] = (
    ("elections", "diverge", "diverge", "lag", "kill"),
    ("reboot", "reboot", "power", "expire", "kill"),
    ("lag", "isolate", "suspend", "store_down", "kill", "pause"),
    ("outage", "wipe", "remove", "restore", "back_up", "back_up", "kill"),
    ("kill_all_and_tear_one", "kill_all", "power", "kill", "outage"),
    ("depose", "depose", "lag"),
    ("burst",),
    ("burst", "burst", "lag"),
    ("burst", "burst", "burst", "diverge", "elections", "reboot"),
)
"""Faults that belong together: each needs the others to do harm."""
_SCRIPTED_SHARE = 0.4
"""Of all seeds: each of them has one script (`scripts`)."""


def options_of(
    generator: Random, without: frozenset[str] = frozenset(), side: Random | None = None
) -> Options:
    """A swarm: seeds differ in kind, and not only in detail. Some of them have a theme.

    The side generator chooses a script, so that seeds without one do not depend on scripts.
    """
    options = Options(
        brokers=generator.choice((3, 3, 4, 4)),
        partitions=generator.choice((1, 2, 3)),
        min_insync_replicas=generator.choice((1, 2, 2, 2)),
        fault_gap_s=generator.choice((0.3, 1.0, 2.5)),
        delay_s_max=generator.choice((0.005, 0.05, 0.5)),
        session_timeout_s=generator.choice((1.0, 2.0, 4.0)),
        lag_ms_max=generator.choice((500, 2000)),
        segment_bytes=generator.choice((400, 4096, 1 << 20)),
        syncs=generator.random() < 0.3,
        noise=generator.random() < 0.7,
        ends_former_sessions=generator.random() < 0.5,
        in_flight_max=generator.choice((1, 1, 3, 5)),
        restart_s_max=generator.choice((0.5, 5.0, 5.0, 120.0)),
        slow_replica=generator.choice((0, 0, 0, 1, 2, 3)),
        features=tuple(each for each in FEATURES if generator.random() < 0.35),
    )
    _choose_retention(options, generator)
    if generator.random() < 0.4:
        # Catching up takes many requests.
        options.settings["replica.fetch.max.bytes"] = "300"
        options.settings["replica.fetch.response.max.bytes"] = "300"
    kinds = [each for each in FAULTS if each not in SCRIPTS]
    options.faults = tuple(sorted(generator.sample(kinds, generator.randint(2, len(kinds)))))
    if generator.random() < 0.7:
        options.faults = generator.choice(THEMES)
        options.noise = True
        if "burst" in options.faults:
            options.fault_gap_s = generator.choice((1.0, 2.5, 4.0))
            options.lag_ms_max = generator.choice((500, 500, 2000))
            options.partitions = generator.choice((1, 1, 2))
        if "depose" in options.faults:
            # Truncations meet compaction if elections are quick, and if cleanings are not longer
            # than it takes to fill a segment: the last one that is cleaned is then the newest.
            options.features = tuple(dict.fromkeys((*options.features, "compaction")))
            options.segment_bytes = generator.choice((1000, 2000, 4096))
            options.session_timeout_s = options.fault_gap_s = 1.0
            options.partitions = 1
            options.keys = 1000
    if side is not None and side.random() < _SCRIPTED_SHARE:
        choose_script(options, side)
    if side is not None and side.random() < 0.35:
        options.features = (*options.features, "acls")
    options.features = tuple(each for each in options.features if each not in without)
    options.faults = tuple(each for each in options.faults if each not in without) or ("kill",)
    if "retention" in without:
        options.retention_ms = options.retention_bytes = 0
    return options


def _choose_retention(options: Options, generator: Random) -> None:
    kind = generator.choice(("", "", "", "ms", "bytes"))
    if kind == "ms":
        options.retention_ms = generator.choice((8_000, 15_000))
    elif kind == "bytes":
        options.retention_bytes = generator.choice((2_000, 20_000))
    if kind:
        options.segment_bytes = min(options.segment_bytes, 4096)
