"""Random traces of operations on a log, compared with a model: --seeds N or --seconds N.

Run one seed again with --seed, or one trace with --trace. With --mutations each rule that prevents
a known bug is disabled in turn, and the number of seeds until a failure is printed.
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
from collections import deque
from collections.abc import Iterator
from multiprocessing.pool import AsyncResult
from pathlib import Path

from tests.storage_model.driver import Counts
from tests.storage_model.mutations import MUTATIONS, ROOT, mutated
from tests.storage_model.traces import Failure, parse, run, shortened, trace_of

_CHUNK = 20
"""Seeds that a process runs at a time."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage_model", description=__doc__)
    parser.add_argument("--seeds", type=int, help="number of seeds")
    parser.add_argument("--seconds", type=float, help="start no more seeds after this time")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run this seed only, and shorten its trace")
    parser.add_argument("--trace", help="run this trace only, as printed for a failed seed")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--failures", type=int, default=3, help="stop after this many failures")
    parser.add_argument("--mutations", action="store_true", help="disable rules, one at a time")
    parser.add_argument("--brief", action="store_true", help="do not shorten failing traces")
    parser.add_argument("--verbose", action="store_true", help="print the messages of the log")
    args = parser.parse_args()
    level = logging.INFO if args.verbose else logging.CRITICAL
    logging.basicConfig(level=level, format="%(message)s")
    if args.mutations:
        return _try_mutations(args)
    if args.trace is not None:
        failure = run(parse(args.trace))
        print(failure.details if failure else "The trace passed.")
        return 1 if failure else 0
    if args.seed is not None:
        failure = run(trace_of(args.seed))
        print(_report(args.seed, failure) if failure else "The seed passed.")
        return 1 if failure else 0
    return _run_all(args)


def _run_all(args: argparse.Namespace) -> int:
    began, total, seeds = time.monotonic(), Counts(), 0
    failed: list[int] = []
    with multiprocessing.Pool(args.jobs) as pool:
        for chunk, counts, failures in _results(pool, _chunks(args), args.jobs):
            seeds += chunk
            total.add(counts)
            for seed, failure in failures[: args.failures - len(failed)]:
                failed.append(seed)
                print(_line(seed, failure) if args.brief else _report(seed, failure), flush=True)
            if len(failed) >= args.failures:
                break
    seconds = time.monotonic() - began
    print(
        f"{seeds} seeds from {args.first} in {seconds:.0f} s: {total}, {len(failed)} seeds failed"
    )
    if failed:
        print(f"Again: python -m tests.storage_model --seed {failed[0]}")
    return 1 if failed else 0


_Result = tuple[int, Counts, list[tuple[int, Failure]]]


def _results(
    pool: "multiprocessing.pool.Pool", chunks: Iterator[range], jobs: int
) -> Iterator[_Result]:
    """Submit one chunk per process at a time: the clock decides before each of them."""
    pending: deque[AsyncResult[_Result]] = deque()
    for chunk in chunks:
        pending.append(pool.apply_async(_run_chunk, (chunk,)))
        if len(pending) > jobs:
            yield pending.popleft().get()
    for each in pending:
        yield each.get()


def _chunks(args: argparse.Namespace) -> Iterator[range]:
    end = time.monotonic() + args.seconds if args.seconds is not None else float("inf")
    last = args.first + args.seeds if args.seeds is not None else None
    if last is None and args.seconds is None:
        last = args.first + 1000
    for first in itertools.count(args.first, _CHUNK):
        if time.monotonic() >= end or (last is not None and first >= last):
            return
        yield range(first, first + _CHUNK if last is None else min(first + _CHUNK, last))


def _run_chunk(seeds: range) -> _Result:
    logging.disable(logging.CRITICAL)
    counts = Counts()
    failures = [(seed, run(trace_of(seed), counts)) for seed in seeds]
    return len(seeds), counts, [(seed, each) for seed, each in failures if each is not None]


def _line(seed: int, failure: Failure) -> str:
    return f"Seed {seed} failed: {failure.message}"


def _report(seed: int, failure: Failure) -> str:
    trace, shorter = shortened(trace_of(seed), failure)
    return (
        f"{_line(seed, failure)}\n"
        f"Shortened, it fails with: {shorter.message}\n"
        f'Again: python -m tests.storage_model --trace "{trace}"'
    )


def _try_mutations(args: argparse.Namespace) -> int:
    """Print after how many seeds each mutation is caught; 1 if one is not."""
    missed = 0
    for mutation in MUTATIONS:
        command = [sys.executable, "-m", "tests.storage_model", "--jobs", str(args.jobs)]
        command += ["--first", str(args.first), "--failures", "1"]
        command += ["--seeds", str(args.seeds or mutation.first + mutation.seeds_max)]
        with tempfile.TemporaryDirectory() as directory:
            where = mutated(mutation, Path(directory))
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(where)},
                capture_output=True,
                text=True,
                check=False,
            )
        missed += ended.returncode != 1
        lines = ended.stdout.strip().splitlines() or [ended.stderr]
        print(f"{mutation.name} ({mutation.bug}):", *lines, sep="\n  ", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
