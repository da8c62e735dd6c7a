"""Projects of a few lines, the `headrace pipeline` command, and one Spark server for many runs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

import pytest

from headrace.client import Client, connect
from headrace.pipelines.project import Project, open_project
from headrace.pipelines.server import running_server
from headrace.testing import RunningBroker

HERE = Path(__file__).parent
TIMEOUT_S = 1_800
# Runs are short, so that optimized compilation would take longer than it saves.
JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
SPEC = """\
name: {name}
storage: .headrace/checkpoints
libraries: [{{glob: {{include: transformations/**}}}}]
configuration: {{headrace.bootstrap: "{bootstrap}", spark.sql.shuffle.partitions: "1"}}
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


class Pipeline:
    """A project, and `headrace pipeline` for it."""

    def __init__(self, directory: Path, bootstrap: str, remote: str | None = None) -> None:
        self.directory = directory
        self.scratch = directory.with_name(directory.name + "-scratch")
        self.scratch.mkdir()
        self._remote = () if remote is None else ("--remote", remote)
        if not directory.exists():
            directory.mkdir()
            spec = SPEC.format(name=directory.name, bootstrap=bootstrap)
            (directory / "spark-pipeline.yml").write_text(spec)

    def write(self, name: str, text: str) -> None:
        path = self.directory / "transformations" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def start(self, action: str, *arguments: str) -> "Command":
        return Command(
            [action, str(self.directory), *self._spark(action), *arguments], self.scratch
        )

    def _spark(self, action: str) -> tuple[str, ...]:
        return self._remote if action in ("run", "dry-run") else ()

    def done(self, action: str, *arguments: str, exit_code: int = 0) -> str:
        """What the command printed."""
        with self.start(action, *arguments) as command:
            return command.finish(exit_code)

    def result(self, action: str, *arguments: str, exit_code: int = 0) -> dict[str, Any]:
        """The same with --json, read."""
        content: dict[str, Any] = json.loads(
            self.done(action, "--json", *arguments, exit_code=exit_code)
        )
        return content


class Command:
    """A running `headrace pipeline`. Use it with `with`: nothing of it stays."""

    def __init__(self, arguments: list[str], scratch: Path) -> None:
        self.log = scratch.with_name(scratch.name + ".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "pipeline", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **JAVA, "TMPDIR": str(scratch)},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.output.close()

    @property
    def output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def finish(self, exit_code: int) -> str:
        printed = self.output.read()
        assert self.process.wait(TIMEOUT_S) == exit_code, f"{printed}\n{self.log.read_text()}"
        return printed

    def next_line(self) -> dict[str, Any]:
        line = self.output.readline()
        assert line, self.log.read_text()
        content: dict[str, Any] = json.loads(line)
        return content

    def wait_until_logged(self, words: str) -> None:
        self.wait_until(lambda: words in self.log.read_text())

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for an effect of the command; fails with its log if it ends first."""
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(TIMEOUT_S)


def flow(outcome: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in outcome["flows"] if each["flow"] == name)
    return found


@pytest.fixture(scope="session")
def spark_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project of the shared server: its warehouse has the tables of all that runs there."""
    directory = tmp_path_factory.mktemp("server")
    (directory / "spark-pipeline.yml").write_text(SPEC.format(name="server", bootstrap=""))
    project = open_project(directory)
    project.prepare_state()
    return project


@pytest.fixture(scope="session")
def spark_server(spark_project: Project) -> Iterator[str]:
    """The address of a server for all runs that do not need a separate one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in JAVA.items():
            patch.setenv(name, value)
        with running_server(spark_project, "local[2]") as server:
            yield server.address


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with connect(broker.address) as client:
        yield client


@pytest.fixture
def pipeline(tmp_path: Path, broker: RunningBroker, spark_server: str) -> Pipeline:
    """An empty project, to be run on the shared server."""
    return Pipeline(tmp_path / "project", broker.address, spark_server)
