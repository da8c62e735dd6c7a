"""Consumer groups: how soon they are stable, how fast they commit, how long they take to load.

Owns the brokers of these measurements, which have settings of their own: no delay before the first
rebalance, and the same short interval of heartbeats on both. Every member is a raw connection.

1. The members' connections are open before the clock starts.
2. What is loaded is a million offsets under keys that are all different, and counts as loaded when
   a group of every partition of the offsets' topic is answered.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import brokers, frames, group_frames, kafka, load, table
from bench.brokers import KAFKA, Broker, HeadraceCommand
from bench.group_members import HEARTBEAT_S, ClassicMember, ConsumerMember, Crowd, Member
from bench.kafka import say
from bench.table import Results, Row
from bench.workloads import Sample

BEGIN, END = "<!-- groups: begin -->", "<!-- groups: end -->"
SIZES = (10, 50, 200)
COMMITTERS = 50
_KINDS: dict[str, type[Member]] = {"classic": ClassicMember, "consumer": ConsumerMember}
_TOPIC = "grouped"
_PARTITIONS = 200
_LOADED_TOPIC = "loaded"
_LOADED_PARTITIONS = 100
_OFFSETS_PARTITIONS = 50
_COORDINATOR_S = 120.0
_INTERVAL_MS = str(int(HEARTBEAT_S * 1000))
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": _INTERVAL_MS,
    "group.consumer.min.heartbeat.interval.ms": _INTERVAL_MS,
}
ROWS = (
    Row("group-commits", f"commits from {COMMITTERS} members", "commits_per_s", "k/s", 1e3, 1, 1.0),
    *(
        Row(f"group-{kind}-{size}", f"{kind}, {size} members: {words}", metric, "ms", 1, 0, 1, True)
        for kind in _KINDS
        for size in SIZES
        for words, metric in (
            ("first join until stable", "cold_ms"),
            ("a member leaves until stable", "left_ms"),
        )
    ),
    Row("group-load", "restart until a million offsets are served", "load_s", "s", 1, 2, 1, True),
)


Samples = dict[str, dict[str, list[Sample]]]


def measure(names: Sequence[str], command: HeadraceCommand, rounds: int, scale: float) -> Samples:
    """Everything, one broker after the other: each has the machine to itself."""
    samples: Samples = {}

    def note(workload: str, name: str, sample: Sample, *, counts: bool = True) -> None:
        say(f"{workload:>20}  {name:<9} {table.summary(sample)}{'' if counts else ' (warming)'}")
        if counts:
            samples.setdefault(workload, {}).setdefault(name, []).append(sample)

    for name in names:
        say(f"groups of {name}")
        directory = Path(tempfile.mkdtemp(prefix=f"{name.lower()}-groups-"))
        try:
            with _running(name, command, directory, None) as broker:
                _prepare(broker)
                for number in range(-1, rounds):
                    for workload, sample in _round(broker, number):
                        note(workload, name, sample, counts=number >= 0)
                groups = _fill(broker, int(1_000_000 * scale))
            started = time.monotonic()
            with _running(name, command, directory, broker.port) as broker:
                _wait_loaded(broker, groups)
                note("group-load", name, {"load_s": time.monotonic() - started})
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return samples


def render(samples: Results, facts: Mapping[str, str]) -> str:
    lines = [f"- {name}: {text}" for name, text in facts.items() if name != "Rounds"]
    return "\n".join(["### Consumer groups", "", *lines, "", *_table(samples)]) + "\n"


def _table(samples: Results) -> list[str]:
    return table.comparison(samples, ROWS, goals=True)


@contextmanager
def _running(
    name: str, command: HeadraceCommand, directory: Path, port: int | None
) -> Iterator[Broker]:
    """A broker over that directory: a new one, or the one that had that port again."""
    if name == KAFKA:
        if port is None:
            node = kafka.start_kafka(directory, SETTINGS)
        else:
            node = kafka.launch_kafka(directory, port, directory / "server.properties")
        broker = Broker(KAFKA, node.port, node.process, directory, node.log_path, node.start_s)
    else:
        ours = HeadraceCommand(
            command.python,
            command.path,
            command.settings | SETTINGS,
            command.interpreter_options,
        )
        broker = brokers.start_headrace(ours, directory=directory, port=port)
    try:
        yield broker
    finally:
        kafka.stop_process(broker.process, 60.0)


def _prepare(broker: Broker) -> None:
    with load.connect(broker.host, broker.port) as connection:
        for topic, partitions in ((_TOPIC, _PARTITIONS), (_LOADED_TOPIC, _LOADED_PARTITIONS)):
            load.ask(connection, group_frames.create_topic(topic, partitions))
        for number in range(_OFFSETS_PARTITIONS):
            _wait_for_group(connection, f"any-{number}")


def _wait_for_group(connection: socket.socket, group: str) -> None:
    """Until its coordinator answers."""
    deadline = time.monotonic() + _COORDINATOR_S
    while time.monotonic() < deadline:
        found = load.ask(connection, group_frames.find_coordinator(group))[4:]
        if not group_frames.read_error(found):
            asked = load.ask(connection, group_frames.fetch_offset(group, _TOPIC, 0))[4:]
            if not group_frames.read_offset(asked)[1]:
                return
        time.sleep(0.005)
    raise frames.AnswerError(f"no coordinator of {group!r} in {_COORDINATOR_S:g} s")


def _round(broker: Broker, number: int) -> Iterator[tuple[str, Sample]]:
    knows_both = _knows_consumer_protocol(broker)
    with _crowd(broker, f"commits-{number}", "classic", COMMITTERS) as crowd:
        crowd.start()
        crowd.run_until(crowd.is_stable)
        crowd.run_until(crowd.is_quiet)
        yield "group-commits", {"commits_per_s": crowd.commit_for(3.0)}
    for kind in _KINDS if knows_both else ("classic",):
        for size in SIZES:
            with _crowd(broker, f"{kind}-{size}-{number}", kind, size) as crowd:
                started = time.monotonic()
                crowd.start()
                cold_s = crowd.run_until(crowd.is_stable) - started
                started = crowd.remove_one()
                left_s = crowd.run_until(crowd.is_stable) - started
                yield f"group-{kind}-{size}", {"cold_ms": cold_s * 1e3, "left_ms": left_s * 1e3}


def _knows_consumer_protocol(broker: Broker) -> bool:
    with load.connect(broker.host, broker.port) as connection:
        answer = load.ask(connection, group_frames.request(18, 0, b""))
    rows = answer[14:]
    return any(rows[at : at + 2] == b"\0\x44" for at in range(0, len(rows), 6))


@contextmanager
def _crowd(broker: Broker, group: str, kind: str, count: int) -> Iterator[Crowd]:
    crowd = Crowd(broker.host, broker.port, group, _TOPIC, _PARTITIONS, _KINDS[kind], count)
    try:
        yield crowd
    finally:
        crowd.close()


def _fill(broker: Broker, offsets: int) -> int:
    """Commit as nobody's member, a hundred partitions at once; returns how many groups."""
    groups = max(offsets // _LOADED_PARTITIONS, 1)
    window = 50
    with load.connect(broker.host, broker.port) as connection:
        for at in range(groups + window):
            if at < groups:
                group, partitions = f"loaded-{at}", range(_LOADED_PARTITIONS)
                connection.sendall(group_frames.commit(group, _LOADED_TOPIC, partitions, at))
            if at >= window:
                size = int.from_bytes(load.receive_exactly(connection, 4), "big")
                answer = load.receive_exactly(connection, size)
                if answer[-2:] != b"\0\0":
                    raise frames.AnswerError(f"a commit was refused: {answer[-2:]!r}")
    return groups


def _wait_loaded(broker: Broker, groups: int) -> None:
    """A few groups of every partition of the offsets' topic; most of them tell of all."""
    with load.connect(broker.host, broker.port) as connection:
        for number in range(0, groups, max(groups // (8 * _OFFSETS_PARTITIONS), 1)):
            group = f"loaded-{number}"
            _wait_for_group(connection, group)
            asked = load.ask(connection, group_frames.fetch_offset(group, _LOADED_TOPIC, 7))[4:]
            if group_frames.read_offset(asked) != (number, 0):
                raise frames.AnswerError(f"{group} is not where it was")
