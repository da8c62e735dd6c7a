"""CreatePartitions, versions 0 to 3: add partitions to topics.

- Each topic has its own result. A topic that occurs twice is rejected and not changed.
- Responds when the controller's broker has opened its logs of the new partitions.
- Any broker accepts the request and forwards it to the controller.
- If a client exceeds controller_mutation_rate, its topics are rejected since version 3. In older
  versions, the client is delayed.
- Requires: Alter on the topic.
- Versions: 0 to 3.

Gaps: internal topics are rejected (INVALID_TOPIC), because the partition of a group would
change; Kafka adds the partitions.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.requests.authorization import check
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.deadline import Deadline
from headrace.requests.mutations import counted
from headrace.requests.replies import failure, repeated
from headrace.security.authorizer import Operation, topic_resource
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    twice = repeated(topic["name"] for topic in request["topics"])
    deadline = Deadline(broker.clock, request["timeout_ms"])
    results: dict[str, Message] = {}
    for topic in request["topics"]:
        name = topic["name"]
        if name in results:
            continue
        results[name] = {"name": name}
        try:
            check(broker, context, Operation.ALTER, topic_resource(name))
            if name in twice:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The request contains this topic twice.")
            with counted(broker, context, _added(broker, topic)):
                await _extend(broker, deadline, topic, request["validate_only"])
        except ApiError as error:
            results[name].update(failure(error))
    return {"results": list(results.values())}


def error_response(request: Message, error: ApiError) -> Message:
    names = dict.fromkeys(topic["name"] for topic in request["topics"])
    return {"results": [{"name": name, **failure(error)} for name in names]}


def _added(broker: BrokerContext, topic: Message) -> int:
    known = broker.image.topics.get(topic["name"])
    return 0 if known is None else max(topic["count"] - len(known.partitions), 0)


async def _extend(
    broker: BrokerContext, deadline: Deadline, topic: Message, is_validate_only: bool
) -> None:
    assignments = topic["assignments"]
    await deadline.wait_for(
        broker.controller.create_partitions(
            topic["name"],
            topic["count"],
            assignment=(
                None if assignments is None else [each["broker_ids"] for each in assignments]
            ),
            validate_only=is_validate_only,
        )
    )
    await deadline.wait_for(broker.opened(topic["name"]))
