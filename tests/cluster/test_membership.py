"""Registration of brokers: expired sessions, duplicate ids, directories of other clusters."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.coordination import layout
from headrace.coordination.embedded import STORE_FILE
from headrace.coordination.former_session import SessionFile, end_session
from headrace.coordination.zookeeper import ZooKeeperStore
from headrace.ensemble.zookeeper import free_port
from headrace.testing import RunningBroker, RunningCluster
from tests.cluster.history import Load, Topic, check, wait_for

SETTINGS = {"zookeeper.session.timeout.ms": "2000", "replica.lag.time.max.ms": "2000"}
# No session ends but the one that is taken away, however busy the machine is.
LASTING = {**SETTINGS, "zookeeper.session.timeout.ms": "20000"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One cluster for all tests of this file. Each test restores it."""
    with RunningCluster.start(tmp_path_factory.mktemp("cluster"), settings=LASTING) as running:
        yield running


def registrations(cluster: RunningCluster) -> dict[str, int]:
    """The broker epochs that are registered."""

    async def look() -> dict[str, int]:
        store = await ZooKeeperStore.open(cluster.zookeeper.connect)
        names = await store.children(layout.BROKER_IDS)
        stats = [await store.exists(f"{layout.BROKER_IDS}/{name}") for name in names]
        await store.close()
        return {name: stat.czxid for name, stat in zip(names, stats, strict=True) if stat}

    return asyncio.run(look())


@pytest.mark.parametrize("who", ["leader", "controller"])
def test_broker_with_an_expired_session_registers_with_another_epoch(
    cluster: RunningCluster, who: str
) -> None:
    topic = Topic(cluster, f"sessions-{who}", min_insync_replicas="2")
    with Load(topic) as load:
        load.wait_for_more(50)
        before = registrations(cluster)
        victim = topic.leader() if who == "leader" else topic.controller()
        session = SessionFile(str(cluster.brokers[victim].data_dir / "zookeeper-session")).read()
        assert session is not None
        asyncio.run(end_session(cluster.zookeeper.connect, session))
        load.wait_for_more(50)
        after = wait_for(
            "another epoch",
            lambda: (
                (now := registrations(cluster)).get(str(victim), 0) > before[str(victim)] and now
            ),
        )
        topic.wait_until_in_sync()
        load.wait_for_more(50)
    assert {name: after[name] for name in after if name != str(victim)}.items() <= before.items()
    check(load)
    assert not load.failed


def refused(file: Path) -> str:
    """The output of a broker that fails to start with this file."""
    command = [sys.executable, "-m", "headrace", "broker", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("headrace: "))


def properties(directory: Path, connect: str, node_id: int) -> Path:
    file = directory / "server.properties"
    lines = {
        "broker.id": node_id,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": directory / "data",
        "zookeeper.connect": connect,
        **SETTINGS,
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return file


def test_a_second_broker_with_the_same_id_is_rejected(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    before = registrations(cluster)
    said = refused(properties(tmp_path, cluster.zookeeper.connect, 2))
    assert "A broker with id 2 is already registered" in said
    assert registrations(cluster) == before


def test_another_clusters_directory_is_rejected(cluster: RunningCluster, tmp_path: Path) -> None:
    with RunningBroker.start(tmp_path / "data", settings={"node.id": "9"}):
        pass
    meta = tmp_path / "data" / "meta.properties"
    before = meta.read_text()
    said = refused(properties(tmp_path, cluster.zookeeper.connect, 9))
    assert "belongs to a single broker" in said
    (tmp_path / "data" / STORE_FILE).unlink()
    said = refused(properties(tmp_path, cluster.zookeeper.connect, 9))
    assert "belongs to cluster.id" in said
    assert meta.read_text() == before
    assert "9" not in registrations(cluster)


def test_unreachable_zookeeper_is_named(tmp_path: Path) -> None:
    connect = f"127.0.0.1:{free_port()}/mill"
    said = refused(properties(tmp_path, connect, 1))
    assert f"ZooKeeper did not respond at {connect} within 2 s (Connection refused)" in said
