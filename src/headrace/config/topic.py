"""The settings of one topic, as typed values, for the code that reads and writes its log.

`BrokerConfig.topic_config` and `TopicConfig.resolve` create an object from a topic's settings and
the broker's defaults. Topics with the same settings share one object, which is never changed.
`replace` creates another one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

from headrace.config.table import TOPIC_SETTINGS

if TYPE_CHECKING:
    from headrace.config.broker import BrokerConfig

PRODUCER_CODEC = -1
"""compression.type=producer: a batch keeps its codec."""

_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4, "producer": -1}
_NO_OVERRIDES: Mapping[str, str] = {}


@final
class TopicConfig:
    __slots__ = (
        "compacts",
        "compression_codec",
        "compression_level",
        "delete_retention_ms",
        "deletes",
        "flush_messages",
        "flush_ms",
        "follower_replication_throttled_replicas",
        "index_interval_bytes",
        "leader_replication_throttled_replicas",
        "max_compaction_lag_ms",
        "max_message_bytes",
        "message_timestamp_after_max_ms",
        "message_timestamp_before_max_ms",
        "min_cleanable_dirty_ratio",
        "min_compaction_lag_ms",
        "min_insync_replicas",
        "retention_bytes",
        "retention_ms",
        "segment_bytes",
        "segment_index_bytes",
        "segment_jitter_ms",
        "segment_ms",
        "unclean_leader_election_enable",
        "uses_log_append_time",
    )

    def __init__(self, values: Mapping[str, Any]) -> None:
        """`values` has the typed value of each topic setting, by Kafka's name."""
        self.segment_bytes: int = values["internal.segment.bytes"] or values["segment.bytes"]
        self.segment_ms: int = values["segment.ms"]
        self.segment_jitter_ms: int = values["segment.jitter.ms"]
        self.segment_index_bytes: int = values["segment.index.bytes"]
        self.index_interval_bytes: int = values["index.interval.bytes"]

        self.deletes: bool = "delete" in values["cleanup.policy"]
        self.compacts: bool = "compact" in values["cleanup.policy"]
        self.retention_ms: int = values["retention.ms"]
        """-1: no limit."""
        self.retention_bytes: int = max(-1, values["retention.bytes"])
        """-1: no limit."""
        self.delete_retention_ms: int = values["delete.retention.ms"]
        self.min_compaction_lag_ms: int = values["min.compaction.lag.ms"]
        self.max_compaction_lag_ms: int = values["max.compaction.lag.ms"]
        self.min_cleanable_dirty_ratio: float = values["min.cleanable.dirty.ratio"]

        self.max_message_bytes: int = values["max.message.bytes"]
        self.compression_codec: int = _CODECS[values["compression.type"]]
        """The codec of batches on disk, or PRODUCER_CODEC."""
        self.compression_level: int | None = _level(values)
        """The compression level; None is the default of the codec."""
        self.uses_log_append_time: bool = values["message.timestamp.type"] == "LogAppendTime"
        self.message_timestamp_before_max_ms: int = values["message.timestamp.before.max.ms"]
        self.message_timestamp_after_max_ms: int = values["message.timestamp.after.max.ms"]

        self.flush_messages: int = values["flush.messages"]
        self.flush_ms: int = values["flush.ms"]
        self.min_insync_replicas: int = values["min.insync.replicas"]
        self.unclean_leader_election_enable: bool = values["unclean.leader.election.enable"]
        self.leader_replication_throttled_replicas: frozenset[str] = frozenset(
            values["leader.replication.throttled.replicas"]
        )
        """Replicas as "partition:broker", or only "*" for all replicas; also in the next field."""
        self.follower_replication_throttled_replicas: frozenset[str] = frozenset(
            values["follower.replication.throttled.replicas"]
        )

    @classmethod
    def resolve(
        cls, config: "BrokerConfig | None" = None, overrides: Mapping[str, str] = _NO_OVERRIDES
    ) -> "TopicConfig":
        """The settings of a topic: its own, else the defaults of the broker or of the table."""
        if config is not None:
            return config.topic_config(overrides)
        values = {row.name: row.default_value for row in TOPIC_SETTINGS.values()}
        for name, text in overrides.items():
            values[name] = TOPIC_SETTINGS[name].parse(text)
        return cls(values)

    def replace(self, **changes: Any) -> "TopicConfig":
        """A copy with these attributes, which are not checked. For tests and internal topics."""
        other = object.__new__(TopicConfig)
        for name in self.__slots__:
            setattr(other, name, changes.pop(name, getattr(self, name)))
        if changes:
            raise TypeError(f"TopicConfig has no {', '.join(changes)}")
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicConfig):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"TopicConfig({pairs})"


def _level(values: Mapping[str, Any]) -> int | None:
    compression_type = values["compression.type"]
    level: int | None = values.get(f"compression.{compression_type}.level")
    # Only for gzip, -1 means the default level. zstd has a level -1.
    return None if compression_type == "gzip" and level == -1 else level
