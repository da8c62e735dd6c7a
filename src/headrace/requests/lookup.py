"""Look-ups of topics and partitions for requests, with the error if one is not found."""

from typing import TYPE_CHECKING
from uuid import UUID

from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import TopicState
from headrace.requests.context import BrokerContext

if TYPE_CHECKING:
    from headrace.replication.partition import Partition

NO_EPOCH = -1


def hosted_partition(broker: BrokerContext, topic: str, index: int) -> "Partition":
    """A partition of which this broker has a replica, as leader or follower."""
    hosted = broker.partitions.get(topic)
    partition = None if hosted is None else hosted.get(index)
    if partition is not None:
        return partition
    if broker.image.partition(topic, index) is not None:
        raise ApiError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"This broker has no replica of {topic}-{index}."
        )
    raise ApiError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unknown partition {topic[:260]}-{index}."
    )


def check_leader_epoch(partition: "Partition", current_leader_epoch: int) -> None:
    """Raise the error for another leader epoch than that of the partition (KIP-320)."""
    if current_leader_epoch != NO_EPOCH:
        if current_leader_epoch < partition.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        if current_leader_epoch > partition.leader_epoch:
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)


def leader_partition(
    broker: BrokerContext, topic: str, index: int, current_leader_epoch: int = NO_EPOCH
) -> "Partition":
    """A partition that this broker leads. Raises the error for another leader epoch (KIP-320)."""
    partition = hosted_partition(broker, topic, index)
    check_leader_epoch(partition, current_leader_epoch)
    if not partition.is_leader:
        code = ErrorCode(int(partition.not_leader_error()))
        raise ApiError(code, f"This broker is not the leader of {topic}-{index}.")
    return partition


def named_topic(broker: BrokerContext, name: str) -> TopicState:
    topic = broker.image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unknown topic {name[:260]!r}.")
    return topic


def topic_with_id(broker: BrokerContext, topic_id: UUID) -> TopicState:
    name = broker.image.names_by_id.get(topic_id)
    if name is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"Unknown topic id {topic_id}.")
    return broker.image.topics[name]
