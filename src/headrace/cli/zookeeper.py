"""`headrace zookeeper`: runs a ZooKeeper ensemble on this machine, and restarts failed nodes."""

import argparse
import os
import sys
import time
from pathlib import Path

from headrace.cli import cluster_data
from headrace.cli.connection import consecutive_ports, port_number
from headrace.cli.data_directory import data_directory
from headrace.cli.failure import Failure
from headrace.cli.ready import add_directory_arguments, add_ready_file_argument, check_ready_file
from headrace.cli.zookeeper_access import (
    add_config_argument,
    created_digest,
    run_secure,
    secure_if_open,
)
from headrace.ensemble.zookeeper import CLIENT_PORT, HEAP, heap_size

DATA_DIRECTORY = "./headrace-zookeeper"
CHECK_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=("run", "install", "secure"),
        default="run",
        help="run an ensemble (default); install ZooKeeper's jars into the cache; or secure a "
        "cluster's nodes in ZooKeeper, so that only its credentials can change them",
    )
    add_config_argument(parser, "--config")
    parser.add_argument(
        "--undo",
        action="store_true",
        help="with secure: allow every client of ZooKeeper to change the nodes again",
    )
    parser.add_argument(
        "--digest-file",
        metavar="FILE",
        help="with run: secure all nodes with the credentials in this file, which is created if it "
        "does not exist",
    )
    parser.add_argument(
        "--nodes", type=int, default=1, metavar="K", help="number of nodes (default: 1)"
    )
    parser.add_argument(
        "--port",
        type=port_number,
        metavar="PORT",
        default=CLIENT_PORT,
        help="port of the first node; the others get the next ports; 0 selects free ports "
        f"(default: {CLIENT_PORT})",
    )
    parser.add_argument("--heap", metavar="SIZE", help=f"maximum heap of a node (default: {HEAP})")
    add_directory_arguments(parser, DATA_DIRECTORY)
    add_ready_file_argument(parser, "ZooKeeper runs")


def run(args: argparse.Namespace) -> int:
    from headrace.coordination.port import StoreUnavailable
    from headrace.ensemble.child import ChildFailed
    from headrace.ensemble.requirements import NotInstalled

    if args.action == "install":
        return _install()
    if args.action == "secure":
        return run_secure(args)
    if args.nodes < 1:
        raise Failure("--nodes must be at least 1.", 2)
    heap = checked_heap("--heap", args.heap)
    check_ready_file(args.ready_file)
    try:
        with (
            data_directory(args.data or DATA_DIRECTORY, is_temporary=args.temp) as (data, _),
            cluster_data.locked(data),
        ):
            return _serve(args, data, heap)
    except (ChildFailed, NotInstalled, StoreUnavailable) as error:
        raise Failure(str(error)) from None


def _install() -> int:
    from headrace.ensemble import zookeeper_jars
    from headrace.ensemble.requirements import NotInstalled

    try:
        zookeeper_jars.install(lambda line: print(line, flush=True))
    except NotInstalled as error:
        raise Failure(str(error)) from None
    print(f"ZooKeeper {zookeeper_jars.VERSION} is installed: {zookeeper_jars.cache_directory()}")
    return 0


def checked_heap(option: str, text: str | None) -> str:
    try:
        return heap_size(HEAP if text is None else text)
    except ValueError as error:
        raise Failure(f"Wrong value for {option}: {error}.", 2) from None


def report(line: str) -> None:
    """Print an error or a warning of a running command."""
    print(line, file=sys.stderr, flush=True)


def _serve(args: argparse.Namespace, data: Path, heap: str) -> int:
    from headrace.cli.ready import (
        killed_line,
        remove_ready_file,
        stopped_line,
        write_ready_file,
    )
    from headrace.cli.stop_signals import StoppedAtStart, StopSignals
    from headrace.ensemble.monitor import Monitor
    from headrace.ensemble.zookeeper import LocalZooKeeper, free_port

    ports = [port or free_port() for port in consecutive_ports("--port", args.port, args.nodes)]
    access = created_digest(args.digest_file) if args.digest_file else None
    zookeeper = LocalZooKeeper(data, ports, heap=heap)
    stopping = StopSignals(zookeeper.kill)

    def write_ready() -> None:
        if args.ready_file is not None:
            parts = [{"address": n.address, "pid": n.process.pid} for n in zookeeper.nodes]
            write_ready_file(args.ready_file, zookeeper.connect, parts=parts)

    try:
        with cluster_data.writing(data):
            zookeeper.start(stopping.check)
        if args.nodes > 1:
            for node in zookeeper.nodes:
                print(f"{node.process.name} is ready: {node.describe()}", flush=True)
        if access is not None:
            secure_if_open(zookeeper.connect, access)
            path = os.path.abspath(args.digest_file)
            print(
                "All nodes are secured. Brokers need these settings: zookeeper.set.acl=true,",
                end=" ",
            )
            print(f"headrace.zookeeper.digest.file={path}", flush=True)
        print(f"ZooKeeper is ready: zookeeper.connect={zookeeper.connect}", flush=True)
        write_ready()
        monitor = Monitor(zookeeper.nodes, report, write_ready)
        while not stopping.wait(CHECK_S):
            monitor.check(time.monotonic())
    except StoppedAtStart:
        pass
    finally:
        remove_ready_file(args.ready_file)
        zookeeper.stop()
    if stopping.was_repeated:
        print(killed_line("ZooKeeper", is_temporary=args.temp), flush=True)
        return 1
    print(stopped_line("ZooKeeper", is_temporary=args.temp), flush=True)
    return 0
