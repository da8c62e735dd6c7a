"""End the Python processes of queries that have finished.

Spark starts separate Python daemons for each query: each query copies the session with a new id,
and Spark finds daemons by the id of the session. No later query uses them, and Spark keeps
them until the server stops. Eight per round add up to gigabytes within minutes.

1. Daemons of the pipeline's own session are kept: every round uses them again, and Spark 4.3 does
   not recover if they end.
2. Daemons that run tasks are shared by all queries and are kept.
3. The daemons of the pipeline's own session are ended after the session.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from headrace.spark.sessions import marked_processes

_SESSION = b"SPARK_JOB_ARTIFACT_UUID="
# Workers that run tasks, for all sessions.
_SHARED = _SESSION + b"default"
_DAEMON = b"pyspark.daemon"
_END_TIMEOUT_S = 10.0


class QueryWorkers:
    def __init__(self, spark: Any, mark: str | None) -> None:
        """`mark` is in the environment of all processes of the server; None for a shared server."""
        self._spark = spark
        self._mark = mark
        self._kept: set[bytes] = set()

    def keep(self) -> None:
        """Find the id of the pipeline's own session, before its first query runs."""
        if self._mark is None or self._kept:
            return
        with suppress(PySparkException):
            # This fails, because options are missing, but Spark starts a worker of the session.
            self._spark.read.format("headrace").load().schema  # noqa: B018
        self._kept = {_SHARED, *_daemons(self._mark).values()}

    def end(self) -> None:
        """End the daemons of all other sessions. No query may be running."""
        if self._kept:
            _end_daemons(self._mark, self._kept)


def end_session_daemons(mark: str | None) -> None:
    """End the daemons of the pipeline's session, which has ended: the next one starts its own."""
    _end_daemons(mark, {_SHARED, b""})


def _end_daemons(mark: str | None, kept: set[bytes]) -> None:
    ended = [pid for pid, session in _daemons(mark).items() if session not in kept]
    for pid in ended:
        with suppress(ProcessLookupError):
            # A daemon ends its workers before it exits.
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _END_TIMEOUT_S
    while any(Path(f"/proc/{pid}").exists() for pid in ended) and time.monotonic() < deadline:
        time.sleep(0.01)


def _daemons(mark: str | None) -> dict[int, bytes]:
    """The session of each daemon and worker."""
    found = {}
    for pid in () if mark is None else marked_processes(mark):
        with suppress(OSError):
            about = Path(f"/proc/{pid}")
            if _DAEMON in (about / "cmdline").read_bytes():
                names = (about / "environ").read_bytes().split(b"\0")
                session = [name for name in names if name.startswith(_SESSION)]
                found[pid] = session[0] if session else b""
    return found
