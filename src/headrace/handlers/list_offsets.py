"""ListOffsets, versions 1 to 11: find offsets by timestamp, and the first and last offset.

- Negative timestamps request special offsets; each has a minimum version.
- The response has the leader epoch of the record, to detect truncation later (KIP-320).
- A worker thread decodes large and compressed batches.
- If this broker's image names a leader whose connection was just lost, the response waits for the
  election, at most 0.3 s.
- Requires: Describe on the topic.
- Versions: 1 to 11. Since 7, timestamp -3 (maximum timestamp), since 8 -4 (earliest local), since 9
  -5 (latest tiered), since 11 -6 (earliest pending upload).

Gaps: tiered storage is not supported. "Earliest local" is the earliest offset, and no offset is
tiered.
"""

import logging
from typing import TYPE_CHECKING

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicPartition
from headrace.requests.authorization import cannot_describe
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.lookup import NO_EPOCH, leader_partition
from headrace.requests.replies import repeated
from headrace.wire.codec import Message

if TYPE_CHECKING:
    from headrace.log.timestamps import FoundRecord, Lookup
    from headrace.replication.partition import Partition

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_VERSION_MIN = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_READ_COMMITTED = 1
_log = logging.getLogger(__name__)
_NOTHING: Message = {"timestamp": -1, "offset": -1, "leader_epoch": NO_EPOCH}


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    twice = repeated(
        (topic["name"], partition["partition_index"])
        for topic in request["topics"]
        for partition in topic["partitions"]
    )
    denied = {
        topic["name"]
        for topic in request["topics"]
        if cannot_describe(broker, context, topic["name"])
    }
    partitions = [
        TopicPartition(topic["name"], requested["partition_index"])
        for topic in request["topics"]
        if topic["name"] not in denied
        for requested in topic["partitions"]
    ]
    elected = broker.wait_for_election(partitions, len(partitions))
    if elected is not None:
        await elected
    is_committed_only = request.get("isolation_level") == _READ_COMMITTED
    results: dict[str, dict[int, Message]] = {}
    for topic in request["topics"]:
        for requested in topic["partitions"]:
            index = requested["partition_index"]
            entries = results.setdefault(topic["name"], {})
            if index in entries:
                continue
            try:
                if topic["name"] in denied:
                    raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if (topic["name"], index) in twice:
                    raise ApiError(ErrorCode.INVALID_REQUEST)
                _check_special(requested["timestamp"], context.api_version)
                epoch = requested.get("current_leader_epoch", NO_EPOCH)
                partition = leader_partition(broker, topic["name"], index, epoch)
                found = await _find(broker, partition, requested["timestamp"], is_committed_only)
                entries[index] = {"partition_index": index, **found}
            except ApiError as error:
                entries[index] = {"partition_index": index, "error_code": error.code}
    return {
        "topics": [
            {"name": name, "partitions": list(entries.values())}
            for name, entries in results.items()
        ]
    }


def error_response(request: Message, error: ApiError) -> Message:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {"partition_index": requested["partition_index"], "error_code": error.code}
                    for requested in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }


def _check_special(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < _VERSION_MIN.get(timestamp, 1 << 15):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)


async def _find(
    broker: BrokerContext, partition: "Partition", timestamp: int, is_committed_only: bool
) -> Message:
    log = partition.log
    end = partition.last_stable_offset if is_committed_only else partition.high_watermark
    if not partition.is_caught_up and timestamp != EARLIEST and timestamp != EARLIEST_LOCAL:
        # This leader is new, and the former one might have returned higher offsets (B12).
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
    if timestamp == LATEST:
        return {"offset": end, "leader_epoch": partition.leader_epoch}
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        is_empty = start == log.log_end_offset
        epoch = partition.leader_epoch if is_empty else log.epochs.epoch_for(start)
        return {"offset": start, "leader_epoch": epoch}
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOTHING
    is_max = timestamp == MAX_TIMESTAMP
    try:
        lookup = log.max_timestamp() if is_max else log.find_timestamp(timestamp)
        found = await _look_up(broker, lookup)
    except OSError as error:
        _log.error(
            "partition cannot be read: partition=%s-%d error=%s",
            partition.topic,
            partition.index,
            error,
        )
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from None
    if found is None or found[1] >= end:
        return _NOTHING
    return {"timestamp": found[0], "offset": found[1], "leader_epoch": found[2]}


async def _look_up(broker: BrokerContext, lookup: "Lookup") -> "FoundRecord | None":
    """Execute a look-up. A worker thread decodes large and compressed batches."""
    try:
        job = next(lookup)
        while True:
            job = lookup.send(await broker.worker.run(job))
    except StopIteration as end:
        found: FoundRecord | None = end.value
        return found
