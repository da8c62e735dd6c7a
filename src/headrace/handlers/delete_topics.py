"""DeleteTopics, versions 1 to 6: delete topics by name, or since version 6 by id.

- Each topic has its own result. A topic that occurs twice, or by both name and id, is not deleted.
- Rejects the request if delete.topic.enable is false.
- Any broker accepts the request and forwards it to the controller.
- If a client exceeds controller_mutation_rate, its topics are rejected since version 5. In older
  versions, the client is delayed.
- Requires: Delete on the cluster or the topic. If a topic id is denied, the response contains
  the topic's name only with Describe on the topic.
- Versions: 1 to 6. If delete.topic.enable is false, the error is TOPIC_DELETION_DISABLED since 3,
  and INVALID_REQUEST before.
"""

from collections.abc import Awaitable
from uuid import UUID

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicState
from headrace.requests.authorization import check, is_allowed
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.deadline import Deadline
from headrace.requests.lookup import named_topic, topic_with_id
from headrace.requests.mutations import counted
from headrace.requests.replies import failure, repeated
from headrace.security.authorizer import CLUSTER, Operation, topic_resource
from headrace.wire.codec import Message

_DELETION_DISABLED_SINCE = 3


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    if not broker.config.get_bool("delete.topic.enable"):
        is_known = context.api_version >= _DELETION_DISABLED_SINCE
        raise ApiError(
            ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST,
            "Topics cannot be deleted: delete.topic.enable is false.",
        )
    return _delete_all(broker, context, request)


def error_response(request: Message, error: ApiError) -> Message:
    return {
        "responses": [
            {"name": name, "topic_id": topic_id, **failure(error)}
            for name, topic_id in _requested(request)
        ]
    }


def _requested(request: Message) -> list[tuple[str | None, UUID | None]]:
    if "topics" in request:
        return [(topic["name"], topic["topic_id"]) for topic in request["topics"]]
    return [(name, None) for name in request["topic_names"]]


async def _delete_all(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    requested = _requested(request)
    found = [_find(broker, context, name, topic_id) for name, topic_id in requested]
    twice = repeated(topic.name for topic in found if isinstance(topic, TopicState))
    deadline = Deadline(broker.clock, request["timeout_ms"])
    rejected: set[str] = set()
    entries: list[Message] = []
    for (name, topic_id), topic in zip(requested, found, strict=True):
        entry: Message = {"name": name, "topic_id": topic_id}
        if isinstance(topic, TopicState) and topic.name in twice:
            # As in Kafka, the response contains it once.
            if topic.name in rejected:
                continue
            rejected.add(topic.name)
        try:
            if isinstance(topic, ApiError):
                raise topic
            if is_allowed(broker, context, Operation.DESCRIBE, topic_resource(topic.name)):
                entry.update(name=topic.name)
            _check_deletion(broker, context, topic.name)
            entry.update(name=topic.name, topic_id=topic.topic_id)
            if topic.name in twice:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The request contains this topic twice.")
            with counted(broker, context, len(topic.partitions)):
                await deadline.wait_for(
                    broker.controller.delete_topic(topic.name, topic_id=topic.topic_id)
                )
        except ApiError as error:
            entry.update(failure(error))
        entries.append(entry)
    return {"responses": entries}


def _check_deletion(broker: BrokerContext, context: RequestContext, name: str) -> None:
    if not is_allowed(broker, context, Operation.DELETE, CLUSTER):
        check(broker, context, Operation.DELETE, topic_resource(name))


def _find(
    broker: BrokerContext, context: RequestContext, name: str | None, topic_id: UUID | None
) -> TopicState | ApiError:
    try:
        if (name is None) == (topic_id is None):
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "The request must contain either a name or an id."
            )
        if topic_id is not None:
            return topic_with_id(broker, topic_id)
        _check_deletion(broker, context, name or "")
        return named_topic(broker, name or "")
    except ApiError as error:
        return error
