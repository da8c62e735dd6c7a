"""Reassignments while brokers are killed, added and removed. No replica is left over."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.cli import main as cli
from headrace.cli.reassignment_progress import sizes
from headrace.client import Client, ConfigChange, ConfigResource, TopicPartition, connect
from headrace.testing.cluster import RunningCluster
from tests.cluster.history import Load, Reader, Topic, check, wait_for
from tests.cluster.placement import (
    replicas,
    wait_until_all_agree,
    wait_until_nothing_is_left_behind,
)

SETTINGS = {"zookeeper.session.timeout.ms": "2000", "replica.lag.time.max.ms": "2000"}
RATE = 100_000
"""Bytes per second: a reassignment takes a minute, unless the throttle is removed."""

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[RunningCluster]:
    with RunningCluster.start(tmp_path, brokers=request.param, settings=SETTINGS) as running:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.bootstrap)
        yield running


class SlowMove:
    """A reassignment of partition 0 from its leader to the broker without a replica."""

    def __init__(self, cluster: RunningCluster, topic: Topic, client: Client) -> None:
        self._topic = topic
        self._client = client
        self._where = TopicPartition(topic.name, 0)
        self.before = replicas(topic)[0]
        self.source = topic.leader()
        self.target = next(node for node in cluster.brokers if node not in self.before)
        self.after = [self.target if node == self.source else node for node in self.before]

    def begin(self) -> None:
        """Until it is half-way."""
        self._throttle("*")
        assert self._client.alter_reassignments({self._where: self.after}) == {}
        wait_for(
            "some of the copy",
            lambda: sizes(self._client).get((self._where, self.target), 0) > RATE,
        )

    def let_go(self) -> None:
        self._throttle(None)

    def cancel(self) -> None:
        assert self._client.alter_reassignments({self._where: None}) == {}
        self.let_go()

    def _throttle(self, pairs: str | None) -> None:
        changes = [
            ConfigChange(
                f"{side}.replication.throttled.replicas", pairs, "unset" if pairs is None else "set"
            )
            for side in ("leader", "follower")
        ]
        self._client.alter_configs(ConfigResource("topic", self._topic.name), changes)

    def wait_until_on(self, nodes: list[int]) -> None:
        def is_there() -> bool:
            lies = sorted(replicas(self._topic)[0]) == sorted(nodes)
            return lies and not self._client.list_reassignments()

        wait_for(f"partition 0 on {nodes}, and nothing on the move", is_there)


def fill(cluster: RunningCluster, topic: Topic) -> None:
    filler = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 60_000})
    for _ in range(120):
        filler.produce(topic.name, os.urandom(50_000), partition=0)
    assert filler.flush(60) == 0


@pytest.mark.parametrize("cluster", [4], indirect=True)
def test_reassignment_completes_or_is_cancelled_after_any_kill(cluster: RunningCluster) -> None:
    topic = Topic(cluster, "filled", min_insync_replicas="2")
    fill(cluster, topic)
    with Load(topic) as load, connect(cluster.bootstrap) as client:
        load.wait_for_more(20)
        for node in cluster.brokers:
            rates = [
                ConfigChange(f"{side}.replication.throttled.rate", str(RATE))
                for side in ("leader", "follower")
            ]
            client.alter_configs(ConfigResource("broker", str(node)), rates)
        for victim in ("source", "target", "controller", "nobody"):
            move = SlowMove(cluster, topic, client)
            move.begin()
            nodes = {"source": move.source, "target": move.target}
            nodes["controller"] = topic.controller()
            if victim in nodes:
                cluster.kill(nodes[victim])
                load.wait_for_more(20)
            if victim == "source":
                # No replica needs the data that this broker has after its restart.
                move.let_go()
                move.wait_until_on(move.after)
            cluster.start_brokers()
            if victim == "nobody":
                move.cancel()
                move.wait_until_on(move.before)
            else:
                move.let_go()
                move.wait_until_on(move.after)
            topic.wait_until_in_sync()
            wait_until_all_agree(topic)
            wait_until_nothing_is_left_behind(cluster, topic)
            load.wait_for_more(20)
    check(load)
    assert not load.failed


@pytest.mark.parametrize("cluster", [3], indirect=True)
def test_adding_and_draining_brokers_causes_no_client_error(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    topic = Topic(cluster, "t", partitions=4, min_insync_replicas="2")
    plan = str(tmp_path / "plan.json")
    with Load(topic) as load, Reader(topic) as reader:
        load.wait_for_more(50)
        reader.wait_until_at_end_of(load)
        cluster.add_broker()
        wait_until_all_agree(topic)
        assert cli.main(["reassign", "plan", "--add-broker", "4", "--output", plan]) == 0
        assert cli.main(["reassign", "execute", plan]) == 0
        wait_until_all_agree(topic)
        assert any(4 in nodes for nodes in replicas(topic).values())
        load.wait_for_more(50)
        reader.wait_until_at_end_of(load)
        # Also of the offsets of the group.
        assert cli.main(["reassign", "plan", "--drain", "1", "--output", plan]) == 0
        assert cli.main(["reassign", "execute", plan]) == 0
        wait_until_nothing_is_left_behind(cluster, topic)
        cluster.brokers[1].stop()
        load.wait_for_more(50)
        reader.wait_until_at_end_of(load)
    check(load)
    assert not load.failed
    assert not reader.errors
