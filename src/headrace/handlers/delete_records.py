"""DeleteRecords, versions 0 to 2: raise the log start offset of partitions.

- Offset -1 means the high watermark. A higher offset gets OFFSET_OUT_OF_RANGE.
- Responds when the log of every replica in the ISR or on a live broker durably starts at the offset
  or later. After timeout_ms the response is REQUEST_TIMED_OUT; the deletion continues.
- Requires `delete` in cleanup.policy (POLICY_VIOLATION). Rejects internal topics (INVALID_TOPIC).
- Requires: Delete on the topic.
- Versions: 0 to 2.
"""

import asyncio

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import INTERNAL_TOPICS
from headrace.replication.partition import Partition
from headrace.requests.authorization import check
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.deadline import Deadline
from headrace.requests.lookup import leader_partition
from headrace.security.authorizer import Operation, topic_resource
from headrace.wire.codec import Message

_NO_LOW_WATERMARK = -1
_CHECK_SECONDS = 0.25
"""How often a waiting request checks which brokers are live."""

Deletion = tuple[Partition, int]
"""A partition, and the offset where the logs of its replicas must start."""


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    deadline = Deadline(broker.clock, request["timeout_ms"])
    # Start every deletion before waiting for any: all of them share the deadline.
    started = [
        [_start(broker, context, topic["name"], part) for part in topic["partitions"]]
        for topic in request["topics"]
    ]
    topics = []
    for topic, deletions in zip(request["topics"], started, strict=True):
        entries = []
        for part, deletion in zip(topic["partitions"], deletions, strict=True):
            index = part["partition_index"]
            try:
                if isinstance(deletion, ApiError):
                    raise deletion
                low_watermark = await _wait(broker, deletion, deadline)
                entries.append({"partition_index": index, "low_watermark": low_watermark})
            except ApiError as error:
                entries.append(_failed(index, error))
        if entries:
            topics.append({"name": topic["name"], "partitions": entries})
    return {"topics": topics}


def error_response(request: Message, error: ApiError) -> Message:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    _failed(requested["partition_index"], error)
                    for requested in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }


def _failed(index: int, error: ApiError) -> Message:
    return {
        "partition_index": index,
        "low_watermark": _NO_LOW_WATERMARK,
        "error_code": error.code,
    }


def _start(
    broker: BrokerContext, context: RequestContext, topic: str, part: Message
) -> Deletion | ApiError:
    try:
        check(broker, context, Operation.DELETE, topic_resource(topic))
        if topic in INTERNAL_TOPICS:
            message = f"Cannot delete records: {topic} is internal."
            return ApiError(ErrorCode.INVALID_TOPIC, message)
        partition = leader_partition(broker, topic, part["partition_index"])
        if not partition.log.config.deletes:
            message = f"Cannot delete records: cleanup.policy of {topic} lacks 'delete'."
            return ApiError(ErrorCode.POLICY_VIOLATION, message)
        start_offset = partition.log.delete_records(part["offset"], partition.high_watermark)
    except ApiError as error:
        return error
    broker.start_job(partition)
    return partition, start_offset


async def _wait(broker: BrokerContext, deletion: Deletion, deadline: Deadline) -> int:
    """Wait for the replicas on live brokers; returns their lowest log start offset."""
    partition, start_offset = deletion
    start_raised = asyncio.Event()
    partition.listeners.add_start_listener(start_raised.set)
    try:
        while True:
            start_raised.clear()
            if leader_partition(broker, partition.topic, int(partition.index)) is not partition:
                # The topic was deleted and created again.
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            low_watermark = int(partition.low_watermark(broker.image.brokers.__contains__))
            if low_watermark >= start_offset:
                return low_watermark
            if partition.log.is_offline:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
            left_s = deadline.left_s()
            if left_s == 0:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
            await _wait_at_most(start_raised, min(left_s, _CHECK_SECONDS))
    finally:
        partition.listeners.remove_start_listener(start_raised.set)


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
