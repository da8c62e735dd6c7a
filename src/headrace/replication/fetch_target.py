"""One partition that a follower fetches: its last request, and why it pauses.  # HOT"""

from typing import Final, final

from mypy_extensions import i64

from headrace.replication.partition import Partition
from headrace.replication.throttle import UNLIMITED

NEVER: Final = 0x7FFFFFFFFFFFFFFF
UNKNOWN_HIGH_WATERMARK: Final = NEVER
"""Before the first response. It is above every log end, so that the throttle applies."""


@final
class FetchTarget:
    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key = partition.topic_id.bytes
        self.index: i64 = partition.index
        self.leader_epoch: i64 = partition.leader_epoch
        self.request_number: i64 = NEVER
        """The last request that lists it. Responses to earlier ones do not apply."""
        self.requested_offset: i64 = 0
        """The fetch offset in that request."""
        self.is_in_session = False
        self.is_paused = False
        self.awaits_job = False
        """Paused until a job of its log is done, not until a time."""
        self.is_stopped = False
        """Its log is offline: the disk has failed."""
        self.due_ms: i64 = 0
        """When the pause ends."""
        self.failures: i64 = 0
        self.size_max: i64 = UNLIMITED
        """The most bytes to fetch in the next request, if a throttle limits them."""
        self.leader_high_watermark: i64 = UNKNOWN_HIGH_WATERMARK
        """From the leader's last response."""

    def is_throttled(self) -> bool:
        """Whether the throttle applies: to a log that lags, but never to a member of the ISR."""
        partition = self.partition
        return (
            partition.throttled.as_follower
            and partition.log.log_end_offset < self.leader_high_watermark
            and not self.is_member()
        )

    def is_member(self) -> bool:
        """Whether this replica is in the ISR, by the image of this broker."""
        partition = self.partition
        return any(member == partition.node_id for member, _ in partition.replicas.isr)
