"""Cut-off leaders: a leader loses its followers, the store or both, while clients write through it.

1. A cut begins when all replicas are in sync. No other fault happens until some time after it.
2. Frames are held back in one direction or in both. Clients reach all brokers all the time.
3. Within `WRITES_S_MAX` of the cut a record that was created after it is acknowledged.
4. `Checks` compares acknowledgements with the log of the current leader at any time of a run.
"""

from headrace.model.topics import TopicPartition
from headrace.replication.partition import Partition
from headrace.replication.silence_machine import HAND_OVER_INTERVAL_S
from tests.simulation.cluster import Cluster
from tests.simulation.ensemble import NAME as ZOOKEEPER

WRITES_S_MAX = 15.0
"""Without acknowledgements, in virtual time. Includes the retries of the clients, which can get
outdated metadata from the leader that is cut off."""
CALM_S = 5.0
LOSSES = ("followers", "followers", "one follower", "brokers", "store", "followers, store", "all")
DIRECTIONS = ("to", "from", "both", "both")


def cut_off(cluster: Cluster, where: TopicPartition) -> str:
    generator = cluster.world.random
    loss, direction = generator.choice(LOSSES), generator.choice(DIRECTIONS)
    return cut_off_for(cluster, where, loss, direction, generator.uniform(1.0, WRITES_S_MAX + 10))


def cut_off_for(
    cluster: Cluster, where: TopicPartition, loss: str, direction: str, seconds: float
) -> str:
    """Cut the leader of a partition off, and heal that some seconds later."""
    world = cluster.world
    leader = cluster.leaders().get((where.topic, where.partition))
    if leader is None or not cluster.is_in_full_sync():
        return ""
    name = cluster.brokers[int(leader.node_id) - 1].name
    if world.now < cluster.cut_off_at.get((where, name), 0.0) + HAND_OVER_INTERVAL_S:
        return ""  # It hands the partition over at most once within this time.
    cluster.cut_off_at[where, name] = world.now
    others = _others(cluster, leader, loss)
    for other in others:
        if direction != "from":
            cluster.network.cut(name, other)
        if direction != "to":
            cluster.network.cut(other, name)
    cluster.calm_until = world.now + seconds + CALM_S
    cluster.ensemble.process.at(world.now + seconds, cluster.network.heal)
    cluster.checks.expect_writes(where, world.now + WRITES_S_MAX)
    told = f"{direction} {', '.join(others)} for {seconds:.1f} s"
    return f"cut {name}, the leader of {where}, off ({loss}): {told}"


def _others(cluster: Cluster, leader: Partition, loss: str) -> list[str]:
    """The processes that the leader is cut off from."""
    node_id = int(leader.node_id)
    names = [each.name for each in cluster.brokers if each.node_id != node_id]
    followers = [f"broker-{node}" for node in leader.replicas.followers if node != node_id]
    chosen = {
        "followers": followers,
        "one follower": followers[:1],
        "brokers": names,
        "store": [],
        "followers, store": followers,
        "all": names,
    }[loss]
    return [*chosen, ZOOKEEPER] if loss in ("store", "followers, store", "all") else chosen
