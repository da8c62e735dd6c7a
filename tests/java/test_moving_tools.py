"""Apache Kafka's tools that move partitions, elect leaders and read nearby, on three brokers."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench import kafka
from headrace.testing import RunningCluster
from tests.cluster.history import Topic, wait_for
from tests.java.conftest import run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    # No leader is put right but by the tool.
    settings = {
        "auto.leader.rebalance.enable": "false",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    racks = {node: {"broker.rack": f"rack-{node}"} for node in (1, 2, 3)}
    directory = tmp_path_factory.mktemp("moving")
    with RunningCluster.start(
        directory, settings=settings, settings_of=racks, links=True
    ) as running:
        yield running


def test_kafka_reassign_partitions_generates_executes_verifies_and_cancels(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    topic = Topic(cluster, "moved")
    controller = topic.admin.list_topics(timeout=5).controller_id
    target = next(node for node in cluster.brokers if node != controller)
    stays = [node for node in cluster.brokers if node != target]

    def tool(*arguments: str) -> str:
        server = ["--bootstrap-server", cluster.bootstrap]
        return run(kafka.tool_command(kafka.REASSIGN_PARTITIONS, [*server, *arguments]))

    def lying() -> dict[int, list[int]]:
        return {index: sorted(state.replicas) for index, state in topic.states().items()}

    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "moved"}]}))
    told = tool("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3")
    _, proposed = re.findall(r"^\{.*\}$", told, re.MULTILINE)
    plan = json.loads(proposed)
    assert {tuple(sorted(row["replicas"])) for row in plan["partitions"]} == {(1, 2, 3)}

    for row in plan["partitions"]:
        row["replicas"], row["log_dirs"] = stays, ["any", "any"]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    assert "Successfully started" in tool("--execute", "--reassignment-json-file", str(file))
    wait_for("two replicas", lambda: lying() == {0: stays, 1: stays})
    told = tool("--verify", "--reassignment-json-file", str(file))
    assert len(re.findall(r"Reassignment of partition moved-\d is completed", told)) == 2

    # The move cannot end while no other broker reaches the third.
    cluster.links.cut(target, *stays)
    for row in plan["partitions"]:
        row["replicas"] = [target, stays[0]]
    file.write_text(json.dumps(plan))
    tool("--execute", "--reassignment-json-file", str(file))
    assert f"adding: {target}. removing: {stays[1]}" in tool("--list")
    # Throttles are cleared broker by broker, and this one cannot pass that on to the controller.
    cancel = ("--cancel", "--preserve-throttles", "--reassignment-json-file", str(file))
    assert "Successfully cancelled" in tool(*cancel)
    cluster.links.heal()
    assert lying() == {0: stays, 1: stays}


def test_kafka_reassign_partitions_sets_and_removes_a_throttle(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    topic = Topic(cluster, "slow", partitions=1)
    server = ["--bootstrap-server", cluster.bootstrap]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 60_000})
    for _ in range(100):
        producer.produce("slow", os.urandom(50_000))
    assert producer.flush(60) == 0
    file = tmp_path / "plan.json"

    def execute(*nodes: int, more: tuple[str, ...] = ()) -> str:
        rows = [
            {"topic": "slow", "partition": 0, "replicas": nodes, "log_dirs": ["any"] * len(nodes)}
        ]
        file.write_text(json.dumps({"version": 1, "partitions": rows}))
        return tool("--execute", *more)

    def tool(*arguments: str) -> str:
        plan = ["--reassignment-json-file", str(file)]
        return run(kafka.tool_command(kafka.REASSIGN_PARTITIONS, [*server, *plan, *arguments]))

    execute(1, 2)
    wait_for("two replicas", lambda: topic.states()[0].replicas == [1, 2])
    # So slow that no machine is done before the next command.
    told = execute(1, 2, 3, more=("--throttle", "20000"))
    assert "throttle" in told
    assert "still in progress" in tool("--verify")
    assert len(topic.states()[0].isrs) == 2
    told = execute(1, 2, 3, more=("--additional", "--throttle", "1000000000"))
    wait_for("three in sync", lambda: sorted(topic.states()[0].isrs) == [1, 2, 3])
    wait_for("the end of the move", lambda: "is completed" in tool("--verify"))
    settings = kafka.tool_command(
        kafka.CONFIG_COMMAND,
        [*server, "--describe", "--entity-type", "topics", "--entity-name", "slow"],
    )
    assert "throttled" not in run(settings)


def test_kafka_leader_election_elects_the_preferred_replica(cluster: RunningCluster) -> None:
    topic = Topic(cluster, "led", partitions=3)
    gone = topic.leader(1)
    cluster.brokers[gone].stop()
    wait_for("another leader", lambda: topic.leader(1) != gone)
    cluster.start_brokers([gone])
    topic.wait_until_in_sync()
    assert topic.leader(1) != gone
    asked = ["--election-type", "preferred", "--all-topic-partitions"]
    server = ["--bootstrap-server", cluster.bootstrap]
    told = run(kafka.tool_command(kafka.LEADER_ELECTION, [*server, *asked]))
    assert re.search(r"Successfully completed leader election .*led-1", told)
    assert topic.leader(1) == gone


def test_java_consumer_reads_from_the_follower_in_its_rack(cluster: RunningCluster) -> None:
    topic = Topic(cluster, "near", partitions=1)
    topic.wait_until_in_sync()
    near = next(node for node in cluster.brokers if node != topic.leader())
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    values = [str(number) for number in range(100)]
    for value in values:
        producer.produce("near", value)
    assert producer.flush(60) == 0
    asked = ["--topic", "near", "--from-beginning", "--max-messages", "100"]
    asked += ["--command-property", f"client.rack=rack-{near}"]
    server = ["--bootstrap-server", cluster.bootstrap]
    assert run(kafka.tool_command(kafka.CONSOLE_CONSUMER, [*server, *asked])).split() == values
