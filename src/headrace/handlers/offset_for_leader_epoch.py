"""OffsetForLeaderEpoch, versions 2 to 4: return the end offset of an epoch.

- The response has the largest epoch not above the requested one, with its end offset, or -1 for
  both if the log has no such epoch (KIP-101, KIP-279).
- With replica id -2 (Kafka's debugging id), any replica responds. The controller and
  `headrace leaders elect` use it to find the longest log. For an epoch above all others, the
  response has the last epoch and the log end offset. Without ClusterAction on the cluster, only
  the leader responds. As in Kafka, other replica ids have no effect.
- If this broker's image names a leader whose connection was just lost, the response waits for the
  election, at most 0.3 s.
- Requires: Describe on the topic, or ClusterAction on the cluster.
- Versions: 2 to 4. Since 3, a request contains the replica id.
"""

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace.controller.broker_client import DEBUGGING_REPLICA_ID
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicPartition
from headrace.requests.authorization import cannot_describe, is_allowed
from headrace.requests.context import BrokerContext, RequestContext
from headrace.requests.lookup import check_leader_epoch, hosted_partition, leader_partition
from headrace.security.authorizer import CLUSTER, Operation
from headrace.wire.codec import Message

if TYPE_CHECKING:
    from headrace.replication.partition import Partition

_UNDEFINED = (-1, -1)


def handle(
    broker: BrokerContext, context: RequestContext, request: Message
) -> Message | Awaitable[Message]:
    acts_for_cluster = is_allowed(broker, context, Operation.CLUSTER_ACTION, CLUSTER)
    is_any_replica = acts_for_cluster and request.get("replica_id") == DEBUGGING_REPLICA_ID
    denied = set() if acts_for_cluster else _denied(broker, context, request)
    partitions = [
        TopicPartition(topic["topic"], requested["partition"])
        for topic in request["topics"]
        if topic["topic"] not in denied
        for requested in topic["partitions"]
    ]
    elected = None if is_any_replica else broker.wait_for_election(partitions, len(partitions))
    if elected is None:
        return _reply(broker, request, denied, is_any_replica)

    async def reply_later() -> Message:
        await elected
        return _reply(broker, request, denied, is_any_replica)

    return reply_later()


def _denied(broker: BrokerContext, context: RequestContext, request: Message) -> set[str]:
    """The topics that the principal cannot describe."""
    names = {topic["topic"] for topic in request["topics"]}
    return {name for name in names if cannot_describe(broker, context, name)}


def _reply(
    broker: BrokerContext, request: Message, denied: set[str], is_any_replica: bool
) -> Message:
    topics = []
    for topic in request["topics"]:
        entries = []
        for requested in topic["partitions"]:
            try:
                if topic["topic"] in denied:
                    raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                epoch, end_offset = _end_offset(broker, topic["topic"], requested, is_any_replica)
                entries.append(
                    {
                        "partition": requested["partition"],
                        "leader_epoch": epoch,
                        "end_offset": end_offset,
                    }
                )
            except ApiError as error:
                entries.append({"partition": requested["partition"], "error_code": error.code})
        topics.append({"topic": topic["topic"], "partitions": entries})
    return {"topics": topics}


def error_response(request: Message, error: ApiError) -> Message:
    return {
        "topics": [
            {
                "topic": topic["topic"],
                "partitions": [
                    {"partition": requested["partition"], "error_code": error.code}
                    for requested in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ]
    }


def _end_offset(
    broker: BrokerContext, topic: str, requested: Message, is_any_replica: bool
) -> tuple[int, int]:
    epoch = requested["current_leader_epoch"]
    if is_any_replica:
        replica = hosted_partition(broker, topic, requested["partition"])
        check_leader_epoch(replica, epoch)
        log = replica.log
        if log.is_offline:
            # The log has the length in its checkpoint, but cannot be read: it must win no election.
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log of {topic} is offline.")
        if requested["leader_epoch"] > log.epochs.latest():
            return log.epochs.latest(), log.log_end_offset
        return log.epochs.end_offset_for(requested["leader_epoch"], log.log_end_offset)
    partition = leader_partition(broker, topic, requested["partition"], epoch)
    return _end_of(partition, requested["leader_epoch"])


def _end_of(partition: "Partition", epoch: int) -> tuple[int, int]:
    # An epoch without a record is not in the log's list yet, but it has begun. A consumer that got
    # it from ListOffsets must not get UNDEFINED.
    if epoch == partition.leader_epoch:
        return epoch, partition.log.log_end_offset
    if not 0 <= epoch <= partition.leader_epoch:
        return _UNDEFINED
    return partition.end_of_epoch(epoch)
