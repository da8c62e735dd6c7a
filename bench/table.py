"""Formats the samples as Markdown tables and as lines of progress.

Owns the rows, the goals and the text of the tables. They contain no host name and no path.

1. A figure is the median of the measured rounds. The smallest and the largest result are in
   parentheses.
2. A row that misses its goal is shown like the other rows, and is marked "(missed)".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.brokers import HEADRACE, KAFKA
from bench.workloads import SLOW_FETCHES, Sample

# Workload, then broker, then one sample for each round.
Results = Mapping[str, Mapping[str, Sequence[Sample]]]

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: a metric of a workload, and its goal."""

    workload: str
    title: str
    metric: str
    unit: str
    divisor: float = 1.0
    digits: int = 0
    goal: float | None = None
    less_is_better: bool = False
    limit: float | None = None
    """Headrace must stay below this value, regardless of Kafka. In the unit of the row."""


ROWS = (
    Row("small", "small", "requests_per_s", "k req/s", 1e3, 1, 2.5),
    Row("typical", "typical", "requests_per_s", "k req/s", 1e3, 1, 2.0),
    Row("lz4", "typical, lz4", "requests_per_s", "k req/s", 1e3, 1),
    Row("zstd", "typical, zstd", "requests_per_s", "k req/s", 1e3, 1),
    Row("bulk", "bulk", "mb_per_s", "MB/s", 1, 0, 1.2),
    Row("bulk-drop", "bulk, page cache limited to 64 MB", "mb_per_s", "MB/s", 1, 0, 2.5),
    Row("fetch", "fetch", "mb_per_s", "GB/s", 1e3, 2, 1.2),
    Row("fetch", "fetch, CPU per GB", "cpu_s_per_gb", "s", 1, 3, 0.8, True),
    Row("latency", "latency, p50", "trip_p50_us", "us", 1, 0, 0.6, True),
    Row("latency", "latency, p99", "trip_p99_us", "us", 1, 0, None, True),
    Row("latency", "latency of the acknowledgement, p50", "ack_p50_us", "us", 1, 0, None, True),
    Row("latency", "latency of the acknowledgement, p99", "ack_p99_us", "us", 1, 0, None, True),
    Row("ack", "sequential requests, p50", "ack_p50_us", "us", 1, 0, None, True),
    Row("ack", "sequential requests, p99", "ack_p99_us", "us", 1, 0, None, True),
)
SLOW_ROWS = tuple(
    row
    for name, load in SLOW_FETCHES.items()
    for title in (f"{load.readers} readers, {load.size >> 20} MB".replace("1 readers", "1 reader"),)
    for row in (
        Row(name, title, "mb_per_s", "GB/s", 1e3, 2, 1.2),
        Row(name, f"{title}, CPU per GB", "cpu_s_per_gb", "s", 1, 3, 0.8, True),
    )
)
SIZE_ROWS = (
    Row("start", "start of the process to its first response", "start_s", "s", 1, 2, 0.08, True),
    Row("memory", "memory (RSS), idle", "rss_idle_mb", "MB", 1, 0, 0.15, True),
    Row("memory", "memory (RSS), after load", "rss_loaded_mb", "MB", 1, 0, 0.15, True),
    Row("memory", "memory (RSS), peak", "rss_peak_mb", "MB", 1, 0, 0.15, True),
)
_DISTURBERS = {
    "alone": "none",
    "cold": "another consumer reads old data from disk",
    "control": "another process reads the same data, without the broker",
    "slow": "8 slow consumers",
    "broken": "20 clients that stop reading, or stop inside a request",
}


def _figure(values: Sequence[float], row: Row) -> str:
    shown = [f"{value / row.divisor:.{row.digits}f}" for value in (median(values), *_ends(values))]
    spread = f" ({shown[1]}-{shown[2]})" if len(values) > 1 else ""
    return f"{shown[0]} {row.unit}{spread}"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _metric(results: Results, workload: str, broker: str, metric: str) -> list[float]:
    samples = results.get(workload, {}).get(broker, ())
    return [sample[metric] for sample in samples if metric in sample]


def ratio(results: Results, row: Row) -> float | None:
    """The median of Headrace divided by the median of Kafka."""
    ours = _metric(results, row.workload, HEADRACE, row.metric)
    theirs = _metric(results, row.workload, KAFKA, row.metric)
    return median(ours) / median(theirs) if ours and theirs else None


def _goal(row: Row, actual: float | None) -> str:
    if row.goal is None:
        return ""
    text = f"{'at most' if row.less_is_better else 'at least'} {row.goal:g}x"
    if actual is None:
        return text
    good = actual <= row.goal if row.less_is_better else actual >= row.goal
    return text if good else f"{text} (missed)"


def _below(row: Row, values: Sequence[float]) -> str:
    text = f"below {row.limit:g} {row.unit}"
    is_missed = row.limit is not None and values and median(values) / row.divisor >= row.limit
    return f"{text} (missed)" if is_missed else text


def _short(value: float) -> str:
    """The value with two significant digits if it is below 100; otherwise without decimals."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.2g}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cpu(results: Results, row: Row, broker: str) -> str:
    """CPU time of the broker per request and per GB."""
    requests = _metric(results, row.workload, broker, "cpu_us_per_request")
    sizes = _metric(results, row.workload, broker, "cpu_s_per_gb")
    if not requests or not sizes:
        return ""
    return f"{_short(median(requests))} us, {_short(median(sizes))} s/GB"


def comparison(results: Results, rows: Sequence[Row], goals: bool) -> list[str]:
    heads = ["workload", "Headrace", "Apache Kafka", "ratio"]
    if goals:
        heads.append("goal")
    with_cpu = any(_cpu(results, row, broker) for row in rows for broker in (HEADRACE, KAFKA))
    if with_cpu:
        heads += ["Headrace CPU per request, per GB", "Kafka CPU per request, per GB"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for row in rows:
        ours = _metric(results, row.workload, HEADRACE, row.metric)
        theirs = _metric(results, row.workload, KAFKA, row.metric)
        if not ours and not theirs:
            continue
        actual = ratio(results, row)
        cells = [row.title]
        cells += [_figure(values, row) if values else "-" for values in (ours, theirs)]
        cells.append("-" if actual is None else f"**{actual:.2f}x**")
        if goals:
            cells.append(_goal(row, actual) if row.limit is None else _below(row, ours))
        if with_cpu:
            cells += [_cpu(results, row, broker) for broker in (HEADRACE, KAFKA)]
        lines.append(_line(cells))
    return lines


def _interference(results: Results) -> list[str]:
    heads = ["other load", "Headrace p99", "ratio", "Apache Kafka p99", "ratio"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for kind, title in _DISTURBERS.items():
        cells = [title]
        for broker in (HEADRACE, KAFKA):
            values = _metric(results, f"beside-{kind}", broker, "trip_p99_us")
            alone = _metric(results, "beside-alone", broker, "trip_p99_us")
            row = Row("", "", "", "us")
            cells.append(_figure(values, row) if values else "-")
            cells.append(f"{median(values) / median(alone):.2f}x" if values and alone else "-")
        lines.append(_line(cells))
    disk = _metric(results, "beside-cold", HEADRACE, "disk_read_mb_per_s")
    theirs = _metric(results, "beside-cold", KAFKA, "disk_read_mb_per_s")
    if disk and theirs:
        meaning = "The ratio is the p99 with this load, divided by the p99 without other load."
        lines += ["", f"{meaning} The goal is less than 2x. "]
        lines[-1] += f"The other consumer read {median(disk):.0f} MB/s from Headrace, "
        lines[-1] += f"and {median(theirs):.0f} MB/s from Kafka."
    return lines


def render(results: Results, flushed: Results, facts: Mapping[str, str]) -> str:
    """The measured part of docs/BENCHMARKS.md."""
    parts = ["\n".join(f"- {name}: {value}" for name, value in facts.items())]
    if any(row.workload in results for row in ROWS):
        parts += [
            "### Default settings: no sync before an acknowledgement",
            "\n".join(comparison(results, ROWS, True)),
        ]
    if any(row.workload in results for row in SLOW_ROWS):
        parts += ["### Slow readers", "\n".join(comparison(results, SLOW_ROWS, True))]
    if any(row.workload in flushed for row in ROWS):
        parts += [
            "### flush.messages=1: a sync before each acknowledgement",
            "\n".join(comparison(flushed, ROWS, False)),
        ]
    if any(row.workload in results for row in SIZE_ROWS):
        parts += ["### Start and memory", "\n".join(comparison(results, SIZE_ROWS, True))]
    if "beside-alone" in results:
        parts += [
            "### Latency of one consumer while other clients load the broker",
            "\n".join(_interference(results)),
        ]
    return "\n\n".join(parts) + "\n"


_SUMMARY = {
    "requests_per_s": "{:,.0f} req/s",
    "mb_per_s": "{:,.0f} MB/s",
    "cpu_us_per_request": "{:,.1f} us CPU/req",
    "cpu_s_per_gb": "{:,.2f} CPU-s/GB",
    "client_cores": "client {:.2f} cores",
    "ack_p50_us": "ack p50 {:.0f} us",
    "ack_p99_us": "p99 {:.0f} us",
    "trip_p50_us": "latency p50 {:.0f} us",
    "trip_p99_us": "p99 {:.0f} us",
    "disk_read_mb_per_s": "disk {:.0f} MB/s",
    "broker_cores": "{:.2f} cores",
    "commits_per_s": "{:,.0f} commits/s",
    "cold_ms": "stable in {:,.0f} ms",
    "left_ms": "{:,.0f} ms after a member left",
    "load_s": "loaded in {:.2f} s",
    "start_s": "first write after {:.2f} s",
    "failover_s": "next write after {:.3f} s",
    "in_sync_s": "all replicas in sync after {:.2f} s",
    "broker_mb": "{:.0f} MB",
    "zookeeper_mb": "ZooKeeper uses {:.0f} MB",
    "heap_mb": "{:.0f} MB of heap in use",
    "znodes": "{:,.0f} nodes",
    "znodes_kb": "{:,.0f} KB of node data",
    "watches": "{:,.0f} watches",
    "idle_percent": "{:.1f} % of a core",
    "files": "{:,.0f} open files",
    "all_mb": "all processes {:.0f} MB",
    "rss_idle_mb": "idle {:.0f} MB",
    "rss_loaded_mb": "after load {:.0f} MB",
    "rss_peak_mb": "peak {:.0f} MB",
}


def summary(sample: Sample) -> str:
    """The figures of one sample, for a line of progress."""
    return ", ".join(
        form.format(sample[metric]) for metric, form in _SUMMARY.items() if metric in sample
    )


def insert(page: str, measured: str, begin: str = BEGIN, end: str = END) -> str:
    """Replace the part of a page between `begin` and `end`. Append it if they are missing."""
    block = f"{begin}\n{measured}{end}"
    if begin not in page or end not in page:
        return page.rstrip("\n") + "\n\n" + block + "\n"
    head, rest = page.split(begin, 1)
    return head + block + rest.split(end, 1)[1]
