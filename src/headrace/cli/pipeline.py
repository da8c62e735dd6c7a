"""`headrace pipeline`: make, run, watch and draw Spark Declarative Pipelines over topics."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.cli.connection import (
    FALLBACK,
    VARIABLE,
    add_json_argument,
    name_and_value,
)
from headrace.cli.failure import Failure
from headrace.cli.output import plural, print_json, print_table

if TYPE_CHECKING:
    from headrace.pipelines.outcome import Outcome
    from headrace.pipelines.project import Project
    from headrace.pipelines.running import Request, Runner
    from headrace.pipelines.server import Server
    from headrace.pipelines.trouble import Trouble

_RETRY_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "write the project of a sample pipeline"
    init = actions.add_parser("init", help=summary, description=summary)
    init.set_defaults(run_action=_init)
    init.add_argument("name", metavar="NAME", help="its name, and the directory to make")
    init.add_argument("--avro", action="store_true", help="events are Avro instead of JSON")
    _add_bootstrap_argument(init)
    run = _add(actions, "run", "run every flow once, on what is new", _run)
    run.add_argument(
        "--full-refresh",
        action="append",
        default=[],
        metavar="TABLE",
        help="empty this table and fill it from the start, or 'all'; may be repeated",
    )
    run.add_argument(
        "--watch", action="store_true", help="run again and again on one server, until Ctrl-C"
    )
    add_json_argument(run)
    _add_spark_arguments(run)
    status = _add(actions, "status", "show the last run, and how far behind flows are", _status)
    add_json_argument(status)
    graph = _add(actions, "graph", "draw what the last run or dry-run found", _graph)
    graph.add_argument(
        "--output", metavar="FILE", help="the SVG to write (default: in the project's .headrace)"
    )
    add_json_argument(graph)
    dry_run = _add(actions, "dry-run", "check the definitions, and run nothing", _dry_run)
    add_json_argument(dry_run)
    _add_spark_arguments(dry_run)


def _add(actions: Any, name: str, summary: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=summary)
    parser.set_defaults(run_action=run)
    parser.add_argument(
        "directory", nargs="?", default=".", metavar="DIR", help="the project (default: here)"
    )
    _add_bootstrap_argument(parser)
    return parser


def _add_bootstrap_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        default=None,
        help=f"broker, or several with commas (default: ${VARIABLE}, else the project's own, "
        f"else {FALLBACK})",
    )


def _add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--remote", metavar="sc://HOST:PORT", help="use this Spark Connect server, which runs"
    )
    where.add_argument(
        "--master",
        default="local[*]",
        metavar="URL",
        help="start a server on this master of Spark (default: local[*])",
    )
    parser.add_argument(
        "--conf",
        action="append",
        type=name_and_value,
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark's or of the project's, before its own; may be repeated",
    )
    parser.add_argument("--verbose", action="store_true", help="show errors whole, Java's too")


def run(args: argparse.Namespace) -> int:
    from headrace.pipelines.project import ProjectError

    try:
        code: int = args.run_action(args)
    except ProjectError as error:
        raise Failure(str(error)) from error
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "headrace":
            raise
        raise Failure(
            f"pipelines need {error.name}, and it is not installed: "
            "pip install 'headrace[pipelines]'"
        ) from error
    return code


def _bootstrap(args: argparse.Namespace) -> str | None:
    return args.bootstrap_server or os.environ.get(VARIABLE)


def _init(args: argparse.Namespace) -> int:
    from headrace.pipelines.sample import write_project

    directory = Path(args.name)
    address = _bootstrap(args) or FALLBACK
    try:
        written = write_project(directory, name=directory.name, bootstrap=address, avro=args.avro)
    except (FileExistsError, ValueError) as error:
        raise Failure(str(error), 2) from error
    for path in written:
        print(path)
    if args.avro and find_spec("fastavro") is None:
        print("\nAvro needs a library that is not installed: pip install 'headrace[avro]'")
    steps = f"cd {directory} && python generate.py && headrace pipeline run"
    print(f"\nNext, beside a running broker: {steps} (its README.md says more)")
    return 0


def _run(args: argparse.Namespace) -> int:
    from headrace.pipelines.running import Request

    names = _named(args)
    request = Request(
        full_refresh=tuple(name for name in names if name != "all"),
        full_refresh_all="all" in names,
    )
    if args.watch:
        return _watch(args, request)
    with _runner(args) as runner:
        outcome = _round(args, runner, request)
    return _told(args, outcome)


def _named(args: argparse.Namespace) -> list[str]:
    """The tables that --full-refresh names."""
    given = getattr(args, "full_refresh", ())
    return [name for names in given for name in names.split(",") if name]


def _dry_run(args: argparse.Namespace) -> int:
    from headrace.pipelines.running import Request

    with _runner(args) as runner:
        outcome = _round(args, runner, Request(dry=True))
    return _told(args, outcome)


def _round(args: argparse.Namespace, runner: "Runner", request: "Request") -> "Outcome":
    from headrace.pipelines.running import RunFailed

    try:
        return runner.run(request)
    except RunFailed as failure:
        more = f"\n{failure.detail}" if args.verbose and failure.detail else ""
        raise Failure(failure.message + more) from failure


@contextmanager
def _runner(args: argparse.Namespace) -> "Iterator[Runner]":
    """Spark, started or found, and what runs a pipeline there."""
    from headrace.cli.pipeline_screen import screen
    from headrace.pipelines.preflight import check
    from headrace.pipelines.project import WAREHOUSE, open_project

    project = open_project(Path(args.directory))
    if not project.files():
        raise Failure(
            f"{project.directory} defines nothing: 'libraries' names no file that is there"
        )
    for_server, for_session = _given(args, project)
    configuration = project.configuration(_bootstrap(args), for_session)
    if WAREHOUSE in configuration:
        for_server.setdefault("spark.sql.warehouse.dir", configuration[WAREHOUSE])
    names = [name for name in _named(args) if name != "all"]
    # A broker that is down might return while the command watches.
    watches = getattr(args, "watch", False)
    check(project, configuration, full_refresh=names, reaches_brokers=not watches)
    # As Ctrl-C: what was started has to end.
    signal.signal(signal.SIGTERM, _interrupt)
    with screen(quiet=args.json) as show:
        # What follows the host may be a secret.
        remote = (args.remote or "").partition("/;")[0]
        show.say(f"Connecting to {remote}" if remote else "Starting Spark")
        with _server(args, project, for_server) as server:
            from headrace.pipelines.running import RunFailed, Runner, session

            try:
                with session(server.address, configuration) as spark:
                    show.say("Loading the definitions")
                    yield Runner(project, spark, configuration, mark=server.mark, show=show)
            except RunFailed as failure:
                raise Failure(failure.message) from failure
            finally:
                if not remote:
                    show.say("Stopping Spark")


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _given(args: argparse.Namespace, project: "Project") -> tuple[dict[str, str], dict[str, str]]:
    """What --conf says: to the server that is started, and to the session.

    Spark takes many of its settings only when it starts.
    """
    given = dict(args.conf)
    if args.remote is not None:
        return {}, given
    for_server = {name: value for name, value in given.items() if name.startswith("spark.")}
    own = project.spec.configuration
    return for_server, {
        name: value for name, value in given.items() if name not in for_server or name in own
    }


@contextmanager
def _server(
    args: argparse.Namespace, project: "Project", settings: dict[str, str]
) -> "Iterator[Server]":
    from headrace.pipelines.server import Server, check_master, check_remote, running_server

    if args.remote is not None:
        check_remote(args.remote)
        yield Server(args.remote)
        return
    check_master(args.master)
    project.prepare_state()
    with running_server(project, args.master, settings) as server:
        yield server


def _watch(args: argparse.Namespace, request: "Request") -> int:
    """Run rounds until Ctrl-C; the next one starts when a source has new data."""
    from dataclasses import replace

    with _runner(args) as runner:
        from headrace.pipelines.news import Watcher

        watcher, graph = Watcher(runner), None
        for number in count(1):
            watcher.begin(graph)
            try:
                outcome = _round(args, runner, request)
            except Failure as failure:
                # The broker might return.
                print(f"headrace: round {number}: {failure.message}", file=sys.stderr, flush=True)
                time.sleep(_RETRY_S)
                continue
            request = replace(request, full_refresh=(), full_refresh_all=False)
            graph = outcome.graph
            _tell_round(args, number, outcome)
            watcher.wait(outcome)
    raise AssertionError


def _tell_round(args: argparse.Namespace, number: int, outcome: "Outcome") -> None:
    if args.json:
        print_json({"round": number, **outcome.to_json()})
    else:
        lag = ", ".join(f"{name} {lag}" for name, lag in outcome.lags.items()) or "not reported"
        print(
            f"Round {number}: {outcome.state} in {outcome.seconds:.1f} s, "
            f"{plural(outcome.rows_read(), 'row')} read, lag: {lag}"
        )
        _print_troubles(outcome.troubles, whole=args.verbose)
    sys.stdout.flush()


def _status(args: argparse.Namespace) -> int:
    from headrace.client import ClientError
    from headrace.pipelines.project import BOOTSTRAP, open_project
    from headrace.pipelines.status import read_status, with_lags
    from headrace.pipelines.trouble import Trouble

    project = open_project(Path(args.directory))
    address = project.configuration(_bootstrap(args))[BOOTSTRAP]
    status = read_status(project)
    try:
        status = with_lags(project, status, address)
    except (ClientError, ValueError):
        print(f"headrace: no broker answers at {address}: lag is not known", file=sys.stderr)
    if args.json:
        print_json(status)
        return 0
    last = status["last_run"]
    if last is None:
        print(f"{status['pipeline']} has not run yet")
    else:
        ended = f"{last['state']} after {last['seconds']:.1f} s"
        print(f"{status['pipeline']}: last run {ended}, begun at {last['started']}")
    rows = [
        (
            flow["flow"],
            flow["target"],
            flow["state"],
            flow["rows_read"],
            flow["rows_written"],
            flow["batch"],
            flow["checkpoint"],
            flow["lag"],
        )
        for flow in status["flows"]
    ]
    print_table(("flow", "into", "state", "read", "written", "batch", "checkpoint", "lag"), rows)
    errors = last["errors"] if last else ()
    _print_troubles([Trouble(**error, detail="") for error in errors], whole=False)
    return 0


def _graph(args: argparse.Namespace) -> int:
    from headrace.pipelines.drawing import svg, text
    from headrace.pipelines.graph import graph_of
    from headrace.pipelines.project import open_project, read_json

    project = open_project(Path(args.directory))
    content = read_json(project.graph)
    if content is None:
        raise Failure(
            "nothing is known of this pipeline yet: 'headrace pipeline dry-run' finds out"
        )
    graph = graph_of(content)
    picture = Path(args.output) if args.output else project.picture
    picture.write_text(svg(graph), encoding="utf-8")
    if args.json:
        print_json({**content, "picture": str(picture)})
    else:
        print(text(graph))
        print(f"\nThe picture is in {picture}")
    return 0


def _told(args: argparse.Namespace, outcome: "Outcome") -> int:
    """Print what happened; the exit code."""
    content = outcome.to_json()
    if args.json:
        print_json(content)
    else:
        _print_outcome(content)
        _print_troubles(outcome.troubles, whole=args.verbose)
    return 0 if outcome.state == "completed" else 1


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
    """A number, or that there is none: Spark does not tell it of every flow."""
    if flow[key] is not None:
        return flow[key]
    return "not reported" if flow["state"] == "completed" else ""


def _print_troubles(troubles: "Sequence[Trouble]", *, whole: bool) -> None:
    for trouble in troubles:
        print(f"\n{trouble}")
        if whole:
            print(trouble.detail.rstrip())
    if troubles and not whole:
        print("\n'headrace pipeline run --verbose' shows errors whole.")
