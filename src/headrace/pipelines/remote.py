"""End the session of a run that was killed while a Spark Connect server executed it.

The server does not notice that its client was killed, and continues the run. Spark does not prevent
two runs from filling the same view, which would then contain each row twice. So a run records its
session, and the next run ends that session before its first flow.

1. The record contains no token. It is deleted only when the run ends normally.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.pipelines.project import Project, read_json, write_json
from headrace.spark.pyspark_api import end_session


def end_former_session(project: Project, address: str) -> None:
    """End the session of the last run, if that run did not end it."""
    former = read_json(project.remote)
    if former is not None and former["server"] == _server(address):
        end_session(address, former["session"])


@contextmanager
def recorded_session(project: Project, address: str, spark: Any) -> Iterator[None]:
    """Record the session of a run until the run has ended normally."""
    write_json(project.remote, {"server": _server(address), "session": spark.session_id})
    yield
    project.remote.unlink(missing_ok=True)


def _server(address: str) -> str:
    """The address without its parameters."""
    return address.partition("/;")[0].rstrip("/")
