"""Report the result of `headrace pipeline run` and `dry-run`: text or JSON, and the history."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.output import plural, print_json, print_table

if TYPE_CHECKING:
    from headrace.pipelines.outcome import Outcome
    from headrace.pipelines.problems import Problem

COMPLETED, FAILED, STOPPED = "completed", "failed", "stopped"
REJECTED, LOCKED = "rejected", "locked"


def named_tables(args: argparse.Namespace) -> list[str]:
    """The tables that --full-refresh names."""
    given = getattr(args, "full_refresh", ())
    return [name for names in given for name in names.split(",") if name]


def report(args: argparse.Namespace, outcome: "Outcome") -> int:
    """Print the result of a run, and add it to the history; returns the exit code."""
    content = outcome.to_json()
    _record(args, content)
    if args.json:
        print_json(content)
    else:
        _print_outcome(content)
        _print_problems(args, outcome)
        _print_next(args, outcome)
    return 0 if outcome.state == COMPLETED else 1


def report_round(args: argparse.Namespace, number: int, outcome: "Outcome") -> None:
    """Print the result of a round of --watch, and add it to the history."""
    content = outcome.to_json()
    _record(args, content)
    if args.json:
        print_json({"round": number, **content})
    else:
        lag = ", ".join(f"{name} {lag}" for name, lag in outcome.lags.items()) or "not reported"
        print(
            f"Round {number}: {outcome.state} in {outcome.seconds:.1f} s, "
            f"{plural(outcome.rows_read(), 'row')} read, lag: {lag}"
        )
        _print_problems(args, outcome)
    sys.stdout.flush()


def report_failure(
    args: argparse.Namespace, started: datetime, state: str, message: str, *, prints: bool
) -> None:
    """Report a run that ended without an outcome: it was rejected, failed or interrupted."""
    from headrace.pipelines.project import ProjectError, open_project, read_json

    content: dict[str, Any] = {
        "pipeline": None,
        "dry_run": args.action == "dry-run",
        "started": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - started).total_seconds(), 3),
        "flows": [],
        "errors": [],
        "warnings": [],
    }
    try:
        project = open_project(Path(args.directory))
    except (ProjectError, ModuleNotFoundError):
        pass
    else:
        content["pipeline"] = project.spec.name
        last = read_json(project.last_run) if state in (FAILED, STOPPED) else None
        # The run writes it also if it is interrupted. Times are equal in form and zone.
        if last is not None and last["started"] >= content["started"]:
            content = last
    content["state"] = state
    error = {"flow": None, "file": None, "line": None, "message": message}
    content["errors"] = [error, *content["errors"]]
    _record(args, content)
    if args.json and prints:
        print_json(content)


def _record(args: argparse.Namespace, content: dict[str, Any]) -> None:
    from headrace.pipelines import history
    from headrace.pipelines.project import ProjectError, open_project

    if content["dry_run"] or content["state"] == LOCKED:
        return
    try:
        project = open_project(Path(args.directory))
    except (ProjectError, ModuleNotFoundError):
        return
    errors, started = content["errors"], datetime.fromisoformat(content["started"])
    line = history.entry(
        started,
        started + timedelta(seconds=content["seconds"]),
        content["state"],
        flows=content["flows"],
        error=errors[0]["message"] if errors else None,
        full_refresh=named_tables(args),
    )
    try:
        history.append(project, line)
    except OSError as error:
        print(f"headrace: Cannot write the history: {error.strerror}.", file=sys.stderr)


def print_history(args: argparse.Namespace) -> int:
    from headrace.pipelines import history
    from headrace.pipelines.project import open_project

    runs = history.read(open_project(Path(args.directory)))[-args.limit :]
    if args.json:
        print_json(runs)
        return 0
    if not runs:
        print("No runs yet. Next: headrace pipeline run")
        return 0
    rows = [
        (
            run["started"],
            f"{run['seconds']:.1f} s",
            run["result"],
            ", ".join(
                f"{name} {'not reported' if count is None else count}"
                for name, count in run["rows"].items()
            ),
            run["error"] or "",
        )
        for run in runs
    ]
    print_table(("started", "took", "result", "rows written", "error"), rows)
    return 0


def _print_outcome(content: dict[str, Any]) -> None:
    flows = content["flows"]
    if content["dry_run"]:
        print_table(
            ("flow", "into", "state"),
            [(flow["flow"], flow["target"], flow["state"]) for flow in flows],
        )
        return
    rows = [
        (
            flow["flow"],
            flow["target"],
            flow["state"],
            _count(flow, "rows_read"),
            _count(flow, "rows_written"),
            "" if flow["seconds"] is None else f"{flow['seconds']:.1f} s",
            "" if flow["rows_per_s"] is None else f"{flow['rows_per_s']:,.0f} rows/s",
            "" if flow["lag"] is None else flow["lag"],
        )
        for flow in flows
    ]
    print_table(("flow", "into", "state", "read", "written", "took", "rate", "lag"), rows)
    print(f"{content['pipeline']}: {content['state']} in {content['seconds']:.1f} s")


def _count(flow: dict[str, Any], key: str) -> object:
    """A number, or that it is unknown: Spark does not report it for every flow."""
    if flow[key] is not None:
        return flow[key]
    return "not reported" if flow["state"] == COMPLETED else ""


def _print_problems(args: argparse.Namespace, outcome: "Outcome") -> None:
    for warning in outcome.warnings:
        print(f"\nwarning: {warning}")
    print_each_problem(outcome.problems, whole=args.verbose)


def print_each_problem(problems: "Sequence[Problem]", *, whole: bool) -> None:
    for problem in problems:
        print(f"\n{problem}")
        if whole:
            print(problem.detail.rstrip())


def _print_next(args: argparse.Namespace, outcome: "Outcome") -> None:
    """Print the next useful command."""
    directory = "" if args.directory == "." else f" {shlex.quote(args.directory)}"
    if outcome.state != COMPLETED:
        command = "" if args.verbose else f"headrace pipeline {args.action}{directory} --verbose"
        purpose = "print complete errors, including Java's"
    elif outcome.dry:
        command, purpose = f"headrace pipeline run{directory}", "fill the tables"
    else:
        stored = [n.name for n in outcome.graph.nodes.values() if n.kind in ("table", "view")]
        option = f" --directory{directory}" if directory else ""
        command = f"headrace pipeline show {stored[-1]}{option}" if stored else ""
        purpose = "print rows of a table"
    if command:
        print(f"\nNext: {command}  # {purpose}")
