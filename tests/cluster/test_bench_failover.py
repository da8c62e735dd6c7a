"""`bench.failover` measures a cluster in which each broker can be killed and restarted."""

from bench import failover
from tests.cluster.history import wait_for


def test_cluster_is_in_sync_after_each_broker_was_killed_once() -> None:
    # ZooKeeper stopped with the last broker that `headrace up` had started itself.
    cluster = failover.headrace_cluster()
    try:
        cluster.begin()
        cluster.create_topic("first")
        cluster.find_parts()
        for node_id in cluster.ports:
            cluster.kill(node_id)
            wait_for("a smaller ISR", lambda: not failover.is_in_sync(cluster))
            cluster.restart(node_id)
            wait_for("all in sync", lambda: failover.is_in_sync(cluster))
        assert "not running" not in failover.report(cluster)
    finally:
        cluster.stop()
