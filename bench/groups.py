"""Measures consumer groups: time until stable, commits per second, time to load offsets.

Owns the brokers of these measurements. Both have the same settings: no delay before the first
rebalance, and a heartbeat interval of 100 ms. Each member is a raw connection.

1. The connections of the members are open before a measurement starts.
2. One million offsets with different keys are loaded. They are loaded when the coordinator returns
   the offset of about 400 groups, which cover the partitions of __consumer_offsets.
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
from bench.group_members import HEARTBEAT_S, ClassicMember, ConsumerMember, Group, Member
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
        Row(f"group-{kind}-{size}", f"{kind}, {size} members: {title}", metric, "ms", 1, 0, 1, True)
        for kind in _KINDS
        for size in SIZES
        for title, metric in (
            ("first join until stable", "cold_ms"),
            ("a member leaves until stable", "left_ms"),
        )
    ),
    Row("group-load", "restart until a million offsets are served", "load_s", "s", 1, 2, 1, True),
)


Samples = dict[str, dict[str, list[Sample]]]


def measure(names: Sequence[str], command: HeadraceCommand, rounds: int, scale: float) -> Samples:
    """Measure the brokers sequentially: only one of them runs at a time."""
    samples: Samples = {}

    def note(workload: str, name: str, sample: Sample, *, counts: bool = True) -> None:
        say(f"{workload:>20}  {name:<9} {table.summary(sample)}{'' if counts else ' (warm-up)'}")
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
    """Run a broker in a directory: a new one or, with its former port, a restarted one."""
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
    """Wait until the coordinator of the group responds without an error."""
    deadline = time.monotonic() + _COORDINATOR_S
    while time.monotonic() < deadline:
        found = load.ask(connection, group_frames.find_coordinator(group))[4:]
        if not group_frames.read_error(found):
            fetched = load.ask(connection, group_frames.fetch_offset(group, _TOPIC, 0))[4:]
            if not group_frames.read_offset(fetched)[1]:
                return
        time.sleep(0.005)
    raise frames.ResponseError(f"no coordinator of group {group!r} within {_COORDINATOR_S:g} s")


def _round(broker: Broker, number: int) -> Iterator[tuple[str, Sample]]:
    has_both = _supports_consumer_protocol(broker)
    with _members(broker, f"commits-{number}", "classic", COMMITTERS) as group:
        group.start()
        group.run_until(group.is_stable)
        group.run_until(group.is_quiet)
        yield "group-commits", {"commits_per_s": group.commit_for(3.0)}
    for kind in _KINDS if has_both else ("classic",):
        for size in SIZES:
            with _members(broker, f"{kind}-{size}-{number}", kind, size) as group:
                started = time.monotonic()
                group.start()
                cold_s = group.run_until(group.is_stable) - started
                started = group.remove_one()
                left_s = group.run_until(group.is_stable) - started
                yield f"group-{kind}-{size}", {"cold_ms": cold_s * 1e3, "left_ms": left_s * 1e3}


def _supports_consumer_protocol(broker: Broker) -> bool:
    """Whether the ApiVersions response lists ConsumerGroupHeartbeat (68)."""
    with load.connect(broker.host, broker.port) as connection:
        response = load.ask(connection, group_frames.request(18, 0, b""))
    rows = response[14:]
    return any(rows[at : at + 2] == b"\0\x44" for at in range(0, len(rows), 6))


@contextmanager
def _members(broker: Broker, name: str, kind: str, count: int) -> Iterator[Group]:
    group = Group(broker.host, broker.port, name, _TOPIC, _PARTITIONS, _KINDS[kind], count)
    try:
        yield group
    finally:
        group.close()


def _fill(broker: Broker, offsets: int) -> int:
    """Commit offsets of groups without members, 100 per request. Return the number of groups."""
    groups = max(offsets // _LOADED_PARTITIONS, 1)
    window = 50
    with load.connect(broker.host, broker.port) as connection:
        for at in range(groups + window):
            if at < groups:
                group, partitions = f"loaded-{at}", range(_LOADED_PARTITIONS)
                connection.sendall(group_frames.commit(group, _LOADED_TOPIC, partitions, at))
            if at >= window:
                size = int.from_bytes(load.receive_exactly(connection, 4), "big")
                response = load.receive_exactly(connection, size)
                if response[-2:] != b"\0\0":
                    raise frames.ResponseError(f"OffsetCommit returned error {response[-2:]!r}")
    return groups


def _wait_loaded(broker: Broker, groups: int) -> None:
    """Fetch an offset of about 400 groups: 8 per partition of __consumer_offsets on average."""
    with load.connect(broker.host, broker.port) as connection:
        for number in range(0, groups, max(groups // (8 * _OFFSETS_PARTITIONS), 1)):
            group = f"loaded-{number}"
            _wait_for_group(connection, group)
            request = group_frames.fetch_offset(group, _LOADED_TOPIC, 7)
            found = group_frames.read_offset(load.ask(connection, request)[4:])
            if found != (number, 0):
                raise frames.ResponseError(
                    f"{group}: offset {found[0]} and error {found[1]}, expected offset {number}"
                )
