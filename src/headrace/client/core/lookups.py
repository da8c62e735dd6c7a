"""Operations that connect a client, and look up topics and offsets. Pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from headrace.client.core.errors import (
    ClientError,
    RequestFailed,
    TimedOut,
    UnknownTopic,
    error_code,
    request_failed,
    topic_error,
)
from headrace.client.core.metadata import Cluster
from headrace.client.core.operation import (
    ANY,
    Operation,
    OperationEngine,
    Pause,
    RefreshMetadata,
    Send,
    SendAll,
    backoff_ms,
    retrying,
)
from headrace.client.core.values import AtTime, ClusterInfo, ListedOffset, Start, TopicInfo
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import LIST_OFFSETS, METADATA

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
_INT64_MAX = (1 << 63) - 1


def metadata_fields(topics: Iterable[str] | None, create: bool) -> dict[str, Any]:
    """The fields of a Metadata request about some topics, or about all (None)."""
    named = None if topics is None else [{"name": name, "topic_id": None} for name in topics]
    return {
        "topics": named,
        "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def connect(engine: OperationEngine) -> Operation[ClusterInfo]:
    """Connect to any broker. Raises Unreachable when no address can be reached."""
    deadline_ms = engine.now_ms + engine.options.operation_timeout_ms
    attempt = 0
    while True:
        try:
            yield RefreshMetadata()
        except ClientError as error:
            failure = engine.unreachable()
            if failure is not None:
                raise failure from error
            if not error.retriable:
                raise
            if engine.now_ms >= deadline_ms:
                raise TimedOut(f"cannot connect: {error}") from error
            engine.note_retry("connecting", error)
            yield Pause(backoff_ms(engine, attempt))
            attempt += 1
        else:
            return engine.cluster.info()


def ensure_topics(engine: OperationEngine, topics: Iterable[str], create: bool) -> Operation[None]:
    """Wait until metadata contains all topics.

    Raises UnknownTopic if a topic is missing for topic_absent_ms.
    """
    wanted = tuple(dict.fromkeys(topics))
    started_ms = engine.now_ms
    attempt = 0
    while any(topic not in engine.cluster.topics for topic in wanted):
        failure: ClientError | None = None
        try:
            yield RefreshMetadata(wanted, create)
        except ClientError as error:
            if not error.retriable:
                raise
            failure = error
        missing = [topic for topic in wanted if topic not in engine.cluster.topics]
        if not missing:
            break
        waited_ms = engine.now_ms - started_ms
        for topic in missing:
            code = engine.cluster.topic_errors.get(topic)
            if code is not None:
                failure = _lookup_error(topic, code)
                is_unknown = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not failure.retriable or (
                    is_unknown and waited_ms >= engine.options.topic_absent_ms
                ):
                    engine.forget_topic(topic)
                    raise failure
        if waited_ms >= engine.options.operation_timeout_ms:
            raise engine.unreachable() or TimedOut(f"no metadata of {missing[0]!r}: {failure}")
        if failure is not None:
            engine.note_retry("reading metadata", failure)
        yield Pause(backoff_ms(engine, attempt))
        attempt += 1


def refresh_topics(
    engine: OperationEngine, topics: Iterable[str]
) -> Operation[dict[str, TopicInfo]]:
    """Return current metadata of these topics; unknown topics are omitted."""
    wanted = tuple(dict.fromkeys(topics))

    def attempt() -> Operation[dict[str, TopicInfo]]:
        yield RefreshMetadata(wanted)
        known = engine.cluster.topics
        for topic in wanted:
            if topic not in known:
                engine.forget_topic(topic)
                code = engine.cluster.topic_errors.get(topic)
                if code not in (None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    raise _lookup_error(topic, code)
        return {topic: known[topic] for topic in wanted if topic in known}

    return (yield from retrying(engine, "looking up topics", attempt))


def _lookup_error(topic: str, code: ErrorCode) -> RequestFailed:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(code, f"unknown topic {topic!r}")
    if code == ErrorCode.KAFKA_STORAGE_ERROR:
        storage_error = request_failed(
            code, f"the topic {topic!r} cannot be created: the broker's disk might be full"
        )
        storage_error.retriable = False
        return storage_error
    return topic_error(code, topic)


def list_topics(
    engine: OperationEngine, topics: Iterable[str] | None = None
) -> Operation[dict[str, TopicInfo]]:
    """Return all topics, or those in `topics`; raises UnknownTopic if one of these is missing."""
    named = None if topics is None else tuple(topics)

    def attempt() -> Operation[dict[str, TopicInfo]]:
        response = yield Send(ANY, METADATA, metadata_fields(named, create=False))
        listed = Cluster()
        listed.apply(response, None)
        for topic, code in listed.topic_errors.items():
            failure = _lookup_error(topic, code)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                failure.retriable = False
            if named is not None:
                raise failure
        return {name: listed.topics[name] for name in sorted(listed.topics)}

    return (yield from retrying(engine, "listing topics", attempt))


def list_offsets(
    engine: OperationEngine,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout_ms: float | None = None,
) -> Operation[dict[TopicPartition, ListedOffset]]:
    """Offsets by timestamp: EARLIEST, LATEST, MAX_TIMESTAMP, or milliseconds.

    An offset of -1 means that no record is at or after the timestamp.
    """
    yield from ensure_topics(engine, (partition.topic for partition in wanted), create=False)
    found: dict[TopicPartition, ListedOffset] = {}

    def attempt() -> Operation[None]:
        remaining = {
            partition: timestamp
            for partition, timestamp in wanted.items()
            if partition not in found
        }
        by_leader, failure = _group_by_leader(engine, remaining)
        requests = [
            Send(leader, LIST_OFFSETS, _list_offsets_fields(engine, group, read_committed))
            for leader, group in by_leader.items()
        ]
        for response in (yield SendAll(requests)):
            if isinstance(response, ClientError):
                failure = response
                continue
            failure = _collect_offsets(response, found) or failure
        if failure is not None:
            raise failure

    yield from retrying(engine, "looking up offsets", attempt, timeout_ms)
    return {partition: found[partition] for partition in wanted}


def list_offsets_or_errors(
    engine: OperationEngine, wanted: Mapping[TopicPartition, int]
) -> Operation[dict[TopicPartition, ListedOffset | ClientError]]:
    """The offsets that leaders return now, or their errors.

    Retries only partitions whose leader has changed, and those only once.
    """
    yield from ensure_topics(engine, (partition.topic for partition in wanted), create=False)
    found: dict[TopicPartition, ListedOffset | ClientError] = {}
    remaining = dict(wanted)
    for attempt in range(2):
        if attempt:
            yield RefreshMetadata()
        by_leader, _failure = _group_by_leader(engine, remaining)
        requests = [
            Send(leader, LIST_OFFSETS, _list_offsets_fields(engine, group, False))
            for leader, group in by_leader.items()
        ]
        for group, response in zip(by_leader.values(), (yield SendAll(requests)), strict=True):
            if isinstance(response, ClientError):
                found |= dict.fromkeys(group, response)
            else:
                found |= _offsets_in(response)
        errors = {each: error for each, error in found.items() if isinstance(error, ClientError)}
        remaining = {each: wanted[each] for each, error in errors.items() if error.stale_metadata}
        if not remaining:
            break
    return found


def _group_by_leader(
    engine: OperationEngine, wanted: Mapping[TopicPartition, int]
) -> tuple[dict[int, dict[TopicPartition, int]], ClientError | None]:
    groups: dict[int, dict[TopicPartition, int]] = {}
    failure: ClientError | None = None
    for partition, timestamp in wanted.items():
        if engine.cluster.partition(*partition) is None:
            error = UnknownTopic(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"unknown partition {partition}"
            )
            error.retriable = False
            raise error
        leader = engine.cluster.leader(*partition)
        if leader is None:
            failure = request_failed(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader at the moment"
            )
            continue
        groups.setdefault(leader, {})[partition] = timestamp
    return groups, failure


def _list_offsets_fields(
    engine: OperationEngine, group: Mapping[TopicPartition, int], read_committed: bool
) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = {}
    for partition, timestamp in group.items():
        info = engine.cluster.partition(*partition)
        topics.setdefault(partition.topic, []).append(
            {
                "partition_index": partition.partition,
                "current_leader_epoch": info.leader_epoch if info is not None else -1,
                "timestamp": timestamp,
            }
        )
    return {
        "replica_id": -1,
        "isolation_level": int(read_committed),
        "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        "timeout_ms": int(engine.options.request_timeout_ms),
    }


def _collect_offsets(
    response: Mapping[str, Any], found: dict[TopicPartition, ListedOffset]
) -> ClientError | None:
    failure: ClientError | None = None
    for partition, offset in _offsets_in(response).items():
        if isinstance(offset, ListedOffset):
            found[partition] = offset
            continue
        failure = offset
        if not failure.retriable:
            raise failure
    return failure


def _offsets_in(response: Mapping[str, Any]) -> dict[TopicPartition, ListedOffset | ClientError]:
    offsets: dict[TopicPartition, ListedOffset | ClientError] = {}
    for topic in response["topics"]:
        for part in topic["partitions"]:
            partition = TopicPartition(topic["name"], part["partition_index"])
            code = error_code(part["error_code"])
            if code == ErrorCode.NONE:
                offsets[partition] = ListedOffset(
                    part["offset"], part["timestamp"], part.get("leader_epoch", -1)
                )
            else:
                offsets[partition] = request_failed(
                    code, f"no offset for {partition} ({code.name})"
                )
    return offsets


def start_timestamp(start: Start) -> int | None:
    """The ListOffsets timestamp of a start, or None if the start is an offset."""
    if isinstance(start, datetime):
        start = AtTime(int(start.timestamp() * 1000))
    if isinstance(start, AtTime) and start.timestamp_ms <= _INT64_MAX:
        return max(0, start.timestamp_ms)  # ListOffsets gives negative timestamps other meanings.
    if start == "earliest":
        return EARLIEST
    if start == "latest":
        return LATEST
    if isinstance(start, int) and 0 <= start <= _INT64_MAX:
        return None
    raise ValueError(
        f"cannot start at {start!r}: use 'earliest', 'latest', an offset, a datetime, or AtTime"
    )


def start_timestamps(starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
    """The ListOffsets timestamps of starts that are not offsets."""
    wanted: dict[TopicPartition, int] = {}
    for partition, start in starts.items():
        timestamp = start_timestamp(start)
        if timestamp is None:
            raise ValueError(f"{start!r} is an offset, which needs no lookup")
        wanted[partition] = timestamp
    return wanted


def resolve_starts(
    engine: OperationEngine,
    starts: Mapping[TopicPartition, Start],
    *,
    read_committed: bool = False,
) -> Operation[dict[TopicPartition, int]]:
    """The offsets of starts. The offset of a time after the last record is the log end."""
    yield from ensure_topics(engine, (partition.topic for partition in starts), create=False)
    requested = {partition: start_timestamp(start) for partition, start in starts.items()}
    wanted = {
        partition: timestamp for partition, timestamp in requested.items() if timestamp is not None
    }
    offsets = {partition: start for partition, start in starts.items() if isinstance(start, int)}
    if wanted:
        listed = yield from list_offsets(engine, wanted, read_committed=read_committed)
        offsets |= {partition: found.offset for partition, found in listed.items()}
    late = {partition: LATEST for partition, offset in offsets.items() if offset < 0}
    if late:
        listed = yield from list_offsets(engine, late, read_committed=read_committed)
        offsets |= {partition: found.offset for partition, found in listed.items()}
    return {partition: offsets[partition] for partition in starts}
