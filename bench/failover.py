"""Measures how long clients are interrupted by a fault of a broker: kill -9, or a failed disk.

    python -m bench.failover [--kills 50] [--client librdkafka] [--mode produce] [--kafka]

Uses three brokers and three replicas. Brokers have default settings, except one partition for
committed offsets; failover_client.py names those of the clients. All clients run at the same time,
so that each kill gives one sample per client and event.

1. `produce` kills the leader of a topic with one partition. The event `ack` is the first
   acknowledgement of a record that was sent after the kill.
2. `group` kills the coordinator of all groups. It can also be leader of partitions of the topic,
   which has three. The event `poll` is the first record that was written after the kill. The event
   `commit` is the first commit that was requested after the kill.
3. `disk` makes all writes of the leader's process to files fail with EFBIG. The topic and the event
   are those of `produce`. The broker is killed after the sample.
4. The next kill follows when all replicas are in sync and all clients make progress.
5. A failed run prints the state of the cluster, and keeps the directory with the data and logs.
6. PYTHONPATH must be absolute if Headrace is not installed: brokers run in other directories.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import brokers, frames, kafka
from bench.clusters import HOST, SIZE, Cluster, HeadraceCluster, KafkaCluster
from bench.kafka import say

CLIENTS = ("librdkafka", "java", "aiokafka")
OFFSETS = "__consumer_offsets"
KILLS = 50
SETTINGS = {"offsets.topic.num.partitions": "1"}
_HERE = Path(__file__).parent
_STEP_S_MAX = 60.0
_PAUSE_S = 1.5
"""The time between recovery and the next kill."""
_POLL_S = 0.02
_LOG_CHARACTERS = 3000
"""How much of each log a failed run prints."""

Samples = dict[tuple[str, str], list[float]]
"""The samples in seconds, by client and event."""


class ClientProcess:
    """A client process, and its first event of each kind since the last kill."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._killed_ns = 0
        self._first: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=kafka.end_with_parent,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event, *times = line.decode().split()
            if len(times) != 2:
                continue  # A log line of the client.
            began, ended = times
            self._seen[event] = int(ended)
            if int(began) > self._killed_ns:
                self._first.setdefault(event, int(ended))

    def killed(self, at_ns: int) -> None:
        """Forget the first events, and wait for those that begin after `at_ns`."""
        self._killed_ns = at_ns
        self._first = {}

    def took_s(self, event: str) -> float | None:
        ended = self._first.get(event)
        return None if ended is None else (ended - self._killed_ns) / 1e9

    def is_active(self, event: str) -> bool:
        return time.monotonic_ns() - self._seen.get(event, 0) < 0.5e9

    def stop(self) -> None:
        kafka.stop_process(self._process, 10.0)


def client_commands(directory: Path, role: str, bootstrap: str, topic: str) -> dict[str, list[str]]:
    """The command line of each client. Compiles the Java client into `directory`."""
    jars = kafka.class_path()
    compiler = ["javac", "-proc:none", "-d", str(directory), "-cp", jars]
    subprocess.run([*compiler, str(_HERE / "FailoverClient.java")], check=True)
    commands = {
        name: [sys.executable, "-m", "bench.failover_client", name, role, bootstrap, topic]
        for name in CLIENTS
        if name != "java"
    }
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options.append(f"-Dlog4j2.configurationFile={kafka.CACHE / 'tools-log4j2.properties'}")
    classes = f"{directory}:{jars}"
    commands["java"] = [
        kafka.java(), *options, "-cp", classes, "FailoverClient", role, bootstrap, topic
    ]  # fmt: skip
    return commands


def _wait(condition: str, is_met: Callable[[], bool], timeout_s: float = _STEP_S_MAX) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_met():
        if time.monotonic() > deadline:
            raise frames.ResponseError(f"not within {timeout_s:g} s: {condition}")
        time.sleep(_POLL_S)


def headrace_cluster(python: str = sys.executable) -> Cluster:
    """A Headrace cluster that keeps its ZooKeeper after each broker was killed once."""
    command = brokers.HeadraceCommand(python=python, settings=dict(SETTINGS))
    return HeadraceCluster(command, outlives_brokers=True)


def is_in_sync(cluster: Cluster) -> bool:
    rows = cluster.partitions().values()
    return bool(rows) and all(len(row.isr) == len(row.replicas) for row in rows)


def report(cluster: Cluster) -> str:
    """The state of the cluster after a failed step: processes, partitions, ends of logs."""
    lines = [
        f"broker {node_id}: pid {pid}, {'running' if brokers.is_running(pid) else 'not running'}"
        for node_id, pid in cluster.pids.items()
    ]
    for node_id in cluster.ports:
        response = cluster.ask(node_id, frames.metadata())
        rows = {} if response is None else frames.replicas_in(response)
        lines.append(f"metadata of broker {node_id}:" + ("" if rows else " no response"))
        lines += [f"  {name}-{index}: {row}" for (name, index), row in sorted(rows.items())]
    lines += [f"{path}:\n{text}" for path, text in cluster.logs(_LOG_CHARACTERS).items()]
    return "\n".join(lines)


def kill_once(
    cluster: Cluster,
    clients: Sequence[ClientProcess],
    topic: str,
    events: Sequence[str],
    *,
    is_disk: bool,
) -> dict[tuple[str, str], float]:
    """Kill the leader of partition 0 of a topic, or with `is_disk` let its disk fail first.

    Returns seconds by client and event.
    """
    victim = cluster.leader_of(topic)
    _wait("all clients make progress", lambda: all(c.is_active(e) for c in clients for e in events))
    at_ns = time.monotonic_ns()
    for client in clients:
        client.killed(at_ns)
    if is_disk:
        resource.prlimit(cluster.pids[victim], resource.RLIMIT_FSIZE, (0, 0))
    else:
        cluster.kill(victim)

    def missing() -> list[str]:
        return [f"{c.name} {e}" for c in clients for e in events if c.took_s(e) is None]

    deadline = time.monotonic() + _STEP_S_MAX
    while missing() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if missing():
        raise frames.ResponseError(
            f"no {', '.join(missing())} within {_STEP_S_MAX:g} s after the fault of broker {victim}"
        )
    took = {(c.name, e): c.took_s(e) or 0.0 for c in clients for e in events}
    if is_disk:
        cluster.kill(victim)
    cluster.restart(victim)
    _wait("all replicas are in sync", lambda: is_in_sync(cluster))
    time.sleep(_PAUSE_S)
    return took


def measure(cluster: Cluster, mode: str, names: Sequence[str], kills: int) -> Samples:
    """Run one mode on a running cluster."""
    topic = f"failover-{mode}"
    bootstrap = ",".join(f"{HOST}:{port}" for port in cluster.ports.values())
    is_group = mode == "group"
    events = ("poll", "commit") if is_group else ("ack",)
    _create(cluster, topic, 3 if is_group else 1)
    samples: Samples = {}
    with tempfile.TemporaryDirectory() as directory:
        role = "consume" if is_group else "produce"
        commands = client_commands(Path(directory), role, bootstrap, topic)
        clients = [ClientProcess(name, commands[name]) for name in names]
        feeds = []
        if is_group:
            feed = [sys.executable, "-m", "bench.failover_client", "librdkafka", "produce"]
            feeds.append(ClientProcess("feed", [*feed, bootstrap, topic]))
        try:
            _wait(
                "all clients make progress",
                lambda: all(c.is_active(e) for c in clients for e in events),
            )
            time.sleep(_PAUSE_S)
            for number in range(kills):
                took = kill_once(
                    cluster,
                    clients,
                    OFFSETS if is_group else topic,
                    events,
                    is_disk=mode == "disk",
                )
                for key, seconds in took.items():
                    samples.setdefault(key, []).append(seconds)
                figures = "  ".join(f"{' '.join(key)} {s * 1000:.0f}" for key, s in took.items())
                say(f"{cluster.name} {mode} {number + 1}: {figures} ms")
        finally:
            for client in (*clients, *feeds):
                client.stop()
    return samples


def _create(cluster: Cluster, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": f"{HOST}:{cluster.ports[1]}"})
    admin.create_topics([NewTopic(topic, partitions, SIZE)])[topic].result(60)


def render(results: dict[str, Samples]) -> str:
    """The results as a Markdown table."""
    keys = list(dict.fromkeys(key for samples in results.values() for key in samples))
    heads = [f"{name} {part}" for name in results for part in ("median", "p90", "worst", "kills")]
    lines = [f"| client, event | {' | '.join(heads)} |", f"|{' --- |' * (len(heads) + 1)}"]
    for key in keys:
        cells = []
        for samples in results.values():
            taken = sorted(samples.get(key, ()))
            p90 = taken[max(0, -(-9 * len(taken) // 10) - 1)] if taken else 0.0
            middle = statistics.median(taken) if taken else 0.0
            worst = taken[-1] if taken else 0.0
            cells += [f"{middle:.2f} s", f"{p90:.2f} s", f"{worst:.2f} s", str(len(taken))]
        lines.append(f"| {key[0]}, {key[1]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.failover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=KILLS, help=f"per mode (default: {KILLS})")
    parser.add_argument(
        "--client", action="append", choices=CLIENTS, help="can be repeated (default: all)"
    )
    parser.add_argument(
        "--mode",
        action="append",
        choices=("produce", "group", "disk"),
        help="can be repeated (default: produce and group)",
    )
    parser.add_argument("--kafka", action="store_true", help="also measure Apache Kafka")
    parser.add_argument(
        "--python", default=sys.executable, help="the Python that runs Headrace (default: this one)"
    )
    options = parser.parse_args()
    makers: list[Callable[[], Cluster]] = [lambda: headrace_cluster(options.python)]
    if options.kafka:
        makers.append(lambda: KafkaCluster(SETTINGS))
    results: dict[str, Samples] = {}
    for make in makers:
        cluster = make()
        results[cluster.name] = {}
        try:
            cluster.begin()
            cluster.create_topic("first")
            cluster.find_parts()
            for mode in options.mode or ("produce", "group"):
                samples = measure(cluster, mode, options.client or CLIENTS, options.kills)
                results[cluster.name] |= samples
        except BaseException:
            say(report(cluster))
            cluster.keep()
            raise
        finally:
            cluster.stop()
    print(render(results), end="")


if __name__ == "__main__":
    main()
