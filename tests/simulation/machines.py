"""Faults of machines: disks, wall clocks, data directories, and outages of the whole cluster.

1. A data directory is lost or replaced only while another in-sync replica has every committed
   record, and only if the topics demand two in-sync replicas: fewer promise nothing.
2. Only one disk fails at a time.
"""

import errno
from collections.abc import Callable
from functools import partial

from headrace.testing.disk import SimulatedFiles
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster

HOUR_MS = 3_600_000
STOP_S = 6.0
"""How long a broker may take to stop before it is killed."""


def restart_later(cluster: Cluster, broker: SimulatedBroker) -> None:
    options, generator = cluster.options, cluster.world.random
    after = generator.uniform(0.05, min(options.restart_s_max, 5.0))
    if options.restart_s_max > 5.0 and generator.random() < 0.2:
        after = generator.uniform(5.0, options.restart_s_max)
        cluster.absent_until = max(cluster.absent_until, cluster.world.now + after)
    cluster.ensemble.process.at(cluster.world.now + after, broker.start_again)


def _pick(cluster: Cluster) -> SimulatedBroker:
    return cluster.world.random.choice(cluster.brokers)


def _later(cluster: Cluster, seconds: float, call: Callable[[], object]) -> None:
    cluster.ensemble.process.at(cluster.world.now + seconds, call)


def _is_disk_failing(cluster: Cluster) -> bool:
    return any(
        broker.files.fail_at
        or broker.files.capacity is not None
        or broker.files.open_max is not None
        or broker.files.unreadable
        for broker in cluster.brokers
    )


def _disk_error(cluster: Cluster) -> str:
    """A few operations of one disk fail; the broker is restarted some time later."""
    broker, generator = _pick(cluster), cluster.world.random
    if _is_disk_failing(cluster) or not broker.is_running:
        return ""
    files = broker.files
    code = generator.choice((errno.EIO, errno.EIO, errno.ENOSPC, errno.EMFILE))
    first = files.operations + generator.randint(1, 30)
    count = generator.choice((1, 1, 3, 20))
    files.fail_at = dict.fromkeys(range(first, first + count), code)

    _later(cluster, generator.uniform(0.5, 8.0), partial(_replace_disk, cluster, broker, files))
    return f"{count} operations of the disk of {broker.name} fail: {errno.errorcode[code]}"


def _replace_disk(cluster: Cluster, broker: SimulatedBroker, files: SimulatedFiles) -> None:
    files.fail_at.clear()
    files.unreadable.clear()
    if broker.files is files:
        broker.kill()
        restart_later(cluster, broker)


def _unreadable(cluster: Cluster) -> str:
    """A broker restarts, and cannot read one file of a partition; it restarts again later."""
    broker, generator = _pick(cluster), cluster.world.random
    if _is_disk_failing(cluster) or not broker.is_running:
        return ""
    broker.kill()
    path = broker.make_unreadable()
    broker.start()
    seconds = generator.uniform(0.5, 8.0)
    _later(cluster, seconds, partial(_replace_disk, cluster, broker, broker.files))
    return f"{broker.name} cannot read {path}"


def _disk_full(cluster: Cluster) -> str:
    broker, generator = _pick(cluster), cluster.world.random
    if _is_disk_failing(cluster) or not broker.is_running:
        return ""
    broker.files.capacity = broker.files.used_bytes() + generator.randint(0, 2000)
    _later(cluster, generator.uniform(0.5, 8.0), broker.heal_disk)
    return f"the disk of {broker.name} is full"


def _descriptors(cluster: Cluster) -> str:
    broker, generator = _pick(cluster), cluster.world.random
    if _is_disk_failing(cluster) or not broker.is_running:
        return ""
    broker.files.open_max = broker.files.open_count() + generator.randint(0, 2)
    _later(cluster, generator.uniform(0.5, 8.0), broker.heal_disk)
    return f"{broker.name} has no descriptors left"


def _clock(cluster: Cluster) -> str:
    """Step the wall clock of one machine, or of all. Brokers tolerate small steps."""
    generator = cluster.world.random
    steps = (-5000, 5000, -2 * HOUR_MS, 2 * HOUR_MS, -9000 * HOUR_MS, 9000 * HOUR_MS, 0)
    step = generator.choice(steps)
    brokers = cluster.brokers if generator.random() < 0.3 else [_pick(cluster)]
    for broker in brokers:
        broker.clock.step_ms = step
    names = ", ".join(broker.name for broker in brokers)
    return f"step the wall clock of {names} by {step} ms"


def _throttle(cluster: Cluster) -> str:
    rate = cluster.world.random.choice((None, 500, 5000, 50_000))
    cluster.throttler.limit(rate)
    return f"throttle replication to {rate} bytes per second"


def _back_up(cluster: Cluster) -> str:
    broker = _pick(cluster)
    broker.back_up()
    return f"back up {broker.name}"


def _may_lose_one(cluster: Cluster) -> bool:
    return cluster.options.min_insync_replicas > 1 and cluster.is_in_full_sync()


def _wipe(cluster: Cluster) -> str:
    broker = _pick(cluster)
    if not _may_lose_one(cluster):
        return ""
    broker.kill()
    broker.wipe()
    restart_later(cluster, broker)
    cluster.waits_for_sync = cluster.world.random.random() < 0.5
    return f"wipe {broker.name}"


def _remove(cluster: Cluster) -> str:
    broker = _pick(cluster)
    if not _may_lose_one(cluster):
        return ""
    broker.kill()
    names = _remove_some(cluster, broker)
    restart_later(cluster, broker)
    cluster.waits_for_sync = cluster.world.random.random() < 0.5
    return f"remove {', '.join(names)} of {broker.name}"


def _remove_some(cluster: Cluster, broker: SimulatedBroker) -> list[str]:
    """Remove some partition directories of a broker that has ended."""
    names, generator = broker.partition_directories(), cluster.world.random
    chosen = generator.sample(names, generator.randint(min(1, len(names)), len(names)))
    broker.remove_partitions(chosen)
    return chosen


def _restore(cluster: Cluster) -> str:
    broker = _pick(cluster)
    if broker.backup is None or not _may_lose_one(cluster):
        return ""
    broker.kill()
    broker.restore()
    restart_later(cluster, broker)
    cluster.waits_for_sync = cluster.world.random.random() < 0.5
    return f"restore an older copy of {broker.name}"


def _lose_all_power(cluster: Cluster) -> str:
    if not cluster.options.syncs:
        return ""
    for broker in cluster.brokers:
        broker.lose_power()
        restart_later(cluster, broker)
    return "power loss of all"


def _outage(cluster: Cluster) -> str:
    """All brokers end, one directory may be lost or old, and they start in any order."""
    generator = cluster.world.random
    if not _may_lose_one(cluster):
        return ""
    cluster.network.heal()
    cluster.ensemble.is_down = False
    how = generator.choice(("kill", "stop", "mixed"))
    for broker in cluster.brokers:
        if how == "kill" or (how == "mixed" and generator.random() < 0.5):
            broker.kill()
        else:
            broker.stop()
            _later(cluster, STOP_S, broker.kill)
    cluster.waits_for_sync = True
    victim = _pick(cluster)
    kinds = ("", "wipe", "wipe", "restore", "restore", "power", "remove", "remove")
    spoiled = generator.choice(kinds)
    if spoiled == "restore" and victim.backup is None:
        spoiled = "wipe"
    order = generator.sample(cluster.brokers, len(cluster.brokers))
    if spoiled and generator.random() < 0.5:
        order.sort(key=lambda broker: broker is not victim)
    after = STOP_S + 1.0
    _later(cluster, after - 0.5, partial(spoil, cluster, victim, spoiled))
    for broker in order:
        _later(cluster, after, broker.start_again)
        gaps = (0.5, 15.0, 15.0, 120.0 if cluster.options.restart_s_max > 5.0 else 15.0)
        after += generator.uniform(0.0, 1.0) * generator.choice(gaps)
    names = ", ".join(broker.name for broker in order)
    return f"outage ({how}), {spoiled or 'spare'} {victim.name}; starts in the order {names}"


def spoil(cluster: Cluster, broker: SimulatedBroker, how: str) -> None:
    """Change the disk of a broker that has ended."""
    broker.kill()
    if how == "wipe":
        broker.wipe()
    elif how == "restore":
        broker.restore()
    elif how == "power":
        broker.lose_unsynced()
    elif how == "remove":
        _remove_some(cluster, broker)


MACHINE_FAULTS: dict[str, Callable[[Cluster], str]] = {
    "disk_error": _disk_error,
    "disk_full": _disk_full,
    "unreadable": _unreadable,
    "descriptors": _descriptors,
    "clock": _clock,
    "throttle": _throttle,
    "back_up": _back_up,
    "wipe": _wipe,
    "remove": _remove,
    "restore": _restore,
    "power_all": _lose_all_power,
    "outage": _outage,
}
