"""Random traces of operations on a log, compared with a model: --seeds N or --seconds N.

Run one seed again with --seed, or one trace with --trace. With --mutations each rule that prevents
a known bug is disabled in turn, and the number of seeds until a failure is printed.
"""

import argparse
import logging
import sys
import time

from tests import seeded
from tests.storage_model.driver import Counts
from tests.storage_model.mutations import MUTATIONS
from tests.storage_model.traces import Failure, parse, run, shortened, trace_of

_CHUNK = 20
"""Seeds that a process runs at a time."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage_model", description=__doc__)
    seeded.add_arguments(parser)
    parser.add_argument("--trace", help="run this trace only, as printed for a failed seed")
    parser.add_argument("--brief", action="store_true", help="do not shorten failing traces")
    args = parser.parse_args()
    seeded.set_log_level(args)
    if args.mutations or args.mutation:
        rules = [(m.name, m.bug, m.changes, m.first + m.seeds_max) for m in MUTATIONS]
        return seeded.try_mutations("tests.storage_model", args, rules)
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
    chunks = seeded.chunks(args, _CHUNK, 1000)
    for chunk, counts, failures in seeded.results(_run_chunk, chunks, args.jobs, None):
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


def _run_chunk(seeds: range) -> tuple[int, Counts, list[tuple[int, Failure]]]:
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


if __name__ == "__main__":
    sys.exit(main())
