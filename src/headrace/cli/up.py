"""`headrace up` and `headrace broker`: run one broker in the foreground.

`cli/supervisor.py` runs several brokers (`up --brokers`).
"""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.cluster_data import check_not_a_cluster, known_node_id
from headrace.cli.connection import port_number
from headrace.cli.data_directory import data_directory, stop_signals
from headrace.cli.failure import Failure
from headrace.cli.log_level import add_log_level_argument, set_log_level
from headrace.cli.ready import (
    DATA_DIRECTORY,
    ReadyFiles,
    add_directory_arguments,
    add_ready_file_argument,
    check_ready_file,
    ready_line,
    state_file,
    stopped_line,
)
from headrace.cli.secure import (
    ADMIN,
    PORT,
    PROTOCOL,
    admin_password,
    check_not_secured,
    check_settings,
    secure_settings,
    secured_lines,
)

if TYPE_CHECKING:
    import asyncio

    from headrace.node.broker import Broker

_UP = "headrace up"
DESCRIPTORS_WANTED = 100_000
KEPT_BYTES_MAX = 8 * 1024 * 1024
ALLOCATED_BYTES_MAX = 2 * 1024 * 1024
"""Larger blocks are allocated by mmap, and returned to the system when they are freed."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def add_up_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port",
        type=port_number,
        metavar="PORT",
        default=PORT,
        help=f"port to listen on; 0 selects a free port (default: {PORT})",
    )
    add_directory_arguments(parser, DATA_DIRECTORY)
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="serve the partitions of Apache Kafka's data directory",
    )
    parser.add_argument(
        "--detach",
        action="store_true",
        help="run in the background; see headrace status and headrace down",
    )
    parser.add_argument(
        "--brokers",
        type=int,
        metavar="N",
        help="start a cluster of N brokers on consecutive ports, and a ZooKeeper ensemble",
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="enable TLS, logins and ACLs, with certificates and a user in DATA/security",
    )
    ensemble = parser.add_mutually_exclusive_group()
    ensemble.add_argument(
        "--zookeeper-nodes", type=int, metavar="K", help="number of ZooKeeper nodes (default: 1)"
    )
    ensemble.add_argument(
        "--zookeeper",
        metavar="HOST:PORT/PATH",
        help="use this ZooKeeper ensemble instead of starting one",
    )
    parser.add_argument(
        "--zookeeper-port",
        type=port_number,
        metavar="PORT",
        help="port of the first ZooKeeper node; the others get the next ports; 0 selects "
        "free ports (default: 2181, or free ports if it is in use)",
    )
    parser.add_argument(
        "--zookeeper-heap", metavar="SIZE", help="maximum heap of a ZooKeeper node (default: 256m)"
    )
    _add_shared_arguments(parser)


def add_broker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="a server.properties file with Kafka's settings"
    )
    _add_shared_arguments(parser)


def _add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="a setting, with the name that Kafka uses; can be repeated",
    )
    add_ready_file_argument(parser, "the broker serves clients")
    add_log_level_argument(parser)


def run_up(args: argparse.Namespace) -> int:
    set_log_level(args.log_level)
    settings = _settings(args.settings)
    if args.secure:
        check_settings(settings)
    elif not args.temp:
        check_not_secured(Path(_named_directory(args, settings) or DATA_DIRECTORY))
    if args.detach:
        from headrace.cli.detached import start

        if args.temp:
            raise Failure("--detach requires a permanent data directory. Omit --temp.", 2)
        return start(Path(_named_directory(args, settings) or DATA_DIRECTORY))
    if args.brokers is not None:
        return _run_cluster(args, settings)
    given = (args.zookeeper, args.zookeeper_nodes, args.zookeeper_heap, args.zookeeper_port)
    if any(each is not None for each in given):
        raise Failure("The --zookeeper options require --brokers N.", 2)
    named = _named_directory(args, settings) or DATA_DIRECTORY
    with data_directory(named, is_temporary=args.temp) as (directory, signals):
        check_not_a_cluster(directory)
        if args.secure:
            _check_port(args.port)
        security: Mapping[str, str] = {}
        if args.secure:
            from headrace.security.new_user import FIRST_USER_VARIABLE

            security = secure_settings(directory, is_cluster=False)
            # The broker ignores it if a user exists. It removes the variable from its environment.
            os.environ[FIRST_USER_VARIABLE] = f"{ADMIN}:{admin_password(directory)}"
        listeners = f"{PROTOCOL if args.secure else 'PLAINTEXT'}://127.0.0.1:{args.port}"
        properties = {"listeners": listeners, "log.dirs": str(directory), **security}

        def secured(broker: "Broker") -> str:
            store = f"--data {directory}"
            return secured_lines(directory, args.port, store, has_admin=broker.has_user(ADMIN))

        node_id = known_node_id(directory)
        if node_id is not None and "broker.id" not in settings and "node.id" not in settings:
            properties["node.id"] = str(node_id)
        return _run(
            properties,
            settings,
            _UP,
            args.ready_file,
            adopt=args.adopt,
            is_temporary=args.temp,
            early_signals=signals,
            secured=secured if args.secure else None,
        )


def _check_port(port: int) -> None:
    """Raise Failure if the port is in use, before --secure creates files."""
    from headrace.ensemble.zookeeper import is_port_free

    # Lower ports can require root privileges. The start of the broker reports this.
    if port >= 1024 and not is_port_free(port):
        raise Failure(
            f"Port {port} is in use: another broker might be running. Stop it, or choose another "
            "port with --port (0 selects a free port)."
        )


def _named_directory(args: argparse.Namespace, settings: Mapping[str, str]) -> str:
    """The data directory in the options or settings, or ""."""
    for name in ("log.dirs", "log.dir"):
        if name not in settings:
            continue
        if not settings[name].strip():
            raise Failure(f"--set {name} is empty. Name a directory, or omit it.", 2)
        if args.temp or args.data:
            option = "--temp" if args.temp else "--data"
            raise Failure(
                f"--set {name} and {option} both set the data directory. Use one of them.",
                2,
            )
        return settings[name].strip()
    return args.data or ""


def _run_cluster(args: argparse.Namespace, settings: Mapping[str, str]) -> int:
    from headrace.cli.supervisor import run_cluster

    if args.brokers < 1 or (args.zookeeper_nodes is not None and args.zookeeper_nodes < 1):
        raise Failure("--brokers and --zookeeper-nodes must be at least 1.", 2)
    started = (args.zookeeper_heap, args.zookeeper_port)
    if args.zookeeper is not None and any(each is not None for each in started):
        raise Failure(
            "--zookeeper-heap and --zookeeper-port apply only to a ZooKeeper that headrace "
            "starts. Omit them.",
            2,
        )
    if args.adopt:
        raise Failure(
            "--adopt supports a single broker only. Adopt without --brokers, stop the broker, "
            "then start it with --brokers.",
            2,
        )
    for name in ("broker.id", "node.id", "listeners", "log.dirs", "log.dir", "zookeeper.connect"):
        if name in settings:
            raise Failure(
                f"--set {name} cannot have the same value for {args.brokers} brokers. Omit it.", 2
            )
    return run_cluster(args, args.data or DATA_DIRECTORY, settings)


def run_broker(args: argparse.Namespace) -> int:
    from headrace.config.properties import read_properties
    from headrace.config.setting import ConfigError

    set_log_level(args.log_level)
    try:
        # Properties files are Latin-1, with escapes for other characters.
        properties = read_properties(Path(args.file).read_text(encoding="latin-1"))
    except OSError as error:
        raise Failure(f"Cannot read {args.file}: {error.strerror}.") from None
    except ConfigError as error:
        raise Failure(f"{args.file}: {error.message}", 2) from None
    return _run(properties, _settings(args.settings), args.file, args.ready_file)


def _settings(given: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise Failure(f"--set takes NAME=VALUE; {one!r} has no '='.", 2)
        settings[name.strip()] = value
    return settings


def _run(
    properties: Mapping[str, str],
    overrides: Mapping[str, str],
    origin: str,
    ready: str | None,
    *,
    adopt: bool = False,
    is_temporary: bool = False,
    early_signals: Sequence[int] = (),
    secured: "Callable[[Broker], str] | None" = None,
) -> int:
    """`secured` returns lines for the user of a secured broker that has started."""
    import logging

    from headrace.config.broker import BrokerConfig
    from headrace.config.setting import ConfigError
    from headrace.node.broker import Broker, CannotStart

    try:
        config = BrokerConfig.load(properties, overrides, origin=origin)
    except ConfigError as error:
        raise Failure(error.message, 2) from None
    check_ready_file(ready)
    for note in config.notes():
        logging.getLogger(__name__).warning("%s", note)
    if not config.is_set("listeners") and not config.mechanisms:
        logging.getLogger(__name__).warning(
            "listeners is not set: the broker listens on all interfaces without a login. To accept "
            "only connections from this machine, set listeners=PLAINTEXT://127.0.0.1:9092."
        )
    _warn_if_uncompiled()

    _raise_descriptor_limit()
    import asyncio

    import uvloop

    try:
        # asyncio.Runner cancels tasks, such as connection attempts, before it closes the loop.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            state = None if is_temporary else state_file(Path(config.data_directory))
            files = ReadyFiles(ready, state)
            broker = Broker(config, adopt=adopt)
            runner.run(_serve(broker, files, early_signals, secured))
        offline_log_count = broker.offline_log_count
        line = stopped_line(is_temporary=is_temporary, offline_log_count=offline_log_count)
        print(line, flush=True)
        return 1 if offline_log_count and not is_temporary else 0
    except CannotStart as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise _failure_of(error, config, is_from_file=origin != _UP) from error


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files, because each connection needs a descriptor."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(
    broker: "Broker",
    ready: ReadyFiles,
    early_signals: Sequence[int],
    secured: "Callable[[Broker], str] | None",
) -> None:
    import asyncio
    import gc

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, *stop_signals()):
        loop.add_signal_handler(number, stopping.set)
    if broker.config.tls_listeners and not sys.stdin.isatty():
        # A service without a terminal cannot lose it, and administrators expect a reload.
        loop.add_signal_handler(signal.SIGHUP, broker.reload_certificates)
    if early_signals:
        # Python can lose an exception of a signal handler, for example during an import.
        raise SystemExit(128 + early_signals[0])
    if not await _has_started(broker, stopping):
        return
    # Exclude the modules loaded so far from garbage collection.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    if secured is not None:
        print(secured(broker), flush=True)
    if broker.internal_address:
        print(f"Internal listener: {broker.internal_address}", flush=True)
    print(ready_line(broker.address, broker.config.data_directory), flush=True)
    ready.write(broker.address, internal=broker.internal_address)
    _keep_freed_memory()
    try:
        await stopping.wait()
    finally:
        ready.remove()
        await broker.stop()


async def _has_started(broker: "Broker", stopping: "asyncio.Event") -> bool:
    """Start the broker. A stop signal cancels the start as long as that is possible."""
    import asyncio

    starting = asyncio.ensure_future(broker.start())
    signalled = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({starting, signalled}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done() and broker.can_cancel_start:
        starting.cancel()
        await asyncio.wait({starting})
    signalled.cancel()
    if starting.cancelled():
        return False
    await starting
    return True


def _keep_freed_memory() -> None:
    """Keep freed memory for reuse, because the first access to a page is expensive.

    By default, the C library returns memory to the system after every batch of a megabyte.
    """
    import ctypes

    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, ALLOCATED_BYTES_MAX)
        set_option(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def _warn_if_uncompiled() -> None:
    from headrace.record import batch

    if batch.__file__.endswith(".py"):
        print(
            "Headrace runs uncompiled: all features work, but large loads are slower. Install it "
            "with a C compiler for full speed.",
            file=sys.stderr,
        )


def _failure_of(error: OSError, config: object, *, is_from_file: bool) -> Failure:
    from headrace.config.broker import BrokerConfig
    from headrace.server.listener import CannotListen

    assert isinstance(config, BrokerConfig)
    directory = config.data_directory
    if isinstance(error, CannotListen):
        option = (
            "in the listeners setting" if is_from_file else "with --port (0 selects a free port)"
        )
        if error.errno == errno.EACCES:
            return Failure(
                f"Port {error.port} requires root privileges, like all ports below 1024. Choose "
                f"another port {option}."
            )
        if error.errno == errno.EADDRINUSE:
            return Failure(
                f"Port {error.port} is in use: another broker might be running. Stop it, or choose "
                f"another port {option}."
            )
        if error.errno == errno.EADDRNOTAVAIL:
            return Failure(
                f"Cannot listen on {error.host}: this machine does not have that address. Correct "
                "the listeners setting."
            )
        return Failure(
            f"Cannot listen on {error.host}, port {error.port}: {error.strerror}. Correct the "
            "listeners setting."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return Failure(
            f"Cannot write to {error.filename or directory}: {error.strerror}. Choose another "
            f"directory {'in log.dirs' if is_from_file else 'with --data'}, or change its "
            "permissions."
        )
    if error.errno == errno.ENOSPC:
        return Failure(f"The disk of {directory} is full. Free some space, then start again.")
    if error.filename:
        return Failure(
            f"The broker failed: {error}. Check this file and its disk, then start again."
        )
    return Failure(f"The broker failed: {error}.")
