"""Partitions that move between the brokers of a real cluster while they are written."""

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.model.errors import ErrorCode
from headrace.testing.cluster import RunningCluster
from headrace.wire.apis import ALTER_PARTITION_REASSIGNMENTS
from headrace.wire.codec import decode_response, encode_request
from tests.cluster.history import Load, Topic, check, wait_for
from tests.cluster.placement import wait_until_all_agree

SETTINGS = {"zookeeper.session.timeout.ms": "2000", "replica.lag.time.max.ms": "2000"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster.start(tmp_path, settings=SETTINGS) as running:
        yield running


def move(cluster: RunningCluster, topic: Topic, targets: Mapping[int, Sequence[int]]) -> None:
    """Ask one broker, whichever is the controller."""
    host, _, port = cluster.brokers[2].address.rpartition(":")
    partitions = [{"partition_index": i, "replicas": list(t)} for i, t in targets.items()]
    body = {"timeout_ms": 20_000, "topics": [{"name": topic.name, "partitions": partitions}]}
    frame = encode_request(ALTER_PARTITION_REASSIGNMENTS, 1, 1, "test", body)
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        answer = connection.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        _, reply = decode_response(ALTER_PARTITION_REASSIGNMENTS, 1, answer.read(size))
    assert reply["error_code"] == ErrorCode.NONE
    slots: list[dict[str, Any]] = reply["responses"][0]["partitions"]
    assert [slot["error_code"] for slot in slots] == [ErrorCode.NONE] * len(slots)


def directories(cluster: RunningCluster, name: str) -> dict[int, bool]:
    return {node: (b.data_dir / name).is_dir() for node, b in cluster.brokers.items()}


def test_partitions_move_away_and_back_while_they_are_written(cluster: RunningCluster) -> None:
    topic = Topic(cluster, "t")
    with Load(topic) as load:
        load.wait_for_more(50)
        leader = topic.leader()
        others = [node for node in cluster.brokers if node != leader]
        move(cluster, topic, {0: others, 1: others})
        wait_for(
            "two replicas without the leader",
            lambda: all(sorted(s.replicas) == others for s in topic.states().values()),
        )
        wait_until_all_agree(topic)
        assert all(state.leader in others for state in topic.states().values())
        load.wait_for_more(50)
        gone = {node: node in others for node in cluster.brokers}
        wait_for("no log left behind", lambda: directories(cluster, "t-0") == gone)
        move(cluster, topic, {0: [leader, *others], 1: [leader, *others]})
        topic.wait_until_in_sync()
        load.wait_for_more(50)
        cluster.kill(topic.leader())
        load.wait_for_more(50)
    check(load)
    assert not load.failed
