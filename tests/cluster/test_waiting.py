"""Commands report the reason while they wait."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.client import connect
from headrace.testing.cluster import RunningCluster
from tests.cluster.processes import wait_until

SETTINGS = {"zookeeper.session.timeout.ms": "2000", "replica.lag.time.max.ms": "2000"}


def test_commands_that_wait_report_the_reason(tmp_path: Path) -> None:
    with RunningCluster.start(tmp_path / "cluster", brokers=2, settings=SETTINGS) as cluster:
        with connect(cluster.bootstrap) as client:
            client.create_topic(
                "mill",
                partitions=1,
                replication_factor=2,
                configs={"min.insync.replicas": "2"},
            )
        cluster.kill(2)
        address = cluster.brokers[1].address
        with running(tmp_path / "produce", address, "produce", "mill") as said:
            reason = "NOT_ENOUGH_REPLICAS: 1 replica is in sync, but min.insync.replicas is 2"
            wait_until(lambda: f"cannot write to mill-0: {reason}" in said(), 90)
            assert "headrace: waiting for " in said()
        cluster.zookeeper.kill()
        with running(tmp_path / "create", address, "topics", "create", "weir") as said:
            wait_until(lambda: "headrace: waiting for " in said(), 90)
            assert "CreateTopics, which needs the controller, and in a cluster ZooKeeper" in said()


@contextmanager
def running(output: Path, address: str, *command: str) -> Iterator["Said"]:
    """A command while it runs, with one line as its input."""
    start = [sys.executable, "-m", "headrace.cli.main", *command, "--bootstrap-server", address]
    with output.open("wb") as file:
        process = subprocess.Popen(start, stdin=subprocess.PIPE, stdout=file, stderr=file)
    assert process.stdin is not None
    process.stdin.write(b"grain\n")
    process.stdin.close()
    try:
        yield Said(output)
    finally:
        process.kill()
        process.wait()


class Said:
    def __init__(self, output: Path) -> None:
        self._output = output

    def __call__(self) -> str:
        return self._output.read_text()
