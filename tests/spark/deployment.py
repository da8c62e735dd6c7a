"""Programs, archives and clusters for the tests that need more than one Spark session."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Self

from headrace.env.java import find_java
from tests.spark.conftest import TIMEOUT_S

DRIVER = Path(__file__).with_name("driver.py")
SMALL = {"spark.ui.enabled": "false", "spark.driver.memory": "512m"}
PACKAGES = ("headrace", "pyspark_headrace")


class Driver:
    """A running driver program. Use it with `with`: nothing of it stays."""

    def __init__(
        self,
        place: Path,
        task: str,
        arguments: dict[str, Any],
        master: str,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.scratch = place / "scratch"
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._log = (place / "driver.log").open("ab")
        self.log_path = place / "driver.log"
        self._process = subprocess.Popen(
            [
                *(sys.executable, str(DRIVER), master, json.dumps({**SMALL, **(settings or {})})),
                *(task, json.dumps(arguments)),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={
                **os.environ,
                "TMPDIR": str(self.scratch),
                "SPARK_LOCAL_DIRS": str(self.scratch),
                **(environment or {}),
            },
            cwd=place,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()

    def told(self, fact: str) -> dict[str, Any]:
        """The next line with this text. If the program ends first, fails with its output."""
        output: IO[bytes] | None = self._process.stdout
        assert output is not None
        for line in output:
            if line.startswith(b"{"):
                facts: dict[str, Any] = json.loads(line)
                if fact in facts:
                    return facts
        raise AssertionError(f"the program ended:\n{self.log_path.read_text()[-4000:]}")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. If the program ends first, fail with the end of its log."""
        while not condition():
            assert self._process.poll() is None, self.log_path.read_text()[-4000:]
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the driver and its Java process."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        os.kill(self._process.pid, signal.SIGINT)
        return self._process.wait(TIMEOUT_S)

    def finish(self) -> None:
        assert self._process.wait(TIMEOUT_S) == 0, self.log_path.read_text()[-4000:]


def processes_in(scratch: Path) -> list[int]:
    """Processes that were started with this directory for their temporary files."""
    wanted = f"TMPDIR={scratch}".encode()
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if wanted in environment:
                found.append(int(process.name))
    return found


def pack(place: Path) -> Path:
    """An archive with an interpreter and a copy of Headrace, to be unpacked on executors.

    Other packages come from the driver's environment: it is Headrace that has to travel.
    """
    env = place / "env"
    (env / "bin").mkdir(parents=True)
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).parent
        shutil.copytree(source, env / "lib" / package, ignore=shutil.ignore_patterns("__pycache__"))
        # The compiled modules of a group share one file next to their package.
        for shared in source.parent.glob("*__mypyc*.so"):
            shutil.copy(shared, env / "lib")
    python = env / "bin" / "python"
    python.write_text(
        "#!/bin/sh\n"
        'here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)\n'
        f'PYTHONPATH="$here/../lib:$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    archive = place / "env.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        file.add(env, ".")
    shutil.rmtree(env)
    return archive


def spark_home(place: Path) -> dict[str, str]:
    """An environment in which a local cluster leaves its files here, and not in the package."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = place / "spark-home"
    home.mkdir()
    for part in Path(spec.origin).parent.iterdir():
        if part.name != "work":
            (home / part.name).symlink_to(part)
    return {"SPARK_HOME": str(home)}


def from_archive(archive: Path) -> dict[str, str]:
    """Settings with which executors run Python from an archive."""
    return {
        "spark.archives": f"{archive}#env",
        "spark.sql.execution.pyspark.python": "./env/bin/python",
    }


def without(directory: Path) -> list[str]:
    """A command that runs another one in a mount namespace with an empty directory there.

    A process in it sees the directory as one of another machine: its files are not shared.
    """
    namespace = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    hide = f'mount -t tmpfs none "{directory}" && exec "$@"'
    return ["unshare", *namespace, "--propagation", "private", "sh", "-c", hide, "sh"]


@contextmanager
def standalone(place: Path, hidden_from_worker: Path | None = None) -> Iterator[str]:
    """Start a master and a worker of the PySpark package; yields the master's address."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    java = find_java("Spark", extra="spark")
    scratch = place / "scratch"
    scratch.mkdir(exist_ok=True)
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java.resolve().parent.parent),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
    }
    running = []

    def start(what: str, *options: str, under: Sequence[str] = ()) -> Path:
        log = place / f"{what}.log"
        command = [*under, str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        command += ["--host", "127.0.0.1", "--webui-port", "0", *options]
        with log.open("wb") as output:
            running.append(
                subprocess.Popen(
                    command, env=environment, stdout=output, stderr=output, start_new_session=True
                )
            )
        return log

    try:
        log = start("master.Master", "--port", "0")
        address = _wait_for(log, r"Starting Spark master at (spark://\S+)")
        resources = ["--cores", "2", "--memory", "1g", "--work-dir", str(place / "work")]
        under = () if hidden_from_worker is None else without(hidden_from_worker)
        start("worker.Worker", *resources, address, under=under)
        _wait_for(log, r"(Registering worker)")
        yield address
    finally:
        for process in reversed(running):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(TIMEOUT_S)


def _wait_for(log: Path, words: str) -> str:
    """Wait until a log contains this pattern, and return the match."""
    deadline = time.monotonic() + TIMEOUT_S
    while (found := re.search(words, log.read_text(errors="replace"))) is None:
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)
    return found[1]
