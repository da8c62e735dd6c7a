"""`headrace up --brokers N`: a cluster on this machine, in the foreground of one terminal.

Owns the order in which the parts start and stop, and prints one line for each. The parts are
separate processes; this one serves no clients.

1. ZooKeeper runs before the first broker starts, and until the last broker has stopped. Brokers
   that `headrace broker` started again count as well: a stop signal also stops them.
2. A broker that fails is reported once. The other brokers continue, and the exit code is 1.
   A ZooKeeper node that fails is restarted.
3. Ports, ids and directories are the same at the next start.
"""

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.cli import cluster_data
from headrace.cli.connection import consecutive_ports
from headrace.cli.data_directory import data_directory
from headrace.cli.detached import kill_process, stop_process
from headrace.cli.failure import Failure
from headrace.cli.ready import (
    ReadyFiles,
    check_ready_file,
    killed_line,
    process_identity,
    ready_line,
    state_file,
    stopped_line,
)
from headrace.cli.secure import PROTOCOL, admin_password, secure_settings, secured_lines
from headrace.cli.stop_signals import StoppedAtStart, StopSignals
from headrace.cli.zookeeper import checked_heap, report
from headrace.cli.zookeeper_access import DIGEST_FILE, created_digest, secure_if_open
from headrace.config.broker import BrokerConfig
from headrace.config.setting import ConfigError
from headrace.coordination.access import DIGEST_FILE as DIGEST_SETTING
from headrace.coordination.access import SET_ACL, access_of
from headrace.coordination.database import StoreFileError
from headrace.coordination.port import StoreUnavailable
from headrace.ensemble.broker import BrokerProcess
from headrace.ensemble.child import Child, ChildFailed
from headrace.ensemble.monitor import Monitor
from headrace.ensemble.requirements import NotInstalled, check_installed
from headrace.ensemble.zookeeper import CLIENT_PORT, LocalZooKeeper, free_port, is_port_free
from headrace.log.upkeep.checkpoints import CLEAN_SHUTDOWN
from headrace.security.new_user import FIRST_USER_VARIABLE

HOST = "127.0.0.1"
START_S_MAX = 60.0
STOP_S_MAX = 60.0
CHECK_S = 0.2
REPLICAS_MAX = 3


def run_cluster(args: argparse.Namespace, directory: str, settings: Mapping[str, str]) -> int:
    """`args` are those of `headrace up`; `settings` are its --set, for every broker."""
    check_ready_file(args.ready_file)
    try:
        with (
            data_directory(directory, is_temporary=args.temp) as (data, _),
            cluster_data.locked(data),
        ):
            supervisor = Supervisor(data, args, settings)
            # Last, because the conversion cannot be undone.
            cluster_data.convert_single_broker(data, args.brokers)
            return supervisor.run()
    except (NotInstalled, StoreFileError, StoreUnavailable) as error:
        raise Failure(str(error)) from None
    except ConfigError as error:
        raise Failure(error.message, 2) from None
    except ChildFailed as error:
        raise Failure(str(error).replace("headrace: ", "")) from None


def zookeeper_ports(count: int, first: int | None, *, usual: bool) -> list[int]:
    """Choose the ports of the ZooKeeper nodes.

    If `first` is a port, use it and the ports after it. If it is 0, use free ports. If it is None,
    use the ports from 2181 if `usual` is set and all of them are free, otherwise free ports.
    """
    if first:
        return consecutive_ports("--zookeeper-port", first, count)
    ports = list(range(CLIENT_PORT, CLIENT_PORT + count))
    is_usual = first is None and usual and all(map(is_port_free, ports))
    return ports if is_usual else [free_port() for _ in ports]


class Supervisor:
    def __init__(self, data: Path, args: argparse.Namespace, settings: Mapping[str, str]) -> None:
        self._data = data
        self._is_temporary: bool = args.temp
        self._is_secured: bool = args.secure
        self._port: int = args.port
        self._ready = ReadyFiles(args.ready_file, None if args.temp else state_file(data))
        self._zookeeper: LocalZooKeeper | None = None
        self._connect: str = args.zookeeper or ""
        check_installed()
        self._ports = consecutive_ports("--port", args.port, args.brokers)
        # Before --secure creates files.
        self._check_ports()
        if not self._connect:
            nodes = args.zookeeper_nodes or 1
            ports = zookeeper_ports(nodes, args.zookeeper_port, usual=args.port != 0)
            heap = checked_heap("--zookeeper-heap", args.zookeeper_heap)
            self._zookeeper = LocalZooKeeper(data, ports, heap=heap)
            self._connect = self._zookeeper.connect
        replication = replication_settings(settings, broker_count(data, args.brokers))
        properties = {"zookeeper.connect": self._connect, **replication}
        protocol = "PLAINTEXT"
        # Only brokers get the password of the first user.
        text = os.environ.pop(FIRST_USER_VARIABLE, None)
        first_user = {} if text is None or args.secure else {FIRST_USER_VARIABLE: text}
        if args.secure:
            protocol = PROTOCOL
            properties = {**secure_settings(data, is_cluster=True), **properties}
        properties |= self._digest(properties)
        self._config = BrokerConfig.load(properties, settings, origin="headrace up")
        self._brokers = [
            BrokerProcess(
                node_id,
                cluster_data.broker_directory(data, node_id),
                {"listeners": f"{protocol}://{HOST}:{port}", **properties},
                environment=first_user,
            )
            for node_id, port in enumerate(self._ports, start=1)
        ]
        nodes = self._zookeeper.nodes if self._zookeeper else []
        self._monitor = Monitor(nodes, report, self._write_ready)
        self._failed: set[str] = set()
        self._reported: set[str] = set()
        self._separate: dict[Path, tuple[int, str]] = {}
        """Brokers that `headrace broker` started, also if they have ended since."""

    def _digest(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Credentials for ZooKeeper, if its nodes are to be secured and no file is given."""
        is_wanted = properties.get(SET_ACL, "false").strip().lower() == "true"
        if not is_wanted or properties.get(DIGEST_SETTING):
            return {}
        path = str((self._data / DIGEST_FILE).absolute())
        created_digest(path)
        return {DIGEST_SETTING: path}

    def _check_ports(self) -> None:
        for port in self._ports:
            if port and not is_port_free(port):
                raise Failure(
                    f"Port {port} is in use: another broker might be running. Stop it, or choose "
                    "another first port with --port (0 selects free ports)."
                )

    def run(self) -> int:
        signals = StopSignals(self._kill)
        try:
            self._start(signals.check)
            while not signals.wait(CHECK_S):
                self._monitor.check(time.monotonic())
                if not self._check_brokers():
                    break
            # After a failed start, leave them: they could be the reason.
            self._ready.remove()
            self._stop_separate()
        except StoppedAtStart:
            pass
        finally:
            self._stop()
        if signals.was_repeated:
            _print(killed_line(is_temporary=self._is_temporary))
            return 1
        unclean = self._unclean()
        if unclean and not self._is_temporary:
            _print(
                f"Headrace has stopped. These processes did not stop cleanly: {', '.join(unclean)}."
                " The next start recovers their data."
            )
        else:
            _print(stopped_line(is_temporary=self._is_temporary))
        return 1 if self._failed or unclean else 0

    def _unclean(self) -> list[str]:
        """The brokers whose last stop was not clean.

        A broker that failed can have stopped cleanly since, after `headrace broker` started it.
        """
        failed = {each.directory for each in self._brokers if each.process.name in self._failed}
        return [
            _name(directory)
            for directory in sorted(failed | self._separate.keys())
            if not (directory / CLEAN_SHUTDOWN).exists()
        ]

    def _kill(self) -> None:
        for child in self._children():
            child.send(signal.SIGKILL)
        for pid, identity in self._separate.values():
            kill_process(pid, identity)

    def _start(self, check: Callable[[], None]) -> None:
        """`check` raises to end the start."""
        if self._zookeeper is not None:
            with cluster_data.writing(self._data):
                self._zookeeper.start(check)
            for node in self._zookeeper.nodes:
                _print(f"{node.process.name} is ready: {node.describe()}")
        access = access_of(self._config)
        if self._zookeeper is not None and access.sets_acls:
            count = secure_if_open(self._connect, access)
            if count:
                _print(f"Only the brokers can now change {count} nodes in ZooKeeper")
        file = cluster_data.store_to_copy(self._data, len(self._brokers))
        if file is not None:
            from headrace.coordination.copying import copy_to_zookeeper

            asyncio.run(copy_to_zookeeper(str(file), self._connect, access))
            _print(
                f"The single broker's topics and settings are now in ZooKeeper at {self._connect}"
            )
        for name in cluster_data.brokers_beyond(self._data, len(self._brokers)):
            _print(f"{name} is not started: --brokers is smaller than at an earlier start")
        has_admin = False
        if self._is_secured:
            from headrace.cli.stored_user import create_admin

            # Without this, the environment of each broker would contain the password.
            has_admin = asyncio.run(create_admin(self._connect, access, admin_password(self._data)))
        # Start all, then wait: they start in parallel.
        with cluster_data.writing(self._data):
            for broker in self._brokers:
                broker.start(when_orphaned=signal.SIGKILL)
        for broker in self._brokers:
            broker.wait_until_ready(START_S_MAX, check)
            port = broker.internal_address.rpartition(":")[2]
            _print(
                f"{broker.process.name} is ready: {broker.address}, internal port {port}, "
                f"pid {broker.process.pid}"
            )
        if self._is_secured:
            store = f"--zookeeper-config {self._brokers[0].file}"
            _print(secured_lines(self._data, self._port, store, has_admin=has_admin))
        addresses = ",".join(broker.address for broker in self._brokers)
        _print(ready_line(addresses, str(self._data)))
        self._write_ready()

    def _write_ready(self) -> None:
        addresses = ",".join(broker.address for broker in self._brokers)
        self._ready.write(addresses, zookeeper=self._connect, parts=self._parts())

    def _parts(self) -> list[dict[str, object]]:
        nodes = self._zookeeper.nodes if self._zookeeper else []
        return [
            {"part": "zookeeper", "id": n.number, "address": n.address, "pid": n.process.pid}
            for n in nodes
        ] + [
            {"part": "broker", "id": b.node_id, "address": b.address, "pid": b.process.pid}
            for b in self._brokers
        ]

    def _children(self) -> list[Child]:
        nodes = self._zookeeper.nodes if self._zookeeper else []
        return [*(node.process for node in nodes), *(broker.process for broker in self._brokers)]

    def _check_brokers(self) -> bool:
        """Report stopped brokers. Returns whether a broker is running."""
        children = [broker.process for broker in self._brokers]
        stopped = [child for child in children if not child.running]
        is_running = bool(self._running_separate()) or len(stopped) < len(children)
        rest = "the others continue" if is_running else "no broker is left"
        new = [child for child in stopped if child.name not in self._reported]
        for child in new:
            self._reported.add(child.name)
            if child.exit_code == 0:
                report(f"{child.name} has stopped; {rest}.")
                continue
            self._failed.add(child.name)
            report(
                f"{child.name} stopped unexpectedly ({child.exit_text()}); {rest}. Its log: "
                f"{child.output}"
            )
        if not (new or is_running):
            report("The last broker, started with headrace broker, has stopped.")
        return is_running

    def _running_separate(self) -> dict[Path, tuple[int, str]]:
        """The brokers that `headrace broker` started again: pid and identity, by directory."""
        own = {broker.process.pid for broker in self._brokers if broker.process.running}
        for directory, pid in cluster_data.running_brokers(self._data).items():
            if pid not in own:
                self._separate[directory] = pid, process_identity(pid)
        # A broker releases its lock before it closes its session of ZooKeeper.
        return {
            directory: (pid, identity)
            for directory, (pid, identity) in self._separate.items()
            if identity and process_identity(pid) == identity
        }

    def _stop_separate(self) -> None:
        for directory, (pid, identity) in self._running_separate().items():
            name = f"{_name(directory)}, started with headrace broker,"
            try:
                if stop_process(pid, identity, STOP_S_MAX):
                    _print(f"{name} has stopped: pid {pid}")
                    continue
                reason = f"did not stop within {STOP_S_MAX:g} s"
            except Failure:
                reason = "belongs to another user"
            _print(f"{name} still runs, without ZooKeeper: it {reason}. Stop it: kill -9 {pid}")

    def _stop(self) -> None:
        self._ready.remove()
        for broker in self._brokers:
            process = broker.process
            if process.running and not process.stop(STOP_S_MAX):
                _print(f"{process.name} did not stop within {STOP_S_MAX:g} s and was killed")
                self._failed.add(process.name)
        if self._zookeeper is not None:
            self._zookeeper.stop()


def _name(directory: Path) -> str:
    return f"Broker {directory.name.removeprefix('broker-')}"


def broker_count(data: Path, started: int) -> int:
    """The number of all brokers of the cluster, including brokers that are not started now."""
    return started + len(cluster_data.brokers_beyond(data, started))


def replication_settings(settings: Mapping[str, str], broker_count: int) -> dict[str, str]:
    """Settings for replication among this many brokers. `settings` override them."""
    replicas = str(min(broker_count, REPLICAS_MAX))
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        # With two replicas, requiring both would stop writes when one broker fails.
        "min.insync.replicas": "2" if broker_count >= REPLICAS_MAX else "1",
        **settings,
    }


def _print(line: str) -> None:
    print(line, flush=True)
