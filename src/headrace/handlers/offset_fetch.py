"""OffsetFetch, versions 1 to 10: return committed offsets.

- A partition without an offset has -1 and no error.
- Requires: Describe on the group and on the topic.
- Versions: 1 to 10. Since 2, null topics request all topics with an offset. Since 7, a client can
  require stable offsets, without open transactions. Since 8, a request contains several groups,
  each with its own error. Since 9, a member of a consumer-protocol group sends its epoch, which is
  checked. Since 10, topic ids; an unknown id has the error UNKNOWN_TOPIC_ID.
"""

from collections.abc import Awaitable, Iterable
from uuid import UUID

from headrace.group.messages import NO_GENERATION
from headrace.group.offsets_machine import FetchedOffset
from headrace.group.service import FetchedTopics
from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import can_describe, cannot_describe, check
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.replies import now_or_later, then
from headrace.security.authorizer import Operation, group_resource
from headrace.wire.codec import Message

TOPIC_IDS_SINCE = 10
_NO_OFFSET: Message = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    if "groups" in request:
        return _handle_groups(broker, context, request)
    topics = request["topics"]
    check(broker, context, Operation.DESCRIBE, group_resource(request["group_id"]))
    response = broker.groups().fetch_offsets(
        request["group_id"],
        _requested(broker, context, topics),
        request.get("require_stable", False),
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
                _requested(broker, context, group["topics"]),
                request["require_stable"],
                group.get("member_id"),
                group.get("member_epoch", NO_GENERATION),
            )
            entry["topics"] = _topics(broker, context, group["topics"], await now_or_later(fetched))
        except ApiError as error:
            entry["error_code"] = _supported_error(error)
        entries.append(entry)
    return {"groups": entries}


def error_response(request: Message, error: ApiError) -> Message:
    code = _supported_error(error)
    if "groups" in request:
        entries = [
            {"group_id": group["group_id"], "error_code": code} for group in request["groups"]
        ]
        return {"groups": entries}
    # Version 1 has no error for the complete response.
    topics = [_refused(topic, code) for topic in request["topics"] or ()]
    return {"error_code": code, "topics": topics}


def _refused(topic: Message, code: ErrorCode) -> Message:
    return {
        **_identity(topic),
        "partitions": [
            {"partition_index": index, "error_code": code, **_NO_OFFSET}
            for index in topic["partition_indexes"]
        ],
    }


def _identity(topic: Message) -> Message:
    """The name or, since version 10, the id of a requested topic."""
    return {"name": topic["name"]} if "name" in topic else {"topic_id": topic["topic_id"]}


def _supported_error(error: ApiError) -> ErrorCode:
    # Consumers before 3.9 do not support this error here, and stop (KAFKA-16386).
    if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return ErrorCode.NOT_COORDINATOR
    return error.code


def _requested(
    broker: BrokerContext, context: RequestContext, topics: list[Message] | None
) -> list[tuple[str, list[int]]] | None:
    """The requested partitions of topics that the principal can describe; None: all topics."""
    if topics is None:
        return None
    named = [(_name(broker, topic), topic["partition_indexes"]) for topic in topics]
    return [
        (name, indexes)
        for name, indexes in named
        if name is not None and can_describe(broker, context, name)
    ]


def _name(broker: BrokerContext, topic: Message) -> str | None:
    """The name of a requested topic; None if its id is unknown."""
    name: str | None = topic.get("name")
    return broker.image.names_by_id.get(topic["topic_id"]) if name is None else name


def _topics(
    broker: BrokerContext,
    context: RequestContext,
    requested: list[Message] | None,
    fetched: FetchedTopics,
) -> list[Message]:
    """The fetched topics, and an error for each requested one that is unknown or denied."""
    failed: list[Message] = []
    ids: dict[str, UUID] = {}
    for topic in requested or ():
        name = _name(broker, topic)
        if name is None:
            failed.append(_refused(topic, ErrorCode.UNKNOWN_TOPIC_ID))
        elif cannot_describe(broker, context, name):
            failed.append(_refused(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif "topic_id" in topic:
            ids[name] = topic["topic_id"]
    found: list[Message] = []
    for name, offsets in fetched:
        if can_describe(broker, context, name):
            if context.api_version < TOPIC_IDS_SINCE:
                found.append({"name": name, "partitions": _rows(offsets)})
                continue
            state = broker.image.topics.get(name)
            topic_id = ids.get(name) or (None if state is None else state.topic_id)
            # A deleted topic has no id, so a response with ids cannot contain it.
            if topic_id is not None:
                found.append({"topic_id": topic_id, "partitions": _rows(offsets)})
    return found + failed


def _rows(offsets: Iterable[FetchedOffset]) -> list[Message]:
    return [
        {
            "partition_index": each.partition,
            "committed_offset": each.offset,
            "committed_leader_epoch": each.leader_epoch,
            "metadata": each.metadata,
            "error_code": each.error,
        }
        for each in offsets
    ]
