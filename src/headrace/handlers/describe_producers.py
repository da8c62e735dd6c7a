"""DescribeProducers, version 0: list the active producers of a partition (KIP-664).

- Only the leader of a partition responds (NOT_LEADER_OR_FOLLOWER).
- A partition that occurs twice has one result.
- Requires: Read on the topic.
- Versions: 0.
"""

from headrace.model.errors import ApiError
from headrace.model.topics import check_topic_name
from headrace.requests.authorization import check
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.lookup import leader_partition
from headrace.requests.replies import failure
from headrace.security.authorizer import Operation, topic_resource
from headrace.wire.codec import Message


def handle(broker: BrokerContext, context: RequestContext, request: Message) -> Message:
    topics = []
    for name, indexes in _requested(request).items():
        results = [_describe(broker, context, name, index) for index in indexes]
        topics.append({"name": name, "partitions": results})
    return {"topics": topics}


def error_response(request: Message, error: ApiError) -> Message:
    return {
        "topics": [
            {
                "name": name,
                "partitions": [{"partition_index": index, **failure(error)} for index in indexes],
            }
            for name, indexes in _requested(request).items()
        ]
    }


def _requested(request: Message) -> dict[str, dict[int, None]]:
    """Each partition once, because a partition can have many producers."""
    requested: dict[str, dict[int, None]] = {}
    for topic in request["topics"]:
        requested.setdefault(topic["name"], {}).update(dict.fromkeys(topic["partition_indexes"]))
    return requested


def _describe(broker: BrokerContext, context: RequestContext, name: str, index: int) -> Message:
    try:
        check(broker, context, Operation.READ, topic_resource(name))
        check_topic_name(name)
        partition = leader_partition(broker, name, index)
    except ApiError as error:
        return {"partition_index": index, **failure(error)}
    return {
        "partition_index": index,
        "active_producers": [
            {
                "producer_id": entry.producer_id,
                "producer_epoch": entry.epoch,
                "last_sequence": entry.last_sequence(),
                "last_timestamp": entry.timestamp,
                "coordinator_epoch": entry.coordinator_epoch,
                "current_txn_start_offset": entry.transaction_first_offset,
            }
            for entry in partition.log.producers.entries.values()
        ],
    }
