"""`headrace up` and `headrace broker`: one broker in the foreground, until it is told to stop."""

import argparse
import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from headrace.cli.failure import Failure

DATA_DIRECTORY = "./headrace-data"
PORT = 9092
DESCRIPTORS_WANTED = 100_000


def add_up_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, default=PORT, help=f"port to listen on; 0 picks one (default {PORT})"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--data", metavar="DIR", help=f"directory for the data (default {DATA_DIRECTORY})"
    )
    where.add_argument(
        "--temp", action="store_true", help="keep the data in a temporary directory, then drop it"
    )
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="take over the partitions that Apache Kafka left in the data directory",
    )
    _add_shared_arguments(parser)


def add_broker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a server.properties, as for Apache Kafka")
    _add_shared_arguments(parser)


def _add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="a setting, by Kafka's name for it; may be repeated",
    )
    parser.add_argument(
        "--ready-file",
        metavar="FILE",
        help="write address and pid here, as JSON, once clients are served",
    )


def run_up(args: argparse.Namespace) -> int:
    directory = args.data or DATA_DIRECTORY
    if args.temp:
        directory = tempfile.mkdtemp(prefix="headrace-")
    properties = {"listeners": f"PLAINTEXT://127.0.0.1:{args.port}", "log.dirs": directory}
    try:
        settings = _settings(args.settings)
        if "broker.id" not in settings and "node.id" not in settings:
            properties |= _known_node_id(directory)
        return _run(properties, settings, "headrace up", args.ready_file, adopt=args.adopt)
    finally:
        if args.temp:
            shutil.rmtree(directory, ignore_errors=True)


def run_broker(args: argparse.Namespace) -> int:
    from headrace.config.properties import read_properties
    from headrace.config.setting import ConfigError

    try:
        # Properties files are Latin-1; what is beyond it they escape.
        properties = read_properties(Path(args.file).read_text(encoding="latin-1"))
    except OSError as error:
        raise Failure(f"Cannot read {args.file}: {error.strerror}.") from None
    except ConfigError as error:
        raise Failure(f"{args.file}: {error.message}") from None
    return _run(properties, _settings(args.settings), args.file, args.ready_file)


def _settings(given: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise Failure(f"--set takes NAME=VALUE, and {one!r} has no '='.")
        settings[name.strip()] = value
    return settings


def _known_node_id(directory: str) -> dict[str, str]:
    """The id that a data directory was made with: whoever starts on it again need not know it."""
    try:
        text = Path(directory, "meta.properties").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() in ("node.id", "broker.id") and value.strip().isdigit():
            return {"node.id": value.strip()}
    return {}


def _run(
    properties: Mapping[str, str],
    overrides: Mapping[str, str],
    origin: str,
    ready: str | None,
    *,
    adopt: bool = False,
) -> int:
    import logging

    from headrace.config.broker import BrokerConfig
    from headrace.config.setting import ConfigError
    from headrace.node.broker import Broker, CannotStart

    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    try:
        config = BrokerConfig.load(properties, overrides, origin=origin)
    except ConfigError as error:
        raise Failure(error.message) from None
    for note in config.notes():
        logging.getLogger("headrace").warning("%s", note)
    _say_if_uncompiled()

    _raise_descriptor_limit()
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        return int(loop.run_until_complete(_serve(Broker(config, adopt=adopt), ready)))
    except CannotStart as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise _explained(error, config) from error
    finally:
        loop.close()


def _raise_descriptor_limit() -> None:
    """Each connection takes a descriptor, and shells give out few without being asked."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(broker: object, ready: str | None) -> int:
    import asyncio
    import gc
    import signal

    from headrace.node.broker import Broker

    assert isinstance(broker, Broker)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    await broker.start()
    # What was loaded so far stays: the collector need not look at it again.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    print(f"Headrace is ready: bootstrap.servers={broker.address}", flush=True)
    if ready is not None:
        _write_ready_file(ready, broker.address)
    try:
        await stopping.wait()
    finally:
        await broker.stop()
    print("Headrace has stopped; everything is on disk.", flush=True)
    return 0


def _write_ready_file(path: str, address: str) -> None:
    """All at once: whoever waits for the file finds it whole."""
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump({"address": address, "pid": os.getpid()}, file)
    os.replace(part, path)


def _say_if_uncompiled() -> None:
    from headrace.record import batch

    if batch.__file__.endswith(".py"):
        print(
            "Running uncompiled: everything works, large loads are slower. "
            "A wheel built where there is a C compiler is faster.",
            file=sys.stderr,
        )


def _explained(error: OSError, config: object) -> Failure:
    from headrace.config.broker import BrokerConfig

    assert isinstance(config, BrokerConfig)
    directory = config.data_directory
    if error.errno == errno.EADDRINUSE:
        ports = ", ".join(str(endpoint.port) for endpoint in config.listeners)
        return Failure(
            f"Port {ports} is in use: another broker may be running. Stop it, or choose another "
            "port with --port (0 picks a free one)."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        hosts = ", ".join(endpoint.host for endpoint in config.listeners)
        return Failure(f"This machine has no address {hosts}: correct the listeners setting.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return Failure(
            f"Cannot write to {error.filename or directory}: {error.strerror}. Choose another "
            "directory with --data, or change its permissions."
        )
    if error.errno == errno.ENOSPC:
        return Failure(f"The disk under {directory} is full: make room, then start again.")
    return Failure(f"The broker cannot run: {error}.")
