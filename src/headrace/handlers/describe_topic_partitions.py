"""DescribeTopicPartitions, version 0: topics in pages (KIP-966).

Topics come in the order of their names; a reply has at most max.request.partition.size.limit
partitions and, when there are more, a cursor that says where to go on.
Gaps: replicas that are eligible to lead outside the ISR are not kept, so both lists are empty.
"""

from headrace.handlers.cluster_view import TOPIC_OPERATIONS, partition_message
from headrace.handlers.context import BrokerContext, RequestContext
from headrace.handlers.lookup import named_topic
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import INTERNAL_TOPICS, TopicState, check_topic_name
from headrace.wire.codec import Message

_NONE_ELIGIBLE: Message = {"eligible_leader_replicas": (), "last_known_elr": ()}
"""The schema has null for "not known", on which Kafka 4.3's own admin client breaks."""


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    first, first_index = _start(request)
    asked = {topic["name"] for topic in request["topics"]}
    names = sorted(name for name in asked or broker.image.topics if name >= first)
    if asked and first and first not in asked:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The cursor's topic is not among the topics.")
    limit = broker.config.get_int("max.request.partition.size.limit")
    left = max(min(limit, request["response_partition_limit"]), 1)
    slots: list[Message] = []
    for name in names:
        if left == 0:
            return _page(slots, name, 0)
        start = first_index if name == first else 0
        slot, index_end = _describe(broker, context, name, start, left)
        slots.append(slot)
        left -= len(slot["partitions"])
        topic = broker.image.topics.get(name)
        if topic is not None and index_end < len(topic.partitions):
            return _page(slots, name, index_end)
    return {"topics": slots}


def refuse(request: Message, error: ApiError) -> Message:
    if not request["topics"]:
        raise error  # Without topics there is no place for it: the connection is closed.
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


def _page(slots: list[Message], name: str, index: int) -> Message:
    return {"topics": slots, "next_cursor": {"topic_name": name, "partition_index": index}}


def _describe(
    broker: BrokerContext, context: RequestContext, name: str, start: int, count_max: int
) -> tuple[Message, int]:
    """A topic's slot, and where its next page would begin."""
    try:
        if name not in broker.image.topics:
            check_topic_name(name)
        topic: TopicState = named_topic(broker, name)
    except ApiError as error:
        is_internal = name in INTERNAL_TOPICS
        slot = {"error_code": error.code, "name": name, "is_internal": is_internal}
        return {**slot, "partitions": []}, 0
    states = topic.partitions[start : start + count_max]
    partitions = [
        {**partition_message(broker, context.listener, start + step, state), **_NONE_ELIGIBLE}
        for step, state in enumerate(states)
    ]
    return {
        "name": name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": partitions,
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }, start + len(states)
