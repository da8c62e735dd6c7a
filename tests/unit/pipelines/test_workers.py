"""The Python daemons of queries and sessions, as processes that look like them."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException

from headrace.pipelines.workers import QueryWorkers, end_session_daemons
from headrace.spark.sessions import MARK

SERVER = f"test-{os.getpid()}"


class OwnSession:
    """Its read starts a daemon, and fails."""

    def __init__(self, start: Any) -> None:
        self._start = start

    @property
    def read(self) -> Any:
        self._start("own")
        raise PySparkException("options are missing")


@pytest.fixture
def daemons() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    started: dict[str, subprocess.Popen[bytes]] = {}
    yield started
    for process in started.values():
        process.kill()
        process.wait()


def test_daemons_of_queries_and_of_an_ended_session_are_ended(
    daemons: dict[str, subprocess.Popen[bytes]],
) -> None:
    def start(session: str) -> None:
        code = "print(flush=True); import time; time.sleep(600)"
        environment = {MARK: SERVER, "SPARK_JOB_ARTIFACT_UUID": session}
        daemons[session] = subprocess.Popen(
            [sys.executable, "-c", code, "pyspark.daemon"], env=environment, stdout=subprocess.PIPE
        )
        stdout = daemons[session].stdout
        assert stdout is not None
        stdout.readline()
        stdout.close()
        # Otherwise, a process that has ended would stay listed.
        threading.Thread(target=daemons[session].wait, daemon=True).start()

    def running() -> set[str]:
        return {session for session, process in daemons.items() if process.poll() is None}

    start("default")
    workers = QueryWorkers(OwnSession(start), SERVER)
    workers.keep()
    start("query")
    workers.end()
    assert running() == {"default", "own"}
    end_session_daemons(SERVER)
    assert running() == {"default"}
