"""What goes wrong in the simulated cluster, and how much of it in one seed."""

from collections.abc import Callable
from random import Random

from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster, Options
from tests.simulation.ensemble import NAME as ZOOKEEPER

# Faults. Each is one thing that goes wrong, and knows when it must not.


def _pick(cluster: Cluster) -> SimulatedBroker:
    return cluster.world.random.choice(cluster.brokers)


def _restart_later(cluster: Cluster, broker: SimulatedBroker) -> None:
    after = cluster.world.random.uniform(0.05, 5.0)
    cluster.ensemble.process.at(cluster.world.now + after, broker._start_again)


def _kill(cluster: Cluster) -> str:
    broker = _pick(cluster)
    broker.kill()
    _restart_later(cluster, broker)
    return f"kill {broker.name}"


def _kill_all(cluster: Cluster) -> str:
    for broker in cluster.brokers:
        broker.kill()
        _restart_later(cluster, broker)
    return "kill all"


def _lose_power(cluster: Cluster) -> str:
    broker = _pick(cluster)
    if not cluster.options.syncs and not cluster.is_in_full_sync():
        return ""  # The page cache of another may be the only one with a record.
    broker.lose_power()
    _restart_later(cluster, broker)
    return f"power loss of {broker.name}"


def _stop(cluster: Cluster) -> str:
    broker = _pick(cluster)
    broker.stop()
    _restart_later(cluster, broker)
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
    if broker.is_running and broker.outside is not None and broker.outside.store is not None:
        assert broker.process is not None
        broker.process.at(0, broker.outside.store.suspend)
    return f"break the store's connection of {broker.name}"


def _expire(cluster: Cluster) -> str:
    broker = _pick(cluster)
    if broker.is_running and broker.outside is not None and broker.outside.store is not None:
        cluster.ensemble.process.at(0, cluster.ensemble.expire, broker.outside.store.session_id)
    return f"expire the session of {broker.name}"


def _store_down(cluster: Cluster) -> str:
    cluster.ensemble.is_down = not cluster.ensemble.is_down
    return f"the ensemble is {'down' if cluster.ensemble.is_down else 'up'}"


FAULTS: dict[str, Callable[[Cluster], str]] = {
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
}


def options_of(generator: Random) -> Options:
    """A swarm: seeds differ in kind, and not only in detail."""
    options = Options(
        brokers=generator.choice((3, 3, 3, 4)),
        partitions=generator.choice((1, 2, 3)),
        min_insync_replicas=generator.choice((1, 2, 2, 2)),
        fault_gap_s=generator.choice((0.3, 1.0, 2.5)),
        delay_s_max=generator.choice((0.005, 0.05, 0.5)),
        session_timeout_s=generator.choice((1.0, 2.0, 4.0)),
        lag_ms_max=generator.choice((500, 2000)),
        segment_bytes=generator.choice((400, 4096, 1 << 20)),
        syncs=generator.random() < 0.3,
        noise=generator.random() < 0.7,
    )
    kinds = list(FAULTS)
    options.faults = tuple(
        sorted(generator.sample(kinds, generator.randint(2, len(kinds)))),
    )
    return options
