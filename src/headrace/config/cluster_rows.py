"""The broker settings for groups, transactions and clusters.

Data only.
"""

from headrace.config.setting import (
    BOOLEAN,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    SHORT,
    STRING,
    Setting,
    Value,
)
from headrace.config.topic_rows import SEGMENT_BYTES_MIN

_UNLIMITED = str(INT_MAX)


def _has_assignors(value: Value) -> bool:
    assert isinstance(value, tuple)
    return bool(value) and set(value) <= {"uniform", "range"}


def _is_policy(value: Value) -> bool:
    assert isinstance(value, str)
    return value.lower() in ("disabled", "upgrade", "downgrade", "bidirectional")


GROUP_ROWS: tuple[Setting, ...] = (
    Setting(
        "group.min.session.timeout.ms",
        INT,
        "6000",
        "The shortest session timeout in ms that a member of a classic group can request.",
        low=0,
    ),
    Setting(
        "group.max.session.timeout.ms",
        INT,
        "1800000",
        "The longest session timeout in ms that a member of a classic group can request.",
        low=0,
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        INT,
        "3000",
        "The time in ms that a new group waits for more members before its first rebalance.",
        low=0,
    ),
    Setting(
        "group.max.size",
        INT,
        _UNLIMITED,
        "The maximum number of members of a classic group.",
        low=1,
    ),
    Setting(
        "group.coordinator.rebalance.protocols",
        LIST,
        "classic,consumer",
        "The enabled rebalance protocols. share and streams have no effect.",
        choices=("classic", "consumer", "share", "streams"),
        kafka_default="classic,consumer,streams",
    ),
    Setting(
        "group.consumer.session.timeout.ms",
        INT,
        "45000",
        "The time in ms without a heartbeat after which a member of a consumer group is removed.",
        low=1,
    ),
    Setting(
        "group.consumer.min.session.timeout.ms",
        INT,
        "45000",
        "The shortest session timeout in ms that can be set for a consumer group.",
        low=1,
    ),
    Setting(
        "group.consumer.max.session.timeout.ms",
        INT,
        "60000",
        "The longest session timeout in ms that can be set for a consumer group.",
        low=1,
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms",
        INT,
        "5000",
        "The heartbeat interval in ms of members of a consumer group.",
        low=1,
    ),
    Setting(
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        "5000",
        "The shortest heartbeat interval in ms that can be set for a consumer group.",
        low=1,
    ),
    Setting(
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        "15000",
        "The longest heartbeat interval in ms that can be set for a consumer group.",
        low=1,
    ),
    Setting(
        "group.consumer.max.size",
        INT,
        _UNLIMITED,
        "The maximum number of members of a consumer group.",
        low=1,
    ),
    Setting(
        "group.consumer.assignors",
        LIST,
        "uniform,range",
        "The assignors that consumer groups can use. The first is the default.",
        check=_has_assignors,
        allowed="uniform, range, or both, separated by a comma",
    ),
    Setting(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Whether an active group can change from the classic to the consumer protocol "
        "(upgrade), back (downgrade), in both directions (bidirectional), or not at all"
        " (disabled).",
        check=_is_policy,
        allowed="disabled, upgrade, downgrade or bidirectional",
    ),
    Setting(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        "600000",
        "The interval in ms at which subscriptions by regular expression are matched again, even "
        "if no topic was created or deleted.",
        low=10_000,
        is_hidden=True,
    ),
    Setting(
        "offset.metadata.max.bytes",
        INT,
        "4096",
        "The maximum size in bytes of the metadata committed with an offset.",
        low=0,
    ),
    Setting(
        "offsets.retention.minutes",
        INT,
        "10080",
        "The time in minutes for which the offsets of a group without members are kept.",
        low=1,
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        LONG,
        "600000",
        "The interval in ms at which the broker checks for expired offsets.",
        low=1,
    ),
    Setting(
        "offsets.topic.num.partitions",
        INT,
        "50",
        "The number of partitions of __consumer_offsets.",
        low=1,
    ),
    Setting(
        "offsets.topic.replication.factor",
        SHORT,
        "3",
        "The number of replicas of __consumer_offsets.",
        low=1,
    ),
    Setting(
        "offsets.topic.segment.bytes",
        INT,
        "104857600",
        "The segment.bytes of __consumer_offsets.",
        low=SEGMENT_BYTES_MIN,
    ),
    Setting(
        "offsets.topic.compression.codec",
        INT,
        "0",
        "The compression codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        low=0,
        high=4,
    ),
    Setting(
        "offsets.commit.timeout.ms",
        INT,
        "5000",
        "The time in ms that an offset commit waits for its replicas.",
        low=1,
    ),
)

TRANSACTION_ROWS: tuple[Setting, ...] = (
    Setting(
        "transaction.max.timeout.ms",
        INT,
        "900000",
        "The longest transaction timeout in ms that a producer can request.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transactional.id.expiration.ms",
        INT,
        "604800000",
        "The time in ms after which an unused transactional id expires.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        "10000",
        "The interval in ms at which the coordinator checks for transactions that have timed out.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        "3600000",
        "The interval in ms at which the coordinator checks for expired transactional ids.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.partition.verification.enable",
        BOOLEAN,
        "true",
        "Whether a partition verifies with the coordinator that a transaction is open "
        "before it accepts its first records.",
        is_dynamic=True,
        needs="transactions",
    ),
    Setting(
        "transaction.state.log.num.partitions",
        INT,
        "50",
        "The number of partitions of __transaction_state.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.state.log.replication.factor",
        SHORT,
        "3",
        "The number of replicas of __transaction_state.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.state.log.min.isr",
        INT,
        "2",
        "The min.insync.replicas of __transaction_state.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.state.log.segment.bytes",
        INT,
        "104857600",
        "The segment.bytes of __transaction_state.",
        low=1,
        needs="transactions",
    ),
)

CLUSTER_ROWS: tuple[Setting, ...] = (
    Setting(
        "zookeeper.connect",
        STRING,
        None,
        "The ZooKeeper ensemble of the cluster: host:port, separated by commas, "
        "followed by an optional path. If it is not set, the broker runs alone.",
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        INT,
        "6000",
        "The time in ms without contact after which ZooKeeper ends a broker's session.",
        low=1,
        kafka_default="18000",
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        INT,
        None,
        "The time in ms that a starting broker waits for ZooKeeper. The default is the session "
        "timeout.",
        low=1,
    ),
    Setting(
        "request.timeout.ms",
        INT,
        "30000",
        "The time in ms that a broker waits for the response of another broker.",
        low=1,
    ),
    Setting(
        "controlled.shutdown.enable",
        BOOLEAN,
        "true",
        "Whether a broker transfers its leaderships to other brokers before it stops.",
    ),
    Setting(
        "num.replica.fetchers",
        INT,
        "1",
        "The number of connections from a follower to each leader.",
        low=1,
        is_dynamic=True,
    ),
    Setting(
        "replica.fetch.backoff.ms",
        INT,
        "1000",
        "The time in ms that a follower waits after a failed fetch.",
        low=0,
    ),
    Setting(
        "replica.fetch.max.bytes",
        INT,
        "1048576",
        "The maximum number of bytes per partition that a follower requests.",
        low=0,
    ),
    Setting(
        "replica.fetch.min.bytes",
        INT,
        "1",
        "The minimum number of bytes that a follower's fetch waits for.",
        low=0,
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        INT,
        "10485760",
        "The maximum number of bytes per response that a follower requests.",
        low=0,
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        INT,
        "500",
        "The maximum time in ms that a follower's fetch waits for records.",
        low=0,
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        "5000",
        "The interval in ms at which high watermarks are written to disk.",
        low=1,
    ),
    Setting(
        "replica.lag.time.max.ms",
        LONG,
        "30000",
        "The time in ms that a follower can lag before it is removed from the in-sync replicas.",
        low=1,
    ),
    Setting(
        "replica.socket.receive.buffer.bytes",
        INT,
        "65536",
        "The receive buffer (SO_RCVBUF) of followers' connections in bytes. -1 uses the default "
        "of the operating system.",
        low=-1,
        needs="internals",
    ),
    Setting(
        "replica.socket.timeout.ms",
        INT,
        "30000",
        "The time in ms that a follower waits for the response to a fetch.",
        low=1,
    ),
    Setting(
        "replica.selector.class",
        STRING,
        None,
        "The class that selects the replica from which a consumer reads. With "
        "org.apache.kafka.common.replica.RackAwareReplicaSelector, a consumer reads from a "
        "replica whose broker.rack equals its client.rack, otherwise from the leader. Set it to "
        "the same value on all brokers.",
        choices=(
            "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "org.apache.kafka.common.replica.LeaderSelector",
        ),
    ),
    Setting(
        "leader.replication.throttled.rate",
        LONG,
        str(LONG_MAX),
        "The maximum number of bytes per second that the broker sends to followers that"
        " are not in sync, for the replicas in leader.replication.throttled.replicas.",
        low=0,
        is_dynamic=True,
    ),
    Setting(
        "follower.replication.throttled.rate",
        LONG,
        str(LONG_MAX),
        "The maximum number of bytes per second that the broker fetches while it is not"
        " in sync, for the replicas in follower.replication.throttled.replicas.",
        low=0,
        is_dynamic=True,
    ),
    Setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        "Whether the controller regularly elects preferred replicas as leaders.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        "The interval in seconds at which the controller checks for leaders that are not "
        "preferred replicas.",
        low=1,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        INT,
        "10",
        "The percentage of a broker's preferred partitions that can have other leaders before the "
        "controller elects the preferred replicas.",
        low=0,
    ),
)
