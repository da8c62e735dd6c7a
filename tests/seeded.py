"""Runs seeds in several processes, also with a rule of the sources disabled (a mutation)."""

import argparse
import itertools
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import headrace

ROOT = Path(__file__).parents[1]

_Result = TypeVar("_Result")


class Change(NamedTuple):
    path: str
    """Below the sources."""
    before: str
    after: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, help="number of seeds")
    parser.add_argument("--seconds", type=float, help="start no more seeds after this time")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--failures", type=int, default=3, help="stop after this many failures")
    parser.add_argument("--mutations", action="store_true", help="disable rules, one at a time")
    parser.add_argument("--mutation", action="append", help="only this one")
    parser.add_argument("--verbose", action="store_true", help="print the messages of the log")


def set_log_level(args: argparse.Namespace) -> None:
    level = logging.INFO if args.verbose else logging.CRITICAL
    logging.basicConfig(level=level, format="%(message)s")


def chunks(args: argparse.Namespace, size: int, default: int) -> Iterator[range]:
    """The seeds that the arguments ask for, in chunks, until the time is up."""
    end = time.monotonic() + args.seconds if args.seconds is not None else float("inf")
    count = default if args.seeds is None and args.seconds is None else args.seeds
    last = sys.maxsize if count is None else args.first + count
    for first in itertools.count(args.first, size):
        if first >= last or time.monotonic() >= end:
            return
        yield range(first, min(first + size, last))


def results(
    work: Callable[[range], _Result], seeds: Iterable[range], jobs: int, tasks_max: int | None
) -> Iterator[_Result]:
    """Run each chunk in a process. Few are submitted ahead, so that the time limit holds."""
    with multiprocessing.Pool(jobs, maxtasksperchild=tasks_max) as pool:
        pending: deque[multiprocessing.pool.AsyncResult[_Result]] = deque()
        for chunk in seeds:
            pending.append(pool.apply_async(work, (chunk,)))
            if len(pending) > jobs:
                yield pending.popleft().get()
        for each in pending:
            yield each.get()


def mutated(changes: Iterable[Change], directory: Path) -> Path:
    """Copy the sources with a rule disabled; returns the directory to import them from."""
    target = directory / "src"
    skipped = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(Path(headrace.__file__).parent, target / "headrace", ignore=skipped)
    for name, before, after in changes:
        path = target / name
        source = path.read_text(encoding="utf-8")
        if source.count(before) != 1:
            raise ValueError(f"Cannot change {name}: it does not have these lines once: {before!r}")
        path.write_text(source.replace(before, after), encoding="utf-8")
    return target


def run_mutated(
    command: Sequence[str], changes: Iterable[Change]
) -> "subprocess.CompletedProcess[str]":
    """Run a Python module with a rule disabled."""
    with tempfile.TemporaryDirectory() as directory:
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(mutated(changes, Path(directory)))},
            capture_output=True,
            text=True,
            check=False,
        )


def try_mutations(
    module: str,
    args: argparse.Namespace,
    mutations: Iterable[tuple[str, str, Iterable[Change], int]],
) -> int:
    """Print which seed detects each mutation (name, meaning, changes, seeds); 1 if one is not."""
    missed = 0
    for name, meaning, changes, seeds in mutations:
        if args.mutation and name not in args.mutation:
            continue
        command = [module, "--jobs", str(args.jobs), "--first", str(args.first), "--failures", "1"]
        command += ["--brief", "--seeds", str(args.seeds or seeds)]
        if args.seconds is not None:
            command += ["--seconds", str(args.seconds)]
        ended = run_mutated(command, changes)
        missed += ended.returncode != 1
        lines = ended.stdout.strip().splitlines() or [ended.stderr]
        print(f"{name} ({meaning}):", *lines, sep="\n  ", flush=True)
    return 1 if missed else 0
