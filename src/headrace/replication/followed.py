"""One partition in a follower's session: what was last asked of it, and whether it rests.  # HOT"""

from typing import Final, final

from mypy_extensions import i64

from headrace.replication.partition import Partition

NEVER: Final = 0x7FFFFFFFFFFFFFFF


@final
class Followed:
    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key = partition.topic_id.bytes
        self.index: i64 = partition.index
        self.leader_epoch: i64 = partition.leader_epoch
        self.asked: i64 = NEVER
        """The number of the request that last named it: earlier answers say nothing of it."""
        self.asked_offset: i64 = 0
        self.is_in_session = False
        self.is_resting = False
        self.is_held = False
        """Resting until its log has done its work, and not by the clock."""
        self.is_stopped = False
        """Its disk has failed."""
        self.due_ms: i64 = 0
        self.failures: i64 = 0
        self.size_max: i64 = NEVER
        """How much may be asked for in the next request, where a throttle says so."""
        self.leader_high_watermark: i64 = NEVER
        """As it was last told."""

    def is_throttled(self) -> bool:
        """Whether this replica is copied slowly: never one in sync, or just let in."""
        partition = self.partition
        return (
            partition.is_throttled_follower
            and partition.log.log_end_offset < self.leader_high_watermark
            and not self.is_member()
        )

    def is_member(self) -> bool:
        """Whether this replica is in the ISR, as far as is known here."""
        partition = self.partition
        return any(member == partition.node_id for member, _ in partition.isr)
