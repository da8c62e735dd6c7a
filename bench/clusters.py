"""Starts, restarts, kills and stops clusters of three brokers.

Owns the processes and directories of the clusters. A Headrace cluster is `headrace up --brokers 3`
with its ZooKeeper. A Kafka cluster is three KRaft nodes, each of which is broker and controller.

1. A cluster listens on 127.0.0.1 only. When this process ends, the kernel sends SIGTERM to it.
2. A restarted broker uses the same directory and the same port.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bench import brokers, frames, kafka, load
from bench.brokers import HEADRACE, KAFKA, HeadraceCommand

HOST = "127.0.0.1"
SIZE = 3
HEAP_MB = 512
_START_S_MAX = 120.0
_STOP_S_MAX = 30.0
_POLL_S = 0.002


class Cluster(ABC):
    """Three brokers. Call `begin`, `create_topic` and `find_parts`, in this order."""

    name: str

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"{self.name.lower()}-cluster-"))
        self.began = 0.0
        self.ports: dict[int, int] = {}
        """The port of each broker, by broker id."""
        self.pids: dict[int, int] = {}
        self.others: dict[str, int] = {}
        """The process ids of other processes, by name."""
        self._is_kept = False

    @abstractmethod
    def begin(self) -> None:
        """Start all processes without waiting for them."""

    @abstractmethod
    def find_parts(self) -> None:
        """Find the process ids, after the cluster has started."""

    @abstractmethod
    def restart(self, node_id: int) -> None:
        """Start a stopped broker without waiting for it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all processes and delete the data."""

    def keep(self) -> None:
        """Keep the directory, with the data and the logs of the brokers."""
        self._is_kept = True
        kafka.say(f"kept the directory of the cluster: {self.directory}")

    def logs(self, size: int) -> dict[Path, str]:
        """The last `size` characters of each log, by path."""
        paths = [path for end in ("*.out", "*.log") for path in self.directory.rglob(end)]
        texts = {
            path: path.read_text(errors="replace")[-size:]
            for path in paths
            if path.parent.parent.name != "data" and not path.stem.isdigit()
        }
        return {path: text for path, text in texts.items() if text}

    def remove_directory(self) -> None:
        if not self._is_kept:
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self, node_id: int) -> None:
        os.kill(self.pids[node_id], signal.SIGKILL)

    def terminate(self, node_id: int) -> None:
        """Send SIGTERM to a broker, and wait until it has ended."""
        pid = self.pids[node_id]
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _START_S_MAX
        while brokers.is_running(pid):
            if time.monotonic() > deadline:
                raise frames.ResponseError(
                    f"{self.name}: broker {node_id} runs {_START_S_MAX:g} s after SIGTERM"
                )
            time.sleep(_POLL_S)

    def cpu_s(self) -> float:
        return sum(brokers.cpu_s_of(pid) for pid in (*self.pids.values(), *self.others.values()))

    def memory_mb(self) -> dict[str, float]:
        """The resident memory of each process, by name."""
        parts = {f"broker {each}": pid for each, pid in self.pids.items()} | self.others
        return {part: brokers.memory_mb_of(pid)[0] for part, pid in parts.items()}

    # Requests to the brokers.

    def ask(self, node_id: int, request: bytes) -> bytes | None:
        """Send a request to one broker. Return its response with the length prefix, or None."""
        try:
            with load.connect(HOST, self.ports[node_id]) as connection:
                return load.ask(connection, request)
        except (OSError, frames.ResponseError):
            return None

    def partitions(self, *, excluded: int = 0) -> dict[tuple[str, int], frames.Replicas]:
        """All partitions, from the first broker that responds. Skips the broker `excluded`."""
        for node_id in self.ports:
            answer = None if node_id == excluded else self.ask(node_id, frames.metadata())
            if answer is not None:
                return frames.replicas_in(answer)
        return {}

    def leader_of(self, topic: str, *, excluded: int = 0) -> int:
        """The broker id of the leader; 0 if there is none, or if it is `excluded`."""
        row = self.partitions(excluded=excluded).get((topic, 0))
        return 0 if row is None or row.leader in (-1, excluded) else row.leader

    def create_topic(self, topic: str) -> int:
        """Create a topic with three replicas. Wait until all are in sync, and return the leader."""
        deadline = time.monotonic() + _START_S_MAX
        request = frames.create_topic(topic, {}, SIZE)
        while time.monotonic() < deadline:
            for node_id in self.ports:
                answer = self.ask(node_id, request)
                error = 1 if answer is None else frames.topic_error(answer[4:], topic, id_size=16)
                # A former request can have created the topic, although its response was lost.
                if error in (0, frames.TOPIC_ALREADY_EXISTS):
                    return self._wait_for_leader(topic, deadline)
            time.sleep(_POLL_S)
        raise frames.ResponseError(
            f"{self.name} did not create the topic {topic} within {_START_S_MAX:g} s"
        )

    def _wait_for_leader(self, topic: str, deadline: float) -> int:
        request = frames.fetch(topic, 0, size_max=1)
        while time.monotonic() < deadline:
            row = self.partitions().get((topic, 0))
            if row is not None and row.leader > 0 and len(row.isr) == SIZE:
                answer = self.ask(row.leader, request)
                size = frames.fetch_head_size(topic)
                if answer is not None and not frames.fetch_head(answer[:size], topic).error:
                    return row.leader
            time.sleep(_POLL_S)
        raise frames.ResponseError(
            f"{self.name}: the topic {topic} has no leader, or not all replicas are in sync"
        )

    def write(self, node_id: int, topic: str, request: bytes) -> bool:
        """Send a Produce request. Return whether the broker acknowledged it."""
        expected = frames.produce_response(topic)
        answer = self.ask(node_id, request)
        return answer is not None and answer.startswith(expected.before)


class HeadraceCluster(Cluster):
    name = HEADRACE

    def __init__(self, command: HeadraceCommand, *, outlives_brokers: bool = False) -> None:
        """Use `outlives_brokers` to restart all brokers: ZooKeeper is then a separate process.

        Otherwise ZooKeeper is part of `headrace up`, which stops when all brokers that it started
        have ended.
        """
        super().__init__()
        self._command = command
        self._outlives_brokers = outlives_brokers
        self._ready = self.directory / "ready.json"
        self._data = self.directory / "data"
        self._zookeeper_process: subprocess.Popen[bytes] | None = None
        self._parent: subprocess.Popen[bytes] | None = None
        self._restarted: dict[int, subprocess.Popen[bytes]] = {}
        self._zookeeper_address = ""

    def begin(self) -> None:
        first = _free_ports(SIZE)
        self.ports = {node_id: first + node_id - 1 for node_id in range(1, SIZE + 1)}
        command = self._command
        options = [f"--set={name}={value}" for name, value in command.settings.items()]
        if self._outlives_brokers:
            options += ["--zookeeper", self._start_zookeeper()]
        self.began = time.monotonic()
        self._parent = self._run(
            *("up", "--brokers", str(SIZE), "--port", str(first)),
            *("--data", str(self._data), "--ready-file", str(self._ready), *options),
        )

    def _start_zookeeper(self) -> str:
        ready = self.directory / "zookeeper.json"
        data = str(self.directory / "zookeeper")
        self._zookeeper_process = self._run(
            "zookeeper", "--port", "0", "--data", data, "--ready-file", str(ready)
        )
        self._wait_for(ready)
        (part,) = json.loads(ready.read_text())["parts"]
        self.others["zookeeper"] = part["pid"]
        self._zookeeper_address = part["address"]
        return self._zookeeper_address

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = self._command
        with (self.directory / "headrace.out").open("ab") as log:
            return subprocess.Popen(
                [command.python, "-m", "headrace.cli.main", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=command.environment(),
                cwd=self.directory,
                start_new_session=True,
                preexec_fn=kafka.end_with_parent,
            )

    def find_parts(self) -> None:
        self._wait_for(self._ready)
        status = json.loads(self._ready.read_text())
        self.others["headrace up"] = status["pid"]
        for part in status["parts"]:
            if part["part"] == "broker":
                self.pids[part["id"]] = part["pid"]
            else:
                self.others[part["part"]] = part["pid"]
                self._zookeeper_address = part["address"]

    def _wait_for(self, ready: Path) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while not ready.exists():
            if time.monotonic() > deadline:
                raise kafka.KafkaError(
                    f"Headrace did not write {ready.name} within {_START_S_MAX:g} s"
                )
            time.sleep(_POLL_S)

    def restart(self, node_id: int) -> None:
        file = next(self._data.rglob(f"broker-{node_id}.properties"))
        self._restarted[node_id] = self._run("broker", str(file))
        self.pids[node_id] = self._restarted[node_id].pid

    def kill(self, node_id: int) -> None:
        super().kill(node_id)
        if node_id in self._restarted:
            self._restarted.pop(node_id).wait()

    def zookeeper_usage(self) -> dict[str, float]:
        """Memory, nodes and watches, from ZooKeeper's commands `envi` and `mntr`."""
        status = self._ask_zookeeper("envi", "=") | self._ask_zookeeper("mntr", "\t")
        megabytes = {name: float(status[f"os.memory.{name}"][:-2]) for name in ("total", "free")}
        return {
            "heap_mb": megabytes["total"] - megabytes["free"],
            "zookeeper_mb": brokers.memory_mb_of(self.others["zookeeper"])[0],
            "znodes": float(status["zk_znode_count"]),
            "watches": float(status["zk_watch_count"]),
            "znodes_kb": float(status["zk_approximate_data_size"]) / 1e3,
        }

    def _ask_zookeeper(self, command: str, separator: str) -> dict[str, str]:
        host, port = self._zookeeper_address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=_STOP_S_MAX) as connection:
            connection.sendall(command.encode())
            text = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        rows = (line.partition(separator) for line in text.splitlines())
        return {name.strip(): value.strip() for name, _, value in rows}

    def stop(self) -> None:
        for process in self._restarted.values():
            kafka.stop_process(process, _STOP_S_MAX)
        for started in (self._parent, self._zookeeper_process):
            if started is not None:
                kafka.stop_process(started, _STOP_S_MAX)
        self.remove_directory()


class KafkaCluster(Cluster):
    name = KAFKA

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._settings = settings or {}
        self._files: dict[int, Path] = {}
        self._nodes: dict[int, kafka.KafkaNode] = {}

    def begin(self) -> None:
        """Start the nodes. The start time excludes formatting the storage."""
        directories = [self.directory / f"node-{node_id}" for node_id in range(1, SIZE + 1)]
        formatted = kafka.format_nodes(directories, self._settings)
        for node_id, (port, file) in enumerate(formatted, start=1):
            self.ports[node_id] = port
            self._files[node_id] = file
        self.began = time.monotonic()
        for node_id in self.ports:
            self.restart(node_id)

    def find_parts(self) -> None:
        """Do nothing: the brokers are the only processes, and `restart` stores their ids."""

    def restart(self, node_id: int) -> None:
        file = self._files[node_id]
        node = kafka.begin_kafka(file.parent, self.ports[node_id], file, heap_mb=HEAP_MB)
        self._nodes[node_id] = node
        self.pids[node_id] = node.pid

    def kill(self, node_id: int) -> None:
        super().kill(node_id)
        self._nodes[node_id].process.wait()

    def stop(self) -> None:
        for node in self._nodes.values():
            with suppress(ProcessLookupError):
                node.process.terminate()
        for node in self._nodes.values():
            node.stop()
        self.remove_directory()


def _free_ports(count: int) -> int:
    """The first of `count` consecutive ports that are free now.

    All of them are below the ephemeral ports. The kernel could assign an ephemeral port to another
    socket before a broker listens on it.
    """
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = random.randrange(lowest_ephemeral // 2, lowest_ephemeral - count)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind((HOST, port))
        except OSError:
            continue
        return first
