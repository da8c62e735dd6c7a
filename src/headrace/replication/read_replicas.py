"""Selects the replica from which a consumer reads: one in its rack, or the leader (KIP-392)."""

from headrace.model.cluster import ClusterImage
from headrace.replication.partition import Partition
from headrace.replication.replica_progress import UNKNOWN, ReplicaProgress

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER = -1


class RackAwareReplicas:
    def __init__(self, node_id: int, image: ClusterImage) -> None:
        self._node_id = node_id
        self._image = image

    def choose(self, partition: Partition, rack: bytes, offset: int) -> int:
        """A follower in the rack that can serve a consumer at this offset, or LEADER."""
        consumer_rack = rack.decode(errors="replace")
        if self._rack_of(self._node_id) == consumer_rack:
            return LEADER
        in_rack = [
            follower
            for follower in partition.replicas.followers.values()
            if self._rack_of(follower.node_id) == consumer_rack and _can_serve(follower, offset)
        ]
        best = max(in_rack, key=_rank, default=None)
        return LEADER if best is None else int(best.node_id)

    def _rack_of(self, node_id: int) -> str | None:
        broker = self._image.brokers.get(node_id)
        return None if broker is None else broker.rack


def _can_serve(follower: ReplicaProgress, offset: int) -> bool:
    """Whether a replica is in sync and has the offset: one that lags would delay the consumer."""
    return (
        follower.committed_epoch != UNKNOWN
        and follower.is_same_incarnation()
        and follower.log_start_offset <= offset <= follower.end_offset
    )


def _rank(follower: ReplicaProgress) -> tuple[int, int, int]:
    return follower.end_offset, follower.caught_up_ms, follower.node_id
