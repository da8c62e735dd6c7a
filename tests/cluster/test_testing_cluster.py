"""The cluster that `headrace.testing` starts, as tests use it."""

import os
import socket
from pathlib import Path

from headrace.client import connect
from headrace.testing import RunningCluster
from tests.cluster.processes import wait_until


def test_cluster_brokers_have_separate_addresses_and_can_be_killed_and_restarted(
    headrace_cluster: RunningCluster,
) -> None:
    cluster = headrace_cluster
    hosts = {node_id: broker.host for node_id, broker in cluster.brokers.items()}
    assert hosts == {1: "127.0.0.2", 2: "127.0.0.3", 3: "127.0.0.4"}
    assert len({broker.data_dir for broker in cluster.brokers.values()}) == 3
    wait_until(lambda: cluster.zookeeper.nodes[0].mode() == "standalone")
    first, second, third = cluster.brokers.values()
    cluster.kill(1, 2)
    assert not first.is_running
    assert not second.is_running
    assert _answers(third.host, third.port)
    address = first.address
    first.restart()
    assert first.address == address
    assert _answers(first.host, first.port)
    assert "broker.id=1\n" in first.data_dir.with_name("broker-1.properties").read_text()
    third.stop()
    cluster.start_brokers()
    third.pause()
    os.kill(third.pid, 0)
    third.resume()
    third.restart()
    pids = [broker.pid for broker in cluster.brokers.values()]
    cluster.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_cluster_has_the_names_of_a_broker(headrace_cluster: RunningCluster) -> None:
    cluster = headrace_cluster
    assert cluster.address == ",".join(broker.address for broker in cluster.brokers.values())
    first, second, third = cluster.brokers.values()
    with connect(cluster.address) as client:
        client.create_topic("orders", partitions=1, assignment={0: [2, 1, 3]})
        cluster.kill(1)
        assert f"broker 1 not running, broker 2 pid {second.pid}" in repr(cluster)
        assert cluster.address in repr(cluster)
        assert str(cluster.directory) in repr(cluster)
        cluster.restart(1)
        assert f"broker 1 pid {first.pid}" in repr(cluster)
        cluster.pause(3)
        wait_until(lambda: _state(third.pid) == "T")
        cluster.resume(3)
        wait_until(lambda: _state(third.pid) != "T")
        wait_until(lambda: len(client.describe_topic("orders").partitions[0].isr) == 3)
        cluster.cut(2)
        wait_until(lambda: _leader(cluster) in (1, 3), 90)
        cluster.heal()
        cluster.stop(3)
        assert not third.is_running
        with first.full_disk(), second.full_disk():
            pass


def _leader(cluster: RunningCluster) -> int:
    others = ",".join(cluster.brokers[each].address for each in (1, 3))
    with connect(others) as client:
        return client.describe_topic("orders").partitions[0].leader


def _state(pid: int) -> str:
    """R, S, T (stopped) and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _answers(host: str, port: int) -> bool:
    with socket.create_connection((host, port), timeout=10):
        return True
