"""`headrace consume TOPIC`: prints records as text, with a template, or as JSON."""

import argparse
import re
import select
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.cli.connection import add_connection_arguments, add_json_argument, connected
from headrace.cli.failure import Failure
from headrace.cli.output import Progress, plural

if TYPE_CHECKING:
    from headrace.client import Client, Record

_IDLE_MS = 500
_NUMBER = re.compile("[0-9]{1,19}")
_POSITIONS = (
    "earliest, latest, an offset, a time such as 2026-01-31T12:00 (UTC by default), or "
    "@MILLISECONDS"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="topic to read")
    parser.add_argument(
        "--from",
        dest="start",
        default="earliest",
        metavar="POSITION",
        help=f"start position: {_POSITIONS} (default: earliest)",
    )
    parser.add_argument(
        "--until",
        metavar="POSITION",
        help="stop position, exclusive: end (the current end), an offset or a time "
        "(default: never)",
    )
    parser.add_argument("--max", type=int, metavar="N", help="stop after N records")
    parser.add_argument(
        "--partition",
        type=int,
        action="append",
        metavar="N",
        help="read only this partition; can be repeated",
    )
    parser.add_argument(
        "--group",
        metavar="G",
        help="read as a member of this group: share the partitions, resume from the "
        "committed offsets, and commit printed records; --from applies if the "
        "group has no offset",
    )
    parser.add_argument(
        "--group-protocol",
        default="classic",
        choices=["classic", "consumer"],
        help="rebalance protocol of the group: classic (default), or consumer (KIP-848)",
    )
    parser.add_argument(
        "--format",
        default="{value}",
        metavar="TEMPLATE",
        help="output template, such as '{partition}:{offset} {key}\\t{value}'; "
        "fields: topic, partition, offset, timestamp (milliseconds), time, key,"
        " value, headers (default: {value})",
    )
    parser.add_argument(
        "--isolation",
        default="read_uncommitted",
        choices=["read_uncommitted", "read_committed"],
        help="whether to print records of open and aborted transactions "
        "(default: read_uncommitted)",
    )
    add_json_argument(parser)
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.cli.template import json_line, template

    format_record: Callable[[Record], bytes] = json_line if args.json else template(args.format)
    if args.max is not None and args.max < 0:
        raise Failure("--max cannot be negative.", 2)
    read = _read if args.group is None else _read_as_member
    count = 0
    out = sys.stdout.buffer
    with connected(args) as client, closing(read(client, args)) as lists, Progress() as progress:
        show_progress = progress.visible and not sys.stdout.isatty()
        for records in lists:
            if not records:
                _check_reader(out.fileno())
                continue
            out.write(b"".join(map(format_record, records)))
            out.flush()
            count += len(records)
            if show_progress:
                progress.show(plural(count, "record"))
        if show_progress:
            progress.say(f"{plural(count, 'record')} read from {args.topic}.")
    return 0


def _read(client: "Client", args: argparse.Namespace) -> "Generator[list[Record], None, None]":
    return client.consume_lists(
        args.topic,
        start=_start(args.start),
        until=None if args.until is None else _until(args.until),
        partitions=args.partition,
        max_records=args.max,
        isolation=args.isolation,
        out_of_range="earliest" if args.start == "earliest" else "error",
        idle_ms=_IDLE_MS,
    )


def _read_as_member(
    client: "Client", args: argparse.Namespace
) -> "Generator[list[Record], None, None]":
    """Commits the printed records and leaves the group, also after an exception."""
    if args.partition or args.until is not None:
        raise Failure("--group assigns the partitions. Omit --partition and --until.", 2)
    if args.start not in ("earliest", "latest"):
        raise Failure(
            "with --group, --from takes earliest or latest; 'headrace groups "
            "reset-offsets' sets other offsets",
            2,
        )
    client.describe_topic(args.topic)
    remaining = args.max
    with (
        _delayed_signals() as signals,
        client.group_consumer(
            args.group,
            args.topic,
            protocol=args.group_protocol,
            auto_offset_reset=args.start,
            isolation=args.isolation,
        ) as member,
    ):
        while not signals and (remaining is None or remaining > 0):
            records = member.poll(_IDLE_MS, 1_000 if remaining is None else min(remaining, 1_000))
            if remaining is not None:
                remaining -= len(records)
            yield records


@contextmanager
def _delayed_signals() -> Iterator[list[int]]:
    """Delays a signal until the fetched records are printed and the group is remaining.

    A second signal ends the command immediately.
    """
    signals: list[int] = []
    before: dict[int, Any] = {}

    def end(number: int, frame: object) -> None:
        signals.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    for each in (signal.SIGINT, signal.SIGTERM):
        before[each] = signal.signal(each, end)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signals:
        raise SystemExit(128 + signals[0])


def _check_reader(descriptor: int) -> None:
    """Raise BrokenPipeError if the reader has closed the pipe, also if no record arrives."""
    poll = select.poll()
    poll.register(descriptor, 0)
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        raise BrokenPipeError


def _start(text: str) -> Any:
    if text in ("earliest", "latest"):
        return text
    return _position(text, f"--from takes {_POSITIONS}")


def _until(text: str) -> Any:
    if text == "end":
        return text
    return _position(
        text, "--until takes end, an offset, a time such as 2026-01-31T12:00, or @MILLISECONDS"
    )


def _position(text: str, usage: str) -> Any:
    from headrace.client import AtTime

    digits = text.removeprefix("@")
    if _NUMBER.fullmatch(digits) and int(digits) < 1 << 63:
        return int(digits) if digits == text else AtTime(int(digits))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Failure(f"{usage}, not {text!r}", 2) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
