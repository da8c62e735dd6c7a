"""DescribeTopicPartitions, version 0: describe topics in pages, with their ELR (KIP-966).

- Topics are sorted by name. A response has at most max.request.partition.size.limit partitions and,
  if more follow, a cursor.
- A partition without a leader has an empty ISR, as in Kafka: its last ISR is among the eligible
  replicas. Replicas that restarted without proof that they kept their data are the last known ones.
- Requires: Describe on the topic.
- Versions: 0.
"""

from headrace.model.acls import TOPIC_OPERATIONS
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import (
    INTERNAL_TOPICS,
    NO_LEADER,
    PartitionState,
    TopicState,
    check_topic_name,
)
from headrace.requests.authorization import (
    allowed_operations,
    can_describe,
    cannot_describe,
)
from headrace.requests.cluster_view import partition_message
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.lookup import named_topic
from headrace.security.authorizer import topic_resource
from headrace.wire.codec import Message


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    first, first_index = _start(request)
    requested = {topic["name"] for topic in request["topics"]}
    if requested:
        visible = {name for name in requested if not cannot_describe(broker, context, name)}
    else:
        visible = {name for name in broker.image.topics if can_describe(broker, context, name)}
    names = sorted(name for name in requested or visible if name >= first)
    if requested and first and first not in requested:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "The cursor's topic is not one of the requested topics."
        )
    limit = broker.config.get_int("max.request.partition.size.limit")
    left = max(min(limit, request["response_partition_limit"]), 1)
    entries: list[Message] = []
    for name in names:
        if left == 0:
            return _page(entries, name, 0)
        if name not in visible:
            entries.append(_denied(name))
            continue
        start = first_index if name == first else 0
        entry, index_end = _describe(broker, context, name, start, left)
        entries.append(entry)
        left -= len(entry["partitions"])
        topic = broker.image.topics.get(name)
        if topic is not None and index_end < len(topic.partitions):
            return _page(entries, name, index_end)
    return {"topics": entries}


def error_response(request: Message, error: ApiError) -> Message:
    return {
        "topics": [{"error_code": error.code, "name": topic["name"]} for topic in request["topics"]]
    }


def _start(request: Message) -> tuple[str, int]:
    cursor = request["cursor"]
    if cursor is None:
        return "", 0
    if cursor["partition_index"] < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The cursor's partition is negative.")
    return cursor["topic_name"], cursor["partition_index"]


def _page(entries: list[Message], name: str, index: int) -> Message:
    return {"topics": entries, "next_cursor": {"topic_name": name, "partition_index": index}}


def _denied(name: str) -> Message:
    """The entry of a denied topic: the same whether or not the topic exists."""
    return {
        "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "name": name,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": [],
    }


def _describe(
    broker: BrokerContext, context: RequestContext, name: str, start: int, count_max: int
) -> tuple[Message, int]:
    """The entry of a topic, and the index of the first partition of the next page."""
    operations = {
        "topic_authorized_operations": allowed_operations(
            broker, context, topic_resource(name), TOPIC_OPERATIONS
        )
    }
    try:
        if name not in broker.image.topics:
            check_topic_name(name)
        topic: TopicState = named_topic(broker, name)
    except ApiError as error:
        is_internal = name in INTERNAL_TOPICS
        entry = {"error_code": error.code, "name": name, "is_internal": is_internal}
        return {**entry, "partitions": [], **operations}, 0
    states = topic.partitions[start : start + count_max]
    partitions = [
        {
            **partition_message(broker, context.listener, topic.name, start + step, state),
            **_eligible(broker.image, state),
        }
        for step, state in enumerate(states)
    ]
    return {
        "name": name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": partitions,
        **operations,
    }, start + len(states)


def _eligible(image: ClusterImage, state: PartitionState) -> Message:
    """The eligible leader replicas.

    Never null, because the admin client of Kafka 4.3 fails on null.
    """
    rows = dict(state.elr)
    if state.leader == NO_LEADER:
        rows = dict(zip(state.isr, state.isr_epochs, strict=True)) | rows
    lost = [node for node, epoch in rows.items() if _has_lost(image, node, epoch)]
    return {
        "isr_nodes": () if state.leader == NO_LEADER else state.isr,
        "eligible_leader_replicas": [node for node in rows if node not in lost],
        "last_known_elr": [*lost, *(node for node, _ in state.last_known_elr)],
    }


def _has_lost(image: ClusterImage, node: int, epoch: int) -> bool:
    info = image.brokers.get(node)
    return info is not None and not info.kept(epoch)
