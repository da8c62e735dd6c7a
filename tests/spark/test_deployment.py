"""Programs that are ended in the middle, and clusters: one short case of each.

`make test-spark-long` has the long ones, `make test-spark-cluster` those on other machines.
"""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.client import Client, connect
from headrace.spark.pyspark_api import VERSION
from headrace.spark.versions import READ_LIMITS_SINCE
from headrace.testing import RunningBroker
from tests.spark.deployment import (
    Driver,
    from_archive,
    pack,
    processes_in,
    spark_home,
)
from tests.spark.driver import copy
from tests.spark.test_reading import fill, numbered

ROWS = 400
LIMIT = 40
HAS_LIMITS = VERSION >= READ_LIMITS_SINCE
"""Else all rows are one micro-batch."""


@pytest.fixture
def filled(broker: RunningBroker) -> RunningBroker:
    with connect(broker.address) as client:
        client.create_topic("mill", partitions=2)
        client.create_topic("mill-out", partitions=2)
        fill(client, "mill", numbered("a", ROWS // 2), 0)
        fill(client, "mill", numbered("b", ROWS // 2), 1)
    return broker


def copying(broker: RunningBroker, place: Path) -> dict[str, Any]:
    """Arguments of the driver's task `copy`, but for how it ends."""
    checkpoint = str(place / "checkpoint")
    return {"address": broker.address, "topic": "mill", "checkpoint": checkpoint, "limit": LIMIT}


def written(client: Client) -> list[bytes]:
    return [record.value or b"" for record in client.consume("mill-out", until="end")]


def test_killed_driver_resumes_and_loses_nothing(
    filled: RunningBroker, spark: SparkSession, tmp_path: Path
) -> None:
    task = copying(filled, tmp_path)
    with connect(filled.address) as client:
        with Driver(tmp_path, "copy", {**task, "finish": False}, "local[2]") as driver:
            driver.told("started")
            driver.wait_until(lambda: bool(written(client)))
            driver.kill()
        early = len(written(client))
        assert early < ROWS or not HAS_LIMITS
        copy(spark, **task, finish=True)
        copies = written(client)
    # Only rows that were in flight can be written twice.
    assert len(set(copies)) == ROWS
    assert len(copies) - ROWS <= (LIMIT if HAS_LIMITS else ROWS)


def test_ctrl_c_leaves_nothing_behind(filled: RunningBroker, tmp_path: Path) -> None:
    task = {**copying(filled, tmp_path), "finish": False}
    with Driver(tmp_path, "copy", task, "local[2]") as driver:
        driver.told("started")
        assert len(processes_in(driver.scratch)) > 1
        assert driver.interrupt() != 0
        assert processes_in(driver.scratch) == []
        assert list(driver.scratch.iterdir()) == []


def test_executors_run_from_an_archive_in_a_local_cluster(
    filled: RunningBroker, tmp_path: Path
) -> None:
    task = {"address": filled.address, "topic": "mill"}
    settings, environment = from_archive(pack(tmp_path)), spark_home(tmp_path)
    master = "local-cluster[2,1,1024]"
    with Driver(tmp_path, "count", task, master, settings, environment) as driver:
        counted = driver.told("rows")
        driver.told("written")
        driver.finish()
    assert (counted["rows"], counted["distinct"]) == (ROWS, ROWS)
    assert all("/env/lib/headrace/" in file for file in counted["files"])
    with connect(filled.address) as client:
        assert len(set(written(client))) == 100
