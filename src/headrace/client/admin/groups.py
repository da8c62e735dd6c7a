"""Operations that describe consumer groups and change their offsets. Pure.

Each attempt looks up the group's coordinator again, because it can change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.client.admin.group_values import GroupInfo, GroupListing, GroupMember, GroupOffset
from headrace.client.core.errors import (
    ClientError,
    UnsupportedVersion,
    error_code,
    request_failed,
)
from headrace.client.core.operation import (
    ANY,
    Operation,
    OperationEngine,
    RefreshMetadata,
    Send,
    SendAll,
    retrying,
)
from headrace.client.member.subscriptions import read_assignment
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
)

T = TypeVar("T")
_GROUP = 0
_DEAD = "Dead"
CONSUMER = "consumer"
"""The protocol type of consumer groups, in both protocols."""


def find_coordinator(engine: OperationEngine, group: str) -> Operation[int]:
    """The coordinator of a group."""
    fields = {"key": group, "key_type": _GROUP, "coordinator_keys": [group]}
    response = yield Send(ANY, FIND_COORDINATOR, fields)
    found = response["coordinators"][0] if "coordinators" in response else response
    if found["error_code"]:
        raise request_failed(found["error_code"], found.get("error_message"))
    node: int = found["node_id"]
    if node not in engine.cluster.nodes:
        yield RefreshMetadata()
    return node


def _retry_at_coordinator(
    engine: OperationEngine, what: str, group: str, attempt: Callable[[int], Operation[T]]
) -> Operation[T]:
    def attempt_at_coordinator() -> Operation[T]:
        node = yield from find_coordinator(engine, group)
        return (yield from attempt(node))

    return (yield from retrying(engine, what, attempt_at_coordinator))


def list_groups(
    engine: OperationEngine, states: Sequence[str] = ()
) -> Operation[list[GroupListing]]:
    """The groups of all brokers, by name: all, or those in these states."""
    fields = {"states_filter": list(states), "types_filter": []}

    def attempt() -> Operation[list[GroupListing]]:
        yield RefreshMetadata()
        responses = yield SendAll(
            [Send(node, LIST_GROUPS, fields) for node in engine.cluster.nodes]
        )
        listed: dict[str, GroupListing] = {}
        for response in responses:
            if isinstance(response, ClientError):
                raise response
            if response["error_code"]:
                raise request_failed(response["error_code"])
            for group in response["groups"]:
                listed[group["group_id"]] = GroupListing(
                    group["group_id"],
                    group["protocol_type"],
                    group.get("group_state", ""),
                    group.get("group_type", ""),
                )
        return [listed[name] for name in sorted(listed)]

    return (yield from retrying(engine, "listing groups", attempt))


def describe_group(engine: OperationEngine, group: str) -> Operation[GroupInfo]:
    """A group of either protocol with its members; an unknown group is an error."""
    fields = {"groups": [group], "include_authorized_operations": False}

    def attempt(node: int) -> Operation[GroupInfo]:
        response = yield Send(node, DESCRIBE_GROUPS, fields)
        found = response["groups"][0]
        code = found["error_code"]
        if code == ErrorCode.GROUP_ID_NOT_FOUND or found["group_state"] == _DEAD:
            return (yield from _describe_consumer_group(node, group))
        if code:
            raise _failed(code, group)
        return GroupInfo(
            group,
            found["group_state"],
            found["protocol_type"],
            found["protocol_data"],
            node,
            tuple(_member(member) for member in found["members"]),
        )

    return (yield from _retry_at_coordinator(engine, "describing a group", group, attempt))


def _describe_consumer_group(node: int, group: str) -> Operation[GroupInfo]:
    """Describe a group of the consumer protocol (KIP-848), which older brokers do not support."""
    fields = {"group_ids": [group], "include_authorized_operations": False}
    try:
        response = yield Send(node, CONSUMER_GROUP_DESCRIBE, fields)
    except UnsupportedVersion:
        raise _failed(ErrorCode.GROUP_ID_NOT_FOUND, group) from None
    found = response["groups"][0]
    if found["error_code"]:
        raise _failed(found["error_code"], group)
    return GroupInfo(
        group,
        found["group_state"],
        CONSUMER,
        found["assignor_name"],
        node,
        tuple(_consumer_member(member) for member in found["members"]),
    )


def _consumer_member(found: Mapping[str, Any]) -> GroupMember:
    return GroupMember(
        found["member_id"],
        found["instance_id"],
        found["client_id"],
        found["client_host"].removeprefix("/"),
        tuple(
            TopicPartition(topic["topic_name"], partition)
            for topic in found["assignment"]["topic_partitions"]
            for partition in topic["partitions"]
        ),
    )


def _member(found: Mapping[str, Any]) -> GroupMember:
    return GroupMember(
        found["member_id"],
        found.get("group_instance_id"),
        found["client_id"],
        found["client_host"].removeprefix("/"),
        read_assignment(found["member_assignment"]),
    )


def delete_group(engine: OperationEngine, group: str) -> Operation[None]:
    """Delete a group without members, and its offsets."""

    def attempt(node: int) -> Operation[None]:
        response = yield Send(node, DELETE_GROUPS, {"groups_names": [group]})
        _check(response["results"][0]["error_code"], group)

    yield from _retry_at_coordinator(engine, "deleting a group", group, attempt)


def group_offsets(
    engine: OperationEngine, group: str, partitions: Iterable[TopicPartition] | None = None
) -> Operation[dict[TopicPartition, GroupOffset]]:
    """The committed offsets of all partitions, or of the given ones. Omits those without one."""
    topics = None if partitions is None else _by_topic((p.topic, p.partition) for p in partitions)
    requested = (
        None
        if topics is None
        else [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()]
    )
    one = {"group_id": group, "topics": requested, "member_id": None, "member_epoch": -1}
    fields = {**one, "groups": [one], "require_stable": True}

    def attempt(node: int) -> Operation[dict[TopicPartition, GroupOffset]]:
        response = yield Send(node, OFFSET_FETCH, fields)
        found = response["groups"][0] if "groups" in response else response
        _check(found.get("error_code", 0), group)
        offsets: dict[TopicPartition, GroupOffset] = {}
        for topic in found["topics"]:
            for part in topic["partitions"]:
                _check(part["error_code"], group)
                if part["committed_offset"] >= 0:
                    partition = TopicPartition(topic["name"], part["partition_index"])
                    epoch = part.get("committed_leader_epoch", -1)
                    offset = part["committed_offset"]
                    offsets[partition] = GroupOffset(offset, epoch, part["metadata"] or "")
        return dict(sorted(offsets.items()))

    return (yield from _retry_at_coordinator(engine, "fetching offsets", group, attempt))


def commit_fields(group: str, offsets: Mapping[TopicPartition, GroupOffset]) -> dict[str, Any]:
    """The fields of a commit that is not sent by a member."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append(
            {
                "partition_index": index,
                "committed_offset": offset.offset,
                "committed_leader_epoch": offset.leader_epoch,
                "committed_metadata": offset.metadata,
            }
        )
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time_ms": -1,
        "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
    }


def commit_group_offsets(
    engine: OperationEngine, group: str, offsets: Mapping[TopicPartition, GroupOffset]
) -> Operation[None]:
    """Set the offsets of a group without members."""
    fields = commit_fields(group, offsets)

    def attempt(node: int) -> Operation[None]:
        response = yield Send(node, OFFSET_COMMIT, fields)
        for topic in response["topics"]:
            for part in topic["partitions"]:
                code = part["error_code"]
                if code == ErrorCode.UNKNOWN_MEMBER_ID:
                    raise _failed(ErrorCode.NON_EMPTY_GROUP, group)
                partition = f"{topic['name']}-{part['partition_index']}"
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise _not_retriable(request_failed(code, f"unknown partition {partition}"))
                _check(code, group)

    yield from _retry_at_coordinator(engine, "committing offsets", group, attempt)


def delete_group_offsets(
    engine: OperationEngine, group: str, partitions: Iterable[TopicPartition]
) -> Operation[dict[TopicPartition, ErrorCode]]:
    """Delete offsets; returns an error code per partition."""
    topics = _by_topic((p.topic, p.partition) for p in partitions)
    fields = {
        "group_id": group,
        "topics": [
            {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
            for name, indexes in topics.items()
        ],
    }

    def attempt(node: int) -> Operation[dict[TopicPartition, ErrorCode]]:
        response = yield Send(node, OFFSET_DELETE, fields)
        _check(response["error_code"], group)
        return {
            TopicPartition(topic["name"], part["partition_index"]): error_code(part["error_code"])
            for topic in response["topics"]
            for part in topic["partitions"]
        }

    return (yield from _retry_at_coordinator(engine, "deleting offsets", group, attempt))


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics


def _check(code: int, group: str) -> None:
    if code:
        raise _failed(code, group)


def _failed(code: int, group: str) -> ClientError:
    messages: dict[int, str] = {
        ErrorCode.GROUP_ID_NOT_FOUND: f"unknown group {group!r}",
        ErrorCode.NON_EMPTY_GROUP: f"the group {group!r} has members: stop them first",
    }
    return request_failed(code, messages.get(code))


def _not_retriable(error: ClientError) -> ClientError:
    error.retriable = False
    return error
