"""State of a follower's fetch session on the leader (KIP-227).  # HOT

Holds the partitions of a session, those that changed, and the fetch that waits for changes.
`leader_sessions.py` decides what to send.
"""

from typing import final

from mypy_extensions import i64

from headrace.replication.fetch_reader import divergence
from headrace.replication.partition import Partition
from headrace.replication.replica_progress import ReplicaListener
from headrace.runtime.exchange import Exchange, Peer, Timer
from headrace.wire.fetch import FetchPartition, FetchRequest


@final
class SessionPartition(ReplicaListener):
    """One partition in a follower's session."""

    def __init__(self, session: "ReplicaSession", part: FetchPartition) -> None:
        self.session = session
        self.partition: Partition | None = None
        self.part = part
        self.divergence: tuple[int, int] | None = None
        """The end of the largest common epoch, if the follower's log diverges."""
        self.divergence_is_known = False
        """Whether `divergence` is known for this fetch."""
        self.high_watermark: i64 = -1
        """The high watermark in the last response; the next field is the log start in it."""
        self.log_start_offset: i64 = -1

    def fetch(self, part: FetchPartition) -> None:
        """The follower fetches from another offset."""
        self.part = part
        self.divergence_is_known = False
        # The follower ignores this partition in responses to earlier requests, so send both offsets
        # again.
        self.high_watermark = -1
        self.log_start_offset = -1

    def diverges(self, partition: Partition) -> bool:
        """Whether the follower's log diverges from this leader's."""
        part = self.part
        # Deleted records no longer have epochs, so the outcome can change with the log start.
        if not self.divergence_is_known or part.fetch_offset < partition.log.log_start_offset:
            self.divergence = divergence(part, partition)
            self.divergence_is_known = True
        return self.divergence is not None

    def appended(self) -> None:
        self.session.dirty[self] = None
        self._wake()

    def committed(self) -> None:
        session = self.session
        session.with_new_offsets[self] = None
        if session.responds_to_commits:
            session.offsets_end_wait = True
            self._wake()

    def log_start_moved(self) -> None:
        session = self.session
        session.with_new_offsets[self] = None
        session.offsets_end_wait = True
        self._wake()

    def _wake(self) -> None:
        exchange = self.session.waiting
        if exchange is not None:
            exchange.wake()


@final
class ReplicaSession:
    def __init__(
        self,
        peer: Peer,
        session_id: i64,
        node_id: i64,
        broker_epoch: i64,
        responds_to_commits: bool,
        woken: "list[ReplicaExchange]",
    ) -> None:
        self.peer = peer
        self.session_id: i64 = session_id
        self.node_id: i64 = node_id
        self.broker_epoch: i64 = broker_epoch
        """The registration that opened the session. Another registration opens another one."""
        self.responds_to_commits = responds_to_commits
        """Whether a new high watermark ends a wait."""
        self.woken = woken
        """The waiting fetches of all sessions to retry after the next flush."""
        self.epoch: i64 = 0
        self.partitions: dict[tuple[bytes, int], SessionPartition] = {}
        self.dirty: dict[SessionPartition, None] = {}
        """Partitions that can have records or errors to send."""
        self.with_new_offsets: dict[SessionPartition, None] = {}
        """Partitions with a new high watermark or log start: the next response has them."""
        self.offsets_end_wait = False
        """Whether a new high watermark or log start ends the wait, without records."""
        self.throttled: dict[SessionPartition, None] = {}
        """Partitions with records that the throttle delays."""
        self.waiting: ReplicaExchange | None = None


@final
class ReplicaExchange(Exchange):
    def __init__(
        self, peer: Peer, correlation_id: i64, version: i64, request: FetchRequest
    ) -> None:
        super().__init__(peer, correlation_id, version)
        self.request = request
        self.session: ReplicaSession | None = None
        self.timer: Timer | None = None

    def wake(self) -> None:
        if not self.woken and self.session is not None:
            self.woken = True
            self.session.woken.append(self)
