"""DeleteRecords, versions 0 to 2: let a partition begin later.

Offset -1 means everything up to the high watermark. Only where cleanup.policy has delete, as in
Kafka; the answer has the new low watermark, and comes when that would survive a crash.
"""

import asyncio

from headrace.handlers.context import BrokerContext, RequestContext
from headrace.handlers.lookup import led_partition
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import INTERNAL_TOPICS
from headrace.wire.codec import Message

_NO_LOW_WATERMARK = -1


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    topics = []
    for topic in request["topics"]:
        slots = []
        for asked in topic["partitions"]:
            index = asked["partition_index"]
            try:
                low_watermark = await _delete(broker, topic["name"], index, asked["offset"])
                slots.append({"partition_index": index, "low_watermark": low_watermark})
            except ApiError as error:
                slots.append(_failed(index, error))
        topics.append({"name": topic["name"], "partitions": slots})
    return {"topics": topics}


def refuse(request: Message, error: ApiError) -> Message:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    _failed(asked["partition_index"], error) for asked in topic["partitions"]
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


async def _delete(broker: BrokerContext, topic: str, index: int, offset: int) -> int:
    if topic in INTERNAL_TOPICS:
        raise ApiError(ErrorCode.INVALID_TOPIC, f"{topic} keeps its records: it is internal.")
    partition = led_partition(broker, topic, index)
    if "delete" not in partition.config.cleanup_policy:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"{topic} is compacted, never deleted from.")
    log = partition.log
    start_offset = log.delete_records(offset, partition.high_watermark)
    broker.start_job(partition)
    while log.log_start_offset < start_offset:
        if log.is_offline:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        job_done = asyncio.Event()
        partition.after_job.append(job_done.set)
        await job_done.wait()
    return start_offset
