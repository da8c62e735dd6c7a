"""A Spark Connect server that is started for a run and ends with it.

Owns the process, its settings in `.headrace/conf` and its temporary directory.

1. The server ends when this process ends, even if it is killed. Its temporary directory is removed
   at the end or before the next start.
2. The catalog is a Derby database in `.headrace/`, which remains between runs. Only one process
   at a time can open it.
3. The server listens only on the loopback interface, and rejects clients without the token.
"""

import re
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from headrace.ensemble.child import Child, ChildFailed
from headrace.env.extras import install_command
from headrace.pipelines.lock import Locked
from headrace.pipelines.project import FAILED, Project, ProjectError
from headrace.spark.sessions import (
    CHECKPOINT_MANAGER,
    LOCAL_SETTINGS,
    MARK,
    SETTINGS,
    java_home,
    socket_settings,
    wait_for_workers,
    worker_python,
)

_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 20.0
_REACH_TIMEOUT_S = 10.0
_CONNECT_PORT = 15002
# Runs are short, and Java's second compiler would use a third of their processor time. With at
# least 20 times the default thresholds, it compiles only code that many rows pass through. The heap
# grows only if collections take a fifth of the time, instead of a thirteenth.
_JAVA_OPTIONS = (
    "-XX:GCTimeRatio=4 -XX:Tier4InvocationThreshold=100000 -XX:Tier4MinInvocationThreshold=20000 "
    "-XX:Tier4CompileThreshold=300000 -XX:Tier4BackEdgeThreshold=800000"
)
# Spark's default keeps the plans and metrics of the last 1,000 queries for its web interface, which
# is disabled. With several queries per round of --watch, the memory would grow for minutes.
_KEPT = dict.fromkeys(
    (
        "spark.ui.retainedJobs",
        "spark.ui.retainedStages",
        "spark.sql.ui.retainedExecutions",
        "spark.sql.streaming.ui.retainedQueries",
        "spark.connect.ui.retainedStatements",
    ),
    "20",
)
_STARTED = re.compile(r"Spark Connect server started at: \S*:(\d+)")
# The messages of Java exceptions, without their stacks.
_REASON = re.compile(
    r"^(?:Caused by: |Exception in thread \S+ )?[\w.$]*(?:Exception|Error): (.+)$", re.MULTILINE
)
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_OUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n%ex
logger.server.name = org.apache.spark.sql.connect.service.SparkConnectServer
logger.server.level = info
logger.hive.name = org.apache.hadoop.hive
logger.hive.level = error
"""


class ServerFailed(ProjectError):
    """Spark did not start."""

    exit_code = FAILED


@dataclass(frozen=True)
class Server:
    address: str
    """The address for a session."""
    mark: str | None = None
    """A value in the environment of all processes of the server; None for another server."""
    ended: Callable[[], str | None] = lambda: None
    """How a server that this process started has ended; None if it is running."""


@contextmanager
def running_server(
    project: Project, master: str, settings: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a server; the given settings override its own."""
    state = project.state
    scratch, conf = state / "tmp", state / "conf"
    token, mark = secrets.token_urlsafe(), secrets.token_hex()
    child = Child("Spark", _command(master), state / "server.log")
    try:
        with _reported():
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            conf.mkdir(exist_ok=True)
            (conf / "log4j2.properties").write_text(_LOGGING)
            wanted = {**_settings(project, scratch, master, token), **(settings or {})}
            _write_settings(conf / "spark-defaults.conf", wanted)
            child.start(under=_environment(conf, scratch, master, mark))
        port = _wait(child)
        yield Server(
            f"sc://localhost:{port}/;token={token}",
            mark,
            lambda: None if child.running else f"{child.exit_text()} ({child.output} has more)",
        )
    finally:
        child.stop(_STOP_TIMEOUT_S)
        wait_for_workers(mark)
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _reported() -> Iterator[None]:
    """Raise ServerFailed for an error of the file system, such as a full disk."""
    try:
        yield
    except OSError as error:
        raise ServerFailed(f"Spark did not start: {error}. Correct this and run again") from error


def _home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ProjectError(f"PySpark is not installed. Run: {install_command('pipelines')}")
    return Path(spec.origin).parent


def _command(master: str) -> list[str]:
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = str(_home() / "bin" / "spark-submit")
    named = ["--name", "headrace-pipeline", "--master", master]
    return [submit, "--class", main, *named, "spark-internal"]


def _environment(conf: Path, scratch: Path, master: str, mark: str) -> list[str]:
    """The command that sets the server's environment and becomes the server."""
    wanted = {
        "SPARK_HOME": str(_home()),
        "SPARK_CONF_DIR": str(conf),
        "JAVA_HOME": java_home(),
        "PYSPARK_PYTHON": worker_python() if master.startswith("local") else sys.executable,
        "TMPDIR": str(scratch),
        "SPARK_LOCAL_DIRS": str(scratch),
        MARK: mark,
    }
    removed = ["-u", "SPARK_REMOTE", "-u", "PYSPARK_GATEWAY_PORT"]
    return ["env", *removed, *(f"{name}={value}" for name, value in wanted.items())]


def _settings(project: Project, scratch: Path, master: str, token: str) -> dict[str, str]:
    is_local, state = master.startswith("local"), project.state
    local = {**LOCAL_SETTINGS, **socket_settings()} if is_local else {}
    if project.checkpoints is None:
        # This setting is for local files; for other file systems, Spark has a default.
        local.pop(CHECKPOINT_MANAGER, None)
    return {
        **SETTINGS,
        **local,
        **_KEPT,
        **({"spark.driver.host": "127.0.0.1"} if is_local else {}),
        "spark.connect.authenticate.token": token,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.defaultJavaOptions": _JAVA_OPTIONS,
        "spark.driver.extraJavaOptions": (
            f'-XX:-UsePerfData -Djava.io.tmpdir="{scratch}" '
            f'-Dderby.stream.error.file="{scratch / "derby.log"}"'
        ),
        "spark.hadoop.hive.exec.scratchdir": str(scratch / "hive"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={state / 'metastore'};create=true"
        ),
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(project.warehouse),
        "spark.ui.enabled": "false",
    }


def _write_settings(path: Path, settings: Mapping[str, str]) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))


def _wait(child: Child) -> int:
    """Wait until the server listens; returns its port."""
    try:
        child.wait_until(lambda: _STARTED.search(_log(child)) is not None, _START_TIMEOUT_S)
    except ChildFailed as failure:
        if "Another instance of Derby may have already booted" in _log(child):
            raise Locked(
                "another process has the catalog of this pipeline open. Run again when it has ended"
            ) from failure
        reasons = _REASON.findall(_log(child))
        message = f"Spark did not start: {reasons[-1]}" if reasons else str(failure)
        raise ServerFailed(f"{message} ({child.output} has more)") from failure
    found = _STARTED.search(_log(child))
    assert found is not None
    return int(found[1])


def _log(child: Child) -> str:
    return child.output.read_text(encoding="utf-8", errors="replace")


def check_remote(address: str) -> None:
    """Reject a Spark Connect server that does not respond: a session would retry for minutes."""
    url = urlsplit(address)
    # The rest can contain a token.
    shown = address.partition("/;")[0]
    try:
        if url.scheme != "sc" or not url.hostname:
            raise ValueError("the form is sc://HOST:15002")
        endpoint = url.hostname, url.port or _CONNECT_PORT
    except ValueError as error:
        raise ProjectError(f"{shown!r} is not a Spark Connect address: {error}") from None
    try:
        socket.create_connection(endpoint, _REACH_TIMEOUT_S).close()
    except OSError as error:
        raise ProjectError(
            f"no Spark Connect server responds at {shown}: {error}. Start it and run again"
        ) from error


def check_master(master: str) -> None:
    """Reject a standalone master that does not respond. The URL can name several masters."""
    if not master.startswith("spark://"):
        return
    errors = []
    for endpoint in [_endpoint(part, master) for part in master[len("spark://") :].split(",")]:
        try:
            socket.create_connection(endpoint, _REACH_TIMEOUT_S).close()
        except OSError as error:
            errors.append(error)
        else:
            return
    raise ProjectError(f"no Spark master responds at {master}: {errors[0]}. Start it and run again")


def _endpoint(text: str, master: str) -> tuple[str, int]:
    try:
        url = urlsplit(f"spark://{text.strip()}")
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ProjectError(
            f"{master!r} is not the URL of a Spark master: {text!r} is not HOST:PORT. "
            "The form is spark://HOST:7077, or spark://HOST:7077,HOST:7077"
        )
    return host, port
