"""The settings of a topic, one row each, under Kafka's names.

Data only. A row's synonyms are the broker's names for its default, strongest first, each with the
factor that brings it to the topic's unit; table.py derives the broker's rows from the first.
"""

from headrace.config.setting import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    Setting,
    Value,
)

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
_FOREVER = str(LONG_MAX)

SEGMENT_BYTES_MIN = 1_048_576
COMPRESSION_TYPES = ("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
CLEANUP_POLICIES = ("compact", "delete")


def _is_gzip_level(value: Value) -> bool:
    return isinstance(value, int) and (value == -1 or 1 <= value <= 9)


def _are_replicas(value: Value) -> bool:
    if not isinstance(value, tuple) or value == ("*",):
        return True
    pairs = (member.split(":") for member in value)
    return all(len(pair) == 2 and all(part.isdigit() for part in pair) for pair in pairs)


_REPLICAS = "'*' or a list, separated by commas, of partition:broker"

TOPIC_ROWS: tuple[Setting, ...] = (
    Setting(
        "cleanup.policy",
        LIST,
        "delete",
        "What happens to old segments. 'delete' drops them once retention.ms or retention.bytes "
        "says so, 'compact' keeps the last record of each key, both together do both, and an "
        "empty list keeps everything for ever.",
        choices=CLEANUP_POLICIES,
        synonyms=(("log.cleanup.policy", 1),),
    ),
    Setting(
        "compression.gzip.level",
        INT,
        "-1",
        "How hard gzip works where compression.type is gzip; -1 is its own default.",
        check=_is_gzip_level,
        allowed="a whole number from 1 to 9, or -1",
        synonyms=(("compression.gzip.level", 1),),
    ),
    Setting(
        "compression.lz4.level",
        INT,
        "9",
        "How hard lz4 works where compression.type is lz4.",
        low=1,
        high=17,
        synonyms=(("compression.lz4.level", 1),),
    ),
    Setting(
        "compression.type",
        STRING,
        "producer",
        "How batches are compressed on disk. 'producer' keeps every batch as it came; any other "
        "value compresses anew the batches that came in another form.",
        choices=COMPRESSION_TYPES,
        synonyms=(("compression.type", 1),),
    ),
    Setting(
        "compression.zstd.level",
        INT,
        "3",
        "How hard zstd works where compression.type is zstd.",
        low=-131_072,
        high=22,
        synonyms=(("compression.zstd.level", 1),),
    ),
    Setting(
        "delete.retention.ms",
        LONG,
        "86400000",
        "How long compaction keeps a tombstone, so that a consumer which reads from the start "
        "within this time learns of the deletion.",
        low=0,
        synonyms=(("log.cleaner.delete.retention.ms", 1),),
    ),
    Setting(
        "file.delete.delay.ms",
        LONG,
        "60000",
        "How long a deleted segment stays on disk. Headrace removes segments immediately, because "
        "readers keep their files open. The broker's value is how long after a start it removes "
        "replicas of topics that were deleted while it was down.",
        low=0,
        synonyms=(("log.segment.delete.delay.ms", 1),),
    ),
    Setting(
        "flush.messages",
        LONG,
        _FOREVER,
        "After how many records the log is synced to disk. With 1 an acknowledgement waits for "
        "the sync that covers its records; by default the page cache decides.",
        low=1,
        synonyms=(("log.flush.interval.messages", 1),),
    ),
    Setting(
        "flush.ms",
        LONG,
        _FOREVER,
        "The longest time that a record stays unsynced; by default the page cache decides.",
        low=0,
        synonyms=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    ),
    Setting(
        "follower.replication.throttled.replicas",
        LIST,
        "",
        "The replicas that are copied to at follower.replication.throttled.rate while they are "
        "behind.",
        check=_are_replicas,
        allowed=_REPLICAS,
    ),
    Setting(
        "index.interval.bytes",
        INT,
        "4096",
        "How many bytes of log lie between two entries of the offset index.",
        low=0,
        synonyms=(("log.index.interval.bytes", 1),),
    ),
    Setting(
        "internal.segment.bytes",
        INT,
        None,
        "segment.bytes without its lower limit, for tests that need many small segments.",
        low=61,
        hidden=True,
    ),
    Setting(
        "leader.replication.throttled.replicas",
        LIST,
        "",
        "The replicas that are copied from at leader.replication.throttled.rate, by those that are "
        "behind.",
        check=_are_replicas,
        allowed=_REPLICAS,
    ),
    Setting(
        "local.retention.bytes",
        LONG,
        "-2",
        "How much of the log stays on local disk once it has been copied to remote storage.",
        low=-2,
        needs="tiered",
        synonyms=(("log.local.retention.bytes", 1),),
    ),
    Setting(
        "local.retention.ms",
        LONG,
        "-2",
        "How long the log stays on local disk once it has been copied to remote storage.",
        low=-2,
        needs="tiered",
        synonyms=(("log.local.retention.ms", 1),),
    ),
    Setting(
        "max.compaction.lag.ms",
        LONG,
        _FOREVER,
        "The longest time that a record may wait before compaction looks at it.",
        low=1,
        synonyms=(("log.cleaner.max.compaction.lag.ms", 1),),
    ),
    Setting(
        "max.message.bytes",
        INT,
        "1048588",
        "The largest batch that the topic takes, compressed if it is compressed.",
        low=0,
        synonyms=(("message.max.bytes", 1),),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        LONG,
        "3600000",
        "How far ahead of the broker's clock a record's timestamp may be. Later ones are refused "
        "with INVALID_TIMESTAMP, unless the topic uses LogAppendTime.",
        low=0,
        synonyms=(("log.message.timestamp.after.max.ms", 1),),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        LONG,
        _FOREVER,
        "How far behind the broker's clock a record's timestamp may be. Earlier ones are refused "
        "with INVALID_TIMESTAMP, unless the topic uses LogAppendTime.",
        low=0,
        synonyms=(("log.message.timestamp.before.max.ms", 1),),
    ),
    Setting(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Whose clock the records carry: the producer's, or the broker's at the time of writing.",
        choices=TIMESTAMP_TYPES,
        synonyms=(("log.message.timestamp.type", 1),),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        "0.5",
        "How much of the log must be uncompacted before compaction runs.",
        low=0,
        high=1,
        synonyms=(("log.cleaner.min.cleanable.ratio", 1),),
    ),
    Setting(
        "min.compaction.lag.ms",
        LONG,
        "0",
        "How long a record is safe from compaction.",
        low=0,
        synonyms=(("log.cleaner.min.compaction.lag.ms", 1),),
    ),
    Setting(
        "min.insync.replicas",
        INT,
        "1",
        "How many replicas must be in sync before a write with acks=all is taken; all of them "
        "where there are fewer.",
        low=1,
        synonyms=(("min.insync.replicas", 1),),
    ),
    Setting(
        "preallocate",
        BOOLEAN,
        "false",
        "Whether a segment file gets its full size when it is created.",
        needs="preallocation",
        synonyms=(("log.preallocate", 1),),
    ),
    Setting(
        "remote.log.copy.disable",
        BOOLEAN,
        "false",
        "Whether a topic with remote storage stops copying to it.",
        needs="tiered",
    ),
    Setting(
        "remote.log.delete.on.disable",
        BOOLEAN,
        "false",
        "Whether remote data is deleted when remote storage is switched off.",
        needs="tiered",
    ),
    Setting(
        "remote.storage.enable",
        BOOLEAN,
        "false",
        "Whether the topic uses remote storage; true is refused, as by a Kafka broker on which "
        "tiered storage is off.",
        needs="tiered",
    ),
    Setting(
        "retention.bytes",
        LONG,
        "-1",
        "How large a partition may grow before its oldest segments are deleted; a negative "
        "number sets no limit. Only where cleanup.policy has 'delete'.",
        synonyms=(("log.retention.bytes", 1),),
    ),
    Setting(
        "retention.ms",
        LONG,
        "604800000",
        "How old a segment may grow before it is deleted, by the newest timestamp in it; -1 sets "
        "no limit. Only where cleanup.policy has 'delete'.",
        low=-1,
        synonyms=(
            ("log.retention.ms", 1),
            ("log.retention.minutes", _MINUTE_MS),
            ("log.retention.hours", _HOUR_MS),
        ),
    ),
    Setting(
        "segment.bytes",
        INT,
        "1073741824",
        "How large a segment file grows before the log rolls to a new one.",
        low=SEGMENT_BYTES_MIN,
        synonyms=(("log.segment.bytes", 1),),
    ),
    Setting(
        "segment.index.bytes",
        INT,
        "10485760",
        "How large a segment's index grows before the log rolls to a new segment.",
        low=4,
        synonyms=(("log.index.size.max.bytes", 1),),
    ),
    Setting(
        "segment.jitter.ms",
        LONG,
        "0",
        "The most that is taken off segment.ms at random, so that not all partitions roll at once.",
        low=0,
        synonyms=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)),
    ),
    Setting(
        "segment.ms",
        LONG,
        "604800000",
        "After what time the log rolls to a new segment even if the old one is not full, so that "
        "retention and compaction can reach its records.",
        low=1,
        synonyms=(("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "Whether a replica that is not in sync may become leader when no other is left, at the "
        "price of losing records.",
        synonyms=(("unclean.leader.election.enable", 1),),
    ),
    Setting(
        "message.downconversion.enable",
        BOOLEAN,
        "true",
        "Whether records were converted for clients older than message format 2.",
        needs="legacy",
        hidden=True,
    ),
    Setting(
        "message.format.version",
        STRING,
        None,
        "The message format of the topic, which is always 2.",
        needs="legacy",
        hidden=True,
    ),
    Setting(
        "message.timestamp.difference.max.ms",
        LONG,
        None,
        "The older name for message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
        low=0,
        needs="legacy",
        hidden=True,
    ),
)
