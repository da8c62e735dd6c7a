"""Measures the memory of partitions, connections and groups, and the CPU time of an idle broker.

    python -m bench.footprint [--partitions 10000] [--connections 5000] [--groups 10000]

Each of the three measurements starts a new broker. The memory per item is the growth of the
broker's memory, divided by the number of items. The CPU time is that of ten seconds without
requests.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import brokers, compiled, group_frames, load
from bench.brokers import Broker, HeadraceCommand
from bench.kafka import say

_IDLE_S = 10.0
_PER_TOPIC = 500
_FILES_RESERVED = 200
_TOPIC = "footprint"

Fill = Callable[[Broker, int, ExitStack], None]


def fill_partitions(broker: Broker, count: int, _kept: ExitStack) -> None:
    with load.connect(broker.host, broker.port) as connection:
        for number in range(count // _PER_TOPIC):
            load.ask(connection, group_frames.create_topic(f"{_TOPIC}-{number}", _PER_TOPIC))


def fill_connections(broker: Broker, count: int, kept: ExitStack) -> None:
    for _ in range(count):
        connection = kept.enter_context(load.connect(broker.host, broker.port))
        load.ask(connection, group_frames.request(18, 0, b""))


def fill_groups(broker: Broker, count: int, _kept: ExitStack) -> None:
    """Create groups with one committed offset and without members."""
    with load.connect(broker.host, broker.port) as connection:
        for number in range(count):
            group = f"group-{number:06}"
            load.ask(connection, group_frames.commit(group, _TOPIC, range(1), 1))


def prepare(broker: Broker) -> None:
    """Use each feature once, so that its one-time cost is not measured."""
    with load.connect(broker.host, broker.port) as connection:
        load.ask(connection, group_frames.create_topic(_TOPIC, 1))
        deadline = time.monotonic() + 30.0
        for number in range(200):
            group = f"any-{number}"
            load.ask(connection, group_frames.find_coordinator(group))
            while time.monotonic() < deadline:
                response = load.ask(connection, group_frames.commit(group, _TOPIC, range(1), 1))
                if response[-2:] == b"\0\0":
                    break


@contextmanager
def running(command: HeadraceCommand) -> Iterator[Broker]:
    broker = brokers.start_headrace(command)
    try:
        yield broker
    finally:
        broker.stop()


def measure(command: HeadraceCommand, items: str, count: int, fill: Fill) -> str:
    with running(command) as broker, ExitStack() as kept:
        prepare(broker)
        time.sleep(2.0)
        before_mb = broker.memory_mb()[0]
        fill(broker, count, kept)
        time.sleep(2.0)
        after_mb, cpu_s, began = broker.memory_mb()[0], broker.cpu_s(), time.monotonic()
        time.sleep(_IDLE_S)
        percent = (broker.cpu_s() - cpu_s) / (time.monotonic() - began) * 100
        files = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
    return (
        f"{count:,} {items}: {before_mb:.1f} -> {after_mb:.1f} MB, "
        f"{(after_mb - before_mb) * 1024 / count:.2f} KB each; "
        f"idle {percent:.1f} % of a core, {files:,} open files"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.footprint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--partitions", type=int, default=10_000, help="default: 10,000")
    parser.add_argument("--connections", type=int, default=5_000, help="default: 5,000")
    parser.add_argument("--groups", type=int, default=10_000, help="default: 10,000")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    command = HeadraceCommand(path=compiled.site())
    connections = min(args.connections, hard - _FILES_RESERVED)
    say(measure(command, "partitions", args.partitions, fill_partitions))
    say(measure(command, "connections", connections, fill_connections))
    say(measure(command, "groups", args.groups, fill_groups))


if __name__ == "__main__":
    main()
