"""Runs a ZooKeeper ensemble on this machine, for development and tests: one JVM per node.

Owns the configuration files and processes. Blocks, so callers on an event loop use a thread.

1. A node is ready when `srvr` returns its mode. A client that connects earlier, once the port is
   open, can hang for seconds.
2. The state of a node is in its directory. The ports between nodes are chosen at each start.
"""

import os
import re
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.ensemble.child import Child, ChildFailed
from headrace.ensemble.properties import properties_text, write_private
from headrace.ensemble.requirements import find_java
from headrace.ensemble.zookeeper_jars import class_path

CLIENT_PORT = 2181
START_S_MAX = 60.0
STOP_S_MAX = 5.0
_MODE_S_MAX = 0.3
"""The timeout of a request for the mode. A server that is not ready accepts it and never responds.
"""
HOST = "127.0.0.1"
_RESERVED_MAX = 128
_reserving_sockets: deque[int] = deque()
"""The sockets that reserve ports, oldest first."""
HEAP = "256m"
"""The default maximum heap of a node. The heap starts with 16 MB, and grows as needed."""
_HEAP_BYTES_MIN = 32 * 1024**2
_JVM = (
    "-Xms16m",
    # Without this option, only some threads end if no memory is left. A node that exits is
    # restarted.
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.jmx.log4j.disable=true",
)
# Short ticks allow short session timeouts, because the minimum is two ticks.
_SETTINGS = {
    "tickTime": "500",
    "initLimit": "20",
    "syncLimit": "4",
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "120000",
    "maxClientCnxns": "0",
    "clientPortAddress": HOST,
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "ruok,srvr,mntr,envi",
    "autopurge.purgeInterval": "1",
    "autopurge.snapRetainCount": "3",
}


def heap_size(text: str) -> str:
    """A heap size in Java's format.

    ValueError if it is not from 32 MB to the size of the memory.
    """
    found = re.fullmatch(r"([0-9]{1,12})([kmg])", text.strip().lower())
    size = int(found[1]) * 1024 ** (" kmg".index(found[2])) if found else 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if found is None or not _HEAP_BYTES_MIN <= size <= memory:
        limit = f"{memory >> 20}m, the memory of this machine"
        raise ValueError(f"{text!r} is not a heap size such as 256m or 1g, from 32m to {limit}")
    return found[0]


def free_port(host: str = HOST) -> int:
    """Reserve a port for a later listener, so that the system assigns it to no other process.

    A socket of this process stays bound to the port without listening. So connections are refused
    until another process listens.
    """
    with socket.socket() as holder:
        # If both sockets set this option, the other process can bind and listen.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        port = int(holder.getsockname()[1])
        _reserving_sockets.append(holder.detach())
    if len(_reserving_sockets) > _RESERVED_MAX:
        os.close(_reserving_sockets.popleft())
    return port


def is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class ZooKeeperNode:
    def __init__(
        self, number: int, directory: Path, port: int, *, durable: bool, heap: str = HEAP
    ) -> None:
        self.number = number
        self.directory = directory
        self.port = port
        self.peer_ports: tuple[int, ...] = ()
        """The ports for other nodes of an ensemble: data, election."""
        sync = () if durable else ("-Dzookeeper.forceSync=no",)
        command = [find_java(), f"-Xmx{heap}", *_JVM, *sync, "-cp", class_path()]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self.process = Child(
            f"ZooKeeper node {number}",
            [*command, main, str(directory / "zoo.cfg")],
            directory / "zookeeper.log",
            umask=0o077,
        )

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def describe(self) -> str:
        """The address, all ports and the pid of the node."""
        named = zip(("peer", "election"), self.peer_ports, strict=False)
        peers = "".join(f", {name} port {port}" for name, port in named)
        return f"{self.address}{peers}, pid {self.process.pid}"

    def configure(self, peers: Mapping[str, str]) -> None:
        """`peers` are the server settings of an ensemble; empty for a single node."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._make_private()
        settings = {**_SETTINGS, "dataDir": str(self.directory), "clientPort": str(self.port)}
        if peers:
            settings |= {"standaloneEnabled": "false", **peers}
            (self.directory / "myid").write_text(f"{self.number}\n", encoding="ascii")
        write_private(self.directory / "zoo.cfg", properties_text(settings))

    def _make_private(self) -> None:
        """Make existing files private, because they contain secrets of the brokers.

        New files are private because of the umask of the process.
        """
        self.directory.chmod(0o700)
        for directory, _, names in os.walk(self.directory):
            for name in names:
                os.chmod(os.path.join(directory, name), 0o600)

    def mode(self) -> str | None:
        """The mode of the node: leader, follower or standalone; None if it is not ready."""
        try:
            with socket.create_connection((HOST, self.port), _MODE_S_MAX) as connection:
                connection.sendall(b"srvr")
                response = b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return None
        for line in response.decode(errors="replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return None

    def wait_until_ready(self, check: Callable[[], None] | None = None) -> None:
        self.process.wait_until(lambda: self.mode() is not None, START_S_MAX, check)


class LocalZooKeeper:
    """One or more nodes, each in `directory/zookeeper-N`."""

    def __init__(
        self, directory: Path, ports: Sequence[int], *, durable: bool = True, heap: str = HEAP
    ) -> None:
        """Raises NotInstalled. Unless `durable`, a power failure can lose acknowledged writes."""
        self.nodes = [
            ZooKeeperNode(
                number, directory / f"zookeeper-{number}", port, durable=durable, heap=heap
            )
            for number, port in enumerate(ports, start=1)
        ]

    @property
    def connect(self) -> str:
        return ",".join(node.address for node in self.nodes)

    def start(self, check: Callable[[], None] | None = None) -> None:
        """Start all nodes and wait until they are ready; after an exception, none is running.

        `check` can raise to end the wait.
        """
        for node in self.nodes:
            if not is_port_free(node.port):
                raise ChildFailed(
                    f"Port {node.port} for {node.process.name} is in use. Stop the process that "
                    "uses it, or choose another port."
                )
        peers = {}
        if len(self.nodes) > 1:
            for node in self.nodes:
                data, election = node.peer_ports = (free_port(), free_port())
                peers[f"server.{node.number}"] = f"{HOST}:{data}:{election}"
        for node in self.nodes:
            node.configure(peers)
        try:
            for node in self.nodes:
                node.process.start()
            for node in self.nodes:
                node.wait_until_ready(check)
        except BaseException:
            self.kill()
            raise

    def restart(self, number: int) -> None:
        """Start a node again, and kill it first if it is running."""
        node = self.nodes[number - 1]
        node.process.kill()
        node.process.start()
        node.wait_until_ready()

    def leader(self) -> ZooKeeperNode:
        """The leader, or the only node; waits for the end of an election."""
        leaders: list[ZooKeeperNode] = []

        def elected() -> bool:
            leaders[:] = [node for node in self.nodes if node.mode() in ("leader", "standalone")]
            return bool(leaders)

        running = next(node for node in self.nodes if node.process.running)
        running.process.wait_until(elected, START_S_MAX)
        return leaders[0]

    def stop(self) -> None:
        for node in self.nodes:
            node.process.stop(STOP_S_MAX)

    def kill(self) -> None:
        for node in self.nodes:
            node.process.kill()
