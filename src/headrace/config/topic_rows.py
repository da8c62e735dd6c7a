"""The topic settings, one row each, under Kafka's names.

Data only. The synonyms of a row are the broker's names for its default, strongest first, each with
the factor to the topic's unit. table.py derives the broker's rows from the first.
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
        "How old segments are removed: 'delete' removes them according to retention.ms and "
        "retention.bytes, 'compact' keeps the last record of each key. Both can be combined. An "
        "empty list keeps everything.",
        choices=CLEANUP_POLICIES,
        synonyms=(("log.cleanup.policy", 1),),
    ),
    Setting(
        "compression.gzip.level",
        INT,
        "-1",
        "The gzip level, if compression.type is gzip. -1 is gzip's default.",
        check=_is_gzip_level,
        allowed="a whole number from 1 to 9, or -1",
        synonyms=(("compression.gzip.level", 1),),
    ),
    Setting(
        "compression.lz4.level",
        INT,
        "9",
        "The lz4 level, if compression.type is lz4.",
        low=1,
        high=17,
        synonyms=(("compression.lz4.level", 1),),
    ),
    Setting(
        "compression.type",
        STRING,
        "producer",
        "The compression of batches on disk. 'producer' stores batches unchanged. Any "
        "other value recompresses batches that arrive with a different codec.",
        choices=COMPRESSION_TYPES,
        synonyms=(("compression.type", 1),),
    ),
    Setting(
        "compression.zstd.level",
        INT,
        "3",
        "The zstd level, if compression.type is zstd.",
        low=-131_072,
        high=22,
        synonyms=(("compression.zstd.level", 1),),
    ),
    Setting(
        "delete.retention.ms",
        LONG,
        "86400000",
        "The time in ms for which compaction keeps a tombstone. Consumers that read the log from "
        "the start within this time see the deletion.",
        low=0,
        synonyms=(("log.cleaner.delete.retention.ms", 1),),
    ),
    Setting(
        "file.delete.delay.ms",
        LONG,
        "60000",
        "The time in ms for which a deleted segment stays on disk. Headrace removes segments "
        "immediately, because readers keep their files open. The broker's default also applies to "
        "replicas of topics that were deleted while the broker was stopped. The broker deletes "
        "such a replica when this time has passed since the broker's start.",
        low=0,
        synonyms=(("log.segment.delete.delay.ms", 1),),
    ),
    Setting(
        "flush.messages",
        LONG,
        _FOREVER,
        "The number of records after which the log is synced to disk. With 1, an "
        "acknowledgement waits for the sync of its records. By default the operating "
        "system decides.",
        low=1,
        synonyms=(("log.flush.interval.messages", 1),),
    ),
    Setting(
        "flush.ms",
        LONG,
        _FOREVER,
        "The maximum time in ms that a record stays unsynced. By default the operating system "
        "decides.",
        low=0,
        synonyms=(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    ),
    Setting(
        "follower.replication.throttled.replicas",
        LIST,
        "",
        "The replicas whose fetches are limited by follower.replication.throttled.rate "
        "while they are not in sync.",
        check=_are_replicas,
        allowed=_REPLICAS,
    ),
    Setting(
        "index.interval.bytes",
        INT,
        "4096",
        "The number of log bytes between two entries of the offset index.",
        low=0,
        synonyms=(("log.index.interval.bytes", 1),),
    ),
    Setting(
        "internal.segment.bytes",
        INT,
        None,
        "Like segment.bytes, without its lower limit, for tests with many small segments.",
        low=61,
        is_hidden=True,
    ),
    Setting(
        "leader.replication.throttled.replicas",
        LIST,
        "",
        "The replicas whose data is sent at leader.replication.throttled.rate to "
        "followers that are not in sync.",
        check=_are_replicas,
        allowed=_REPLICAS,
    ),
    Setting(
        "local.retention.bytes",
        LONG,
        "-2",
        "The number of bytes of the log that stay on local disk after they were copied to remote "
        "storage.",
        low=-2,
        needs="tiered",
        synonyms=(("log.local.retention.bytes", 1),),
    ),
    Setting(
        "local.retention.ms",
        LONG,
        "-2",
        "The time in ms for which the log stays on local disk after it was copied to remote "
        "storage.",
        low=-2,
        needs="tiered",
        synonyms=(("log.local.retention.ms", 1),),
    ),
    Setting(
        "max.compaction.lag.ms",
        LONG,
        _FOREVER,
        "The maximum time in ms that a record can wait for compaction.",
        low=1,
        synonyms=(("log.cleaner.max.compaction.lag.ms", 1),),
    ),
    Setting(
        "max.message.bytes",
        INT,
        "1048588",
        "The maximum size in bytes of a batch, after compression.",
        low=0,
        synonyms=(("message.max.bytes", 1),),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        LONG,
        "3600000",
        "How many ms a record's timestamp can be ahead of the broker's clock. Later timestamps "
        "are rejected with INVALID_TIMESTAMP, unless the topic uses LogAppendTime.",
        low=0,
        synonyms=(("log.message.timestamp.after.max.ms", 1),),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        LONG,
        _FOREVER,
        "How many ms a record's timestamp can be behind the broker's clock. Earlier timestamps "
        "are rejected with INVALID_TIMESTAMP, unless the topic uses LogAppendTime.",
        low=0,
        synonyms=(("log.message.timestamp.before.max.ms", 1),),
    ),
    Setting(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "The source of record timestamps: the producer (CreateTime) or the broker at "
        "the time of the append (LogAppendTime).",
        choices=TIMESTAMP_TYPES,
        synonyms=(("log.message.timestamp.type", 1),),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        "0.5",
        "The share of the log, from 0 to 1, that must be uncompacted before compaction runs.",
        low=0,
        high=1,
        synonyms=(("log.cleaner.min.cleanable.ratio", 1),),
    ),
    Setting(
        "min.compaction.lag.ms",
        LONG,
        "0",
        "The minimum time in ms that a record stays uncompacted.",
        low=0,
        synonyms=(("log.cleaner.min.compaction.lag.ms", 1),),
    ),
    Setting(
        "min.insync.replicas",
        INT,
        "1",
        "The number of replicas that must be in sync to accept a write with acks=all. "
        "If a partition has fewer replicas, all of them must be in sync.",
        low=1,
        synonyms=(("min.insync.replicas", 1),),
    ),
    Setting(
        "preallocate",
        BOOLEAN,
        "false",
        "Whether a segment file is created with its full size.",
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
        "Whether remote data is deleted when remote storage is disabled.",
        needs="tiered",
    ),
    Setting(
        "remote.storage.enable",
        BOOLEAN,
        "false",
        "Whether the topic uses remote storage. The value true is rejected, because tiered "
        "storage is not supported.",
        needs="tiered",
    ),
    Setting(
        "retention.bytes",
        LONG,
        "-1",
        "The maximum size of a partition in bytes before its oldest segments are deleted. A "
        "negative value means no limit. Applies if cleanup.policy contains 'delete'.",
        synonyms=(("log.retention.bytes", 1),),
    ),
    Setting(
        "retention.ms",
        LONG,
        "604800000",
        "The maximum age of a segment in ms before it is deleted, by the newest timestamp in it. "
        "-1 means no limit. Applies if cleanup.policy contains 'delete'.",
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
        "The size of a segment file in bytes at which the log rolls to a new one.",
        low=SEGMENT_BYTES_MIN,
        synonyms=(("log.segment.bytes", 1),),
    ),
    Setting(
        "segment.index.bytes",
        INT,
        "10485760",
        "The size of a segment's index in bytes at which the log rolls to a new segment.",
        low=4,
        synonyms=(("log.index.size.max.bytes", 1),),
    ),
    Setting(
        "segment.jitter.ms",
        LONG,
        "0",
        "The maximum random time in ms that is subtracted from segment.ms, so that partitions do "
        "not all roll at the same time.",
        low=0,
        synonyms=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)),
    ),
    Setting(
        "segment.ms",
        LONG,
        "604800000",
        "The time in ms after which the log rolls to a new segment even if the current one is not "
        "full. Retention and compaction apply only to closed segments.",
        low=1,
        synonyms=(("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOLEAN,
        "false",
        "Whether a replica that is not in sync can become leader if no in-sync replica is "
        "available. This can lose records.",
        synonyms=(("unclean.leader.election.enable", 1),),
    ),
    Setting(
        "message.downconversion.enable",
        BOOLEAN,
        "true",
        "Whether records are converted for clients that need a message format older than 2. "
        "Headrace supports no such client.",
        needs="legacy",
        is_hidden=True,
    ),
    Setting(
        "message.format.version",
        STRING,
        None,
        "The message format of the topic. It is always 2.",
        needs="legacy",
        is_hidden=True,
    ),
    Setting(
        "message.timestamp.difference.max.ms",
        LONG,
        None,
        "The former name of message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
        low=0,
        needs="legacy",
        is_hidden=True,
    ),
)
