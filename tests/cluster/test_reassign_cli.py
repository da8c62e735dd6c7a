"""`headrace reassign`, `leaders` and `topics alter` on a cluster that grows, shrinks and works."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.cli import main as cli
from headrace.cli.reassignment_progress import sizes
from headrace.client import TopicPartition, connect
from headrace.testing.cluster import RunningCluster
from tests.cluster.history import Load, Topic, check, wait_for
from tests.cluster.placement import (
    replicas,
    wait_until_all_agree,
    wait_until_nothing_is_left_behind,
)

SETTINGS = {"replica.lag.time.max.ms": "2000"}

Run = Callable[..., Any]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningCluster]:
    with RunningCluster.start(tmp_path, settings=SETTINGS, links=True) as running:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.bootstrap)
        yield running


@pytest.fixture
def headrace(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that prints JSON."""

    def run(*arguments: object) -> Any:
        capsys.readouterr()
        code = cli.main([*map(str, arguments), "--json"])
        out, err = capsys.readouterr()
        # On a busy machine, standard error also names responses that take longer than 2 s.
        assert code == 0, err
        return json.loads(out)

    return run


def test_reassignments_grow_shrink_and_cancel_under_load(
    cluster: RunningCluster, headrace: Run, tmp_path: Path
) -> None:
    topic = Topic(cluster, "t", partitions=4)
    plan = tmp_path / "plan.json"
    with Load(topic) as load:
        load.wait_for_more(50)
        cluster.add_broker()
        wait_until_all_agree(topic)
        planned = headrace("reassign", "plan", "--add-broker", 4, "--output", plan)
        assert planned["replicas_to_move"] == 3
        assert planned["bytes"] > 0
        assert headrace("reassign", "execute", plan)["begun"] == len(planned["partitions"])
        wait_until_all_agree(topic)
        assert sum(4 in nodes for nodes in replicas(topic).values()) == 3

        def is_balanced() -> bool:
            # A broker that was not reachable for a moment did not get its leader.
            headrace("leaders", "elect", "--topic", "t")
            return Counter(s.leader for s in topic.states().values()) == Counter([1, 2, 3, 4])

        wait_for("a leader on each broker", is_balanced)
        assert headrace("reassign", "execute", plan)["begun"] == 0
        assert {row["state"] for row in headrace("reassign", "status", plan)} == {"done"}
        load.wait_for_more(50)

        controller = headrace("cluster", "describe")["controller"]
        gone = next(node for node in (1, 2, 3) if node != controller)
        headrace("reassign", "plan", "--drain", gone, "--output", plan)
        headrace("reassign", "execute", plan)
        wait_until_all_agree(topic)
        assert not any(gone in nodes for nodes in replicas(topic).values())
        wait_until_nothing_is_left_behind(cluster, topic)

        before, others = replicas(topic), {*cluster.brokers} - {gone}
        stop_halfway(cluster, headrace, plan, before, gone)
        wait_until_all_agree(topic)
        assert {i: set(n) for i, n in replicas(topic).items()} == dict.fromkeys(before, others)
        wait_until_nothing_is_left_behind(cluster, topic)
        cluster.brokers[gone].stop()
        load.wait_for_more(50)
        assert cli.main(["topics", "alter", "t", "--replication-factor", "2"]) == 0
        wait_until_all_agree(topic)
        assert {len(nodes) for nodes in replicas(topic).values()} == {2}
        wait_until_nothing_is_left_behind(cluster, topic)
        load.wait_for_more(50)
        alter = ["topics", "alter", "t", "--partitions", "6", "--replication-factor", "3"]
        assert cli.main(alter) == 0
        wait_until_all_agree(topic)
        assert [len(nodes) for nodes in replicas(topic).values()] == [3] * 6
        assert headrace("leaders", "elect", "--topic", "t")["failed"] == []
        load.wait_for_more(50)
    check(load)
    assert not load.failed


def stop_halfway(
    cluster: RunningCluster, headrace: Run, plan: Path, before: dict[int, list[int]], target: int
) -> None:
    """Begin a move to a broker that no other reaches, leave the watch, look again, and cancel."""
    rows = [
        {"topic": "t", "partition": index, "replicas": [target, *nodes[1:]]}
        for index, nodes in before.items()
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": rows}))
    cluster.links.cut(target, *(node for node in cluster.brokers if node != target))
    watch = subprocess.Popen(
        [sys.executable, "-m", "headrace", "reassign", "execute", str(plan)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for("moves under way", lambda: len(moves(headrace)) == 4)
    watch.send_signal(signal.SIGINT)
    assert (*watch.communicate(timeout=40), watch.returncode) == (b"", b"", 130)
    assert {(row["state"], *row["adding"]) for row in moves(headrace)} == {("moving", target)}
    assert headrace("reassign", "cancel", plan) == {"cancelled": 4}
    assert headrace("reassign", "cancel", plan) == {"cancelled": 0}
    assert moves(headrace) == []
    cluster.links.heal()


def moves(headrace: Run) -> list[dict[str, Any]]:
    return list(headrace("reassign", "status"))


RATE = 200_000


def test_throttled_reassignment_keeps_its_rate_and_in_sync_replicas_are_not_throttled(
    cluster: RunningCluster, headrace: Run, tmp_path: Path
) -> None:
    topic = Topic(cluster, "t")
    filler = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 60_000})
    for _ in range(200):
        filler.produce("t", os.urandom(50_000), partition=0)
    assert filler.flush(60) == 0
    cluster.add_broker()
    wait_until_all_agree(topic)
    before = replicas(topic)
    target = [*before[0][:2], 4]
    plan = tmp_path / "plan.json"
    rows = [{"topic": "t", "partition": 0, "replicas": target}]
    plan.write_text(json.dumps({"version": 1, "partitions": rows}))

    with Load(topic) as load, connect(cluster.bootstrap) as client:
        load.wait_for_more(20)
        began = time.monotonic()
        headrace("reassign", "execute", plan, "--no-wait", "--throttle", RATE)

        def is_far() -> bool:
            copied = sizes(client).get((TopicPartition("t", 0), 4), 0)
            # The throttle allows the rate of one second in one burst, and one more batch.
            assert copied < RATE * (time.monotonic() - began + 1) + 100_000
            return copied >= 4 * RATE

        wait_for("some of the copy", is_far)
        load.wait_for_more(100)
        assert [row["state"] for row in headrace("reassign", "status", plan)] == ["moving"]
        assert throttles(headrace, "--topic", "t") == {
            "leader.replication.throttled.replicas": ",".join(f"0:{n}" for n in before[0]),
            "follower.replication.throttled.replicas": "0:4",
        }
        headrace("reassign", "execute", plan, "--throttle", 1_000_000_000)
        load.wait_for_more(20)
    wait_until_all_agree(topic)
    assert replicas(topic)[0] == target
    wait_for("no throttle of the topic", lambda: throttles(headrace, "--topic", "t") == {})
    wait_for(
        "none of a broker",
        lambda: not any(throttles(headrace, "--broker", node) for node in cluster.brokers),
    )


def throttles(headrace: Run, *of: object) -> dict[str, str]:
    settings = headrace("configs", "describe", *of)
    return {each["name"]: each["value"] for each in settings if "throttled" in each["name"]}
