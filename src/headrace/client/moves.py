"""Moving partitions between brokers and electing leaders, as operations. Pure.

What a broker refuses of one partition is told with the others' answers; what it refuses of the
whole request is retried while it may pass, and raised.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from headrace.client.errors import RequestFailed, request_failed
from headrace.client.operation import CONTROLLER, Ask, Operation, Session, retrying
from headrace.client.values import Reassignment
from headrace.model.topics import TopicPartition
from headrace.wire.apis import (
    ALTER_PARTITION_REASSIGNMENTS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
)

_PREFERRED, _UNCLEAN = 0, 1


def alter_reassignments(
    session: Session, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> Operation[dict[TopicPartition, RequestFailed]]:
    """Begin to move each partition to its replicas, or with None stop; returns the refusals."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), replicas in targets.items():
        nodes = None if replicas is None else list(replicas)
        topics.setdefault(topic, []).append({"partition_index": index, "replicas": nodes})
    fields = {
        "timeout_ms": int(session.options.request_timeout_ms),
        "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
    }

    def attempt() -> Operation[dict[TopicPartition, RequestFailed]]:
        reply = yield Ask(CONTROLLER, ALTER_PARTITION_REASSIGNMENTS, fields)
        _raise_error(reply)
        return {
            TopicPartition(topic["name"], part["partition_index"]): request_failed(
                part["error_code"], part["error_message"]
            )
            for topic in reply["responses"]
            for part in topic["partitions"]
            if part["error_code"]
        }

    return (yield from retrying(session, "moving partitions", attempt))


def list_reassignments(
    session: Session, partitions: Collection[TopicPartition] | None = None
) -> Operation[dict[TopicPartition, Reassignment]]:
    """The moves under way: all of them, or those of the named partitions."""
    fields = {
        "timeout_ms": int(session.options.request_timeout_ms),
        "topics": None
        if partitions is None
        else _by_topic(partitions, "name", "partition_indexes"),
    }

    def attempt() -> Operation[dict[TopicPartition, Reassignment]]:
        reply = yield Ask(CONTROLLER, LIST_PARTITION_REASSIGNMENTS, fields)
        _raise_error(reply)
        return {
            TopicPartition(topic["name"], part["partition_index"]): Reassignment(
                tuple(part["replicas"]),
                tuple(part["adding_replicas"]),
                tuple(part["removing_replicas"]),
            )
            for topic in reply["topics"]
            for part in topic["partitions"]
        }

    return (yield from retrying(session, "listing moves", attempt))


def elect_leaders(
    session: Session, partitions: Collection[TopicPartition] | None = None, *, unclean: bool = False
) -> Operation[dict[TopicPartition, RequestFailed | None]]:
    """Let preferred replicas lead, of all partitions or of these; returns an answer for each."""
    fields = {
        "election_type": _UNCLEAN if unclean else _PREFERRED,
        "topic_partitions": (
            None if partitions is None else _by_topic(partitions, "topic", "partitions")
        ),
        "timeout_ms": int(session.options.request_timeout_ms),
    }

    def attempt() -> Operation[dict[TopicPartition, RequestFailed | None]]:
        reply = yield Ask(CONTROLLER, ELECT_LEADERS, fields)
        _raise_error(reply)
        return {
            TopicPartition(topic["topic"], part["partition_id"]): (
                request_failed(part["error_code"], part["error_message"])
                if part["error_code"]
                else None
            )
            for topic in reply["replica_election_results"]
            for part in topic["partition_result"]
        }

    return (yield from retrying(session, "electing leaders", attempt))


def _by_topic(
    partitions: Iterable[TopicPartition], name: str, indexes: str
) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return [{name: topic, indexes: found} for topic, found in topics.items()]


def _raise_error(reply: Mapping[str, Any]) -> None:
    if reply.get("error_code"):
        raise request_failed(reply["error_code"], reply.get("error_message"))
