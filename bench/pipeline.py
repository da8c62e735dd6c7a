"""Measures freshness, memory and files of the sample pipeline under a constant load.

    python -m bench.pipeline [--minutes 20] [--rate 2000] [--interval 5] [--merge]

Owns the measurements of docs/PIPELINES.md. A producer sends events of orders at a fixed rate while
`headrace pipeline run --watch` fills the tables. The timestamp of an event is its send time.

1. The age is that of the newest event in the gold table `orders`, sampled twice per second. It
   grows between two rounds, so it is up to twice the time of a round.
2. At the end, the number of rows in bronze must equal the number of sent records.
3. Processor times are those of Java and its compilers, without Python and the broker. They depend
   less on other load than the age and the duration of a round.
"""

from __future__ import annotations

import argparse
import heapq
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq

from bench.kafka import say
from headrace.client import connect
from headrace.pipelines.merging import PROPERTY
from headrace.pipelines.sample import write_project
from headrace.pipelines.written import rows_in, table_files
from headrace.testing import RunningBroker

_TABLES = ("raw_orders", "order_events", "revenue_per_minute", "orders")
_EVENTS_PER_ORDER = 3.2
_SAMPLE_S = 0.5
_FIRST_ROUND_TIMEOUT_S = 1_200.0
_STOP_TIMEOUT_S = 120.0


def events(rate: int, generate: Any) -> Iterator[dict[str, Any]]:
    """Events of orders, sorted by time: stages 2 to 20 s apart, and 3 % duplicates."""
    random, due, clock, number = Random(1), list[tuple[float, int, dict[str, Any]]](), 0.0, 0
    while True:
        while not due or clock <= due[0][0]:
            moment = clock
            for event in generate.order_events(1, number):
                heapq.heappush(due, (moment, random.getrandbits(62), event))
                if random.random() < 0.03:
                    again = moment + random.uniform(0, 60)
                    heapq.heappush(due, (again, random.getrandbits(62), event))
                moment += random.uniform(2, 20)
            number += 1
            clock += _EVENTS_PER_ORDER / rate
        yield heapq.heappop(due)[2]


def feed(project: Path, bootstrap: str, rate: int) -> None:
    """Send events until SIGTERM. Print their number."""
    sys.path.insert(0, str(project))
    generate = importlib.import_module("generate")
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    source, sent, began = events(rate, generate), 0, time.monotonic()
    with connect(bootstrap) as client, client.producer() as producer:
        while not stopped.wait(0.02):
            while sent < (time.monotonic() - began) * rate:
                at = datetime.now(UTC)
                event = {**next(source), "at": at.isoformat(timespec="milliseconds")}
                key, value = event["order_id"].encode(), generate.encode(event)
                producer.send("orders", value, key=key, timestamp_ms=int(at.timestamp() * 1000))
                sent += 1
    print(sent)


@dataclass
class Minute:
    ages_s: list[float] = field(default_factory=list)
    rounds_s: list[float] = field(default_factory=list)
    processes: int = 0
    pss_mb: float = 0.0
    java_mb: float = 0.0
    java_cpu_s: float = 0.0
    files: dict[str, int] = field(default_factory=dict)


class Gold:
    """Reads the time of the newest event of a table from the statistics in its files."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._newest: dict[Path, float] = {}
        self._began = time.time()

    def age_s(self) -> float | None:
        with suppress(OSError):
            version = self._table.resolve()
            files = [version / path.name for path in version.glob("*.parquet")]
            known = {path: self._newest.get(path) or _newest(path) for path in files}
            self._newest = known
            newest = max(known.values(), default=0.0)
            # The events before the measurement have generated times.
            return time.time() - newest if newest >= self._began else None
        return None


def _newest(path: Path) -> float:
    content = pq.ParquetFile(path).metadata
    at = content.schema.names.index("changed_at")
    groups = [content.row_group(number).column(at) for number in range(content.num_row_groups)]
    found = [each.statistics.max for each in groups if each.statistics is not None]
    return max((_utc(each) for each in found if each is not None), default=0.0)


def _utc(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class Watch:
    """Runs `headrace pipeline run --watch`, and reads the result of each round."""

    def __init__(self, project: Path, interval_s: int | None) -> None:
        command = [sys.executable, "-m", "headrace", "pipeline", "run", "--watch", "--json"]
        command += [] if interval_s is None else ["--interval", str(interval_s)]
        self._process = subprocess.Popen(
            [*command, str(project)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.rounds: list[dict[str, Any]] = []
        self.fifth_round_mb = 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        text = ""
        for line in self._process.stdout:
            text += line
            with suppress(json.JSONDecodeError):
                self.rounds.append(json.loads(text))
                text = ""
                if len(self.rounds) == 5:
                    self.fifth_round_mb = sum(self.memory().values())

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def memory(self) -> dict[int, float]:
        """The proportional set size (PSS) of each process, in MB."""
        return {pid: pss_mb(pid) for pid in tree(self._process.pid)}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(_STOP_TIMEOUT_S)


def tree(root: int) -> set[int]:
    """A process and all processes that it started, directly or not."""
    parents: dict[int, int] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (directory / "stat").read_text().rsplit(")", 1)[1].split()
            parents[int(directory.name)] = int(fields[1])
    own = {root}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return own


def pss_mb(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def is_java(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    return False


def _java_cpu_s(pids: Iterable[int]) -> float:
    """The processor time that Java has used since its start."""
    ticks = 0
    for pid in filter(is_java, pids):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(watch: Watch, warehouse: Path, minutes: int) -> list[Minute]:
    """Sample the tables and processes, and print a line per minute."""
    gold, found = Gold(warehouse / "orders"), list[Minute]()
    used_s = _java_cpu_s(watch.memory())
    for number in range(minutes):
        minute, known = Minute(), len(watch.rounds)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if not watch.is_running:
                raise SystemExit("headrace pipeline run --watch ended unexpectedly")
            age_s = gold.age_s()
            if age_s is not None:
                minute.ages_s.append(age_s)
            time.sleep(_SAMPLE_S)
        minute.rounds_s = [each["seconds"] for each in watch.rounds[known:]]
        memory = watch.memory()
        minute.processes, minute.pss_mb = len(memory), sum(memory.values())
        minute.java_mb = sum(used for pid, used in memory.items() if is_java(pid))
        now_s = _java_cpu_s(memory)
        minute.java_cpu_s, used_s = now_s - used_s, now_s
        minute.files = {name: len(table_files(warehouse / name)) for name in _TABLES}
        found.append(minute)
        print(_line(number + 1, minute), flush=True)
    return found


def _line(number: int, minute: Minute) -> str:
    files = " | ".join(str(minute.files[name]) for name in _TABLES)
    age, took = _median(minute.ages_s), _median(minute.rounds_s)
    cpu = f"{minute.java_cpu_s:.0f} s"
    memory = f"{minute.processes} | {minute.pss_mb:,.0f} MB | {minute.java_mb:,.0f} MB"
    return f"| {number} | {age} | {took} | {len(minute.rounds_s)} | {cpu} | {memory} | {files} |"


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} s" if values else "-"


def _head() -> str:
    names = (
        "minute",
        "age in gold",
        "round",
        "rounds",
        "CPU of Java",
        "processes",
        "PSS",
        "PSS of Java",
        *_TABLES,
    )
    return f"| {' | '.join(names)} |\n|{' --- |' * len(names)}"


def _wait_for_rows(watch: Watch, warehouse: Path, sent: int) -> None:
    """Wait until the number of rows in bronze equals the number of sent records."""
    deadline = time.monotonic() + _FIRST_ROUND_TIMEOUT_S
    while (rows := rows_in(table_files(warehouse / "raw_orders"))) != sent:
        if time.monotonic() > deadline or not watch.is_running:
            raise SystemExit(f"{sent:,} records were sent, and bronze has {rows:,} rows")
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pipeline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=int, default=20, help="default: 20")
    parser.add_argument(
        "--rate", type=int, default=2_000, help="events per second (default: 2,000)"
    )
    parser.add_argument(
        "--interval", type=int, help="the option --interval of headrace pipeline run --watch"
    )
    parser.add_argument("--merge", action="store_true", help="merge the files of bronze and silver")
    parser.add_argument("--feed", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.feed:
        feed(Path(chosen.feed[0]), chosen.feed[1], chosen.rate)
        return
    with tempfile.TemporaryDirectory() as directory, RunningBroker.start() as broker:
        project = Path(directory, "shop")
        write_project(project, name="shop", bootstrap=broker.address, avro=False)
        if chosen.merge:
            _merge_files(project)
        own = ["--bootstrap-server", broker.address, "--orders", "10"]
        create = [sys.executable, "generate.py", *own, "--first", "9000000"]
        made = subprocess.run(create, cwd=project, check=True, capture_output=True, text=True)
        before = int(made.stdout.split()[1])
        _run(project, broker.address, chosen, before)


def _merge_files(project: Path) -> None:
    """Set the property of the streaming tables that merges their files."""
    for name in ("bronze.py", "silver.py"):
        path = project / "transformations" / name
        old, new = "@dp.table(", f'@dp.table(table_properties={{"{PROPERTY}": "true"}}, '
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def _run(project: Path, bootstrap: str, chosen: argparse.Namespace, before: int) -> None:
    minutes, rate = chosen.minutes, chosen.rate
    warehouse, feeder = project / ".headrace" / "warehouse", None
    watch = Watch(project, chosen.interval)
    try:
        say(f"Starting; {rate:,} events/s for {minutes} minutes, on {os.cpu_count()} cores")
        deadline = time.monotonic() + _FIRST_ROUND_TIMEOUT_S
        while not watch.rounds and watch.is_running and time.monotonic() < deadline:
            time.sleep(_SAMPLE_S)
        command = [sys.executable, "-m", "bench.pipeline", "--rate", str(rate)]
        feeder = subprocess.Popen(
            [*command, "--feed", str(project), bootstrap], stdout=subprocess.PIPE, text=True
        )
        print(_head(), flush=True)
        found = measure(watch, warehouse, minutes)
        feeder.terminate()
        sent = before + int(feeder.communicate()[0])
        _wait_for_rows(watch, warehouse, sent)
        ages = [age for minute in found for age in minute.ages_s]
        rounds = sum(len(minute.rounds_s) for minute in found)
        print(f"\n{sent:,} records sent and read in {rounds} rounds; age {_median(ages)} (median)")
        fifth, last = watch.fifth_round_mb, sum(watch.memory().values())
        cpu_s = sum(minute.java_cpu_s for minute in found)
        print(f"CPU of Java: {cpu_s / max(rounds, 1):.1f} s per round")
        print(f"PSS after round 5: {fifth:,.0f} MB; at the end: {last:,.0f} MB")
    finally:
        if feeder is not None and feeder.poll() is None:
            feeder.terminate()
        watch.stop()


if __name__ == "__main__":
    main()
