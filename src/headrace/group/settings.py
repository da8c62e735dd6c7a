"""The broker's settings of the group coordinator."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.config.broker import BrokerConfig
from headrace.group.messages import ClassicLimits, ConsumerLimits


@dataclass(frozen=True, slots=True)
class GroupSettings:
    classic: ClassicLimits = field(default_factory=ClassicLimits)
    consumer: ConsumerLimits = field(default_factory=ConsumerLimits)
    offers_consumer_protocol: bool = True
    metadata_size_max: int = 4096
    """offset.metadata.max.bytes: counted in characters, as Kafka does."""
    retention_ms: int = 7 * 86_400_000
    retention_check_ms: int = 600_000
    topic_partitions: int = 50
    topic_replicas: int = 3
    topic_segment_bytes: int = 104_857_600
    codec: int = 0
    commit_timeout_ms: int = 5_000

    @property
    def topic_configs(self) -> dict[str, str]:
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self.topic_segment_bytes),
        }


def group_settings(
    config: BrokerConfig, overrides: Mapping[str, Mapping[str, str]]
) -> GroupSettings:
    """Read the broker's settings. `overrides` has settings by group id, and can change later."""
    classic = ClassicLimits(
        session_timeout_ms_min=config.get_int("group.min.session.timeout.ms"),
        session_timeout_ms_max=config.get_int("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.get_int("group.initial.rebalance.delay.ms"),
        size_max=config.get_int("group.max.size"),
    )
    policy = config.get_str("group.consumer.migration.policy").lower()
    return GroupSettings(
        classic=classic,
        consumer=ConsumerLimits(
            session_timeout_ms=config.get_int("group.consumer.session.timeout.ms"),
            heartbeat_interval_ms=config.get_int("group.consumer.heartbeat.interval.ms"),
            size_max=config.get_int("group.consumer.max.size"),
            classic=classic,
            assignors=config.get_list("group.consumer.assignors"),
            refresh_ms=config.get_int("group.consumer.regex.refresh.interval.ms"),
            can_upgrade=policy in ("upgrade", "bidirectional"),
            can_downgrade=policy in ("downgrade", "bidirectional"),
            overrides=overrides,
        ),
        offers_consumer_protocol="consumer"
        in config.get_list("group.coordinator.rebalance.protocols"),
        metadata_size_max=config.get_int("offset.metadata.max.bytes"),
        retention_ms=config.get_int("offsets.retention.minutes") * 60_000,
        retention_check_ms=config.get_int("offsets.retention.check.interval.ms"),
        topic_partitions=config.get_int("offsets.topic.num.partitions"),
        # Kafka's default of three is for clusters; a single broker needs one replica.
        topic_replicas=(
            config.get_int("offsets.topic.replication.factor") if config.is_clustered else 1
        ),
        topic_segment_bytes=config.get_int("offsets.topic.segment.bytes"),
        codec=config.get_int("offsets.topic.compression.codec"),
        commit_timeout_ms=config.get_int("offsets.commit.timeout.ms"),
    )
