"""Processes of the cluster that are killed, and executors without Headrace."""

import os
import signal
from pathlib import Path

from headrace.client import Client
from headrace.testing import RunningBroker
from tests.pipelines.conftest import Pipeline
from tests.pipelines.test_pipeline import COPYING, make_topics
from tests.spark.deployment import Driver
from tests.spark.test_reading import fill, numbered
from tests.spark_cluster.cluster import CONF, SETTINGS, Cluster

ROWS = 12_000
LIMIT = 400


def test_stream_writes_each_record_once_if_an_executor_and_a_worker_are_killed(
    cluster: Cluster, archive: Path, broker: RunningBroker, client: Client, tmp_path: Path
) -> None:
    client.create_topic("river", partitions=4)
    for partition in range(4):
        fill(client, "river", numbered(f"{partition}-", ROWS // 4), partition)
    directory = cluster.shared / "river"
    task = {
        "address": broker.address,
        "topic": "river",
        "directory": str(directory),
        "limit": LIMIT,
    }
    settings = {**SETTINGS, "pack": str(archive)}
    with Driver(tmp_path, "keep", task, cluster.master, settings) as driver:

        def wait_for_batches(more: int) -> None:
            wanted = batches(directory) + more
            driver.wait_until(lambda: batches(directory) >= wanted)

        driver.told("started")
        wait_for_batches(2)
        executor = next(iter(cluster.executors()))
        os.kill(executor, signal.SIGKILL)
        wait_for_batches(2)
        # The executor's replacement.
        driver.wait_until(lambda: len(cluster.executors()) == 2)
        executor, worker = next(iter(cluster.executors().items()))
        cluster.kill_worker(worker)
        driver.wait_until(lambda: executor not in cluster.executors())
        wait_for_batches(2)
        killed_at = batches(directory)
        cluster.start_worker()
        kept = driver.told("rows")
        driver.finish()
    # Both kills were in the middle of the stream.
    assert killed_at < ROWS // LIMIT
    assert (kept["rows"], kept["distinct"]) == (ROWS, ROWS)


def batches(directory: Path) -> int:
    """The number of micro-batches that Spark has committed."""
    return len(list(directory.glob("checkpoint/commits/[0-9]*")))


def test_run_without_the_archive_fails_before_the_first_flow(
    cluster: Cluster, broker: RunningBroker, client: Client
) -> None:
    make_topics(client)
    pipeline = Pipeline(cluster.shared / "bare", broker.address)
    pipeline.write("a.py", COPYING.format("bare"))
    with pipeline.start("run", "--master", cluster.master, *CONF) as command:
        assert command.finish(1) == ""
    said = command.log.read_text()
    assert "Executors cannot run Headrace: " in said, said
    assert "Pass --pack" in said
    assert "completed" not in said
