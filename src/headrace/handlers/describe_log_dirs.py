"""DescribeLogDirs, versions 1 to 5: return the size of partitions and the free disk space.

- Null requests all partitions.
- Omits requested partitions that are not on this broker, as Kafka does.
- Requires: Describe on the cluster.
- Versions: 1 to 5. Since 3, the response has a top-level error, since 4 the size and free space.

Gaps: a broker has one directory, which is never cordoned.
"""

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.wire.codec import Message

if TYPE_CHECKING:
    from headrace.replication.partition import Partition

_log = logging.getLogger(__name__)


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    path = broker.logs.path
    result: Message = {"log_dir": path}
    try:
        # On a worker thread: a file system with problems can respond slowly.
        total_bytes, usable_bytes = await broker.worker.run(lambda: _space(path))
        result["total_bytes"], result["usable_bytes"] = total_bytes, usable_bytes
        result["topics"] = [
            {"name": name, "partitions": [_size(each) for each in partitions]}
            for name, partitions in _requested(broker, request["topics"])
        ]
    except OSError as error:
        _log.error("log directory not described: directory=%s error=%s", path, error)
        result["error_code"] = ErrorCode.KAFKA_STORAGE_ERROR
    return {"results": [result]}


def error_response(request: Message, error: ApiError) -> Message:
    # Before version 3, the response has no top-level error, so it is empty.
    return {"error_code": error.code}


def _space(path: str) -> tuple[int, int]:
    """The size of the file system, and the free bytes that this process can use."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _requested(
    broker: BrokerContext, topics: list[Message] | None
) -> Iterable[tuple[str, list["Partition"]]]:
    if topics is None:
        for name, hosted in broker.partitions.items():
            yield name, list(hosted.values())
        return
    requested: dict[str, dict[int, None]] = {}
    for topic in topics:
        requested.setdefault(topic["topic"], {}).update(dict.fromkeys(topic["partitions"]))
    for name, indexes in requested.items():
        hosted = broker.partitions.get(name, {})
        found = [hosted[index] for index in indexes if index in hosted]
        if found:
            yield name, found


def _size(partition: "Partition") -> Message:
    return {
        "partition_index": partition.index,
        "partition_size": partition.log.size_bytes(),
        "offset_lag": max(partition.high_watermark - partition.log.log_end_offset, 0),
        "is_future_key": False,
    }
