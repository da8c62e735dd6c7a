"""Compares Headrace with Apache Kafka, and writes the tables of docs/BENCHMARKS.md.

Without options, runs all workloads and these parts:

- flush: the workloads again, with flush.messages=1
- start: the time from the start of a broker to its first response
- beside: the latency of one consumer while other clients load the broker
- groups: consumer groups
- cluster: three brokers with three replicas
- scale: thousands of partitions on three brokers

All traffic stays on 127.0.0.1. At the end, and after Ctrl-C, the benchmark stops its brokers and
deletes their data. An interrupted run writes no file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bench import cluster, compiled, frames, groups, kafka, profile, scale, schedule, table
from bench.brokers import HEADRACE, KAFKA, HeadraceCommand
from bench.kafka import ROOT, say
from bench.workloads import WORKLOADS

PAGE = ROOT / "docs" / "BENCHMARKS.md"
RAW = ROOT / "docs" / "benchmarks.json"
_PARTS = ("flush", "start", "beside", "groups", "cluster", "scale")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one round with a tenth of the work")
    parser.add_argument(
        "--only",
        metavar="NAME,NAME",
        help=f"run only these workloads and parts: {', '.join((*WORKLOADS, *_PARTS))}",
    )
    parser.add_argument("--headrace-only", action="store_true", help="do not run Apache Kafka")
    parser.add_argument("--kafka-only", action="store_true", help="do not run Headrace")
    parser.add_argument(
        "--rounds", type=int, help="measured rounds (default: 3, groups: 2; with --quick: 1)"
    )
    parser.add_argument(
        "--warm-rounds",
        type=int,
        help="rounds before the measured ones, of the workloads and of the part cluster "
        "(default: 2; with --quick: 1)",
    )
    parser.add_argument(
        "--scale",
        type=float,
        help="factor of the requests per round (default: 1; with --quick: 0.1, cluster: 0.3)",
    )
    parser.add_argument(
        "--partitions",
        type=int,
        help=f"partitions in the part scale (default: {scale.PARTITIONS})",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=20.0,
        help="time limit for the workloads on a single broker (default: 20). "
        "If the first round shows that they would take longer, later rounds do less work: "
        "at least a tenth",
    )
    parser.add_argument(
        "--uncompiled", action="store_true", help="run Headrace from src/, uncompiled"
    )
    parser.add_argument(
        "--path",
        type=Path,
        help="directory whose package headrace is run (default: a compiled one)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the Headrace brokers; can be repeated",
    )
    parser.add_argument(
        "--profile",
        choices=(profile.PERF, profile.CPROFILE),
        help="profile Headrace; the reports are written to .cache/profile/",
    )
    parser.add_argument(
        "--save", action="store_true", help="write docs/BENCHMARKS.md also after a partial run"
    )
    return parser.parse_args()


def make_plan(chosen: argparse.Namespace) -> schedule.Plan:
    only = frozenset(chosen.only.split(",")) if chosen.only else frozenset((*WORKLOADS, *_PARTS))
    unknown = only - {*WORKLOADS, *_PARTS}
    if unknown:
        raise SystemExit(f"unknown workload: {', '.join(sorted(unknown))}. See --help.")
    wanted = tuple(name for name in WORKLOADS if name in only)
    if "flush" in only and not wanted:
        wanted = tuple(WORKLOADS)
    return schedule.Plan(
        names=schedule.names_of(not chosen.kafka_only, not chosen.headrace_only),
        workloads=wanted,
        flush="flush" in only,
        start="start" in only,
        beside="beside" in only,
        groups="groups" in only,
        cluster="cluster" in only,
        partitions=(chosen.partitions or scale.PARTITIONS) if "scale" in only else 0,
        warm_rounds=_or_default(chosen.warm_rounds, 1 if chosen.quick else 2) if wanted else 0,
        rounds=_or_default(chosen.rounds, 1 if chosen.quick else 3),
        scale=chosen.scale or (0.1 if chosen.quick else 1.0),
        minutes_max=chosen.minutes,
        headrace=headrace_command(chosen),
        drop_settings={"headrace.log.drop.behind.bytes": "67108864"},
        profile=chosen.profile,
    )


def _or_default(given: int | None, default: int) -> int:
    return default if given is None else given


def headrace_command(chosen: argparse.Namespace) -> HeadraceCommand:
    settings = dict(item.split("=", 1) for item in chosen.set)
    # Absolute, because brokers run in other directories.
    path = None if chosen.path is None else chosen.path.resolve()
    if path is None and not chosen.kafka_only:
        is_uncompiled = chosen.uncompiled or chosen.profile == profile.CPROFILE
        path = ROOT / "src" if is_uncompiled else compiled.site()
    return HeadraceCommand(
        path=path, settings=settings, interpreter_options=profile.command_prefix(chosen.profile)
    )


def describe_run(plan: schedule.Plan, arguments: list[str]) -> dict[str, str]:
    """The command, the machine and the versions, for the lists above the tables."""
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    shown = " ".join(re.sub(r"(?<==)/\S+|^/\S+", "DIR", item) for item in arguments)
    path = plan.headrace.path
    found = {
        "Command": f"`python -m bench {shown}`" if shown else "`make bench`",
        "Date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "Machine": f"{os.cpu_count()} cores ({model.group(1) if model else platform.machine()}), "
        f"{int(memory.group(1)) / 2**20 if memory else 0:.0f} GiB of memory, "
        f"Linux {platform.release().split('-')[0]}",
        "Rounds": _rounds(plan.warm_rounds, plan.rounds),
    }
    if HEADRACE in plan.names:
        build = "compiled" if path and compiled.is_compiled(path) else "not compiled"
        settings = "".join(f", {name}={value}" for name, value in plan.headrace.settings.items())
        found["Headrace"] = f"Python {platform.python_version()}, {build}{settings}"
    if KAFKA in plan.names:
        found["Apache Kafka"] = f"{kafka.VERSION}, KRaft, one node, 1 GiB of heap, {_java()}"
    if plan.scale != 1.0:
        found["Scale"] = f"{plan.scale:g} of the full work"
    return found


def _rounds(warm: int, measured: int) -> str:
    return f"{warm} to warm up, {measured} measured"


def _java() -> str:
    done = subprocess.run([kafka.java(), "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "([^"]+)"', done.stderr)
    return f"Java {version.group(1) if version else 'unknown'}"


def _has_loads(plan: schedule.Plan) -> bool:
    """Whether `schedule.Run` has work: workloads on one broker, starts or interference."""
    return bool(plan.workloads) or plan.start or plan.beside


def save(measured: schedule.Measured, parts: Mapping[tuple[str, str], str]) -> None:
    page = PAGE.read_text()
    for marks, text in parts.items():
        page = table.insert(page, text, *marks)
    PAGE.write_text(page)
    say(f"saved {PAGE.relative_to(ROOT)}")
    if not measured.cached:
        return
    raw = {"cached": measured.cached, "flushed": measured.flushed}
    RAW.write_text(json.dumps(_rounded(raw), indent=1) + "\n")
    say(f"saved {RAW.relative_to(ROOT)}")


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = options()
    try:
        plan = make_plan(chosen)
        measured = schedule.Run(plan).run() if _has_loads(plan) else schedule.Measured()
        if plan.groups:
            rounds = _or_default(chosen.rounds, 1 if chosen.quick else 2)
            grouped = groups.measure(plan.names, plan.headrace, rounds, plan.scale)
        if plan.cluster:
            warm_rounds = _or_default(chosen.warm_rounds, 1 if chosen.quick else 2)
            factor = chosen.scale or (0.3 if chosen.quick else 1.0)
            clustered = cluster.measure(plan.names, plan.headrace, warm_rounds, plan.rounds, factor)
        if plan.partitions:
            scaled = scale.measure(plan.names, plan.headrace, plan.partitions)
    except KeyboardInterrupt:
        say("interrupted: the brokers were stopped, and no file was written")
        return 130
    except (kafka.KafkaError, frames.ResponseError, ConnectionError) as error:
        say(f"the benchmark failed: {error}")
        return 1
    if plan.profile == profile.CPROFILE:
        profile.report_cprofile()
    parts: dict[tuple[str, str], str] = {}
    facts = describe_run(plan, sys.argv[1:])
    if _has_loads(plan):
        page = table.render(measured.cached, measured.flushed, facts)
        parts[(table.BEGIN, table.END)] = page
    if plan.groups:
        parts[(groups.BEGIN, groups.END)] = groups.render(grouped, facts)
    if plan.cluster:
        own = facts | {"Rounds": _rounds(warm_rounds, plan.rounds)}
        parts[(cluster.BEGIN, cluster.END)] = cluster.render(clustered, own)
    if plan.partitions:
        parts[(scale.BEGIN, scale.END)] = scale.render(scaled, facts, plan.partitions)
    print("\n".join(parts.values()))
    complete = not (chosen.only or chosen.quick or chosen.kafka_only or chosen.headrace_only)
    if chosen.save or (complete and not chosen.profile):
        save(measured, parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
