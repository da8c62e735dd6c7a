"""Runs seeds in the simulator: a number of them (--seeds), or until a time is up (--seconds).

To repeat one: --seed 17 --verbose. With --mutations each rule that prevents a known bug is
disabled in turn, until the first seed that detects it. --without wipe,retention omits faults and
features by name.
"""

import argparse
import logging
import sys
import time
import traceback
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tests import seeded
from tests.simulation.mutations import MUTATIONS
from tests.simulation.scenario import Result, run

_TASKS_MAX = 20
"""Seeds that a process runs before it ends: killed brokers are kept in memory."""


class _Outcome(NamedTuple):
    seed: int
    result: Result | None
    reason: str
    details: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    seeded.add_arguments(parser)
    parser.set_defaults(failures=sys.maxsize)
    parser.add_argument("--without", default="", help="faults and features to omit")
    parser.add_argument("--brief", action="store_true", help="print failures without details")
    args = parser.parse_args()
    seeded.set_log_level(args)
    without = frozenset(filter(None, args.without.split(",")))
    if args.seed is not None:
        result = run(args.seed, without=without)
        print(*result.faults, sep="\n")
        print(replace(result, faults=[]))
        return 0
    if args.mutations or args.mutation:
        rules = [(each.name, each.rule, each.edits(), 300) for each in MUTATIONS]
        seeded.try_mutations("tests.simulation", args, rules)
        return 0  # Seeds detect most of them; scripted schedules detect all (test_mutations).
    return _run_all(args, without)


def _run_all(args: argparse.Namespace, without: frozenset[str]) -> int:
    began, done, acknowledged, elections, virtual_s = time.monotonic(), 0, 0, 0, 0.0
    failed: list[int] = []
    seeds = seeded.chunks(args, 1, 100)
    outcomes = seeded.results(partial(_try, without=without), seeds, args.jobs, _TASKS_MAX)
    for seed, result, reason, details in outcomes:
        done += 1
        if result is None:
            failed.append(seed)
            print(f"Seed {seed} failed: {reason if args.brief else details}", flush=True)
            if len(failed) >= args.failures:
                break
        else:
            acknowledged += result.acknowledged
            elections += result.elections
            virtual_s += result.virtual_s
        if sys.stderr.isatty():
            print(f"\r{done} seeds", end="", file=sys.stderr, flush=True)
    print(
        f"{done} seeds from {args.first} in {time.monotonic() - began:.0f} s, "
        f"{virtual_s / 3600:.2f} virtual hours: {acknowledged} records acknowledged, "
        f"{elections} leaders, {len(failed)} seeds failed"
    )
    if failed:
        print(f"Again: python -m tests.simulation --seed {failed[0]} --verbose")
    return 1 if failed else 0


def _try(seeds: range, without: frozenset[str]) -> _Outcome:
    logging.disable(logging.CRITICAL)
    seed = seeds[0]
    try:
        return _Outcome(seed, run(seed, without=without), "", "")
    except BaseException as error:  # noqa: BLE001 (a failing seed is reported with its traceback)
        return _Outcome(seed, None, str(error), traceback.format_exc())


if __name__ == "__main__":
    sys.exit(main())
