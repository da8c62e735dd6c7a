"""Runs seeds in the simulator: a number of them (--seeds), or until a time is up (--seconds).

To repeat one: --seed 17 --verbose. With --mutations each rule that prevents a known bug is
switched off in turn, and the seeds that detect it are counted. --without wipe,retention leaves out
faults and features by name.
"""

import argparse
import itertools
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.simulation.mutations import MUTATIONS, ROOT, mutated
from tests.simulation.scenario import Result, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, help="number of seeds")
    parser.add_argument("--seconds", type=float, help="start no seed after this time")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--without", default="", help="faults and features to leave out")
    parser.add_argument("--mutations", action="store_true", help="count seeds that detect them")
    parser.add_argument("--mutation", action="append", help="only this one")
    parser.add_argument("--verbose", action="store_true", help="show the brokers' logs")
    args = parser.parse_args()
    level = logging.INFO if args.verbose else logging.CRITICAL
    logging.basicConfig(level=level, format="%(message)s")
    without = frozenset(filter(None, args.without.split(",")))
    if args.seed is not None:
        result = run(args.seed, without=without)
        print(*result.faults, sep="\n")
        print(replace(result, faults=[]))
        return 0
    if args.mutations:
        return _try_mutations(args)
    seeds = _seeds(args.first, args.seeds, args.seconds)
    failed = _run_all(seeds, args.jobs, without)
    if failed:
        print(f"Repeat: python -m tests.simulation --seed {failed[0]} --verbose")
    return 1 if failed else 0


def _seeds(first: int, count: int | None, seconds: float | None) -> Iterator[int]:
    end = time.monotonic() + seconds if seconds is not None else float("inf")
    numbers = itertools.count(first) if count is None and seconds else range(count or 100)
    for seed in numbers:
        if time.monotonic() >= end:
            return
        yield seed if count is None else first + seed


def _run_all(seeds: Iterable[int], jobs: int, without: frozenset[str]) -> list[int]:
    """Run them all, print a summary, and return those that failed."""
    began, done, acknowledged, elections, virtual_s = time.monotonic(), 0, 0, 0, 0.0
    failed: list[int] = []
    with multiprocessing.Pool(jobs, maxtasksperchild=20) as pool:
        waiting = _with_few_ahead(pool, seeds, jobs, without)
        for seed, result, trouble in waiting:
            done += 1
            if result is None:
                failed.append(seed)
                print(f"Seed {seed} failed:\n{trouble}", flush=True)
            else:
                acknowledged += result.acknowledged
                elections += result.elections
                virtual_s += result.virtual_s
            if sys.stderr.isatty():
                print(f"\r{done} seeds", end="", file=sys.stderr, flush=True)
    print(
        f"{done} seeds in {time.monotonic() - began:.0f} s, {virtual_s / 3600:.2f} virtual hours: "
        f"{acknowledged} records acknowledged, {elections} leaders, "
        f"{len(failed)} seeds broke a promise {sorted(failed) if failed else ''}".rstrip()
    )
    return sorted(failed)


def _with_few_ahead(
    pool: "multiprocessing.pool.Pool", seeds: Iterable[int], jobs: int, without: frozenset[str]
) -> Iterator[tuple[int, Result | None, str]]:
    """At most one seed per job at a time: the time limit is checked before each starts."""
    under_way = []
    for seed in seeds:
        under_way.append(pool.apply_async(_try, (seed, without)))
        while len(under_way) >= jobs:
            ready = [each for each in under_way if each.ready()]
            for each in ready:
                under_way.remove(each)
                yield each.get()
            if not ready:
                under_way[0].wait(0.05)
    for each in under_way:
        yield each.get()


def _try(seed: int, without: frozenset[str]) -> tuple[int, Result | None, str]:
    logging.disable(logging.CRITICAL)
    try:
        return seed, run(seed, without=without), ""
    except BaseException:  # noqa: BLE001 (a failing seed is reported with its traceback)
        return seed, None, traceback.format_exc()


def _try_mutations(args: argparse.Namespace) -> int:
    for mutation in MUTATIONS:
        if args.mutation and mutation.name not in args.mutation:
            continue
        with tempfile.TemporaryDirectory() as directory:
            where = mutated(mutation, Path(directory))
            command = [sys.executable, "-m", "tests.simulation", "--jobs", str(args.jobs)]
            command += ["--first", str(args.first), "--seeds", str(args.seeds or 100)]
            command += ["--without", args.without]
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(where)},
                capture_output=True,
                text=True,
                check=False,
            )
        last = (ended.stdout.strip().splitlines() or ["it did not run"])[-1 - ended.returncode]
        print(f"{mutation.name} ({mutation.rule}): {last}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
