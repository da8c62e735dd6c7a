"""OffsetDelete, version 0: delete committed offsets.

- Rejects topics that an active group subscribes to (GROUP_SUBSCRIBED_TO_TOPIC).
- Requires: Delete on the group, and Read on the topic.
- Versions: 0.

Gaps: a group without members is deleted with its last offset; Kafka keeps the empty group until its
next check for expired offsets.
"""

from collections.abc import Awaitable

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import check, is_denied
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.group_requests import check_not_empty
from headrace.requests.replies import then
from headrace.security.authorizer import Operation, group_resource, topic_resource
from headrace.wire.codec import Message


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    check(broker, context, Operation.DELETE, group_resource(request["group_id"]))
    check_not_empty(request["group_id"])
    denied = {
        topic["name"]
        for topic in request["topics"]
        if is_denied(broker, context, Operation.READ, topic_resource(topic["name"]))
    }
    requested = [
        (topic["name"], each["partition_index"])
        for topic in request["topics"]
        for each in topic["partitions"]
    ]
    known = [
        pair
        for pair in requested
        if pair[0] not in denied and broker.image.partition(*pair) is not None
    ]
    response = broker.groups().delete_offsets(request["group_id"], known)
    refused = dict.fromkeys(
        (pair for pair in requested if pair[0] in denied), ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    return then(
        response,
        lambda errors: _message(
            broker, request, denied, refused | dict(zip(known, errors, strict=True))
        ),
    )


def error_response(request: Message, error: ApiError) -> Message:
    return {"error_code": error.code}


def _message(
    broker: BrokerContext,
    request: Message,
    denied: set[str],
    errors: dict[tuple[str, int], ErrorCode],
) -> Message:
    """As in Kafka, rejected partitions are first, and denied and unknown topics always listed."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def result(name: str, part: Message) -> Message:
        index = part["partition_index"]
        return {"partition_index": index, "error_code": errors.get((name, index), unknown)}

    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": sorted(
                    (result(topic["name"], part) for part in topic["partitions"]),
                    key=lambda entry: entry["error_code"] != unknown,
                ),
            }
            for topic in request["topics"]
            if topic["partitions"]
            or topic["name"] in denied
            or topic["name"] not in broker.image.topics
        ]
    }
