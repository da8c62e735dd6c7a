"""AlterPartitionReassignments, versions 0 and 1: start or cancel reassignments of partitions.

- Responds when the reassignments have started. ListPartitionReassignments shows their progress.
- Each partition has its own result.
- Any broker accepts the request and forwards it to the controller.
- Requires: Alter on the cluster.
- Versions: 0 and 1. Since 1, a request can forbid a change of the replication factor.

Gaps: if a partition occurs twice, the complete request is rejected (INVALID_REQUEST); Kafka
executes both entries, in their order.
"""

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicPartition
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.deadline import Deadline
from headrace.requests.replies import failure
from headrace.wire.codec import Message


async def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    targets = {
        TopicPartition(topic["name"], part["partition_index"]): part["replicas"]
        for topic in request["topics"]
        for part in topic["partitions"]
    }
    if len(targets) != sum(len(topic["partitions"]) for topic in request["topics"]):
        raise ApiError(ErrorCode.INVALID_REQUEST, "The request contains a partition twice.")
    may_change_factor = request.get("allow_replication_factor_change", True)
    if not targets:
        return {
            "allow_replication_factor_change": may_change_factor,
            "error_message": "",
            "responses": _entries(request, {}),
        }
    deadline = Deadline(broker.clock, request["timeout_ms"])
    outcomes = await deadline.wait_for(
        broker.controller.reassign_partitions(targets, keeps_factor=not may_change_factor)
    )
    return {
        "allow_replication_factor_change": may_change_factor,
        "error_message": None,
        "responses": _entries(request, outcomes),
    }


def error_response(request: Message, error: ApiError) -> Message:
    return {
        "error_code": error.code,
        "error_message": error.message,
        "responses": _entries(request, {}, error),
    }


def _entries(
    request: Message,
    outcomes: dict[TopicPartition, ApiError | None],
    otherwise: ApiError | None = None,
) -> list[Message]:
    topics = []
    for topic in request["topics"]:
        entries = []
        for part in topic["partitions"]:
            partition = TopicPartition(topic["name"], part["partition_index"])
            error = outcomes.get(partition, otherwise)
            entry: Message = {"partition_index": part["partition_index"], "error_message": None}
            entries.append(entry if error is None else {**entry, **failure(error)})
        topics.append({"name": topic["name"], "partitions": entries})
    return topics
