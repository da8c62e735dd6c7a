"""The settings of a broker: who and where it is, topics and logs, and those that are our own.

Data only. The broker's defaults for topics (``log.retention.ms`` and the like) are not here:
table.py derives them from the topics' rows.
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
    Setting("broker.rack", STRING, None, "Where the broker stands, as clients are told it."),
    Setting(
        "listeners",
        LIST,
        "PLAINTEXT://:9092",
        "The addresses to listen on: NAME://host:port, separated by commas. Without a host the "
        "broker listens on every interface, a host name on every address it has, and port 0 "
        "picks a free port.",
    ),
    Setting(
        "advertised.listeners",
        LIST,
        None,
        "The addresses that clients are told to use, by listener name; where one is missing its "
        "own address is used.",
    ),
    Setting(
        "listener.security.protocol.map",
        STRING,
        DEFAULT_PROTOCOL_MAP,
        "The security protocol of each listener name: NAME:PROTOCOL, separated by commas. Only "
        "PLAINTEXT is built yet.",
    ),
    Setting(
        "inter.broker.listener.name",
        STRING,
        None,
        "The listener that brokers use among themselves.",
    ),
    Setting(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "The security protocol that brokers use among themselves, where "
        "inter.broker.listener.name is not set.",
        choices=SECURITY_PROTOCOLS,
        needs="security",
    ),
    Setting(
        "socket.request.max.bytes",
        INT,
        "104857600",
        "The largest request; a connection that announces a larger one is closed at once.",
        low=1,
    ),
    Setting(
        "queued.max.request.bytes",
        LONG,
        "268435456",
        "Memory for all requests in flight. When it is used up, incomplete requests that make no "
        "progress are closed, largest first. Requests of up to 64 KiB do not wait for memory. "
        "When half of it is used by requests that wait for followers, the broker reads no more "
        "from connections with unanswered requests. A number below 1 sets no limit.",
        kafka_default="-1",
    ),
    Setting(
        "max.connections",
        INT,
        _UNLIMITED,
        "How many connections the broker holds; further ones are closed at once.",
        low=0,
        dynamic=True,
    ),
    Setting(
        "max.connections.per.ip",
        INT,
        _UNLIMITED,
        "How many connections one address may hold; further ones are closed at once.",
        low=0,
        dynamic=True,
    ),
    Setting(
        "quota.producer.default",
        LONG,
        str(LONG_MAX),
        "How many bytes a second each client id may write to this broker. Who sends more is "
        "answered with a throttle time, and its connection is not read for so long.",
        low=1,
        hidden=True,
    ),
    Setting(
        "connections.max.idle.ms",
        LONG,
        "600000",
        "After what time a connection on which nothing moves is closed; a negative number never "
        "closes one.",
    ),
    Setting(
        "socket.send.buffer.bytes",
        INT,
        "262144",
        "SO_SNDBUF of client connections; -1 leaves it to the operating system.",
        low=-1,
        kafka_default="102400",
    ),
    Setting(
        "socket.receive.buffer.bytes",
        INT,
        "-1",
        "SO_RCVBUF of client connections; -1 leaves it to the operating system.",
        low=-1,
        kafka_default="102400",
    ),
    Setting(
        "socket.listen.backlog.size",
        INT,
        "1024",
        "How many connections may wait to be accepted; one more is tried again after a second.",
        low=1,
        kafka_default="50",
    ),
    Setting(
        "fetch.max.bytes",
        INT,
        "57671680",
        "The most that one fetch response carries, whatever the client asks for; a first batch "
        "that is larger is still sent whole.",
        low=1024,
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        INT,
        "1000",
        "How many fetch sessions the broker keeps.",
        low=0,
    ),
    Setting(
        "max.request.partition.size.limit",
        INT,
        "2000",
        "The most partitions in one DescribeTopicPartitions response.",
        low=1,
    ),
)

TOPIC_AND_LOG_ROWS: tuple[Setting, ...] = (
    Setting(
        "log.dirs",
        LIST,
        None,
        "The data directory. Headrace uses one; several are refused.",
    ),
    Setting(
        "log.dir",
        LIST,
        "headrace-data",
        "The data directory, where log.dirs is not set.",
        kafka_default="/tmp/kafka-logs",
    ),
    Setting("num.partitions", INT, "1", "How many partitions a topic gets by default.", low=1),
    Setting(
        "default.replication.factor",
        INT,
        "1",
        "How many replicas a partition gets by default.",
        low=1,
    ),
    Setting(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        "Whether a metadata request for a missing topic creates it, if the client agrees.",
    ),
    Setting("delete.topic.enable", BOOLEAN, "true", "Whether topics can be deleted."),
    Setting(
        "log.retention.minutes",
        INT,
        None,
        "log.retention.ms in minutes, where that is not set.",
    ),
    Setting(
        "log.retention.hours",
        INT,
        "168",
        "log.retention.ms in hours, where neither that nor log.retention.minutes is set.",
    ),
    Setting("log.roll.hours", INT, "168", "log.roll.ms in hours, where that is not set.", low=1),
    Setting(
        "log.roll.jitter.hours",
        INT,
        "0",
        "log.roll.jitter.ms in hours, where that is not set.",
        low=0,
    ),
    Setting(
        "log.flush.scheduler.interval.ms",
        LONG,
        str(LONG_MAX),
        "log.flush.interval.ms, where that is not set.",
        low=0,
    ),
    Setting(
        "log.retention.check.interval.ms",
        LONG,
        "300000",
        "How often the broker looks for segments to delete.",
        low=1,
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        INT,
        "60000",
        "How often recovery points are written, which bound what is scanned after a crash.",
        low=0,
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        INT,
        "60000",
        "How often log start offsets are written. Here each is written before it counts.",
        low=0,
    ),
    Setting(
        "producer.id.expiration.ms",
        INT,
        "86400000",
        "After what time a partition forgets an idempotent producer that sends nothing.",
        low=1,
        dynamic=True,
    ),
    Setting(
        "producer.id.expiration.check.interval.ms",
        INT,
        "600000",
        "How often a partition looks for producers to forget.",
        low=1,
        hidden=True,
    ),
    Setting(
        "log.cleaner.enable",
        BOOLEAN,
        "true",
        "Whether compaction runs at all.",
    ),
    Setting(
        "log.cleaner.backoff.ms",
        LONG,
        "15000",
        "How long compaction sleeps when there is nothing to compact.",
        low=0,
        dynamic=True,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        LONG,
        "134217728",
        "The memory that compaction may take for its table of keys.",
        low=1_048_576,
        dynamic=True,
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        DOUBLE,
        "0.9",
        "How full that table may get; what does not fit is left to the next run.",
        low=0.01,
        high=1,
        dynamic=True,
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        DOUBLE,
        "1.7976931348623157E308",
        "How many bytes a second compaction reads and writes at most.",
        low=1,
        dynamic=True,
    ),
)

OWN_ROWS: tuple[Setting, ...] = (
    Setting(
        "headrace.decompress.bytes.max",
        INT,
        "134217728",
        "The size to which one compressed batch may unfold; a larger one is refused with "
        "MESSAGE_TOO_LARGE.",
        low=1024,
    ),
    Setting(
        "headrace.log.drop.behind.bytes",
        LONG,
        "0",
        "How much of what was last written to a partition stays in the page cache while it is "
        "written fast; older data is read from disk. 0 leaves the page cache alone. Worth setting "
        "(67108864, say) where memory that was never used is dear, as on some virtual machines: "
        "make bench shows both.",
        low=0,
    ),
    Setting(
        "headrace.log.drop.behind.trigger.bytes",
        LONG,
        "33554432",
        "After how many bytes written to a partition its segment is flushed and dropped from the "
        "page cache.",
        low=1_048_576,
    ),
    Setting(
        "headrace.spin.us",
        INT,
        "0",
        "How long the broker polls for the next request before it sleeps: lower latency for CPU "
        "time. Only worth it with cores to spare.",
        low=0,
        high=10_000,
    ),
    Setting(
        "headrace.response.queue.bytes.max",
        INT,
        "1048576",
        "How many bytes of responses a connection may leave unread before the broker stops "
        "reading its requests.",
        low=65_536,
    ),
    Setting(
        "headrace.scrub.bytes.per.second",
        LONG,
        "8388608",
        "How much of what is on disk is read again and checked each second, to find what has "
        "rotted before it is needed.",
        low=4096,
    ),
    Setting(
        "headrace.scrub.interval.ms",
        LONG,
        "86400000",
        "How long to wait before everything on disk is checked (again).",
        low=1,
    ),
    Setting(
        "headrace.producers.max",
        INT,
        "10000",
        "How many idempotent producers a partition remembers; beyond that the one that has been "
        "silent longest is forgotten.",
        low=1,
    ),
    Setting(
        "headrace.partitions.max",
        INT,
        "10000",
        "The most partitions that a topic may have.",
        low=1,
    ),
)
