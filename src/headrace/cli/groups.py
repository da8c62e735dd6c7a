"""`headrace groups`: list, describe and delete groups, with lag and offsets."""

import argparse
import time
from typing import TYPE_CHECKING, Any

from headrace.cli.connection import add_action, run_action
from headrace.cli.failure import Failure
from headrace.cli.output import plural, print_json, print_table
from headrace.cli.reset_offsets import add_reset_arguments, chosen_partitions, reset_offsets

if TYPE_CHECKING:
    from headrace.client import Client, GroupInfo, GroupOffset, TopicPartition

_LAG_SECONDS_MAX = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = add_action(actions, "list", "list groups", _list)
    listing.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="STATE",
        help="only groups in this state, such as Stable or Empty; can be repeated",
    )
    describe = add_action(
        actions, "describe", "show offsets, lag and owners of partitions", _describe
    )
    describe.add_argument(
        "groups", nargs="*", metavar="GROUP", help="groups to describe (default: all)"
    )
    members = add_action(actions, "members", "show members and their partitions", _members)
    members.add_argument("group", metavar="GROUP", help="the group")
    delete = add_action(actions, "delete", "delete groups without members", _delete)
    delete.add_argument("groups", nargs="+", metavar="GROUP", help="the groups")
    reset = add_action(
        actions,
        "reset-offsets",
        "plan new offsets for a group, and set them with --execute",
        reset_offsets,
    )
    add_reset_arguments(reset)
    delete_offsets = add_action(
        actions,
        "delete-offsets",
        "delete committed offsets of topics that the group no longer reads",
        _delete_offsets,
    )
    delete_offsets.add_argument("group", metavar="GROUP", help="the group")
    delete_offsets.add_argument(
        "--topic",
        action="append",
        required=True,
        metavar="TOPIC[:N,N]",
        help="a topic, or some of its partitions; can be repeated",
    )


def run(args: argparse.Namespace) -> int:
    return run_action(args)


def _list(client: "Client", args: argparse.Namespace) -> None:
    listed = client.list_groups(args.state)
    if args.json:
        print_json(
            [
                {"group": each.group_id, "state": each.state, "type": each.type or None}
                for each in listed
            ]
        )
        return
    for each in listed:
        print(each.group_id)


def _describe(client: "Client", args: argparse.Namespace) -> None:
    names = args.groups or [each.group_id for each in client.list_groups()]
    descriptions = [_description(client, client.describe_group(name)) for name in names]
    if args.json:
        print_json(descriptions)
        return
    for number, description in enumerate(descriptions):
        if number:
            print()
        _print_description(description)


def _description(client: "Client", group: "GroupInfo") -> dict[str, Any]:
    committed = client.group_offsets(group.group_id)
    owners = {partition: member for member in group.members for partition in member.partitions}
    partitions = sorted({*committed, *owners})
    ends = _end_offsets(client, partitions)
    lags_ms = _lags_ms(client, committed, ends)
    rows = []
    for partition in partitions:
        offset = committed[partition].offset if partition in committed else None
        end, owner = ends.get(partition), owners.get(partition)
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "committed_offset": offset,
                "end_offset": end,
                "lag": None if offset is None or end is None else max(end - offset, 0),
                "lag_ms": lags_ms.get(partition),
                "metadata": committed[partition].metadata if partition in committed else None,
                "member": None if owner is None else owner.member_id,
                "client": None if owner is None else owner.client_id,
                "host": None if owner is None else owner.host,
            }
        )
    return {
        "group": group.group_id,
        "state": group.state,
        "assignor": group.assignor or None,
        "coordinator": group.coordinator,
        "members": len(group.members),
        "partitions": rows,
    }


def _end_offsets(
    client: "Client", partitions: "list[TopicPartition]"
) -> "dict[TopicPartition, int]":
    """The end offsets of the partitions. Omits deleted partitions."""
    topics = client.list_topics()
    existing = [
        partition
        for partition in partitions
        if partition.topic in topics
        and partition.partition < len(topics[partition.topic].partitions)
    ]
    ends = client.list_offsets(dict.fromkeys(existing, "latest"))
    return {partition: ends[partition].offset for partition in existing}


def _lags_ms(
    client: "Client",
    committed: "dict[TopicPartition, GroupOffset]",
    ends: "dict[TopicPartition, int]",
) -> "dict[TopicPartition, int]":
    """The age of the first record after each committed offset; 0 if the offset is at the end."""
    known = {partition: at.offset for partition, at in committed.items() if partition in ends}
    behind = {partition: offset for partition, offset in known.items() if offset < ends[partition]}
    lags = {partition: 0 for partition in known if partition not in behind}
    if not behind:
        return lags
    deadline = time.monotonic() + _LAG_SECONDS_MAX
    with client.consumer(out_of_range="earliest") as consumer:
        consumer.assign(behind)
        while behind and time.monotonic() < deadline:
            now_ms = int(time.time() * 1000)
            for record in consumer.poll(timeout_ms=500):
                partition = _topic_partition(record.topic, record.partition)
                if behind.pop(partition, None) is not None:
                    lags[partition] = max(now_ms - record.timestamp_ms, 0)
                    consumer.pause(partition)
    return lags


def _topic_partition(topic: str, partition: int) -> "TopicPartition":
    from headrace.client import TopicPartition

    return TopicPartition(topic, partition)


def _print_description(group: dict[str, Any]) -> None:
    assignor = f", assigned by {group['assignor']}" if group["assignor"] else ""
    members = plural(group["members"], "member")
    print(f"{group['group']}: {group['state']}, {members}{assignor}")
    rows = [
        (
            row["topic"],
            row["partition"],
            row["committed_offset"],
            row["end_offset"],
            row["lag"],
            None if row["lag_ms"] is None else _duration(row["lag_ms"]),
            row["member"],
            row["host"],
        )
        for row in group["partitions"]
    ]
    titles = ("topic", "partition", "committed", "end", "lag", "lag in time", "member", "host")
    print_table(titles, rows)


def _duration(ms: int) -> str:
    """ "850 ms", "12 s", "3 min 20 s", "5 h 12 min", "3 d 4 h"."""
    if ms < 1000:
        return f"{ms} ms" if ms else "0"
    seconds = ms // 1000
    for size, name, small, below in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            rest = seconds % size // small
            return f"{seconds // size} {name}" + (f" {rest} {below}" if rest else "")
    return f"{seconds} s"


def _members(client: "Client", args: argparse.Namespace) -> None:
    group = client.describe_group(args.group)
    if args.json:
        print_json(
            [
                {
                    "member": member.member_id,
                    "instance": member.instance_id,
                    "client": member.client_id,
                    "host": member.host,
                    "partitions": [
                        {"topic": partition.topic, "partition": partition.partition}
                        for partition in member.partitions
                    ],
                }
                for member in group.members
            ]
        )
        return
    rows = [
        (
            member.member_id,
            member.instance_id,
            member.client_id,
            member.host,
            len(member.partitions),
            " ".join(_by_topic(member.partitions)),
        )
        for member in group.members
    ]
    print_table(("member", "instance", "client", "host", "partitions", ""), rows)


def _by_topic(partitions: "tuple[TopicPartition, ...]") -> list[str]:
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.partition)
    return [f"{name}:{','.join(map(str, sorted(topics[name])))}" for name in sorted(topics)]


def _delete(client: "Client", args: argparse.Namespace) -> None:
    for name in args.groups:
        client.delete_group(name)
    if args.json:
        print_json(args.groups)
        return
    for name in args.groups:
        print(f"Deleted group {name}.")


def _delete_offsets(client: "Client", args: argparse.Namespace) -> None:
    from headrace.client import ErrorCode

    partitions = chosen_partitions(client, args.topic)
    errors = client.delete_group_offsets(args.group, partitions)
    failed = {partition: code for partition, code in errors.items() if code is not ErrorCode.NONE}
    if args.json:
        print_json(
            [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "error": failed[partition].name,
                }
                if partition in failed
                else {"topic": partition.topic, "partition": partition.partition, "error": None}
                for partition in errors
            ]
        )
    if failed:
        partition, code = next(iter(failed.items()))
        reads = code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        why = "the group still reads the topic" if reads else code.name
        raise Failure(f"{plural(len(failed), 'offset')} not deleted: {partition}: {why}.")
    if not args.json:
        print(f"Deleted the offsets of {plural(len(errors), 'partition')}.")
