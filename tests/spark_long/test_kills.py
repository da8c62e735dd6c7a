"""Repeated kills of drivers, executors and brokers during a stream. No row is missing.

The sink is a topic, with at-least-once semantics. Duplicates are counted. They must have been in
flight at a kill.
"""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Client, connect
from headrace.testing import RunningBroker, RunningCluster
from tests.spark.deployment import (
    Driver,
    from_archive,
    pack,
    processes_in,
    spark_home,
    standalone,
)
from tests.spark.test_reading import fill, numbered

ROWS = 20_000
LIMIT = 500
KILLS = 5
TIMEOUT_S = 1_800

pytestmark = pytest.mark.timeout(TIMEOUT_S)


@pytest.fixture
def filled(broker: RunningBroker) -> RunningBroker:
    with connect(broker.address) as client:
        prepare(client)
    return broker


def prepare(client: Client) -> None:
    client.create_topic("mill", partitions=4)
    client.create_topic("mill-out", partitions=4)
    for partition in range(4):
        fill(client, "mill", numbered(f"{partition}-", ROWS // 4), partition)


def copying(address: str, place: Path, **more: Any) -> dict[str, Any]:
    checkpoint = str(place / "checkpoint")
    task = {"address": address, "topic": "mill", "checkpoint": checkpoint, "limit": LIMIT}
    return {**task, "finish": False, **more}


def written(client: Client) -> list[bytes]:
    return [record.value or b"" for record in client.consume("mill-out", until="end")]


def wait_for_more(client: Client, than: int, driver: Driver) -> None:
    driver.wait_until(lambda: len(written(client)) > than)


def check(address: str, kills: int, twice_per_kill: int = LIMIT) -> None:
    with connect(address) as client:
        copies = written(client)
    twice = len(copies) - len(set(copies))
    print(f"{len(copies)} rows written, {twice} of them twice, after {kills} kills")
    assert len(set(copies)) == ROWS
    assert twice <= kills * twice_per_kill


def finish(address: str, place: Path) -> None:
    with Driver(place, "copy", copying(address, place, finish=True), "local[2]") as driver:
        driver.told("finished")
        driver.finish()


def test_drivers_are_killed(filled: RunningBroker, tmp_path: Path) -> None:
    chance = random.Random(6)
    with connect(filled.address) as client:
        for _ in range(KILLS):
            before = len(written(client))
            with Driver(tmp_path, "copy", copying(filled.address, tmp_path), "local[2]") as driver:
                wait_for_more(client, before + chance.randrange(LIMIT), driver)
                driver.kill()
    finish(filled.address, tmp_path)
    check(filled.address, KILLS)


def test_executors_are_killed(filled: RunningBroker, tmp_path: Path) -> None:
    kill_executors(filled.address, tmp_path, "local-cluster[2,1,1024]", spark_home(tmp_path))


def test_executors_of_a_standalone_cluster_are_killed(
    filled: RunningBroker, tmp_path: Path
) -> None:
    with standalone(tmp_path) as master:
        kill_executors(filled.address, tmp_path, master, {})


def kill_executors(address: str, place: Path, master: str, environment: dict[str, str]) -> None:
    settings = {**from_archive(pack(place)), "spark.executor.memory": "512m"}
    task = copying(address, place, finish=True)
    with (
        connect(address) as client,
        Driver(place, "copy", task, master, settings, environment) as driver,
    ):
        killed = 0
        while killed < 3:
            wait_for_more(client, killed * LIMIT * 3, driver)
            executor = next(iter(executors(driver)), None)
            if executor is not None:
                os.kill(executor, signal.SIGKILL)
                killed += 1
        driver.told("finished")
        driver.finish()
    check(address, killed)


def executors(driver: Driver) -> list[int]:
    found = []
    for process in processes_in(driver.scratch):
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in command:
            found.append(process)
    return found


def test_the_broker_is_killed(filled: RunningBroker, tmp_path: Path) -> None:
    with Driver(
        tmp_path, "copy", copying(filled.address, tmp_path, finish=True), "local[2]"
    ) as driver:
        driver.told("started")
        for _ in range(KILLS):
            with connect(filled.address) as client:
                wait_for_more(client, len(written(client)), driver)
            filled.kill()
            filled.restart()
        driver.told("finished")
        driver.finish()
    # A producer's retries are the same records: only Spark's own repetitions would be twice.
    check(filled.address, KILLS, twice_per_kill=0)


def test_leaders_of_three_brokers_are_killed(tmp_path: Path) -> None:
    settings = {"default.replication.factor": "3", "min.insync.replicas": "2"}
    with RunningCluster.start(tmp_path / "cluster", settings=settings) as cluster:
        with connect(cluster.bootstrap) as client:
            prepare(client)
        task = copying(cluster.bootstrap, tmp_path, finish=True)
        with Driver(tmp_path, "copy", task, "local[2]") as driver:
            driver.told("started")
            for number in range(KILLS):
                with connect(cluster.bootstrap) as client:
                    wait_for_more(client, len(written(client)), driver)
                    leader = client.describe_topic("mill").partitions[number % 4].leader
                cluster.kill(leader)
                with connect(cluster.bootstrap) as client:
                    wait_for_more(client, len(written(client)), driver)
                cluster.start_brokers([leader])
            driver.told("finished")
            driver.finish()
        check(cluster.bootstrap, KILLS, twice_per_kill=0)
