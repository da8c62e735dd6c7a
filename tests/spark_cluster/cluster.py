"""A standalone Spark cluster whose processes see none of this machine's Python, as other machines.

Master and workers run in mount namespaces. Empty directories hide the home directory, the virtual
environment, the project and temporary files. Spark and Java are mounted at other paths. One
directory is shared with the driver. Each worker has another address: executors with the same
address read each other's files.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import headrace
from headrace.env.java import find_java, java_modules

PROJECT = Path(__file__).parent.parent.parent
TIMEOUT_S = 600
SPARK, JAVA = "/mnt/spark", "/mnt/java"
CORES_PER_WORKER = 1
# Small, because tests of others run on the same machine. Loopback only.
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
CONF = tuple(part for pair in SETTINGS.items() for part in ("--conf", "=".join(pair)))


def spark_home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def hidden_directories() -> list[Path]:
    """The directories that no other machine has, without those inside of others."""
    wanted = {Path.home(), Path(sys.prefix), PROJECT, Path(headrace.__file__).parent.parent}
    wanted |= {Path(sys.base_prefix), Path(tempfile.gettempdir())} - {Path("/usr")}
    wanted = {path.resolve() for path in wanted}
    return sorted(path for path in wanted if not any(other in path.parents for other in wanted))


@cache
def why_not() -> str:
    """The reason why this machine cannot run the cluster; empty if it can."""
    if any(path in (Path("/"), Path("/mnt")) for path in hidden_directories()):
        return f"cannot hide one of {hidden_directories()} from workers"
    java = find_java("Spark", extra="spark")
    modules = java_modules(java)
    if modules and "jdk.incubator.vector" not in modules:
        return f"{java} lacks a module that Spark's executors need. Install a JDK 17 or newer"
    tried = subprocess.run(
        [*namespace(), "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"mount namespaces are not permitted: {tried.stderr}" if tried.returncode else ""


def namespace() -> list[str]:
    """The command that starts a mount namespace; without root it needs a user namespace."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--mount", "--propagation", "private"]


def elsewhere(kept: list[Path]) -> list[str]:
    """A command that runs another one as on another machine, with these directories shared."""
    java = find_java("Spark", extra="spark").resolve().parent.parent
    mounts = {spark_home(): SPARK, java: JAVA}
    mounts |= {path: f"/mnt/kept-{number}" for number, path in enumerate(kept)}
    steps = ["mount -t tmpfs none /mnt"]
    for source, target in mounts.items():
        steps += [f"mkdir {target}", f"mount --bind {shlex.quote(str(source))} {target}"]
    for path in hidden_directories():
        steps += [f"mount -t tmpfs none {shlex.quote(str(path))}"]
    for path in kept:
        place = shlex.quote(str(path))
        steps += [f"mkdir -p {place}", f"mount --bind {mounts[path]} {place}"]
    steps += ["cd /mnt", 'exec "$@"']
    return [*namespace(), "sh", "-c", " && ".join(steps), "sh"]


class Cluster:
    """A master and workers, each a process whose id is known."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.shared = place / "shared"
        """Drivers and workers see the same files below this directory only."""
        self.work = place / "work"
        for directory in (self.shared, self.work):
            directory.mkdir()
        self.workers: list[subprocess.Popen[bytes]] = []
        self._running: list[subprocess.Popen[bytes]] = []
        self._numbers = 0
        _, log = self._start("master.Master", "master", "127.0.0.1", ["--port", "0"])
        self.master = wait_for(log, r"Starting Spark master at (spark://\S+)")

    def start_worker(self) -> None:
        """Start a worker and wait until it has registered at the master."""
        self._numbers += 1
        options = ["--cores", str(CORES_PER_WORKER), "--memory", "1g"]
        options += ["--work-dir", str(self.work), self.master]
        name, host = f"worker-{self._numbers}", f"127.0.0.{self._numbers + 1}"
        process, log = self._start("worker.Worker", name, host, options)
        wait_for(log, r"(Successfully registered with master)")
        self.workers.append(process)

    def _start(
        self, kind: str, name: str, host: str, options: list[str]
    ) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.place / f"{name}.log"
        spark_class = [f"{SPARK}/bin/spark-class", f"org.apache.spark.deploy.{kind}"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self.elsewhere(), *spark_class, "--webui-port", "0", "--host", host, *options],
                env={
                    "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
                    "HOME": str(Path.home()),
                    "LANG": "C.UTF-8",
                    "JAVA_HOME": JAVA,
                    "SPARK_HOME": SPARK,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_LOCAL_IP": host,
                    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._running.append(process)
        return process, log

    def elsewhere(self) -> list[str]:
        return elsewhere([self.shared, self.work])

    def executors(self) -> dict[int, int]:
        """The worker's process id of each executor's."""
        workers = {worker.pid for worker in self.workers}
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent in workers and b"CoarseGrainedExecutorBackend" in command:
                found[int(process.name)] = parent
        return found

    def kill_worker(self, pid: int) -> None:
        worker = next(each for each in self.workers if each.pid == pid)
        worker.kill()
        worker.wait()
        self.workers.remove(worker)

    def errors(self) -> str:
        """The last lines of the executors' logs."""
        logs = sorted(self.work.glob("*/*/stderr"))
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    def stop(self) -> None:
        for process in reversed(self._running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


@contextmanager
def running_cluster(place: Path, workers: int = 2) -> Iterator[Cluster]:
    cluster = Cluster(place)
    try:
        for _ in range(workers):
            cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


def wait_for(log: Path, words: str) -> str:
    """Wait until a log matches, and return the group of the match."""

    def text() -> str:
        return log.read_text(errors="replace")

    wait_until(lambda: re.search(words, text()) is not None, lambda: text()[-2000:])
    found = re.search(words, text())
    assert found is not None
    return found[1]


def wait_until(condition: Callable[[], bool], explain: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)
