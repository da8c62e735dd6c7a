"""OffsetFetch, versions 1 to 9: return committed offsets.

- A partition without an offset has -1 and no error.
- Requires: Describe on the group and on the topic.
- Versions: 1 to 9. Since 2, null topics request all topics with an offset. Since 7, a client can
  require stable offsets, without open transactions. Since 8, a request contains several groups,
  each with its own error. Since 9, a member of a consumer-protocol group sends its epoch, which is
  checked.

Gaps: version 10, which uses topic ids only, is not supported; clients use version 9.
"""

from collections.abc import Awaitable

from headrace.group.messages import NO_GENERATION
from headrace.group.service import FetchedTopics
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import can_describe, cannot_describe, check
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import now_or_later, then
from headrace.security.authorizer import Operation, group_resource
from headrace.wire.codec import Message

_NO_OFFSET: Message = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    if "groups" in request:
        return _handle_groups(broker, context, request)
    topics = request["topics"]
    check(broker, context, Operation.DESCRIBE, group_resource(request["group_id"]))
    response = broker.groups().fetch_offsets(
        request["group_id"], _asked(broker, context, topics), request.get("require_stable", False)
    )
    return then(response, lambda fetched: {"topics": _topics(broker, context, topics, fetched)})


async def _handle_groups(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message:
    entries = []
    for group in request["groups"]:
        entry: Message = {"group_id": group["group_id"]}
        try:
            check(broker, context, Operation.DESCRIBE, group_resource(group["group_id"]))
            fetched = broker.groups().fetch_offsets(
                group["group_id"],
                _asked(broker, context, group["topics"]),
                request["require_stable"],
                group.get("member_id"),
                group.get("member_epoch", NO_GENERATION),
            )
            entry["topics"] = _topics(broker, context, group["topics"], await now_or_later(fetched))
        except ApiError as error:
            entry["error_code"] = _told(error)
        entries.append(entry)
    return {"groups": entries}


def refuse(request: Message, error: ApiError) -> Message:
    code = _told(error)
    if "groups" in request:
        entries = [
            {"group_id": group["group_id"], "error_code": code} for group in request["groups"]
        ]
        return {"groups": entries}
    # Version 1 has no error for the whole.
    topics = [_refused(topic, code) for topic in request["topics"] or ()]
    return {"error_code": code, "topics": topics}


def _refused(topic: Message, code: ErrorCode) -> Message:
    return {
        "name": topic["name"],
        "partitions": [
            {"partition_index": index, "error_code": code, **_NO_OFFSET}
            for index in topic["partition_indexes"]
        ],
    }


def _told(error: ApiError) -> ErrorCode:
    # Consumers of before 3.9 do not know this one here, and give up (KAFKA-16386).
    if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return ErrorCode.NOT_COORDINATOR
    return error.code


def _asked(
    broker: BrokerContext, context: RequestContext, topics: list[Message] | None
) -> list[tuple[str, list[int]]] | None:
    """The requested partitions of topics that the principal can describe; None: all topics."""
    if topics is None:
        return None
    return [
        (topic["name"], topic["partition_indexes"])
        for topic in topics
        if can_describe(broker, context, topic["name"])
    ]


def _topics(
    broker: BrokerContext,
    context: RequestContext,
    requested: list[Message] | None,
    fetched: FetchedTopics,
) -> list[Message]:
    """The fetched topics, and an error for each requested one that was denied."""
    denied = [
        _refused(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for topic in requested or ()
        if cannot_describe(broker, context, topic["name"])
    ]
    visible = [each for each in fetched if can_describe(broker, context, each[0])]
    return _found(visible) + denied


def _found(fetched: FetchedTopics) -> list[Message]:
    return [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": each.partition,
                    "committed_offset": each.offset,
                    "committed_leader_epoch": each.leader_epoch,
                    "metadata": each.metadata,
                    "error_code": each.error,
                }
                for each in partitions
            ],
        }
        for topic, partitions in fetched
    ]
