"""Operations that reassign partitions and elect leaders. Pure.

Errors of single partitions are returned. A temporary error of the complete request is retried. A
permanent one is raised.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from headrace.client.core.errors import ClientError, RequestFailed, request_failed
from headrace.client.core.operation import (
    ANY,
    CONTROLLER,
    Operation,
    OperationEngine,
    RefreshMetadata,
    Send,
    SendAll,
    retrying,
)
from headrace.client.core.values import LogEnd, Reassignment, ReplicaInfo
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import (
    ALTER_PARTITION_REASSIGNMENTS,
    DESCRIBE_TOPIC_PARTITIONS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
    OFFSET_FOR_LEADER_EPOCH,
)

_PREFERRED, _UNCLEAN = 0, 1
_PAGE_PARTITIONS = 2000
_ANY_REPLICA = -2
"""With this replica id, any replica responds, even if the partition has no leader."""


def alter_reassignments(
    engine: OperationEngine, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> Operation[dict[TopicPartition, RequestFailed]]:
    """Begin to reassign partitions, or with None cancel; returns the rejected ones."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), replicas in targets.items():
        nodes = None if replicas is None else list(replicas)
        topics.setdefault(topic, []).append({"partition_index": index, "replicas": nodes})
    fields = {
        "timeout_ms": int(engine.options.request_timeout_ms),
        "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
    }

    def attempt() -> Operation[dict[TopicPartition, RequestFailed]]:
        response = yield Send(CONTROLLER, ALTER_PARTITION_REASSIGNMENTS, fields)
        _raise_error(response)
        return {
            TopicPartition(topic["name"], part["partition_index"]): request_failed(
                part["error_code"], part["error_message"]
            )
            for topic in response["responses"]
            for part in topic["partitions"]
            if part["error_code"]
        }

    return (yield from retrying(engine, "reassigning partitions", attempt))


def list_reassignments(
    engine: OperationEngine, partitions: Collection[TopicPartition] | None = None
) -> Operation[dict[TopicPartition, Reassignment]]:
    """The reassignments in progress: all, or those of the given partitions."""
    fields = {
        "timeout_ms": int(engine.options.request_timeout_ms),
        "topics": None
        if partitions is None
        else _by_topic(partitions, "name", "partition_indexes"),
    }

    def attempt() -> Operation[dict[TopicPartition, Reassignment]]:
        response = yield Send(CONTROLLER, LIST_PARTITION_REASSIGNMENTS, fields)
        _raise_error(response)
        return {
            TopicPartition(topic["name"], part["partition_index"]): Reassignment(
                tuple(part["replicas"]),
                tuple(part["adding_replicas"]),
                tuple(part["removing_replicas"]),
            )
            for topic in response["topics"]
            for part in topic["partitions"]
        }

    return (yield from retrying(engine, "listing reassignments", attempt))


def elect_leaders(
    engine: OperationEngine,
    partitions: Collection[TopicPartition] | None = None,
    *,
    unclean: bool = False,
) -> Operation[dict[TopicPartition, RequestFailed | None]]:
    """Elect preferred replicas of all partitions, or of these; returns a result for each."""
    fields = {
        "election_type": _UNCLEAN if unclean else _PREFERRED,
        "topic_partitions": (
            None if partitions is None else _by_topic(partitions, "topic", "partitions")
        ),
        "timeout_ms": int(engine.options.request_timeout_ms),
    }

    def attempt() -> Operation[dict[TopicPartition, RequestFailed | None]]:
        response = yield Send(CONTROLLER, ELECT_LEADERS, fields)
        _raise_error(response)
        return {
            TopicPartition(topic["topic"], part["partition_id"]): (
                request_failed(part["error_code"], part["error_message"])
                if part["error_code"]
                else None
            )
            for topic in response["replica_election_results"]
            for part in topic["partition_result"]
        }

    return (yield from retrying(engine, "electing leaders", attempt))


def describe_replicas(
    engine: OperationEngine, topics: Collection[str]
) -> Operation[dict[TopicPartition, ReplicaInfo]]:
    """The leader, in-sync replicas and eligible leaders of all partitions of these topics."""
    found: dict[TopicPartition, ReplicaInfo] = {}

    def attempt() -> Operation[None]:
        cursor: Mapping[str, Any] | None = None
        while True:
            fields = {
                "topics": [{"name": name} for name in sorted(set(topics))],
                "response_partition_limit": _PAGE_PARTITIONS,
                "cursor": cursor,
            }
            response = yield Send(ANY, DESCRIBE_TOPIC_PARTITIONS, fields)
            for topic in response["topics"]:
                if topic["error_code"]:
                    raise request_failed(topic["error_code"], topic["name"])
                for part in topic["partitions"]:
                    partition = TopicPartition(topic["name"], part["partition_index"])
                    found[partition] = _replica_info(part)
            cursor = response["next_cursor"]
            if cursor is None:
                return

    yield from retrying(engine, "describing replicas", attempt)
    return found


def _replica_info(part: Mapping[str, Any]) -> ReplicaInfo:
    return ReplicaInfo(
        part["leader_id"],
        tuple(part["replica_nodes"]),
        tuple(part["isr_nodes"]),
        tuple(part["eligible_leader_replicas"] or ()),
        tuple(part["last_known_elr"] or ()),
        tuple(part["offline_replicas"]),
    )


def log_end_offsets(
    engine: OperationEngine, replicas: Mapping[TopicPartition, Collection[int]]
) -> Operation[dict[TopicPartition, dict[int, LogEnd]]]:
    """The log ends of these replicas, if they respond."""
    by_node: dict[int, dict[str, list[dict[str, int]]]] = {}
    for (topic, index), nodes in replicas.items():
        for node in nodes:
            entry = {"partition": index, "current_leader_epoch": -1, "leader_epoch": 2**31 - 1}
            by_node.setdefault(node, {}).setdefault(topic, []).append(entry)
    requests = [
        Send(
            node,
            OFFSET_FOR_LEADER_EPOCH,
            {
                "replica_id": _ANY_REPLICA,
                "topics": [
                    {"topic": name, "partitions": entries} for name, entries in topics.items()
                ],
            },
        )
        for node, topics in by_node.items()
    ]
    yield RefreshMetadata()
    found: dict[TopicPartition, dict[int, LogEnd]] = {partition: {} for partition in replicas}
    responses = (yield SendAll(requests)) if requests else ()
    for node, response in zip(by_node, responses, strict=True):
        if isinstance(response, ClientError):
            continue
        for topic in response["topics"]:
            for entry in topic["partitions"]:
                partition = TopicPartition(topic["topic"], entry["partition"])
                if entry["error_code"] == 0:
                    found[partition][node] = LogEnd(entry["leader_epoch"], entry["end_offset"])
                elif entry["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR:
                    found[partition][node] = LogEnd(-1, -1, is_offline=True)
    return found


def _by_topic(
    partitions: Iterable[TopicPartition], name: str, indexes: str
) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return [{name: topic, indexes: found} for topic, found in topics.items()]


def _raise_error(response: Mapping[str, Any]) -> None:
    if response.get("error_code"):
        raise request_failed(response["error_code"], response.get("error_message"))
