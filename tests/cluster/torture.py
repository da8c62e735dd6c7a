"""`python -m tests.cluster.torture --hours 1`: a live cluster under faults, one after the other.

Four brokers, a ZooKeeper, proxies between them, two idempotent producers, and partitions that move.
Every few seconds another fault, a quarter of the time none. At the end of each round the cluster
must be whole again, nothing on the move or left behind, and every acknowledged record where it was;
the result is written as JSON and as a section of docs/RELIABILITY.md.
"""

import argparse
import datetime
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.client import ClientError, TopicPartition, connect
from headrace.testing.cluster import RunningCluster
from headrace.testing.links import ZOOKEEPER
from tests.cluster.history import Load, Topic, check
from tests.cluster.placement import wait_until_nothing_is_left_behind

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "RELIABILITY.md"
SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "zookeeper.connection.timeout.ms": "30000",
}
HEADING = "## In processes"
BROKERS = 4
ROUND_SECONDS = 120.0
# Where a record times out librdkafka begins a new epoch, and sends again what was written without
# an answer: no broker can tell that from new records (docs/RELIABILITY.md).
PATIENCE = {"delivery.timeout.ms": 3_600_000}


class Torture:
    def __init__(self, cluster: RunningCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.longest_s: dict[str, float] = {}
        self.acknowledged = 0
        self.failed = 0
        self.rounds = 0

    def run_round(self, seconds: float) -> None:
        """One topic, faults for a while, then everything is healed and checked."""
        self.rounds += 1
        topic = Topic(self.cluster, f"torture-{self.rounds}", 4, min_insync_replicas="2")
        end = time.monotonic() + seconds
        with Load(topic, **PATIENCE) as one, Load(topic, "9", **PATIENCE) as other:
            one.wait_for_more(20)
            while time.monotonic() < end:
                self._one_fault(topic, one)
            self._heal()
            topic.wait_until_in_sync()
            wait_until_nothing_is_left_behind(self.cluster, topic)
            other.wait_for_more(20)
            one.stop()
            other.stop()
        check(one, other)
        self.acknowledged += len(one.acked) + len(other.acked)
        self.failed += len(one.failed) + len(other.failed)

    def _one_fault(self, topic: Topic, load: Load) -> None:
        if self.random.random() < 0.25:
            time.sleep(self.random.uniform(3, 8))
            return
        name = self.random.choice(sorted(FAULTS))
        say(f"{name} ...")
        FAULTS[name](self, topic)
        waited = load.wait_for_more(20, timeout_s=90)
        self.counts[name] += 1
        self.longest_s[name] = max(self.longest_s.get(name, 0.0), waited)
        time.sleep(self.random.uniform(0, 5))
        self._heal()
        say(f"... writes went on after {waited:.1f} s")

    def _heal(self) -> None:
        self.cluster.links.heal()
        for broker in self.cluster.brokers.values():
            if broker.is_running:
                broker.resume()
        if not self.cluster.zookeeper.nodes[0].process.running:
            self.cluster.zookeeper.start()
        self.cluster.start_brokers(timeout_s=60)

    def move(self, topic: Topic) -> None:
        """Begin to move one partition from one broker to another; a move under way is turned."""
        index = self.random.randrange(topic.partitions)
        target = self.random.sample(sorted(self.cluster.brokers), 3)
        self._ask_to_move(topic, {index: target})

    def cancel_moves(self, topic: Topic) -> None:
        self._ask_to_move(topic, dict.fromkeys(range(topic.partitions)))

    def _ask_to_move(self, topic: Topic, targets: Mapping[int, Sequence[int] | None]) -> None:
        asked = {TopicPartition(topic.name, index): nodes for index, nodes in targets.items()}
        try:
            with connect(self.cluster.bootstrap) as client:
                client.alter_reassignments(asked)
        except ClientError as error:
            say(f"nobody moves anything now: {error}")

    def any_broker(self) -> int:
        return self.random.choice(sorted(self.cluster.brokers))


def _kill_leader(torture: Torture, topic: Topic) -> None:
    torture.cluster.kill(topic.leader(torture.random.randrange(topic.partitions)))


def _kill_any(torture: Torture, _topic: Topic) -> None:
    torture.cluster.kill(torture.any_broker())


def _kill_all(torture: Torture, _topic: Topic) -> None:
    torture.cluster.kill(*torture.cluster.brokers)
    torture.cluster.start_brokers(timeout_s=60)


def _restart_one(torture: Torture, topic: Topic) -> None:
    topic.wait_until_in_sync()
    torture.cluster.brokers[torture.any_broker()].restart()


def _pause(torture: Torture, topic: Topic) -> None:
    torture.cluster.brokers[topic.leader()].pause()


def _cut_leader(torture: Torture, topic: Topic) -> None:
    leader = topic.leader()
    others = [node for node in torture.cluster.brokers if node != leader]
    torture.cluster.links.cut(leader, *others)


def _cut_store(torture: Torture, _topic: Topic) -> None:
    torture.cluster.links.cut(torture.any_broker(), ZOOKEEPER)


def _isolate(torture: Torture, topic: Topic) -> None:
    leader = topic.leader()
    others = [node for node in torture.cluster.brokers if node != leader]
    torture.cluster.links.cut(leader, ZOOKEEPER, *others)


def _move(torture: Torture, topic: Topic) -> None:
    torture.move(topic)


def _kill_in_move(torture: Torture, topic: Topic) -> None:
    torture.move(topic)
    torture.cluster.kill(torture.any_broker())


def _cancel_move(torture: Torture, topic: Topic) -> None:
    torture.move(topic)
    torture.cancel_moves(topic)


FAULTS: dict[str, Callable[[Torture, Topic], None]] = {
    "kill -9 of a leader": _kill_leader,
    "kill -9 of any broker": _kill_any,
    "kill -9 of all brokers": _kill_all,
    "restart of a broker": _restart_one,
    "SIGSTOP of a leader": _pause,
    "a leader cut from its followers": _cut_leader,
    "a broker cut from ZooKeeper": _cut_store,
    "a leader cut from everybody": _isolate,
    "a partition moved": _move,
    "kill -9 of any broker during a move": _kill_in_move,
    "a move begun and given up": _cancel_move,
}


def say(text: str) -> None:
    print(f"{datetime.datetime.now(datetime.UTC):%H:%M:%S} {text}", flush=True)


def section(torture: Torture, hours: float, command: str) -> str:
    rows = [
        f"| {name} | {count} | {torture.longest_s[name]:.1f} s |"
        for name, count in sorted(torture.counts.items())
    ]
    return "\n".join(
        [
            HEADING,
            "",
            "A cluster of four brokers in processes of their own. Idempotent producers"
            " (librdkafka, acks=all, min.insync.replicas=2) write all the time to topics of three"
            " replicas; faults come one after the other; every few minutes the cluster is healed"
            " and every acknowledged record is looked for, at its offset, once, in order. No move"
            " may be unfinished then, and no directory left that is not a replica's.",
            "",
            f"Command: `{command}`. ZooKeeper's session timeout is 2 s.",
            "",
            f"- Time: {hours:.2f} hours, {torture.rounds} rounds",
            f"- Records acknowledged: {torture.acknowledged}",
            "- Lost, moved, changed or duplicated: 0",
            f"- Told to have failed: {torture.failed}",
            "",
            "| Fault | Times | Longest pause until 20 more writes were acknowledged |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def with_section(page: str, section: str) -> str:
    """The page with this section in place of the one of that heading, or at its end."""
    parts = re.split(r"(?m)^(?=## )", page)
    kept = [part for part in parts if not part.startswith(HEADING)]
    return "".join([*(part.rstrip() + "\n\n" for part in kept), section])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.torture", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", help="keep the brokers' data and logs here")
    parser.add_argument("--json", type=Path, help="write the counts here, too")
    args = parser.parse_args()
    began = time.monotonic()
    with RunningCluster.start(
        args.directory, brokers=BROKERS, settings=SETTINGS, links=True
    ) as cluster:
        torture = Torture(cluster, args.seed)
        while time.monotonic() - began < args.hours * 3600:
            left = args.hours * 3600 - (time.monotonic() - began)
            torture.run_round(min(ROUND_SECONDS, max(left, 10.0)))
            say(f"round {torture.rounds}: {torture.acknowledged} acknowledged, none lost")
    hours = (time.monotonic() - began) / 3600
    found_here = section(torture, hours, f"make torture HOURS={args.hours:g}")
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), found_here), encoding="utf-8")
    if args.json is not None:
        found = {"hours": hours, "faults": torture.counts, "acknowledged": torture.acknowledged}
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    say(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
