"""The cluster as seen by a client of one listener."""

from collections.abc import Mapping

from headrace.model.cluster import BrokerInfo, Endpoint
from headrace.model.errors import ErrorCode
from headrace.model.topics import NO_LEADER, PartitionState
from headrace.requests.context import BrokerContext
from headrace.wire.codec import Message

NOT_REGISTERED = -1
NO_CONTROLLER = -1


def endpoint_of(info: BrokerInfo, listener: str) -> Endpoint | None:
    for endpoint in info.endpoints:
        if endpoint.listener == listener:
            return endpoint
    return None


def brokers_on(
    brokers: Mapping[int, BrokerInfo], listener: str
) -> list[tuple[BrokerInfo, Endpoint]]:
    """The brokers that have this listener, sorted by node id."""
    found = ((info, endpoint_of(info, listener)) for _, info in sorted(brokers.items()))
    return [(info, endpoint) for info, endpoint in found if endpoint is not None]


def controller_for(broker: BrokerContext, brokers: list[tuple[BrokerInfo, Endpoint]]) -> int:
    """The controller id to return: this broker's, unless the controller is listed and not lost.

    librdkafka waits for a controller that it cannot connect to, without refreshing its metadata.
    Every broker forwards requests to the controller, so any live broker is correct.
    """
    listed = {info.node_id for info, _ in brokers}
    controller = broker.image.controller_id
    is_live = controller == broker.node_id or not broker.was_lost_lately(controller)
    if controller in listed and (is_live or broker.node_id not in listed):
        return controller
    return broker.node_id if broker.node_id in listed else NO_CONTROLLER


def is_stale_leader(broker: BrokerContext, topic: str, index: int) -> bool:
    """Whether this broker might be leader only in its own image; clients should use another broker.

    It has no registration, or it is cut off from the other brokers and the store.
    """
    if broker.controller.broker_epoch == NOT_REGISTERED:
        return True
    if not broker.has_isolated_leaders():
        return False
    partition = broker.partitions.get(topic, {}).get(index)
    return partition is not None and partition.is_isolated


def partition_message(
    broker: BrokerContext, listener: str, topic: str, index: int, state: PartitionState
) -> Message:
    """One partition for Metadata and DescribeTopicPartitions."""
    live = broker.image.brokers
    leader, error = state.leader, ErrorCode.NONE
    info = live.get(leader)
    if info is None or (leader == broker.node_id and is_stale_leader(broker, topic, index)):
        leader, error = NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    elif endpoint_of(info, listener) is None:
        leader, error = NO_LEADER, ErrorCode.LISTENER_NOT_FOUND
    return {
        "error_code": error,
        "partition_index": index,
        "leader_id": leader,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": [node for node in state.replicas if node not in live],
    }
