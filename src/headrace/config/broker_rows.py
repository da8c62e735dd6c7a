"""The broker settings: identity and network, topics and logs, and Headrace's own.

Data only. The broker's defaults for topics (``log.retention.ms`` and similar) are not here:
table.py derives them from the topic rows.
"""

from headrace.config.setting import (
    BOOLEAN,
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    Setting,
)

_UNLIMITED = str(INT_MAX)

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DEFAULT_PROTOCOL_MAP = ",".join(f"{name}:{name}" for name in SECURITY_PROTOCOLS)

IDENTITY_AND_NETWORK_ROWS: tuple[Setting, ...] = (
    Setting(
        "node.id",
        INT,
        "1",
        "The broker's number, unique in its cluster. broker.id is another name for it.",
        low=0,
        kafka_default="(none)",
    ),
    Setting(
        "broker.id",
        INT,
        "1",
        "Another name for node.id.",
        low=0,
        kafka_default="-1",
    ),
    Setting(
        "broker.rack",
        STRING,
        None,
        "The rack of this broker. Clients receive it, and replicas of a partition are "
        "placed in different racks.",
    ),
    Setting(
        "listeners",
        LIST,
        "PLAINTEXT://:9092",
        "The addresses to listen on: NAME://host:port, separated by commas. Without a "
        "host, the broker listens on all interfaces. Port 0 selects a free port.",
    ),
    Setting(
        "advertised.listeners",
        LIST,
        None,
        "The address that clients use for each listener: NAME://host:port, separated by"
        " commas. The default is the address in listeners.",
    ),
    Setting(
        "listener.security.protocol.map",
        STRING,
        DEFAULT_PROTOCOL_MAP,
        "The security protocol of each listener: NAME:PROTOCOL, separated by commas. "
        "PROTOCOL is PLAINTEXT, SASL_PLAINTEXT, SSL or SASL_SSL.",
    ),
    Setting(
        "inter.broker.listener.name",
        STRING,
        None,
        "The listener that brokers use for connections to each other.",
    ),
    Setting(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "The security protocol between brokers, if inter.broker.listener.name is not set.",
        choices=SECURITY_PROTOCOLS,
        needs="security",
    ),
    Setting(
        "socket.request.max.bytes",
        INT,
        "104857600",
        "The largest request in bytes. If a client announces a larger request, the broker closes "
        "the connection.",
        low=1,
    ),
    Setting(
        "queued.max.request.bytes",
        LONG,
        "268435456",
        "The memory in bytes for all requests in progress. If it is exhausted, the "
        "broker closes connections whose incomplete requests make no progress, largest "
        "first. Requests of up to 64 KiB do not wait for memory. If requests that wait "
        "for followers use half of it, the broker stops reading from their connections."
        " A value below 1 means no limit.",
        kafka_default="-1",
    ),
    Setting(
        "max.connections",
        INT,
        _UNLIMITED,
        "The maximum number of connections of clients. The broker closes further connections "
        "immediately.",
        low=0,
        is_dynamic=True,
    ),
    Setting(
        "max.connections.per.ip",
        INT,
        _UNLIMITED,
        "The maximum number of connections of clients from one IP address. The broker closes "
        "further connections immediately.",
        low=0,
        is_dynamic=True,
    ),
    Setting(
        "quota.producer.default",
        LONG,
        str(LONG_MAX),
        "The maximum number of bytes per second that a client id without a quota can produce "
        "to this broker, see docs/SECURITY.md.",
        low=1,
        is_hidden=True,
    ),
    Setting(
        "controller.quota.window.num",
        INT,
        "11",
        "The number of windows for which a client can save its unused controller_mutation_rate. "
        "controller.quota.window.size.seconds is the size of a window.",
        low=1,
    ),
    Setting(
        "controller.quota.window.size.seconds",
        INT,
        "1",
        "The size of a window in seconds, see controller.quota.window.num.",
        low=1,
    ),
    Setting(
        "connections.max.idle.ms",
        LONG,
        "600000",
        "The time in ms after which the broker closes an idle connection. A negative value means "
        "never.",
    ),
    Setting(
        "socket.send.buffer.bytes",
        INT,
        "262144",
        "The send buffer (SO_SNDBUF) of client connections in bytes. -1 uses the default of the "
        "operating system.",
        low=-1,
        kafka_default="102400",
    ),
    Setting(
        "socket.receive.buffer.bytes",
        INT,
        "-1",
        "The receive buffer (SO_RCVBUF) of client connections in bytes. -1 uses the default of "
        "the operating system.",
        low=-1,
        kafka_default="102400",
    ),
    Setting(
        "socket.listen.backlog.size",
        INT,
        "1024",
        "The maximum number of connections that wait to be accepted. If more clients connect, "
        "they retry after one second.",
        low=1,
        kafka_default="50",
    ),
    Setting(
        "fetch.max.bytes",
        INT,
        "57671680",
        "The maximum size of a fetch response in bytes, whatever the client requests. If the"
        " first batch of a response is larger, the broker still sends all of it.",
        low=1024,
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "1000",
        "The maximum number of fetch sessions that the broker keeps.",
        low=0,
    ),
    Setting(
        "max.request.partition.size.limit",
        INT,
        "2000",
        "The maximum number of partitions in a DescribeTopicPartitions response.",
        low=1,
    ),
)

TOPIC_AND_LOG_ROWS: tuple[Setting, ...] = (
    Setting(
        "log.dirs",
        LIST,
        None,
        "The data directory. Headrace uses one directory and rejects a list of several.",
    ),
    Setting(
        "log.dir",
        LIST,
        "headrace-data",
        "The data directory, if log.dirs is not set.",
        kafka_default="/tmp/kafka-logs",
    ),
    Setting("num.partitions", INT, "1", "The default number of partitions of a new topic.", low=1),
    Setting(
        "default.replication.factor",
        INT,
        "1",
        "The default number of replicas of a new topic's partitions.",
        low=1,
    ),
    Setting(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        "Whether a Metadata request for an unknown topic creates the topic, if the client allows "
        "it.",
    ),
    Setting("delete.topic.enable", BOOLEAN, "true", "Whether topics can be deleted."),
    Setting(
        "log.retention.minutes",
        INT,
        None,
        "The same as log.retention.ms, in minutes. It applies if log.retention.ms is not set.",
    ),
    Setting(
        "log.retention.hours",
        INT,
        "168",
        "The same as log.retention.ms, in hours. It applies if neither log.retention.ms nor "
        "log.retention.minutes is set.",
    ),
    Setting(
        "log.roll.hours",
        INT,
        "168",
        "The same as log.roll.ms, in hours. It applies if log.roll.ms is not set.",
        low=1,
    ),
    Setting(
        "log.roll.jitter.hours",
        INT,
        "0",
        "The same as log.roll.jitter.ms, in hours. It applies if log.roll.jitter.ms is not set.",
        low=0,
    ),
    Setting(
        "log.flush.scheduler.interval.ms",
        LONG,
        str(LONG_MAX),
        "The default of log.flush.interval.ms.",
        low=0,
    ),
    Setting(
        "log.retention.check.interval.ms",
        LONG,
        "300000",
        "The interval in ms at which the broker checks for segments to delete.",
        low=1,
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        "60000",
        "The interval in ms at which the broker writes recovery points. After a crash, recovery "
        "reads the log from there.",
        low=0,
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        "60000",
        "It has no effect: each change of a log start offset is on disk before it applies.",
        low=0,
    ),
    Setting(
        "producer.id.expiration.ms",
        INT,
        "86400000",
        "The time in ms after which a partition removes the state of an idle idempotent producer.",
        low=1,
        is_dynamic=True,
    ),
    Setting(
        "producer.id.expiration.check.interval.ms",
        INT,
        "600000",
        "The interval in ms at which a partition checks for idle producers to remove.",
        low=1,
        is_hidden=True,
    ),
    Setting(
        "log.cleaner.enable",
        BOOLEAN,
        "true",
        "Whether compaction runs.",
    ),
    Setting(
        "log.cleaner.backoff.ms",
        LONG,
        "15000",
        "The time in ms that compaction pauses if no log needs it.",
        low=0,
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        "134217728",
        "The memory in bytes for compaction's table of keys.",
        low=1_048_576,
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        "0.9",
        "The maximum fill level of compaction's table of keys, from 0 to 1. Remaining keys are "
        "compacted in the next run.",
        low=0.01,
        high=1,
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        "1.7976931348623157E308",
        "The maximum number of bytes per second that compaction reads and writes.",
        low=1,
        is_dynamic=True,
    ),
)

OWN_ROWS: tuple[Setting, ...] = (
    Setting(
        "headrace.decompress.bytes.max",
        INT,
        "134217728",
        "The maximum decompressed size of a batch in bytes. A larger batch is rejected with "
        "MESSAGE_TOO_LARGE.",
        low=1024,
    ),
    Setting(
        "headrace.log.drop.behind.bytes",
        LONG,
        "0",
        "The number of recently written bytes per partition that stay in the page cache during "
        "fast writes. Older data is read from disk. 0 does not limit the page cache. Set it, for "
        "example to 67108864, on virtual machines where the first use of a memory page is slow. "
        "make bench measures both cases.",
        low=0,
    ),
    Setting(
        "headrace.log.drop.behind.trigger.bytes",
        LONG,
        "33554432",
        "The number of bytes written to a partition after which its segment is flushed "
        "and removed from the page cache.",
        low=1_048_576,
    ),
    Setting(
        "headrace.spin.us",
        INT,
        "0",
        "The time in microseconds that the broker polls for the next request before it "
        "sleeps. This lowers latency and uses CPU time, so set it only if cores are "
        "idle.",
        low=0,
        high=10_000,
    ),
    Setting(
        "headrace.response.queue.bytes.max",
        INT,
        "1048576",
        "The maximum size in bytes of unread responses on a connection before the "
        "broker stops reading its requests.",
        low=65_536,
    ),
    Setting(
        "headrace.scrub.bytes.per.second",
        LONG,
        "8388608",
        "The number of bytes per second that the broker reads back from disk and "
        "verifies, to detect corruption early.",
        low=4096,
    ),
    Setting(
        "headrace.scrub.interval.ms",
        LONG,
        "86400000",
        "The pause in ms between two complete verifications of all data on disk.",
        low=1,
    ),
    Setting(
        "headrace.producers.max",
        INT,
        "10000",
        "The maximum number of idempotent producers per partition. If it is exceeded, "
        "the producer that has been idle longest is removed.",
        low=1,
    ),
    Setting(
        "headrace.partitions.max",
        INT,
        "10000",
        "The maximum number of partitions per topic.",
        low=1,
    ),
)
