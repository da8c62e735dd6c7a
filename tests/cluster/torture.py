"""`python -m tests.cluster.torture --hours 1`: faults in a live cluster, one at a time.

Starts four brokers on separate disks, one ZooKeeper node and proxies between them. Two idempotent
producers write and three readers read while faults happen; a quarter of the steps have no fault.
At the end of each round the cluster must be complete again: all replicas in sync, no reassignment
in progress, no directory without a replica, every acknowledged record at its offset, and no
contradiction between any two reads. The result goes to docs/RELIABILITY.md and to a JSON file.
"""

import argparse
import datetime
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from headrace.testing.cluster import RunningCluster
from tests.cluster.disks import Disk, DisksUnavailable, mounted
from tests.cluster.history import Deletions, Load, Topic, check
from tests.cluster.observers import EndSampler, Observations, RecordReader
from tests.cluster.placement import wait_until_nothing_is_left_behind
from tests.cluster.torture_faults import DEADLINE_S, FAULTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "RELIABILITY.md"
SETTINGS = {
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
    "zookeeper.connection.timeout.ms": str(int(DEADLINE_S * 1000)),
}
HEADING = "## Live cluster"
BROKERS = 4
DISK_BYTES = 1 << 30
ROUND_SECONDS = 180.0
# If a record times out, librdkafka starts a new producer epoch and resends records whose
# acknowledgement it missed. No broker can detect those duplicates (docs/RELIABILITY.md).
PATIENCE = {"delivery.timeout.ms": 3_600_000}
BUSY_INTERVAL_S = 0.004
IDLE_INTERVAL_S = 1.0


class Torture:
    def __init__(self, cluster: RunningCluster, disks: dict[int, Disk], seed: int) -> None:
        self.cluster = cluster
        self.disks = disks
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.longest_s: dict[str, float] = {}
        self.acknowledged = 0
        self.failed = 0
        self.deleted = 0
        self.reads = 0
        self.rounds: Counter[str] = Counter()
        self.deletions = Deletions()
        self._loads: list[Load] = []
        self._is_idle = False

    def run_round(self, seconds: float) -> None:
        """Create a topic, run faults for a while, heal, and check everything."""
        self._is_idle = self.random.random() < 0.25
        self.rounds["idle" if self._is_idle else "busy"] += 1
        name = f"torture-{self.rounds.total()}"
        topic = Topic(self.cluster, name, 4, min_insync_replicas="2")
        self.deletions = Deletions()
        seen = Observations()
        interval_s = IDLE_INTERVAL_S if self._is_idle else BUSY_INTERVAL_S
        with ExitStack() as stack:
            self._loads = [
                stack.enter_context(Load(topic, prefix, interval_s=interval_s, **PATIENCE))
                for prefix in ("", "9")
            ]
            for reader in (
                RecordReader(topic, seen),
                RecordReader(topic, seen, replays=True),
                EndSampler(topic, seen),
            ):
                stack.enter_context(reader)
            self.wait_for_writes()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self._one_fault(topic)
                seen.check()
            self._heal()
            topic.wait_until_in_sync()
            wait_until_nothing_is_left_behind(self.cluster, topic)
            self.wait_for_writes()
            for load in self._loads:
                load.stop()
        seen.check_against(check(*self._loads, deletions=self.deletions))
        self._count(seen)
        topic.admin.delete_topics([name])[name].result(DEADLINE_S)

    def _count(self, seen: Observations) -> None:
        self.acknowledged += sum(len(load.acked) for load in self._loads)
        self.failed += sum(len(load.failed) for load in self._loads)
        self.deleted += sum(self.deletions.acknowledged.values())
        self.reads += seen.reads
        assert seen.samples, "no broker returned the end of a log"
        assert seen.reads, "no reader got a record"

    def _one_fault(self, topic: Topic) -> None:
        if self.random.random() < 0.25:
            time.sleep(self.random.uniform(3, 8))
            return
        names = [name for name in sorted(FAULTS) if self.disks or "full disk" not in name]
        name = self.random.choice(names)
        self.say(f"{name} ...")
        FAULTS[name](self, topic)
        waited = self.wait_for_writes()
        self.counts[name] += 1
        self.longest_s[name] = max(self.longest_s.get(name, 0.0), waited)
        time.sleep(self.random.uniform(0, 5))
        self._heal()
        self.say(f"... writes resumed after {waited:.1f} s")

    def wait_for_writes(self) -> float:
        """Wait until more writes are acknowledged; return the time in seconds."""
        return self._loads[0].wait_for_more(3 if self._is_idle else 20, timeout_s=DEADLINE_S)

    def acknowledged_offsets(self, partition: int) -> list[int]:
        found = [dict(load.acked).values() for load in self._loads]
        return [offset for values in found for index, offset in values if index == partition]

    def any_broker(self) -> int:
        return self.random.choice(sorted(self.cluster.brokers))

    def others(self, node: int) -> list[int]:
        return [each for each in self.cluster.brokers if each != node]

    def say(self, text: str) -> None:
        print(f"{datetime.datetime.now(datetime.UTC):%H:%M:%S} {text}", flush=True)

    def _heal(self) -> None:
        self.cluster.links.heal()
        for disk in self.disks.values():
            disk.empty()
        for broker in self.cluster.brokers.values():
            if broker.is_running:
                broker.resume()
        if not self.cluster.zookeeper.nodes[0].process.running:
            self.cluster.zookeeper.start()
        self.cluster.start_brokers(timeout_s=DEADLINE_S)


def section(torture: Torture, hours: float, seed: int, command: str) -> str:
    rows = [
        f"| {name} | {count:,} | {torture.longest_s[name]:.1f} s |"
        for name, count in sorted(torture.counts.items())
    ]
    rounds = torture.rounds
    text = f"""{HEADING}

`{command}` (seed {seed}) runs four brokers as processes, each on its own disk. Idempotent producers
(librdkafka, acks=all) write to a topic with three replicas and min.insync.replicas=2. The test
injects one fault after another. During the faults, two readers, and a thread that requests log end
offsets, compare their results. A round is a series of faults. At the end of each round, every
acknowledged record that was not deleted must be at its offset, once and in order. The ZooKeeper
session timeout and replica.lag.time.max.ms are 2 s.

- Time: {hours:.2f} hours, with {rounds["busy"]:,} rounds under load,
  and {rounds["idle"]:,} nearly idle rounds (one record per second and producer)
- Faults: {torture.counts.total():,}
- Records acknowledged: {torture.acknowledged:,}; deleted by DeleteRecords: {torture.deleted:,}
- Records read during faults: {torture.reads:,}; differences between two reads of an offset: 0
- Records lost, changed, duplicated, or at another offset: 0
- Records that a producer reported as failed: {torture.failed:,}

| Fault | Times | Longest wait for acknowledgements |
|---|---|---|
"""
    return text + "\n".join(rows) + "\n"


def with_section(page: str, section: str) -> str:
    """Replace the section of this heading, or append it."""
    parts = re.split(r"(?m)^(?=## )", page)
    index = next((i for i, part in enumerate(parts) if part.startswith(HEADING)), len(parts))
    parts[index : index + 1] = [section]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.torture", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="keep data and logs of the brokers here")
    parser.add_argument("--json", type=Path, help="also write the counts to this file")
    args = parser.parse_args()
    with ExitStack() as stack:
        directory = args.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        run(args, directory, stack)
    return 0


def run(args: argparse.Namespace, directory: Path, stack: ExitStack) -> None:
    disks: dict[int, Disk] = {}
    try:
        places = [directory / f"broker-{node}" for node in range(1, BROKERS + 1)]
        disks = dict(enumerate(stack.enter_context(mounted(places, DISK_BYTES)), start=1))
    except DisksUnavailable as error:
        print(f"without the fault 'full disk': {error}", flush=True)
    cluster = stack.enter_context(
        RunningCluster.start(directory, brokers=BROKERS, settings=SETTINGS, links=True)
    )
    torture = Torture(cluster, disks, args.seed)
    began = time.monotonic()
    while (left := args.hours * 3600 - (time.monotonic() - began)) > 0:
        torture.run_round(min(ROUND_SECONDS, max(left, 10.0)))
        torture.say(f"{torture.rounds.total()} rounds, {torture.acknowledged:,} acknowledged")
    hours = (time.monotonic() - began) / 3600
    text = section(torture, hours, args.seed, f"make torture HOURS={args.hours:g}")
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    if args.json is not None:
        found = {"hours": hours, "faults": torture.counts, "acknowledged": torture.acknowledged}
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    torture.say(f"wrote {os.path.relpath(PAGE, ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
