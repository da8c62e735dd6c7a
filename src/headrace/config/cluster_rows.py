"""The settings of a broker for groups, transactions and clusters.

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
        "The shortest session timeout that a member of a classic group may ask for.",
        low=0,
    ),
    Setting(
        "group.max.session.timeout.ms",
        INT,
        "1800000",
        "The longest session timeout that a member of a classic group may ask for.",
        low=0,
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        INT,
        "3000",
        "How long a new group waits for more members before its first rebalance.",
        low=0,
    ),
    Setting(
        "group.max.size",
        INT,
        _UNLIMITED,
        "How many members a classic group may have.",
        low=1,
    ),
    Setting(
        "group.coordinator.rebalance.protocols",
        LIST,
        "classic,consumer",
        "The rebalance protocols that are offered; share and streams have no effect.",
        choices=("classic", "consumer", "share", "streams"),
        kafka_default="classic,consumer,streams",
    ),
    Setting(
        "group.consumer.session.timeout.ms",
        INT,
        "45000",
        "After what silence a member of a consumer group is removed.",
        low=1,
    ),
    Setting(
        "group.consumer.min.session.timeout.ms",
        INT,
        "45000",
        "The shortest session timeout that a consumer group may be given.",
        low=1,
    ),
    Setting(
        "group.consumer.max.session.timeout.ms",
        INT,
        "60000",
        "The longest session timeout that a consumer group may be given.",
        low=1,
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms",
        INT,
        "5000",
        "How often members of a consumer group are told to send heartbeats.",
        low=1,
    ),
    Setting(
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        "5000",
        "The shortest heartbeat interval that a consumer group may be given.",
        low=1,
    ),
    Setting(
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        "15000",
        "The longest heartbeat interval that a consumer group may be given.",
        low=1,
    ),
    Setting(
        "group.consumer.max.size",
        INT,
        _UNLIMITED,
        "How many members a consumer group may have.",
        low=1,
    ),
    Setting(
        "group.consumer.assignors",
        LIST,
        "uniform,range",
        "The assignors that a consumer group may choose from; the first is the default.",
        check=_has_assignors,
        allowed="uniform, range, or both, separated by a comma",
    ),
    Setting(
        "group.consumer.migration.policy",
        STRING,
        "bidirectional",
        "Whether a living group may pass from the classic protocol to the newer one (upgrade), "
        "back (downgrade), both (bidirectional), or neither (disabled).",
        check=_is_policy,
        allowed="disabled, upgrade, downgrade or bidirectional",
    ),
    Setting(
        "group.consumer.regex.refresh.interval.ms",
        INT,
        "600000",
        "How often the topics of a subscription by regular expression are looked up anew, even "
        "where none have come or gone.",
        low=10_000,
        hidden=True,
    ),
    Setting(
        "offset.metadata.max.bytes",
        INT,
        "4096",
        "The most metadata that may be committed with an offset.",
        low=0,
    ),
    Setting(
        "offsets.retention.minutes",
        INT,
        "10080",
        "How long the offsets of a group without members are kept.",
        low=1,
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        LONG,
        "600000",
        "How often the broker looks for offsets to forget.",
        low=1,
    ),
    Setting(
        "offsets.topic.num.partitions",
        INT,
        "50",
        "How many partitions the topic of committed offsets gets.",
        low=1,
    ),
    Setting(
        "offsets.topic.replication.factor",
        SHORT,
        "3",
        "How many replicas the topic of committed offsets gets.",
        low=1,
    ),
    Setting(
        "offsets.topic.segment.bytes",
        INT,
        "104857600",
        "segment.bytes of the topic of committed offsets.",
        low=SEGMENT_BYTES_MIN,
    ),
    Setting(
        "offsets.topic.compression.codec",
        INT,
        "0",
        "The codec of the topic of committed offsets, by its number.",
        low=0,
        high=4,
    ),
    Setting(
        "offsets.commit.timeout.ms",
        INT,
        "5000",
        "How long a commit waits for its replicas.",
        low=1,
    ),
)

TRANSACTION_ROWS: tuple[Setting, ...] = (
    Setting(
        "transaction.max.timeout.ms",
        INT,
        "900000",
        "The longest transaction timeout that a producer may ask for.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transactional.id.expiration.ms",
        INT,
        "604800000",
        "After what time an unused transactional id is forgotten.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        "10000",
        "How often the coordinator looks for transactions that have timed out.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        "3600000",
        "How often the coordinator looks for transactional ids to forget.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.partition.verification.enable",
        BOOLEAN,
        "true",
        "Whether a partition asks the coordinator before it takes the first records of a "
        "transaction.",
        dynamic=True,
        needs="transactions",
    ),
    Setting(
        "transaction.state.log.num.partitions",
        INT,
        "50",
        "How many partitions the topic of transaction state gets.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.state.log.replication.factor",
        SHORT,
        "3",
        "How many replicas the topic of transaction state gets.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.state.log.min.isr",
        INT,
        "2",
        "min.insync.replicas of the topic of transaction state.",
        low=1,
        needs="transactions",
    ),
    Setting(
        "transaction.state.log.segment.bytes",
        INT,
        "104857600",
        "segment.bytes of the topic of transaction state.",
        low=1,
        needs="transactions",
    ),
)

CLUSTER_ROWS: tuple[Setting, ...] = (
    Setting(
        "zookeeper.connect",
        STRING,
        None,
        "The ZooKeeper ensemble through which brokers form a cluster: host:port, separated by "
        "commas, and a path.",
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        INT,
        "6000",
        "After what silence ZooKeeper ends the session of a broker.",
        low=1,
        kafka_default="18000",
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        INT,
        None,
        "How long a broker waits for ZooKeeper at start-up; by default its session timeout.",
        low=1,
    ),
    Setting(
        "request.timeout.ms",
        INT,
        "30000",
        "How long a broker waits for another to answer.",
        low=1,
    ),
    Setting(
        "controlled.shutdown.enable",
        BOOLEAN,
        "true",
        "Whether a broker hands its partitions over before it stops.",
    ),
    Setting(
        "num.replica.fetchers",
        INT,
        "1",
        "How many connections a follower uses for each leader.",
        low=1,
        dynamic=True,
    ),
    Setting(
        "replica.fetch.backoff.ms",
        INT,
        "1000",
        "How long a follower waits after a failed fetch.",
        low=0,
    ),
    Setting(
        "replica.fetch.max.bytes",
        INT,
        "1048576",
        "The most that a follower asks for of one partition.",
        low=0,
    ),
    Setting(
        "replica.fetch.min.bytes",
        INT,
        "1",
        "The least that a fetch of a follower waits for.",
        low=0,
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        INT,
        "10485760",
        "The most that a follower asks for in one response.",
        low=0,
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        INT,
        "500",
        "How long the fetch of a follower waits for records.",
        low=0,
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        LONG,
        "5000",
        "How often high watermarks are written to disk.",
        low=1,
    ),
    Setting(
        "replica.lag.time.max.ms",
        LONG,
        "30000",
        "How long a follower may lag before it leaves the replicas in sync.",
        low=1,
    ),
    Setting(
        "replica.socket.receive.buffer.bytes",
        INT,
        "65536",
        "SO_RCVBUF of the connections of followers; -1 leaves it to the operating system.",
        low=-1,
        needs="insides",
    ),
    Setting(
        "replica.socket.timeout.ms",
        INT,
        "30000",
        "How long a follower waits for an answer to a fetch.",
        low=1,
    ),
    Setting(
        "replica.selector.class",
        STRING,
        None,
        "Which replica consumers are told to read from: with "
        "org.apache.kafka.common.replica.RackAwareReplicaSelector one whose broker.rack is their "
        "client.rack, if the leader's is not; else the leader. To be set on all brokers alike.",
        choices=(
            "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "org.apache.kafka.common.replica.LeaderSelector",
        ),
    ),
    Setting(
        "leader.replication.throttled.rate",
        LONG,
        str(LONG_MAX),
        "How many bytes a second the broker sends of the replicas that "
        "leader.replication.throttled.replicas names, to followers that are not in sync.",
        low=0,
        dynamic=True,
    ),
    Setting(
        "follower.replication.throttled.rate",
        LONG,
        str(LONG_MAX),
        "How many bytes a second the broker fetches of the replicas that "
        "follower.replication.throttled.replicas names, while they are not in sync.",
        low=0,
        dynamic=True,
    ),
    Setting(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        "Whether leadership returns to the preferred replicas by itself.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        "How often the controller looks for leadership to return.",
        low=1,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        INT,
        "10",
        "Of how many of the partitions that prefer a broker others may lead, in percent, before "
        "leadership returns to it.",
        low=0,
    ),
)
