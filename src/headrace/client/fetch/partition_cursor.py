"""The state of a consumer for one partition: position, errors and buffered records. Pure."""

from collections import deque
from collections.abc import Iterator

from headrace.client.core.metadata import Cluster
from headrace.client.core.partition_backoff import PartitionBackoff
from headrace.client.core.values import Record
from headrace.client.fetch.chunks import Chunk
from headrace.model.topics import TopicPartition


class PartitionCursor:
    __slots__ = (
        "absent_since_ms",
        "backoff",
        "buffered",
        "chunks",
        "current",
        "epochs",
        "fetch_offset",
        "high_watermark",
        "is_paused",
        "is_resetting",
        "last_stable_offset",
        "log_start_offset",
        "partition",
        "pending",
        "position",
        "replica",
        "replica_until_ms",
        "until",
    )

    def __init__(self, partition: TopicPartition, offset: int, until: int | None) -> None:
        self.partition = partition
        self.until = until
        """The offset at which fetching stops, if any."""
        self.is_paused = False
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.chunks: deque[Chunk] = deque()
        self.backoff = PartitionBackoff()
        self.replica: int | None = None
        """The follower to read from, as the leader has requested (KIP-392)."""
        self.replica_until_ms = 0.0
        self.seek(offset)

    def seek(self, offset: int) -> None:
        self.position = offset
        """The offset of the next record that the program gets."""
        self.fetch_offset = offset
        """The next offset to fetch. Records from `position` up to this offset are buffered."""
        self.chunks.clear()
        self.buffered = 0
        self.current: tuple[Chunk, Iterator[tuple[int, list[Record]]]] | None = None
        self.pending: list[Record] = []
        """Decoded records that the program did not get yet, in descending order."""
        self.epochs: list[tuple[int, int]] = []
        """The first offset and the leader epoch of each sequence of decoded records."""
        self.is_resetting = False
        self.backoff.clear()
        self.absent_since_ms: float | None = None

    def decoded(self, epoch: int, records: list[Record]) -> None:
        if records and (not self.epochs or self.epochs[-1][1] != epoch):
            self.epochs.append((records[0].offset, epoch))
        records.reverse()
        self.pending = records

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the last record before an offset, or -1 if none was read."""
        return next((epoch for start, epoch in reversed(self.epochs) if start < offset), -1)

    def node_to_read(self, cluster: Cluster, now_ms: float) -> int | None:
        """The broker to fetch from: `replica` or the leader; None if the leader is unknown."""
        if now_ms >= self.replica_until_ms or self.replica not in cluster.nodes:
            self.replica = None
        return cluster.leader(*self.partition) if self.replica is None else self.replica

    def has_data(self) -> bool:
        return not self.is_paused and bool(self.chunks or self.pending or self.current)
