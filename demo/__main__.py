"""Writes shop events, runs a pipeline on Spark, kills a broker, and checks that no record is lost.

    make demo [BROKERS=3]

The client confluent-kafka writes events of the sample project. At the same time, the sample
pipeline runs on Spark. A broker is killed (kill -9) and restarted when three quarters of the events
are acknowledged. The exit code is 0 if each acknowledged record is in the tables exactly once, and
the tables match the events. The environment variable BROKERS starts a cluster of this size.
"""

import argparse
import importlib
import os
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka

import headrace
from demo.brokers import Brokers
from demo.display import Progress, orders_table, revenue_table
from demo.rounds import Rounds
from demo.writer import QUIET, Writer
from headrace.client import Client, GroupOffset, TopicPartition, connect
from headrace.pipelines.sample import write_project

NAME = "shop"
SEED = 1
ORDERS = 6_000
SLOW_SECONDS = 8.0
DEADLINE_SECONDS = 900.0


def load_module(name: str) -> Any:
    return importlib.import_module(name)


class Demo:
    """The steps of the demo."""

    def __init__(self, progress: Progress, brokers: Brokers, client: Client, project: Path) -> None:
        self.progress = progress
        self.brokers = brokers
        self.client = client
        self.warehouse = project / ".headrace" / "warehouse"
        # The modules of the sample project.
        sys.path.insert(0, str(project))
        self.generate = load_module("generate")
        self.project_tests = load_module("test_pipeline")
        self.generate.CHANNEL_FROM_ORDER = ORDERS // 2
        self.generate.create_topics(client)
        messages = self.generate.messages(SEED, 0, ORDERS)
        self.messages = len(messages)
        self.writer = Writer(brokers.address, messages, SLOW_SECONDS)

    def run(self, rounds: Rounds) -> None:
        """Run until the pipeline has read all events."""
        self.writer.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        is_killed = is_written = is_read = False
        while time.monotonic() < deadline:
            line = rounds.next(0.2)
            if line is not None:
                self.progress.done(f"Pipeline on Spark: {line}")
                self.writer.resume.set()
            acknowledged = len(self.writer.acknowledged)
            if not is_killed and acknowledged >= self.messages * 3 // 4:
                self.kill()
                is_killed = True
            if not is_written and not self.writer.is_alive():
                self.progress.done(
                    f"The same client continued without a restart, up to record {acknowledged:,}."
                )
                is_written = True
            if line is not None and "completed" in line and acknowledged == self.messages:
                # Without new records, no round follows.
                is_read = self.lag() == 0
            if is_read and is_written:
                return
            self.progress.update(f"{acknowledged:,} records acknowledged; {rounds.lines[-1]}")
        raise TimeoutError(
            f"The demo did not complete within {DEADLINE_SECONDS:g} s: {rounds.lines}"
        )

    def kill(self) -> None:
        acknowledged = len(self.writer.acknowledged)
        victim = self.brokers.kill()
        self.progress.done(f"Killed {victim} (kill -9) after {acknowledged:,} acknowledgements.")
        self.brokers.restart()
        self.progress.done(f"Started {victim} again, on the same port and data.")

    def lag(self) -> int:
        """The number of records of the topic that the group has not committed."""
        partitions = range(self.generate.TOPICS["orders"])
        partitions_of_topic = [TopicPartition("orders", partition) for partition in partitions]
        committed = self.client.group_offsets(NAME)
        ends = self.client.list_offsets(dict.fromkeys(partitions_of_topic, "latest"))
        start = GroupOffset(0)
        return sum(
            ends[each].offset - committed.get(each, start).offset for each in partitions_of_topic
        )

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.project_tests.read_table(self.warehouse, name)
        return rows

    def show(self) -> None:
        self.progress.console.print(revenue_table(self.table("revenue_per_minute")))
        self.progress.console.print(orders_table(self.table("orders")))
        alerts = read_topic(self.brokers.address, "order-alerts")
        dead = read_topic(self.brokers.address, "orders-dead-letters")
        self.progress.done(
            f"A plain consumer read {len(alerts)} alerts about large orders, and the dead letters "
            f"of {len(dead)} orders. A header of each dead letter contains the reason."
        )

    def find_error(self) -> str:
        """The first difference between tables and events; empty if there is none."""
        read = [(row["partition"], row["offset"]) for row in self.table("raw_orders")]
        if self.writer.failures:
            return f"writes failed: {self.writer.failures[:3]}"
        if sorted(read) != sorted(self.writer.acknowledged):
            lost = len(self.writer.acknowledged - set(read))
            twice = len(read) - len(set(read))
            return f"{lost} acknowledged records were lost, and {twice} are duplicates"
        try:
            self.project_tests.check_tables(self.warehouse, 0, ORDERS)
        except AssertionError as error:
            return f"the tables do not match the events: {error}"
        return ""


def read_topic(address: str, topic: str) -> dict[bytes, bytes]:
    """Read partition 0 with a plain consumer. Return the last value of each key."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "demo"} | QUIET)
    partition = confluent_kafka.TopicPartition(topic, 0, 0)
    _, left = consumer.get_watermark_offsets(partition, 30)
    consumer.assign([partition])
    found: dict[bytes, bytes] = {}
    deadline = time.monotonic() + 60
    while left > 0 and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                found[message.key()] = message.value()
                left -= 1
    consumer.close()
    return found


def run_demo(progress: Progress, count: int, project: Path) -> int:
    with Brokers(count) as brokers, connect(brokers.address) as client:
        build = "compiled" if headrace.compiled() else "uncompiled"
        started = "a broker" if count == 1 else f"ZooKeeper and {count} brokers"
        progress.done(f"Started {started} at {brokers.address}, {build}.")
        write_project(project, name=NAME, bootstrap=brokers.address)
        demo = Demo(progress, brokers, client, project)
        progress.done("Created the sample project, as 'headrace pipeline init --sample shop' does.")
        try:
            with closing(Rounds(project, brokers.address)) as rounds:
                demo.run(rounds)
                progress.done(f"The lag of the group '{NAME}' is 0.")
        except Exception:
            progress.console.print(f"Logs of the brokers:\n{brokers.log()}", markup=False)
            raise
        progress.done("Stopped the pipeline and Spark.")
        demo.show()
        error = demo.find_error()
        if error:
            progress.done(f"[red]FAILED[/]: {error}")
            return 1
        progress.done(
            f"[green]Nothing was lost[/]: {len(demo.writer.acknowledged):,} records were "
            "acknowledged, and each is in the tables exactly once."
        )
        brokers.stop()
        progress.done("Stopped cleanly." if count == 1 else "Stopped every broker cleanly.")
        return 0


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser("python -m demo", description=__doc__, formatter_class=raw).parse_args()
    count = int(os.environ.get("BROKERS") or 1)
    with Progress() as progress, tempfile.TemporaryDirectory(prefix="headrace-demo-") as directory:
        code = run_demo(progress, count, Path(directory))
        progress.console.print(f"Total time: {time.monotonic() - progress.began:.0f} s.")
        return code


if __name__ == "__main__":
    sys.exit(main())
