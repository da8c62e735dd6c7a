"""`headrace produce TOPIC`: each line of standard input becomes a record."""

import argparse
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.cli.connection import add_connection_arguments, connected, name_and_value
from headrace.cli.escapes import unescape
from headrace.cli.failure import Failure
from headrace.cli.output import Progress, plural

if TYPE_CHECKING:
    from headrace.client import Producer

_READ_SIZE = 1 << 16
_QUIET_S = 0.005


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="topic to write to")
    parser.add_argument(
        "--key-separator",
        metavar="TEXT",
        type=_separator,
        help="separator between key and value in each line, such as : or \\t",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        type=name_and_value,
        metavar="NAME=VALUE",
        help="a header for every record; can be repeated",
    )
    parser.add_argument("--partition", type=int, metavar="N", help="write only to this partition")
    parser.add_argument(
        "--compression",
        default="none",
        choices=["none", "gzip", "snappy", "lz4", "zstd"],
        help="compression of batches (default: none)",
    )
    parser.add_argument(
        "--acks",
        default="all",
        choices=["all", "1", "0"],
        help="acknowledgements to wait for: all in-sync replicas, the leader, or none "
        "(default: all)",
    )
    add_connection_arguments(parser)


def _separator(text: str) -> bytes:
    if not text:
        raise argparse.ArgumentTypeError("it must not be empty")
    return unescape(text).encode(errors="surrogateescape")


def run(args: argparse.Namespace) -> int:
    with connected(args) as client, Progress() as progress:
        producer = client.producer(
            acks="all" if args.acks == "all" else 0 if args.acks == "0" else 1,
            compression=args.compression,
            partitioner="round_robin",
        )
        with producer:
            count = _send_lines(producer, args, progress)
        progress.say(f"{plural(count, 'record')} written to {args.topic}.")
    return 0


def _send_lines(producer: "Producer", args: argparse.Namespace, progress: Progress) -> int:
    headers = [(name, value.encode(errors="surrogateescape")) for name, value in args.header]
    separator: bytes | None = args.key_separator
    count = 0
    for line in lines(sys.stdin.fileno(), producer.flush):
        key: bytes | None = None
        value = line
        if separator is not None:
            key, found, value = line.partition(separator)
            if not found:
                producer.flush()
                text = separator.decode(errors="replace")
                raise Failure(
                    f"Line {count + 1:,} has no {text!r} between key and value. "
                    f"Records written before it: {count:,}."
                )
        producer.send(args.topic, value, key=key, partition=args.partition, headers=headers)
        count += 1
        if progress.visible and count % 1_000 == 0:
            progress.show(plural(count, "record"))
    return count


def lines(descriptor: int, when_quiet: Callable[[], None]) -> Iterator[bytes]:
    """Yield lines without their ends. Calls `when_quiet` if no input arrives for 5 ms.

    The blocking client has no thread that sends batches after linger_ms. `when_quiet` sends them.
    """
    begun: list[bytes] = []  # The first part of a line whose end has not arrived yet.
    pending = False
    while True:
        if pending and not select.select([descriptor], [], [], _QUIET_S)[0]:
            when_quiet()
            pending = False
        data = os.read(descriptor, _READ_SIZE)
        if not data:
            break
        first, *more = data.split(b"\n")
        begun.append(first)
        if more:
            yield b"".join(begun)
            yield from more[:-1]
            begun = [more[-1]]
            pending = True
    if any(begun):
        yield b"".join(begun)
