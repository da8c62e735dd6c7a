"""A request with acks=all that waits while the ISR shrinks below min.insync.replicas."""

from pathlib import Path

from headrace.client import connect
from headrace.model.errors import ErrorCode
from headrace.testing.cluster import RunningCluster
from tests.broker.raw import RawConnection, one_batch
from tests.cluster.history import Topic, wait_for

SETTINGS = {
    "zookeeper.session.timeout.ms": "60000",
    "replica.lag.time.max.ms": "2000",
}
"""The follower stays registered, and leaves the ISR because it lags."""


def _led(topic: Topic) -> list[int]:
    """The partitions that the controller leads; preferred leaders are elected if there is none."""
    controller = topic.controller()
    led = [index for index in range(2) if topic.leader(index) == controller]
    if not led:
        with connect(topic.cluster.bootstrap) as client:
            client.elect_leaders()
    return led


def test_waiting_request_gets_not_enough_replicas_after_append(tmp_path: Path) -> None:
    with RunningCluster.start(tmp_path, brokers=2, settings=SETTINGS) as cluster:
        topic = Topic(cluster, "short", 2, 2, min_insync_replicas="2")
        # The paused broker must not be the controller, which removes it from the ISR.
        index = wait_for("a partition that the controller leads", lambda: _led(topic))[0]
        leader = cluster.brokers[topic.leader(index)]
        (follower,) = [each for each in cluster.brokers.values() if each is not leader]
        host, _, port = leader.address.rpartition(":")
        with RawConnection(int(port), host=host) as connection:

            def produce(value: bytes) -> int:
                reply = connection.produce(topic.name, one_batch(value), partition=index, acks=-1)
                return int(reply["error_code"])

            # On a busy machine the follower can lag by two seconds at first.
            wait_for("both replicas in sync", lambda: produce(b"a") == ErrorCode.NONE)
            follower.pause()
            assert produce(b"b") == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            assert produce(b"c") == ErrorCode.NOT_ENOUGH_REPLICAS
            follower.resume()
