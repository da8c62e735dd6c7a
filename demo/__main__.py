"""`make demo`: events flow in, a pipeline makes tables of them, a broker dies, nothing is lost.

A real client writes the sample shop's events while the sample pipeline runs on Spark, round after
round; a broker is killed (kill -9) in the middle. Ends by itself, with exit code 0 only if every
acknowledged record is in the tables once, and the tables say what the events say. BROKERS=3 does
the same on a cluster.
"""

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
from demo.rounds import Rounds
from demo.shown import Story, orders_table, revenue_table
from demo.writer import QUIET, Writer
from headrace.client import Client, GroupOffset, TopicPartition, connect
from headrace.pipelines.sample import write_project

NAME = "shop"
SEED = 1
ORDERS = 6_000
SLOW_SECONDS = 8.0
DEADLINE_SECONDS = 900.0


def imported(name: str) -> Any:
    return importlib.import_module(name)


class Demo:
    def __init__(self, story: Story, brokers: Brokers, client: Client, project: Path) -> None:
        self.story = story
        self.brokers = brokers
        self.client = client
        self.warehouse = project / ".headrace" / "warehouse"
        # The project's own modules, as after `headrace pipeline init --sample shop`.
        sys.path.insert(0, str(project))
        self.generate = imported("generate")
        self.of_project = imported("test_pipeline")
        self.generate.CHANNEL_FROM_ORDER = ORDERS // 2
        self.generate.create_topics(client)
        messages = self.generate.messages(SEED, 0, ORDERS)
        self.messages = len(messages)
        self.writer = Writer(brokers.address, messages, SLOW_SECONDS)

    def run(self, rounds: Rounds) -> None:
        """Until everything that was written is in the tables."""
        self.writer.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        is_killed = is_written = is_read = False
        while time.monotonic() < deadline:
            told = rounds.next(0.2)
            if told is not None:
                self.story.done(f"Pipeline on Spark: {told}")
                self.writer.may_go_on.set()
            acknowledged = len(self.writer.acknowledged)
            if not is_killed and acknowledged >= self.messages * 3 // 4:
                self.kill()
                is_killed = True
            if not is_written and not self.writer.is_alive():
                self.story.done(
                    f"The same client continued without a restart, up to record {acknowledged:,}."
                )
                is_written = True
            if told is not None and "completed" in told and acknowledged == self.messages:
                # Without new records no other round follows.
                is_read = self.lag() == 0
            if is_read and is_written:
                return
            self.story.now(f"{acknowledged:,} records acknowledged; {rounds.lines[-1]}")
        raise TimeoutError(
            f"The demo did not complete within {DEADLINE_SECONDS:g} s: {rounds.lines}"
        )

    def kill(self) -> None:
        acknowledged = len(self.writer.acknowledged)
        victim = self.brokers.kill()
        self.story.done(f"Killed {victim} (kill -9) after {acknowledged:,} acknowledgements.")
        self.brokers.restart()
        self.story.done(f"Started {victim} again, on the same port and data.")

    def lag(self) -> int:
        """How far the group is behind the end of the topic."""
        partitions = range(self.generate.TOPICS["orders"])
        places = [TopicPartition("orders", partition) for partition in partitions]
        committed = self.client.group_offsets(NAME)
        ends = self.client.list_offsets(dict.fromkeys(places, "latest"))
        begin = GroupOffset(0)
        return sum(ends[place].offset - committed.get(place, begin).offset for place in places)

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.of_project.read_table(self.warehouse, name)
        return rows

    def show(self) -> None:
        self.story.console.print(revenue_table(self.table("revenue_per_minute")))
        self.story.console.print(orders_table(self.table("orders")))
        alerts = read_topic(self.brokers.address, "order-alerts")
        dead = read_topic(self.brokers.address, "orders-dead-letters")
        self.story.done(
            f"A plain consumer read {len(alerts)} alerts about large orders and the dead letters "
            f"of {len(dead)} orders, with the reason in a header."
        )

    def trouble(self) -> str:
        """What is wrong with the tables; nothing, if all is well."""
        read = [(row["partition"], row["offset"]) for row in self.table("raw_orders")]
        if self.writer.failures:
            return f"writes failed: {self.writer.failures[:3]}"
        if sorted(read) != sorted(self.writer.acknowledged):
            lost = len(self.writer.acknowledged - set(read))
            twice = len(read) - len(set(read))
            return f"{lost} acknowledged records were lost, {twice} are duplicates"
        try:
            self.of_project.check_tables(self.warehouse, 0, ORDERS)
        except AssertionError as error:
            return f"the tables do not match the events: {error}"
        return ""


def read_topic(address: str, topic: str) -> dict[bytes, bytes]:
    """The last value of each key, as a plain consumer sees it."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "demo"} | QUIET)
    place = confluent_kafka.TopicPartition(topic, 0, 0)
    _, left = consumer.get_watermark_offsets(place, 30)
    consumer.assign([place])
    found: dict[bytes, bytes] = {}
    deadline = time.monotonic() + 60
    while left > 0 and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                found[message.key()] = message.value()
                left -= 1
    consumer.close()
    return found


def demonstrate(story: Story, count: int, place: Path) -> int:
    with Brokers(count) as brokers, connect(brokers.address) as client:
        how = "compiled" if headrace.compiled() else "uncompiled"
        what = "a broker" if count == 1 else f"ZooKeeper and {count} brokers"
        story.done(f"Started {what} at {brokers.address}, {how}.")
        write_project(place, name=NAME, bootstrap=brokers.address)
        demo = Demo(story, brokers, client, place)
        story.done("Created the sample project, as 'headrace pipeline init --sample shop' does.")
        try:
            with closing(Rounds(place, brokers.address)) as rounds:
                demo.run(rounds)
                story.done(f"The lag of the group '{NAME}' is 0.")
        except Exception:
            story.console.print(f"Logs of the brokers:\n{brokers.log()}", markup=False)
            raise
        story.done("Stopped the pipeline and Spark.")
        demo.show()
        trouble = demo.trouble()
        if trouble:
            story.done(f"[red]FAILED[/]: {trouble}")
            return 1
        story.done(
            f"[green]Nothing was lost[/]: {len(demo.writer.acknowledged):,} records were "
            "acknowledged, and each is in the tables exactly once."
        )
        brokers.stop()
        story.done("Stopped cleanly." if count == 1 else "Stopped every broker cleanly.")
        return 0


def main() -> int:
    count = int(os.environ.get("BROKERS") or 1)
    with Story() as story, tempfile.TemporaryDirectory(prefix="headrace-demo-") as place:
        code = demonstrate(story, count, Path(place))
        story.console.print(f"Total time: {time.monotonic() - story.began:.0f} s.")
        return code


if __name__ == "__main__":
    sys.exit(main())
