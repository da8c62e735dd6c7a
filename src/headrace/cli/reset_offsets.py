"""`headrace groups reset-offsets`: shows the new offsets of a group, then commits them.

Without `--execute`, no offset is changed. Offsets are limited to the range of the partition; a
line on standard error reports each limited offset.
"""

import argparse
import csv
import re
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.cli.failure import Failure
from headrace.cli.output import plural, print_json, print_table

if TYPE_CHECKING:
    from headrace.client import Client, TopicPartition

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHORT_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")
_ISO_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")


class OffsetChange(NamedTuple):
    """One line of a plan."""

    partition: "TopicPartition"
    before: int | None
    after: int


def add_reset_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="GROUP", help="the group, without active members")
    parser.add_argument(
        "--topic",
        action="append",
        metavar="TOPIC[:N,N]",
        help="a topic, or some of its partitions; can be repeated (default: all partitions with a "
        "committed offset)",
    )
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_true", help="to the start of each partition")
    to.add_argument("--to-latest", action="store_true", help="to the end of each partition")
    to.add_argument("--to-offset", type=int, metavar="N", help="to this offset")
    to.add_argument(
        "--to-datetime",
        type=_moment_ms,
        metavar="TIME",
        help="to the first record at or after this time: 2026-01-31T12:00 (UTC by "
        "default) or @MILLISECONDS",
    )
    to.add_argument(
        "--by-duration",
        type=_duration_ms,
        metavar="TIME",
        help="to the first record within this time before now: 90s, 15m, 2h, 1d or PT1H30M",
    )
    to.add_argument(
        "--shift-by", type=int, metavar="N", help="by this number of records; back if negative"
    )
    to.add_argument(
        "--from-file",
        metavar="FILE",
        help="to the offsets in this file: lines of topic,partition,offset",
    )
    parser.add_argument(
        "--execute", action="store_true", help="set the offsets instead of only showing them"
    )
    parser.add_argument(
        "--csv", action="store_true", help="print the plan in the format of --from-file"
    )


def reset_offsets(client: "Client", args: argparse.Namespace) -> None:
    from headrace.client import GroupOffset

    plan = _plan(client, args)
    if args.execute:
        client.commit_group_offsets(
            args.group, {change.partition: GroupOffset(change.after) for change in plan}
        )
    _show(plan, args)


def _show(plan: list[OffsetChange], args: argparse.Namespace) -> None:
    if args.json:
        changes = [
            {
                "topic": change.partition.topic,
                "partition": change.partition.partition,
                "offset": change.before,
                "new_offset": change.after,
            }
            for change in plan
        ]
        print_json({"group": args.group, "executed": args.execute, "partitions": changes})
    elif args.csv:
        for change in plan:
            print(f"{change.partition.topic},{change.partition.partition},{change.after}")
    else:
        rows = [
            (change.partition.topic, change.partition.partition, change.before, change.after)
            for change in plan
        ]
        print_table(("topic", "partition", "offset", "new offset"), rows)
        count = plural(len(plan), "partition")
        if args.execute:
            print(f"The offsets of {count} were set for {args.group}.")
        else:
            print(
                f"This is a plan for {count}; no offset was changed. "
                "Add --execute to set the offsets."
            )


def _plan(client: "Client", args: argparse.Namespace) -> list[OffsetChange]:
    committed = client.group_offsets(args.group)
    if args.from_file is not None:
        wanted = _read_file(args.from_file)
        partitions = list(wanted)
    else:
        partitions = chosen_partitions(client, args.topic) if args.topic else list(committed)
        wanted = None
    if not partitions:
        raise Failure(f"Group {args.group!r} has no committed offsets. Select topics with --topic.")
    starts = client.list_offsets(dict.fromkeys(partitions, "earliest"))
    ends = client.list_offsets(dict.fromkeys(partitions, "latest"))
    before = {
        partition: committed[partition].offset for partition in partitions if partition in committed
    }
    after = wanted if wanted is not None else _targets(client, args, partitions, before)
    plan = []
    for partition in sorted(partitions):
        start, end = starts[partition].offset, ends[partition].offset
        offset = after.get(partition, end)
        limited = min(max(offset, start), end)
        # --to-earliest requests offset 0 of every partition.
        if limited != offset and not args.to_earliest:
            side = "above the end" if offset > end else "below the start"
            print(
                f"{partition}: offset {offset} is {side} of the partition: set to {limited}",
                file=sys.stderr,
            )
        plan.append(OffsetChange(partition, before.get(partition), limited))
    return plan


def _targets(
    client: "Client",
    args: argparse.Namespace,
    partitions: "list[TopicPartition]",
    before: "dict[TopicPartition, int]",
) -> "dict[TopicPartition, int]":
    """The requested offsets; an omitted partition is set to its end."""
    from headrace.client import AtTime

    if args.to_offset is not None:
        return dict.fromkeys(partitions, args.to_offset)
    if args.to_earliest:
        return dict.fromkeys(partitions, 0)
    if args.to_latest:
        return {}
    if args.shift_by is not None:
        unset = [partition for partition in partitions if partition not in before]
        if unset:
            raise Failure(
                f"Cannot shift {unset[0]}: the group has no committed offset for it. Use another "
                "option."
            )
        return {partition: before[partition] + args.shift_by for partition in partitions}
    moment_ms = args.to_datetime
    if args.by_duration is not None:
        moment_ms = int(time.time() * 1000) - args.by_duration
    found = client.list_offsets(dict.fromkeys(partitions, AtTime(moment_ms)))
    return {partition: at.offset for partition, at in found.items() if at.offset >= 0}


def chosen_partitions(client: "Client", texts: list[str]) -> "list[TopicPartition]":
    """The partitions of arguments such as TOPIC and TOPIC:0,2. They must exist."""
    from headrace.client import TopicPartition

    partitions: dict[TopicPartition, None] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        count = len(client.describe_topic(name).partitions)
        if not colon:
            partitions.update(dict.fromkeys(TopicPartition(name, index) for index in range(count)))
            continue
        for number in numbers.split(","):
            if not (number.isascii() and number.isdigit()) or int(number) >= count:
                raise Failure(
                    f"Unknown partition {number!r}: topic {name!r} has partitions 0 to "
                    f"{count - 1}.",
                    2,
                )
            partitions[TopicPartition(name, int(number))] = None
    return list(partitions)


def _read_file(path: str) -> "dict[TopicPartition, int]":
    from headrace.client import TopicPartition

    wanted: dict[TopicPartition, int] = {}
    try:
        with open(path, newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if not row or row[0].startswith("#"):
                    continue
                try:
                    # If a plan has several groups, Kafka's tool writes the group first.
                    topic, partition, offset = (cell.strip() for cell in row[-3:])
                    wanted[TopicPartition(topic, int(partition))] = int(offset)
                except ValueError:
                    line = f"line {number} of {path}"
                    raise Failure(f"{line} is not topic,partition,offset", 2) from None
    except OSError as error:
        raise Failure(f"Cannot read {path}: {error.strerror}.", 2) from None
    return wanted


def _moment_ms(text: str) -> int:
    if text.startswith("@") and text[1:].isascii() and text[1:].isdigit():
        return int(text[1:])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time such as 2026-01-31T12:00 or @MILLISECONDS."
        ) from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def _duration_ms(text: str) -> int:
    short = _SHORT_DURATION.fullmatch(text)
    if short:
        return int(short[1]) * _UNITS_MS[short[2]]
    iso = _ISO_DURATION.fullmatch(text)
    if iso and any(iso.groups()):
        numbers: list[Any] = [int(group or 0) for group in iso.groups()]
        days, hours, minutes, seconds = numbers
        return int(((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a duration such as 90s, 15m, 2h, 1d or PT1H30M."
    )
