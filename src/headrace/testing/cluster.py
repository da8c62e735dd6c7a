"""Runs a complete cluster in separate processes for tests: kill, pause and restart brokers.

Owns the processes and their directories. Does not import the broker: it tests the processes that
`headrace broker FILE` starts.

1. Each broker has its own IP address (127.0.0.2, 127.0.0.3, ...), a permanent port and its own
   directory.
2. At the end of the `with` block, of the fixture or of the interpreter, all processes are ended
   and all temporary files are deleted.
"""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.ensemble.broker import BrokerProcess
from headrace.ensemble.child import ChildFailed
from headrace.ensemble.requirements import check_installed
from headrace.ensemble.zookeeper import HOST, LocalZooKeeper, free_port
from headrace.testing.broker import TEST_SETTINGS, BrokerFailed, LoggingProcess, known_brokers
from headrace.testing.faults import Faults
from headrace.testing.links import ZOOKEEPER, Links, owner_of


class ClusterBroker(LoggingProcess, Faults):
    """One broker of a cluster, with `node_id` and `address`."""

    def __init__(
        self, node_id: int, directory: Path, settings: Mapping[str, str], internal_port: int | None
    ) -> None:
        """If `internal_port` is set, other brokers connect to a proxy on that port."""
        super().__init__()
        self.node_id = node_id
        self.host = host_of(node_id)
        self.port = free_port(self.host)
        self.address = f"{self.host}:{self.port}"
        self.data_dir = directory
        properties = {"listeners": f"PLAINTEXT://{self.address}"}
        if internal_port is not None:
            self.internal_port = free_port(self.host)
            properties = {
                "listeners": f"PLAINTEXT://{self.address},INTERNAL://{self.host}:{self.internal_port}",
                "advertised.listeners": (
                    f"PLAINTEXT://{self.address},INTERNAL://{self.host}:{internal_port}"
                ),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
                "inter.broker.listener.name": "INTERNAL",
            }
        properties = {**properties, **TEST_SETTINGS, **settings}
        self._child = BrokerProcess(node_id, directory, properties, appends=True)
        self.log_path = self._child.process.output
        known_brokers.add(self)

    @property
    def pid(self) -> int:
        return self._child.process.pid

    @property
    def is_running(self) -> bool:
        return self._child.process.running

    def launch(self, *under: str) -> None:
        """Start the process. `under` is a command that runs it, for example ("env", "TZ=UTC")."""
        self._child.run_module(self.faulty_command())
        self._child.start(when_orphaned=signal.SIGKILL, under=under)

    def wait_until_ready(self, timeout_s: float = 40.0) -> None:
        try:
            self._child.wait_until_ready(timeout_s)
        except ChildFailed as error:
            raise BrokerFailed(self.failure_text(f"is not running: {error}")) from None

    def kill(self) -> None:
        """Kills the broker immediately (SIGKILL), like a crash; the data stays."""
        self._child.process.kill()

    def stop(self, timeout_s: float = 40.0) -> None:
        """Stops the broker cleanly (SIGTERM) and waits for it; the data stays."""
        if not self._child.process.stop(timeout_s):
            raise BrokerFailed(self.failure_text(f"did not stop within {timeout_s:g} s"))
        code = self._child.process.exit_code
        if code:
            raise BrokerFailed(self.failure_text(f"ended with exit code {code}"))

    def restart(self, timeout_s: float = 40.0) -> None:
        """Restarts the broker on the same port and data; stops it first if it is running."""
        if self.is_running:
            self.stop()
        self.launch()
        self.wait_until_ready(timeout_s)

    def pause(self) -> None:
        """Stops the process (SIGSTOP): its port stays open, and it does not respond."""
        self._child.process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues the process after `pause`."""
        self._child.process.send(signal.SIGCONT)

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<ClusterBroker {self.node_id} {self.address} {state}, data in {self.data_dir}>"


class RunningCluster:
    """Brokers 1 to N and a ZooKeeper. Use `RunningCluster.start()`, preferably with `with`."""

    brokers: dict[int, ClusterBroker]
    zookeeper: LocalZooKeeper
    address: str
    """The bootstrap servers of a client: all brokers."""

    def __init__(
        self,
        directory: Path,
        broker_count: int,
        zookeeper_nodes: int,
        settings: Mapping[str, str],
        settings_of: Mapping[int, Mapping[str, str]],
        owned: Path | None,
        links: Links | None,
    ) -> None:
        self.directory = directory
        self._owned = owned
        self._links = links
        ports = [free_port(HOST) for _ in range(zookeeper_nodes)]
        self.zookeeper = LocalZooKeeper(directory, ports, durable=False)
        self._settings = settings
        self.brokers = {}
        for node_id in range(1, broker_count + 1):
            self.brokers[node_id] = self._new_broker(node_id, settings_of.get(node_id, {}))
        self.address = ",".join(broker.address for broker in self.brokers.values())

    def _new_broker(self, node_id: int, settings: Mapping[str, str]) -> ClusterBroker:
        directory = self.directory / f"broker-{node_id}"
        own = {**self._settings, **settings}
        if self._links is not None:
            return self._new_linked_broker(self._links, node_id, directory, own)
        own = {"zookeeper.connect": self.zookeeper.connect, **own}
        return ClusterBroker(node_id, directory, own, None)

    def add_broker(self, settings: Mapping[str, str] | None = None) -> ClusterBroker:
        """Starts another broker with the next id; clients discover it automatically."""
        node_id = max(self.brokers, default=0) + 1
        self.brokers[node_id] = self._new_broker(node_id, settings or {})
        self.start_brokers([node_id])
        return self.brokers[node_id]

    def _new_linked_broker(
        self, links: Links, node_id: int, directory: Path, settings: Mapping[str, str]
    ) -> ClusterBroker:
        """A broker with proxies for connections from other brokers and to ZooKeeper."""
        addresses = []
        for node in self.zookeeper.nodes:
            port = free_port(HOST)
            links.add(HOST, port, (HOST, node.port), lambda _: (node_id, ZOOKEEPER))
            addresses.append(f"{HOST}:{port}")
        own = {"zookeeper.connect": ",".join(addresses), **settings}
        internal_port = free_port(host_of(node_id))
        broker = ClusterBroker(node_id, directory, own, internal_port)

        def ends(port: int) -> tuple[int, int]:
            pids = {each: other.pid for each, other in self.brokers.items() if other.is_running}
            return owner_of(port, pids), node_id

        links.add(broker.host, internal_port, (broker.host, broker.internal_port), ends)
        return broker

    @property
    def bootstrap(self) -> str:
        """The same as `address`."""
        return self.address

    @property
    def links(self) -> Links:
        """The network between brokers. The cluster must have been started with links=True."""
        assert self._links is not None, "start the cluster with links=True"
        return self._links

    @classmethod
    def start(
        cls,
        directory: str | os.PathLike[str] | None = None,
        *,
        brokers: int = 3,
        zookeeper_nodes: int = 1,
        settings: Mapping[str, str] | None = None,
        settings_of: Mapping[int, Mapping[str, str]] | None = None,
        links: bool = False,
        timeout_s: float = 60.0,
    ) -> Self:
        """Starts ZooKeeper, then all brokers simultaneously, and waits until they are ready.

        `settings` are for all brokers, for example {"min.insync.replicas": "2"}. `settings_of` are
        for single brokers by their id, for example {2: {"broker.rack": "b"}}. With `links`, all
        connections between brokers and to ZooKeeper use proxies, which `cut` needs. Raises
        NotInstalled if a package of the cluster extra is missing.
        """
        check_installed()
        owned = None
        if directory is None:
            owned = Path(tempfile.mkdtemp(prefix="headrace-"))
            directory = owned
        try:
            cluster = cls(
                Path(directory),
                brokers,
                zookeeper_nodes,
                settings or {},
                settings_of or {},
                owned,
                Links() if links else None,
            )
        except BaseException:
            if owned is not None:
                owned.rmdir()
            raise
        atexit.register(cluster.close)
        try:
            cluster.zookeeper.start()
            cluster.start_brokers(timeout_s=timeout_s)
        except BaseException:
            cluster.close()
            raise
        return cluster

    def start_brokers(self, ids: Iterable[int] | None = None, timeout_s: float = 60.0) -> None:
        """Starts these brokers (or all), except those that are running, simultaneously."""
        brokers = [self.brokers[each] for each in (self.brokers if ids is None else ids)]
        stopped = [broker for broker in brokers if not broker.is_running]
        for broker in stopped:
            broker.launch()
        for broker in stopped:
            broker.wait_until_ready(timeout_s)

    def kill(self, *ids: int) -> None:
        """Kills these brokers (SIGKILL), all before waiting for any; their data stays."""
        for each in ids:
            os.kill(self.brokers[each].pid, signal.SIGKILL)
        for each in ids:
            self.brokers[each].kill()

    def stop(self, *ids: int) -> None:
        """Stops these brokers cleanly (SIGTERM) one by one; their data stays."""
        for each in ids:
            self.brokers[each].stop()

    def restart(self, *ids: int) -> None:
        """Restarts these brokers on the same ports and data; stops running ones first."""
        self.stop(*(each for each in ids if self.brokers[each].is_running))
        self.start_brokers(ids)

    def pause(self, *ids: int) -> None:
        """Stops the processes (SIGSTOP): their ports stay open, and they do not respond."""
        for each in ids:
            self.brokers[each].pause()

    def resume(self, *ids: int) -> None:
        """Continues the processes after `pause`."""
        for each in ids:
            self.brokers[each].resume()

    def cut(self, one: int, *others: int) -> None:
        """Cuts the network between a broker and these others, or all others and ZooKeeper.

        Clients still reach it. The cluster must have been started with links=True.
        """
        everything = (ZOOKEEPER, *(each for each in self.brokers if each != one))
        self.links.cut(one, *(others or everything))

    def heal(self) -> None:
        """Ends all cuts. The data that was sent in the meantime arrives."""
        self.links.heal()

    def close(self) -> None:
        """Ends everything in any state, and removes the data if this object created it."""
        atexit.unregister(self.close)
        for broker in self.brokers.values():
            broker.kill()
        self.zookeeper.kill()
        if self._links is not None:
            self._links.close()
        if self._owned is not None:
            shutil.rmtree(self._owned, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        brokers = ", ".join(
            f"broker {broker.node_id} {f'pid {broker.pid}' if broker.is_running else 'not running'}"
            for broker in self.brokers.values()
        )
        zookeeper = self.zookeeper.connect
        return (
            f"<RunningCluster {self.address}: {brokers}, ZooKeeper {zookeeper}, "
            f"data in {self.directory}>"
        )


def host_of(node_id: int) -> str:
    return f"127.0.0.{node_id + 1}"
