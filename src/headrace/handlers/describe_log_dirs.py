"""DescribeLogDirs, versions 1 to 5: how large each partition is, and how full the disk.

There is one directory. Null asks for all partitions; those that are asked for and not here are
left out, as in Kafka. Nothing is moved between directories, so no partition is a future one.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.handlers.context import BrokerContext, RequestContext
from headrace.model.errors import ApiError
from headrace.wire.codec import Message

if TYPE_CHECKING:
    from headrace.replication.partition import Partition


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    total_bytes, usable_bytes = broker.logs.space()
    return {
        "results": [
            {
                "log_dir": broker.logs.path,
                "topics": [
                    {"name": name, "partitions": [_size(each) for each in partitions]}
                    for name, partitions in _asked(broker, request["topics"])
                ],
                "total_bytes": total_bytes,
                "usable_bytes": usable_bytes,
            }
        ]
    }


def refuse(request: Message, error: ApiError) -> Message:
    # Before version 3 the reply has no error of its own: an empty one is all that can be said.
    return {"error_code": error.code}


def _asked(
    broker: BrokerContext, topics: list[Message] | None
) -> Iterable[tuple[str, list["Partition"]]]:
    if topics is None:
        for name, hosted in broker.partitions.items():
            yield name, list(hosted.values())
        return
    asked: dict[str, dict[int, None]] = {}
    for topic in topics:
        asked.setdefault(topic["topic"], {}).update(dict.fromkeys(topic["partitions"]))
    for name, indexes in asked.items():
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
