"""A partition as this broker serves it: its log, what is committed, and who waits for more.  # HOT

P1  high_watermark <= what every in-sync replica holds; here that is this log alone
P2  high_watermark never moves backwards while this broker leads
P3  where the topic asks for a sync, nothing unsynced is acknowledged or shown
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, final
from uuid import UUID

from mypy_extensions import i64, mypyc_attr

from headrace.config.topic import TopicConfig
from headrace.log.log import Log
from headrace.model.topics import INTERNAL_TOPICS
from headrace.replication.admission import AppendRules
from headrace.runtime.exchange import Exchange

if TYPE_CHECKING:
    from headrace.record.batch import Batch

NOT_DUE = 0x7FFFFFFFFFFFFFFF


@mypyc_attr(allow_interpreted_subclasses=True)
class Observer:
    """Somebody who waits for a partition otherwise than by a request: a coordinator."""

    def advanced(self) -> None:
        """The high watermark has risen."""
        raise NotImplementedError

    def failed(self) -> None:
        """The log is offline: what is not committed now never will be."""
        raise NotImplementedError


@final
class Parked:
    """An acknowledgement that waits until the log is safe up to an offset."""

    def __init__(self, offset: i64, exchange: Exchange) -> None:
        self.offset: i64 = offset
        self.exchange = exchange


@final
class Partition:
    def __init__(
        self,
        topic: str,
        index: i64,
        topic_id: UUID,
        log: Log,
        leader_epoch: i64,
        decompressed_bytes_max: i64,
    ) -> None:
        self.topic = topic
        self.index: i64 = index
        self.topic_id = topic_id
        self.log = log
        self.config: TopicConfig = log.config
        self.rules = AppendRules(log.config, decompressed_bytes_max)
        self.leader_epoch: i64 = leader_epoch
        self.is_leader = True
        self.is_internal = topic in INTERNAL_TOPICS
        """Written by the broker alone: what a client wrote there would be believed later."""
        self.in_sync_replicas: i64 = 1
        self.high_watermark: i64 = log.log_end_offset
        self.flush_messages: i64 = log.config.flush_messages
        self.waiters: dict[Exchange, None] = {}
        self.parked: list[Parked] = []
        self.observer: Observer | None = None
        self.after_job: list[Callable[[], None]] = []
        """Told once when the log's next job is done."""
        self.is_dirty = False
        self.write_error: i64 = 0
        """Why the last write failed; meant for the turn that made it, 0 again after."""
        self.sync_from: i64 = NOT_DUE
        """Acknowledgements above this offset wait for a sync."""

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.flush_messages = config.flush_messages
        self.log.set_config(config)
        self.rules = AppendRules(config, self.rules.decompressed_bytes_max)

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def stage(self, batch: "Batch", now_ms: i64) -> i64:
        return self.log.stage(batch, self.leader_epoch, now_ms)

    def demand_sync(self) -> None:
        """Hold back what a sync must cover first (flush.messages)."""
        log = self.log
        if log.written_end_offset - log.synced_offset >= self.flush_messages:
            self.sync_from = log.synced_offset
        else:
            self.sync_from = NOT_DUE

    def advance(self) -> bool:
        """Commit what is safe; tell whether readers may see more than before."""
        safe: i64 = self.log.written_end_offset
        if self.sync_from < safe:
            safe = self.sync_from
        if safe <= self.high_watermark:
            return False
        self.high_watermark = safe
        return True
