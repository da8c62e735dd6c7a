"""OffsetDelete, version 0: delete committed offsets.

- Rejects topics that an active group subscribes to (GROUP_SUBSCRIBED_TO_TOPIC).
- Versions: 0.
"""

from collections.abc import Awaitable

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.group_requests import check_not_empty
from headrace.requests.replies import then
from headrace.wire.codec import Message


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    check_not_empty(request["group_id"])
    asked = [
        (topic["name"], each["partition_index"])
        for topic in request["topics"]
        for each in topic["partitions"]
    ]
    known = [pair for pair in asked if broker.image.partition(*pair) is not None]
    answer = broker.groups().delete_offsets(request["group_id"], known)
    return then(answer, lambda errors: _message(request, dict(zip(known, errors, strict=True))))


def refuse(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code}


def _message(request: Message, errors: dict[tuple[str, int], ErrorCode]) -> Message:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": each["partition_index"],
                        "error_code": errors.get((topic["name"], each["partition_index"]), unknown),
                    }
                    for each in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }
