"""`python -m bench.failover`: how long kill -9 of a broker stops each client.

Owns this measurement, on three brokers and three replicas, with the default settings of brokers
and clients. All clients run at the same time, so that one kill gives a sample of each.

1. `produce`: the leader of the topic is killed. A sample is the time from the kill to the first
   acknowledgement of a record that was sent after it.
2. `group`: the coordinator of all groups is killed; it also leads one of the topic's three
   partitions. `poll` ends with the first record written after the kill, `commit` with the first
   commit requested after it.
3. A kill follows when all replicas are in sync again and all clients make progress.
4. A run that fails prints the state of the cluster, and keeps its directory with the logs.
5. PYTHONPATH must be absolute if Headrace is not installed: brokers run in other directories.
"""

from __future__ import annotations

import argparse
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
_QUIET_S = 1.5
"""Between recovery and the next kill."""
_LOOK_S = 0.02
_LOG_BYTES = 3000
"""Of each log that a failed run prints."""

Samples = dict[tuple[str, str], list[float]]
"""Seconds by client and event."""


class ClientProcess:
    """One client, and the first event after each kill."""

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
                continue  # A client's own message.
            began, ended = times
            self._seen[event] = int(ended)
            if int(began) > self._killed_ns:
                self._first.setdefault(event, int(ended))

    def killed(self, at_ns: int) -> None:
        """Expect first events again."""
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
    """How each client is started."""
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


def _wait(what: str, is_so: Callable[[], bool], timeout_s: float = _STEP_S_MAX) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise frames.AnswerError(f"{what}: not within {timeout_s:g} s")
        time.sleep(_LOOK_S)


def headrace_cluster(python: str = sys.executable) -> Cluster:
    """A cluster in which every broker can be killed.

    `headrace up` stops, and its ZooKeeper with it, when each broker that it started has died once.
    """
    command = brokers.HeadraceCommand(python=python, settings=dict(SETTINGS))
    return HeadraceCluster(command, outlives_brokers=True)


def is_in_sync(cluster: Cluster) -> bool:
    rows = cluster.partitions().values()
    return bool(rows) and all(len(row.isr) == len(row.replicas) for row in rows)


def report(cluster: Cluster) -> str:
    """The state of the cluster after a failed step: processes, partitions, ends of the logs."""
    lines = [
        f"broker {node_id}: pid {pid}, {'running' if brokers.is_running(pid) else 'not running'}"
        for node_id, pid in cluster.pids.items()
    ]
    for node_id in cluster.ports:
        answer = cluster.ask(node_id, frames.metadata())
        rows = {} if answer is None else frames.replicas_in(answer)
        lines.append(f"as broker {node_id} sees it:" + ("" if rows else " no response"))
        lines += [f"  {name}-{index}: {row}" for (name, index), row in sorted(rows.items())]
    lines += [f"{path}:\n{text}" for path, text in cluster.logs(_LOG_BYTES).items()]
    return "\n".join(lines)


def kill_once(
    cluster: Cluster, clients: Sequence[ClientProcess], topic: str, events: Sequence[str]
) -> dict[tuple[str, str], float]:
    """Kill the leader of a topic's first partition; returns seconds by client and event."""
    victim = cluster.leader_of(topic)
    _wait("progress", lambda: all(c.is_active(e) for c in clients for e in events))
    at_ns = time.monotonic_ns()
    for client in clients:
        client.killed(at_ns)
    cluster.kill(victim)

    def missing() -> list[str]:
        return [f"{c.name} {e}" for c in clients for e in events if c.took_s(e) is None]

    deadline = time.monotonic() + _STEP_S_MAX
    while missing() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    if missing():
        raise frames.AnswerError(f"after the kill of broker {victim}: no {', '.join(missing())}")
    took = {(c.name, e): c.took_s(e) or 0.0 for c in clients for e in events}
    cluster.restart(victim)
    _wait("all replicas in sync", lambda: is_in_sync(cluster))
    time.sleep(_QUIET_S)
    return took


def measure(cluster: Cluster, mode: str, names: Sequence[str], kills: int) -> Samples:
    """One mode on a running cluster."""
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
            _wait("a first kill", lambda: all(c.is_active(e) for c in clients for e in events))
            time.sleep(_QUIET_S)
            for number in range(kills):
                took = kill_once(cluster, clients, OFFSETS if is_group else topic, events)
                for key, seconds in took.items():
                    samples.setdefault(key, []).append(seconds)
                told = "  ".join(f"{' '.join(key)} {s * 1000:.0f}" for key, s in took.items())
                say(f"{cluster.name} {mode} {number + 1}: {told} ms")
        finally:
            for client in (*clients, *feeds):
                client.stop()
    return samples


def _create(cluster: Cluster, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": f"{HOST}:{cluster.ports[1]}"})
    admin.create_topics([NewTopic(topic, partitions, SIZE)])[topic].result(60)


def render(results: dict[str, Samples]) -> str:
    """The table of docs/BENCHMARKS.md."""
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--client", action="append", choices=CLIENTS, help="default: all")
    parser.add_argument("--mode", action="append", choices=("produce", "group"))
    parser.add_argument("--kafka", action="store_true", help="also measure Apache Kafka")
    parser.add_argument("--python", default=sys.executable, help="runs Headrace")
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
