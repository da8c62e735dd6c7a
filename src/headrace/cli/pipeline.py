"""`headrace pipeline`: create, run, watch and draw Spark Declarative Pipelines over topics."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.cli.connection import (
    ADDRESS_VARIABLE,
    DEFAULT_ADDRESS,
    add_connection_arguments,
    add_json_argument,
    name_and_value,
    positive_number,
    sentence,
)
from headrace.cli.credentials import config_path
from headrace.cli.failure import Failure, as_sentence
from headrace.cli.output import print_json, print_table
from headrace.cli.pipeline_init import add_init
from headrace.cli.pipeline_report import (
    FAILED,
    LOCKED,
    REJECTED,
    STOPPED,
    named_tables,
    print_each_problem,
    print_history,
    report,
    report_failure,
    report_round,
)
from headrace.cli.pipeline_show import add_show
from headrace.env.extras import install_command

if TYPE_CHECKING:
    from headrace.pipelines.outcome import Outcome, Request
    from headrace.pipelines.project import Project
    from headrace.pipelines.running import Runner
    from headrace.pipelines.server import Server

_NewSession = Callable[[], AbstractContextManager["Runner"]]
_RETRY_S = 1.0
# Spark keeps the plans and queries of each round until the session ends, several megabytes.
_ROUNDS_PER_SESSION = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_init(actions)
    run = _add(actions, "run", "run every flow once, on new records", _run)
    run.add_argument(
        "--full-refresh",
        action="append",
        default=[],
        metavar="TABLE",
        help="empty this table, or 'all' tables, and fill it from the start; can be repeated",
    )
    run.add_argument(
        "--watch", action="store_true", help="repeat the run when new records arrive, until Ctrl-C"
    )
    run.add_argument(
        "--interval",
        type=positive_number,
        metavar="SECONDS",
        help="with --watch: minimum time between the starts of two rounds, for fewer and larger "
        "files (default: 0, a round starts when a source has new data)",
    )
    add_json_argument(run)
    _add_spark_arguments(run)
    status = _add(actions, "status", "show the last run and the lag of each flow", _status)
    add_json_argument(status)
    history = _add(actions, "history", "list the last runs, oldest first", print_history)
    history.add_argument(
        "--limit",
        type=positive_number,
        default=20,
        metavar="N",
        help="number of runs (default: 20)",
    )
    add_json_argument(history)
    add_show(actions)
    graph = _add(actions, "graph", "draw the tables and flows of the last run or dry run", _graph)
    graph.add_argument(
        "--output", metavar="FILE", help="the SVG to write (default: in the project's .headrace)"
    )
    add_json_argument(graph)
    dry_run = _add(actions, "dry-run", "check the definitions without running a flow", _dry_run)
    add_json_argument(dry_run)
    _add_spark_arguments(dry_run)


def _add(actions: Any, name: str, summary: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=sentence(summary)
    )
    parser.set_defaults(run_action=run)
    parser.add_argument(
        "directory",
        nargs="?",
        default=".",
        metavar="DIR",
        help="directory of the project (default: .)",
    )
    add_connection_arguments(parser, f"the project's own, else {DEFAULT_ADDRESS}")
    return parser


def _add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--remote", metavar="sc://HOST:PORT", help="use this running Spark Connect server"
    )
    where.add_argument(
        "--master",
        default="local[*]",
        metavar="URL",
        help="start a Spark server on this master (default: local[*])",
    )
    parser.add_argument(
        "--pack",
        nargs="?",
        const="",
        default=None,
        metavar="FILE",
        help="send this archive of 'headrace spark pack' to the executors of the master; without "
        "FILE, build one in the project's .headrace and keep it for later runs",
    )
    parser.add_argument(
        "--conf",
        action="append",
        type=name_and_value,
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark or of the project, instead of the project's own; can be repeated",
    )
    parser.add_argument(
        "--jars",
        metavar="PATH,...",
        help="jars for Spark, such as a table format (default: the tested build, from Maven)",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print complete errors, including Java's"
    )


def run(args: argparse.Namespace) -> int:
    from headrace.pipelines.project import ProjectError

    started = datetime.now(UTC)
    try:
        try:
            code: int = args.run_action(args)
        except ProjectError as error:
            raise Failure(as_sentence(str(error)), error.exit_code) from error
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "headrace":
                raise
            raise Failure(
                f"headrace pipeline requires {error.name}, which is not installed. "
                f"Run: {install_command('pipelines')}",
                2,
            ) from error
    except (Failure, KeyboardInterrupt) as failure:
        if args.action in ("run", "dry-run"):
            _report_end(args, started, failure)
        raise
    return code


def _report_end(
    args: argparse.Namespace, started: datetime, failure: Failure | KeyboardInterrupt
) -> None:
    """Report a run that did not end with an outcome."""
    watches = getattr(args, "watch", False)
    if isinstance(failure, KeyboardInterrupt):
        if not watches:
            report_failure(args, started, STOPPED, "interrupted", prints=True)
        return
    state = {2: REJECTED, 3: LOCKED}.get(failure.exit_code, FAILED)
    report_failure(args, started, state, failure.message, prints=True)


def _bootstrap(args: argparse.Namespace) -> str | None:
    return args.bootstrap_server or os.environ.get(ADDRESS_VARIABLE)


def _run(args: argparse.Namespace) -> int:
    from headrace.pipelines.outcome import Request

    if args.interval is not None and not args.watch:
        raise Failure("--interval requires --watch: a single run has no next round.", exit_code=2)
    names = named_tables(args)
    request = Request(
        full_refresh=tuple(name for name in names if name != "all"),
        full_refresh_all="all" in names,
    )
    if args.watch:
        return _watch(args, request)
    with _runner(args) as runner:
        outcome = _round(args, runner, request)
    return report(args, outcome)


def _dry_run(args: argparse.Namespace) -> int:
    from headrace.pipelines.outcome import Request

    with _runner(args) as runner:
        outcome = _round(args, runner, Request(dry=True))
    return report(args, outcome)


def _round(args: argparse.Namespace, runner: "Runner", request: "Request") -> "Outcome":
    from headrace.pipelines.running import RunFailed

    try:
        return runner.run(request)
    except RunFailed as failure:
        more = f"\n{failure.detail}" if args.verbose and failure.detail else ""
        raise Failure(as_sentence(failure.message) + more) from failure


@contextmanager
def _runner(args: argparse.Namespace) -> "Iterator[Runner]":
    """Start Spark or connect to it; yields the runner of the pipeline."""
    with _sessions(args) as new_session, new_session() as runner:
        yield runner


@contextmanager
def _sessions(args: argparse.Namespace) -> "Iterator[_NewSession]":
    """Start Spark or find it; yields a function that opens a session with a runner."""
    from headrace.cli.pipeline_screen import screen
    from headrace.pipelines.formats import server_settings
    from headrace.pipelines.lock import run_lock
    from headrace.pipelines.preflight import check, check_packages
    from headrace.pipelines.project import FORMAT, WAREHOUSE, open_project
    from headrace.spark.sessions import has_no_executors

    if args.pack is not None and (args.remote is not None or has_no_executors(args.master)):
        where = "--remote" if args.remote is not None else f"--master {args.master}"
        raise Failure(f"--pack has no effect with {where}. Use it with --master of a cluster.", 2)
    # Handle SIGTERM like Ctrl-C: end all processes that this command started.
    signal.signal(signal.SIGTERM, _interrupt)
    project = open_project(Path(args.directory))
    if not project.files():
        raise Failure(
            f"Project {project.directory} defines no tables: 'libraries' matches no file. Add one, "
            "such as transformations/tables.py.",
            2,
        )
    for_server, for_session = _given(args, project)
    configuration = project.configuration(_bootstrap(args), for_session, config_path(args))
    version = check_packages(starts_spark=args.remote is None)
    check_jars(args.jars)
    if args.remote is None:
        warehouse = configuration.get(WAREHOUSE, str(project.warehouse))
        for_server.setdefault("spark.sql.warehouse.dir", warehouse)
        for_server = server_settings(
            configuration.get(FORMAT),
            version,
            warehouse,
            is_local=args.master.startswith("local"),
            jars=args.jars,
            given=for_server,
        )
    elif args.jars is not None:
        raise Failure(
            "--jars requires a Spark server that this command starts. Remove --remote.", 2
        )
    names = [name for name in named_tables(args) if name != "all"]
    # A broker that is down might return while the command watches.
    watches = getattr(args, "watch", False)
    check(project, configuration, full_refresh=names, reaches_brokers=not watches)
    _check_spark(args)
    with run_lock(project), screen() as show:
        # The parameters after the host can contain a secret.
        remote = (args.remote or "").partition("/;")[0]
        for_server |= _pack(args, project, for_server, show.say)
        show.say(f"Connecting to {remote}" if remote else "Starting Spark")
        with _server(args, project, for_server) as server:
            from headrace.pipelines.remote import end_former_session, recorded_session
            from headrace.pipelines.running import RunFailed, Runner, session
            from headrace.pipelines.workers import end_session_daemons

            own = server.mark is not None

            @contextmanager
            def new_session() -> "Iterator[Runner]":
                try:
                    with (
                        session(server.address, configuration, is_own_server=own) as spark,
                        nullcontext() if own else recorded_session(project, server.address, spark),
                    ):
                        yield Runner(project, spark, configuration, server, show)
                except RunFailed as failure:
                    raise Failure(as_sentence(failure.message)) from failure
                finally:
                    end_session_daemons(server.mark)

            if not own:
                end_former_session(project, server.address)
            show.say("Loading the definitions")
            try:
                yield new_session
            finally:
                if not remote:
                    show.say("Stopping Spark")


def check_jars(jars: str | None) -> None:
    """Reject a jar that does not exist: Spark would log this and start without it."""
    for jar in (jars or "").split(","):
        if jar and ":" not in jar and not Path(jar).is_file():
            raise Failure(f"--jars: {jar} is not a file. Correct the path.", 2)


def _check_spark(args: argparse.Namespace) -> None:
    """Reject a server or a master that does not respond."""
    from headrace.pipelines.server import check_master, check_remote

    if args.remote is not None:
        check_remote(args.remote)
    else:
        check_master(args.master)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _given(args: argparse.Namespace, project: "Project") -> tuple[dict[str, str], dict[str, str]]:
    """The settings of --conf: for the server that is started, and for the session.

    Spark reads many settings only when it starts.
    """
    given = dict(args.conf)
    if args.remote is not None:
        return {}, given
    for_server = {name: value for name, value in given.items() if name.startswith("spark.")}
    own = project.spec.configuration
    return for_server, {
        name: value for name, value in given.items() if name not in for_server or name in own
    }


def _pack(
    args: argparse.Namespace,
    project: "Project",
    settings: dict[str, str],
    say: Callable[[str], None],
) -> dict[str, str]:
    """The settings with which executors run Python from the archive that --pack names."""
    from headrace.spark.packing import PackError, pack_if_changed, pack_settings

    if args.pack is None:
        return {}
    archive = Path(args.pack) if args.pack else project.state / "environment.tar.gz"
    try:
        if not args.pack:
            say("Packing Python and Headrace for the executors")
            project.prepare_state()
            pack_if_changed(archive)
        return pack_settings(archive, settings)
    except PackError as error:
        raise Failure(as_sentence(str(error))) from error


@contextmanager
def _server(
    args: argparse.Namespace, project: "Project", settings: dict[str, str]
) -> "Iterator[Server]":
    from headrace.pipelines.server import Server, running_server

    if args.remote is not None:
        yield Server(args.remote)
        return
    with running_server(project, args.master, settings) as server:
        yield server


def _watch(args: argparse.Namespace, request: "Request") -> int:
    """Run rounds until Ctrl-C; the next one starts when a source has new data."""
    from dataclasses import replace

    with _sessions(args) as new_session:
        from headrace.pipelines.news import Watcher

        watcher, graph, numbers = Watcher(args.interval or 0), None, count(1)
        while True:
            with new_session() as runner:
                for number in islice(numbers, _ROUNDS_PER_SESSION):
                    watcher.begin(runner, graph)
                    started = datetime.now(UTC)
                    try:
                        outcome = _round(args, runner, request)
                    except Failure as failure:
                        # The broker might return.
                        message = failure.message
                        print(f"headrace: round {number}: {message}", file=sys.stderr, flush=True)
                        report_failure(args, started, FAILED, message, prints=False)
                        time.sleep(_RETRY_S)
                        continue
                    except KeyboardInterrupt:
                        report_failure(args, started, STOPPED, "interrupted", prints=False)
                        raise
                    request = replace(request, full_refresh=(), full_refresh_all=False)
                    graph = outcome.graph
                    report_round(args, number, outcome)
                    watcher.wait(outcome)


def _status(args: argparse.Namespace) -> int:
    from headrace.client import ClientError
    from headrace.pipelines.problems import Problem
    from headrace.pipelines.project import BOOTSTRAP, open_project
    from headrace.pipelines.status import read_status, with_lags

    project = open_project(Path(args.directory))
    configuration = project.configuration(_bootstrap(args), config=config_path(args))
    address = configuration[BOOTSTRAP]
    status = read_status(project)
    try:
        status = with_lags(project, status, configuration)
    except (ClientError, ValueError):
        print(f"headrace: No broker responds at {address}: the lag is unknown.", file=sys.stderr)
    if args.json:
        print_json(status)
        return 0
    last = status["last_run"]
    if last is None:
        print(f"{status['pipeline']}: no runs yet")
    else:
        ended = f"{last['state']} after {last['seconds']:.1f} s"
        print(f"{status['pipeline']}: last run {ended}, started at {last['started']}")
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
    print_each_problem([Problem(**error, detail="") for error in errors], whole=False)
    return 0


def _graph(args: argparse.Namespace) -> int:
    from headrace.pipelines.drawing import svg, text
    from headrace.pipelines.graph import graph_of
    from headrace.pipelines.project import open_project, read_json

    project = open_project(Path(args.directory))
    content = read_json(project.graph)
    if content is None:
        raise Failure(
            "The tables of this pipeline are not known yet. Run: headrace pipeline dry-run"
        )
    graph = graph_of(content)
    picture = Path(args.output) if args.output else project.picture
    try:
        picture.write_text(svg(graph), encoding="utf-8")
    except OSError as error:
        raise Failure(f"Cannot write {picture}: {error.strerror}.") from None
    if args.json:
        print_json({**content, "picture": str(picture)})
    else:
        print(text(graph))
        print(f"\nDiagram: {picture}")
    return 0
