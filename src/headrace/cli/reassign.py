"""`headrace reassign`: plan, start, watch and cancel reassignments.

A plan is a file in the format of Kafka's tool, so each tool accepts plans of the other. It contains
the target replicas of partitions, so a repeated execution changes nothing.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli import reassignment_progress, reassignment_throttle
from headrace.cli.connection import add_action, describe, run_action
from headrace.cli.failure import Failure
from headrace.cli.output import plural, print_json, print_table, size_text

if TYPE_CHECKING:
    from headrace.client import Client, TopicPartition
    from headrace.client.admin.replica_plan import Racks

    Targets = dict[TopicPartition, tuple[int, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    plan = add_action(actions, "plan", "show the partitions and bytes to be moved", _plan)
    kind = plan.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--add-broker",
        type=int,
        action="append",
        metavar="ID",
        help="move a share of replicas and leaders to this new broker; can be repeated",
    )
    kind.add_argument(
        "--drain", type=int, metavar="ID", help="move all replicas away from this broker"
    )
    kind.add_argument("--file", type=Path, metavar="PLAN", help="a plan in Kafka's JSON format")
    plan.add_argument("--output", type=Path, metavar="FILE", help="write the plan to this file")
    execute = add_action(
        actions, "execute", "execute a plan, and wait until it is complete", _execute
    )
    execute.add_argument("file", type=Path, metavar="PLAN", help="file written by plan")
    add_no_wait_argument(execute)
    execute.add_argument(
        "--throttle",
        type=_rate,
        metavar="BYTES",
        help="maximum rate per broker in bytes per second; 'status PLAN' removes the limit "
        "when all reassignments are complete",
    )
    status = add_action(actions, "status", "show reassignments in progress", _status)
    status.add_argument(
        "file", type=Path, nargs="?", metavar="PLAN", help="only those of this plan (default: all)"
    )
    cancel = add_action(
        actions, "cancel", "cancel reassignments; partitions keep their former replicas", _cancel
    )
    which = cancel.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "file", type=Path, nargs="?", metavar="PLAN", help="cancel the reassignments of this plan"
    )
    which.add_argument("--all", action="store_true", help="cancel all reassignments in progress")


def _rate(text: str) -> int:
    rate = int(text) if text.isdecimal() else 0
    if rate < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes greater than 0")
    return rate


def add_no_wait_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-wait", action="store_true", help="return after the reassignment has started"
    )


def run(args: argparse.Namespace) -> int:
    return run_action(args)


def read_plan(path: Path) -> "Targets":
    """The replicas per partition in a plan. Raises Failure if the file is not a plan."""
    from headrace.client import TopicPartition

    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(f"Cannot read {path}: {error.strerror}.", 2) from None
    except ValueError as error:
        raise Failure(f"{path} is not JSON: {error}.", 2) from None
    match plan:
        case {"version": 1, "partitions": [*rows]}:
            pass
        case _:
            raise Failure(f'{path} is not a plan: {{"version": 1, "partitions": [...]}}', 2)
    targets: Targets = {}
    for row in rows:
        match row:
            case {"topic": str(topic), "partition": int(index), "replicas": [*nodes]} if (
                nodes and all(isinstance(node, int) for node in nodes)
            ):
                partition = TopicPartition(topic, index)
            case _:
                raise Failure(f"{path}: {row} must have topic, partition and replicas.", 2)
        if partition in targets:
            raise Failure(f"{path} contains {partition} twice.", 2)
        if len(set(nodes)) != len(nodes):
            raise Failure(f"{path}: {partition} has a broker twice.", 2)
        targets[partition] = tuple(nodes)
    return targets


def _plan_fields(targets: "Mapping[TopicPartition, Sequence[int]]") -> dict[str, Any]:
    return {
        "version": 1,
        "partitions": [
            {"topic": partition.topic, "partition": partition.partition, "replicas": list(nodes)}
            for partition, nodes in sorted(targets.items())
        ],
    }


def racks_of(client: "Client") -> "dict[int, str | None]":
    return {node.node_id: node.rack for node in client.describe_cluster().brokers}


def _plan(client: "Client", args: argparse.Namespace) -> None:
    placement = reassignment_progress.read_placement(client)
    before = placement.target_replicas()
    racks = racks_of(client)
    targets = _planned(before, racks, args)
    reassignment_progress.check_partitions_exist(placement, targets)
    for partition, nodes in targets.items():
        for node in nodes:
            if node not in racks and node not in before[partition]:
                raise _no_broker(node, racks)
    targets = {
        partition: nodes for partition, nodes in targets.items() if nodes != before[partition]
    }
    count = sum(len(set(nodes) - set(before[partition])) for partition, nodes in targets.items())
    size_bytes = reassignment_progress.bytes_to_move(
        before, targets, reassignment_progress.sizes(client)
    )
    if args.output is not None:
        try:
            args.output.write_text(json.dumps(_plan_fields(targets)) + "\n", encoding="utf-8")
        except OSError as error:
            raise Failure(f"Cannot write {args.output}: {error.strerror}.") from None
    if args.json:
        print_json({**_plan_fields(targets), "replicas_to_move": count, "bytes": size_bytes})
        return
    rows = [
        (partition.topic, partition.partition, before[partition], nodes)
        for partition, nodes in sorted(targets.items())
    ]
    if not rows:
        print("The plan is empty: no replica has to be moved.")
        return
    print_table(("topic", "partition", "current replicas", "new replicas"), rows)
    print(
        f"{plural(len(rows), 'partition')} would change: {plural(count, 'replica')} to copy, "
        f"{size_text(size_bytes)}."
    )
    if args.output is not None:
        print(f"To execute it: headrace reassign execute {args.output}")
    elif args.file is None:
        print(
            "To execute it: write the plan with --output FILE, then headrace reassign execute FILE"
        )


def _planned(before: "Targets", racks: "Racks", args: argparse.Namespace) -> "Targets":
    from headrace.client.admin import replica_plan

    if args.file is not None:
        return read_plan(args.file)
    try:
        if args.add_broker is None:
            if args.drain not in racks and not any(args.drain in each for each in before.values()):
                raise _no_broker(args.drain, racks)
            return replica_plan.drain_broker(before, racks, args.drain)
        for node in args.add_broker:
            if node not in racks:
                raise _no_broker(node, racks)
        return replica_plan.add_brokers(before, racks, set(args.add_broker))
    except replica_plan.ImpossibleError as error:
        raise Failure(f"{error}. Add a broker, or lower the replication factor.") from None


def _no_broker(node_id: int, racks: "Racks") -> Failure:
    return Failure(
        f"Unknown broker {node_id}. The brokers are {', '.join(map(str, sorted(racks)))}."
    )


def _execute(client: "Client", args: argparse.Namespace) -> None:
    targets = read_plan(args.file)
    if args.throttle is not None:
        placement = reassignment_progress.read_placement(client)
        reassignment_progress.check_partitions_exist(placement, targets)
        reassignment_throttle.set_throttle(client, placement, targets, args.throttle)
    begun = reassignment_progress.begin(client, targets)
    if not args.no_wait:
        resume = f"See: headrace reassign status {args.file}"
        reassignment_progress.wait_until_reassigned(client, targets, resume)
        _lift_throttle(client, targets)
    if args.json:
        print_json({"begun": begun, "partitions": len(targets), "is_done": not args.no_wait})
    elif args.no_wait:
        print(f"Started {plural(begun, 'reassignment')} of {plural(len(targets), 'partition')}.")
    else:
        print(f"Done: {plural(len(targets), 'partition')} reassigned as planned.")


def _lift_throttle(client: "Client", moved: "Iterable[TopicPartition]") -> bool:
    """Remove the throttle, unless other reassignments are in progress, which can need it."""
    if client.list_reassignments():
        return False
    return reassignment_throttle.lift_throttle(client, {partition.topic for partition in moved})


def _status(client: "Client", args: argparse.Namespace) -> None:
    placement = reassignment_progress.read_placement(client)
    targets = read_plan(args.file) if args.file is not None else None
    if targets is None:
        targets = {partition: move.target for partition, move in placement.reassignments.items()}
    reassignment_progress.check_partitions_exist(placement, targets)
    adding_brokers = {
        node
        for partition in targets
        if partition in placement.reassignments
        for node in placement.reassignments[partition].adding
    }
    known = reassignment_progress.sizes(client) if adding_brokers else {}
    rows = [
        _status_row(placement, partition, targets[partition], known)
        for partition in sorted(targets)
    ]
    lifted = (
        args.file is not None and not placement.reassignments and _lift_throttle(client, targets)
    )
    if args.json:
        print_json(rows)
        return
    if not rows:
        print("No reassignment is in progress.")
        return
    columns = ("topic", "partition", "replicas", "target", "adding", "removing", "state")
    cells = [
        (*(row[name] for name in columns), f"{row['part_copied']:.0%}" if row["adding"] else "")
        for row in rows
    ]
    print_table((*columns, "copied"), cells)
    if lifted:
        print("All reassignments are complete: the throttle is removed.")


def _status_row(
    placement: reassignment_progress.Placement,
    partition: "TopicPartition",
    target: Sequence[int],
    known: reassignment_progress.Sizes,
) -> dict[str, Any]:
    move = placement.reassignments.get(partition)
    replicas = placement.replicas[partition] if move is None else move.replicas
    adding = () if move is None else move.adding
    full_size = reassignment_progress.size_of(
        partition, known, [node for node in replicas if node not in adding]
    )
    copied = sum(min(known.get((partition, node), 0), full_size) for node in adding)
    state = placement.state(partition, target)
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "replicas": replicas,
        "target": target,
        "adding": adding,
        "removing": () if move is None else move.removing,
        "state": state,
        "part_copied": copied / (full_size * len(adding))
        if full_size and adding
        else float(not adding),
    }


def _cancel(client: "Client", args: argparse.Namespace) -> None:
    from headrace.client import ErrorCode

    placement = reassignment_progress.read_placement(client)
    stopped = list(placement.reassignments)
    named = stopped
    if not args.all:
        named = list(read_plan(args.file))
        reassignment_progress.check_partitions_exist(placement, named)
        stopped = [partition for partition in named if partition in placement.reassignments]
    errors = client.alter_reassignments(dict.fromkeys(stopped)) if stopped else {}
    for partition, error in errors.items():
        # The reassignment completed before it could be cancelled.
        if error.code != ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
            raise Failure(f"Cannot cancel the reassignment of {partition}: {describe(error)}")
    count = len(stopped) - len(errors)
    _lift_throttle(client, named)
    if args.json:
        print_json({"cancelled": count})
    else:
        print(
            f"Cancelled {plural(count, 'reassignment')}."
            if count
            else "No reassignment was in progress."
        )
