"""Downloads Apache Kafka 4.3.1 from Maven Central, starts KRaft nodes, and runs Kafka's tools.

    python bench/kafka.py       # starts one node and prints its address

Owns `.cache/kafka-4.3.1/`. Needs Java 17 or newer, and Maven. Uses only the standard library of
Python, so that it also runs as a script.

1. A node has Kafka's default settings, except for addresses, directories and settings of the
   caller. A single node also has the replication factor 1 for internal topics.
2. A node listens on 127.0.0.1 only. When its parent process ends, the kernel sends SIGTERM to it.
3. One rename adds the downloaded jars to the cache, so an interrupted download is not used.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VERSION = "4.3.1"
LOG4J_VERSION = "2.25.4"
ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / f"kafka-{VERSION}"

TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
CONFIG_COMMAND = "kafka.admin.ConfigCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
DUMP_LOG_SEGMENTS = "org.apache.kafka.tools.DumpLogSegments"
REASSIGN_PARTITIONS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
LEADER_ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
STORAGE_TOOL = "kafka.tools.StorageTool"

# The JVM options of bin/kafka-server-start.sh and bin/kafka-run-class.sh.
_SERVER_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
_TOOL_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = (
    "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId>"
    "<version>{}</version></dependency>"
)
_ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    ("org.apache.logging.log4j", "log4j-core", LOG4J_VERSION),
)
_LOG4J = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = {target}
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
"""

_PR_SET_PDEATHSIG = 1


class KafkaError(Exception):
    """Apache Kafka could not be downloaded or started, or a tool failed."""


# Download.


def fetch(directory: Path = CACHE) -> Path:
    """The directory of the jars. The first call downloads them with Maven."""
    libraries = directory / "libs"
    if libraries.is_dir():
        return libraries
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libraries.is_dir():
            _download(directory, libraries)
    return libraries


def _download(directory: Path, libraries: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaError(
            "cannot download Apache Kafka without Maven. Install it (Debian: apt install maven)."
        )
    say(f"downloading Apache Kafka {VERSION} with Maven")
    dependencies = "\n".join(_DEPENDENCY.format(*artifact) for artifact in _ARTIFACTS)
    (directory / "pom.xml").write_text(_POM.format(dependencies=dependencies))
    (directory / "server-log4j2.properties").write_text(
        _LOG4J.format(target="SYSTEM_OUT", level="info")
    )
    (directory / "tools-log4j2.properties").write_text(
        _LOG4J.format(target="SYSTEM_ERR", level="warn")
    )
    incomplete = directory / "libs.incomplete"
    shutil.rmtree(incomplete, ignore_errors=True)
    done = subprocess.run(
        [
            maven,
            *("-q", "-B", "-ntp", "-f", str(directory / "pom.xml")),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={incomplete}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise KafkaError(f"Maven could not download Apache Kafka:\n{done.stdout[-2000:]}")
    incomplete.rename(libraries)


def class_path() -> str:
    """The class path of the broker, the tools and the clients."""
    return str(fetch() / "*")


def java() -> str:
    """The Java launcher."""
    home = os.environ.get("JAVA_HOME")
    launcher = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if launcher is None:
        raise KafkaError(
            "Java was not found, and Apache Kafka needs Java 17 or newer. "
            "Install it (Debian: apt install default-jre)."
        )
    return launcher


# Tools.


def tool_command(
    main_class: str, args: Sequence[str] = (), *, java_options: Sequence[str] = _TOOL_OPTIONS
) -> list[str]:
    """The command line of one of Kafka's tools."""
    classes = class_path()
    log4j = CACHE / "tools-log4j2.properties"
    return [
        java(),
        *java_options,
        f"-Dlog4j2.configurationFile={log4j}",
        *("-cp", classes, main_class, *args),
    ]


def run_tool(
    main_class: str,
    args: Sequence[str] = (),
    *,
    stdin: str | None = None,
    timeout_s: float = 120.0,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a tool until it ends, for example `run_tool(TOPIC_COMMAND, ["--list", ...])`."""
    done = subprocess.run(
        tool_command(main_class, args),
        input="" if stdin is None else stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check and done.returncode != 0:
        raise KafkaError(
            f"{main_class} failed with exit code {done.returncode}\n"
            f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done


# One node.


@dataclass(slots=True)
class KafkaNode:
    """A node that was started."""

    host: str
    port: int
    process: subprocess.Popen[bytes]
    directory: Path
    log_path: Path
    start_s: float

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    def stop(self, timeout_s: float = 30.0) -> None:
        stop_process(self.process, timeout_s)

    def log_tail(self, size: int = 4000) -> str:
        return self.log_path.read_text(errors="replace")[-size:]


def free_port() -> int:
    """A port on 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def format_storage(directory: Path, settings: Mapping[str, str]) -> tuple[int, Path]:
    """Write server.properties of a single node, and format its storage. Return port and file."""
    single_node = {
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    return format_nodes([directory], {**single_node, **settings})[0]


def format_nodes(
    directories: Sequence[Path], settings: Mapping[str, str]
) -> list[tuple[int, Path]]:
    """Write server.properties and format the storage of nodes 1 to N of a cluster.

    Each node is broker and controller. Returns the port and the file of each node.
    """
    nodes = [(free_port(), free_port(), directory) for directory in directories]
    voters = ",".join(f"{at}@127.0.0.1:{port}" for at, (_, port, _) in enumerate(nodes, start=1))
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # The tool would read a leading dash as an option.
    cluster_id = "A" + cluster_id[1:]
    formatted = []
    for node_id, (port, controller_port, directory) in enumerate(nodes, start=1):
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(directory / "data"),
            **settings,
        }
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        run_tool(STORAGE_TOOL, ["format", "-t", cluster_id, "-c", str(file)])
        formatted.append((port, file))
    return formatted


def start_kafka(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    *,
    heap_mb: int = 1024,
    timeout_s: float = 90.0,
) -> KafkaNode:
    """Format `directory`, and start a node in it. Return after its first response."""
    directory.mkdir(parents=True, exist_ok=True)
    port, file = format_storage(directory, settings or {})
    return launch_kafka(directory, port, file, heap_mb=heap_mb, timeout_s=timeout_s)


def launch_kafka(
    directory: Path, port: int, file: Path, *, heap_mb: int = 1024, timeout_s: float = 90.0
) -> KafkaNode:
    """Start a node whose storage is formatted. Return after its first response."""
    started = time.monotonic()
    node = begin_kafka(directory, port, file, heap_mb=heap_mb)
    try:
        wait_for_response("127.0.0.1", port, node.process, started + timeout_s)
    except BaseException:
        tail = node.log_tail()
        node.stop(5.0)
        say(tail)
        raise
    node.start_s = time.monotonic() - started
    return node


def begin_kafka(directory: Path, port: int, file: Path, *, heap_mb: int = 1024) -> KafkaNode:
    """Start a node whose storage is formatted, without waiting for it."""
    command = [
        java(),
        *(f"-Xmx{heap_mb}m", f"-Xms{heap_mb}m"),
        *_SERVER_OPTIONS,
        f"-Dlog4j2.configurationFile={CACHE / 'server-log4j2.properties'}",
        f"-Dkafka.logs.dir={directory}",
        *("-cp", class_path(), "kafka.Kafka", str(file)),
    ]
    log_path = directory / "kafka.out"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    return KafkaNode("127.0.0.1", port, process, directory, log_path, 0.0)


@contextlib.contextmanager
def running_kafka(
    settings: Mapping[str, str] | None = None, *, heap_mb: int = 1024
) -> Iterator[KafkaNode]:
    """Run a node on free ports, with its data in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="kafka-", ignore_cleanup_errors=True) as directory:
        node = start_kafka(Path(directory), settings, heap_mb=heap_mb)
        try:
            yield node
        finally:
            node.stop()


# Processes of Apache Kafka and Headrace.


def end_with_parent() -> None:
    """Run in the child before exec: the kernel sends it SIGTERM when the parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def stop_process(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Send SIGTERM, and SIGKILL if the process does not end within the timeout."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def api_versions_frame(correlation_id: int = 1) -> bytes:
    """An ApiVersions 3 request with its length prefix."""
    name = b"headrace-bench"
    header = struct.pack(">hhih", 18, 3, correlation_id, len(name)) + name + b"\0"
    body = bytes([len(name) + 1]) + name + b"\x02" + b"1" + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def is_ready(host: str, port: int, timeout_s: float = 5.0) -> bool:
    """Whether a broker responds to ApiVersions without an error."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(api_versions_frame())
            head = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == 10 and head[4:] == b"\0\0\0\1\0\0"


def wait_for_response(
    host: str, port: int, process: subprocess.Popen[bytes], deadline: float
) -> None:
    """Send ApiVersions every few milliseconds until the broker responds."""
    while not is_ready(host, port):
        if process.poll() is not None:
            code = process.returncode
            raise KafkaError(f"the broker ended before its first response, with exit code {code}")
        if time.monotonic() > deadline:
            raise KafkaError("the broker did not respond before the timeout")
        time.sleep(0.003)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs one Apache Kafka node until Ctrl-C.")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the node; can be repeated",
    )
    parser.add_argument("--heap-mb", type=int, default=1024, help="heap in MiB (default: 1024)")
    options = parser.parse_args()
    settings = dict(item.split("=", 1) for item in options.set)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with running_kafka(settings, heap_mb=options.heap_mb) as node:
            print(f"{node.address} pid {node.pid}", flush=True)
            say(f"started in {node.start_s:.1f} s; Ctrl-C stops it")
            node.process.wait()
    except KeyboardInterrupt:
        return 0
    except KafkaError as error:
        say(str(error))
        return 1
    say("the broker ended unexpectedly")
    return 1


if __name__ == "__main__":
    sys.exit(main())
