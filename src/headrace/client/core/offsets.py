"""Operations that request metadata and offsets. Pure."""

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
    unusable_topic,
)
from headrace.client.core.metadata import Cluster
from headrace.client.core.operation import (
    ANY,
    Ask,
    AskAll,
    Operation,
    Pause,
    Refresh,
    Session,
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


def connect(session: Session) -> Operation[ClusterInfo]:
    """Connect to any broker; fail quickly if none of the addresses responds."""
    deadline_ms = session.now_ms + session.options.connect_timeout_ms
    attempt = 0
    while True:
        try:
            yield Refresh()
        except ClientError as error:
            failure = session.unreachable()
            if failure is not None:
                raise failure from error
            if not error.retriable:
                raise
            if session.now_ms >= deadline_ms:
                raise TimedOut(f"cannot connect: {error}") from error
            session.note_retry("connecting", error)
            yield Pause(backoff_ms(session, attempt))
            attempt += 1
        else:
            return session.cluster.info()


def ensure_topics(session: Session, topics: Iterable[str], create: bool) -> Operation[None]:
    """Wait until all topics are known; a topic that stays unknown is an error."""
    wanted = tuple(dict.fromkeys(topics))
    started_ms = session.now_ms
    attempt = 0
    while any(topic not in session.cluster.topics for topic in wanted):
        failure: ClientError | None = None
        try:
            yield Refresh(wanted, create)
        except ClientError as error:
            if not error.retriable:
                raise
            failure = error
        missing = [topic for topic in wanted if topic not in session.cluster.topics]
        if not missing:
            break
        waited_ms = session.now_ms - started_ms
        for topic in missing:
            code = session.cluster.topic_errors.get(topic)
            if code is not None:
                failure = _topic_error(topic, code)
                gone = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not failure.retriable or (gone and waited_ms >= session.options.topic_absent_ms):
                    session.forget_topic(topic)
                    raise failure
        if waited_ms >= session.options.operation_timeout_ms:
            raise session.unreachable() or TimedOut(f"no metadata of {missing[0]!r}: {failure}")
        if failure is not None:
            session.note_retry("reading metadata", failure)
        yield Pause(backoff_ms(session, attempt))
        attempt += 1


def refresh_topics(session: Session, topics: Iterable[str]) -> Operation[dict[str, TopicInfo]]:
    """The current state of these topics; unknown ones are omitted."""
    wanted = tuple(dict.fromkeys(topics))

    def attempt() -> Operation[dict[str, TopicInfo]]:
        yield Refresh(wanted)
        known = session.cluster.topics
        for topic in wanted:
            if topic not in known:
                session.forget_topic(topic)
                code = session.cluster.topic_errors.get(topic)
                if code not in (None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    raise _topic_error(topic, code)
        return {topic: known[topic] for topic in wanted if topic in known}

    return (yield from retrying(session, "looking up topics", attempt))


def _topic_error(topic: str, code: ErrorCode) -> RequestFailed:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(code, f"the topic {topic!r} does not exist")
    if code == ErrorCode.KAFKA_STORAGE_ERROR:
        full = request_failed(
            code, f"the topic {topic!r} cannot be created: the broker's disk might be full"
        )
        full.retriable = False
        return full
    return unusable_topic(code, topic)


def list_topics(
    session: Session, topics: Iterable[str] | None = None
) -> Operation[dict[str, TopicInfo]]:
    """All topics of the cluster, or those named; an unknown topic is an error."""
    named = None if topics is None else tuple(topics)

    def attempt() -> Operation[dict[str, TopicInfo]]:
        reply = yield Ask(ANY, METADATA, metadata_fields(named, create=False))
        view = Cluster()
        view.apply(reply, None)
        for topic, code in view.topic_errors.items():
            failure = _topic_error(topic, code)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                failure.retriable = False
            if named is not None:
                raise failure
        return {name: view.topics[name] for name in sorted(view.topics)}

    return (yield from retrying(session, "listing topics", attempt))


def list_offsets(
    session: Session,
    wanted: Mapping[TopicPartition, int],
    *,
    read_committed: bool = False,
    timeout_ms: float | None = None,
) -> Operation[dict[TopicPartition, ListedOffset]]:
    """Offsets by timestamp: EARLIEST, LATEST, MAX_TIMESTAMP, or milliseconds.

    An offset of -1 means that no record is at or after the timestamp.
    """
    yield from ensure_topics(session, (partition.topic for partition in wanted), create=False)
    found: dict[TopicPartition, ListedOffset] = {}

    def attempt() -> Operation[None]:
        left = {partition: at for partition, at in wanted.items() if partition not in found}
        by_leader, failure = _group_by_leader(session, left)
        asks = [
            Ask(leader, LIST_OFFSETS, _list_offsets_fields(session, group, read_committed))
            for leader, group in by_leader.items()
        ]
        for reply in (yield AskAll(asks)):
            if isinstance(reply, ClientError):
                failure = reply
                continue
            failure = _take_offsets(reply, found) or failure
        if failure is not None:
            raise failure

    yield from retrying(session, "looking up offsets", attempt, timeout_ms)
    return {partition: found[partition] for partition in wanted}


def reported_offsets(
    session: Session, wanted: Mapping[TopicPartition, int]
) -> Operation[dict[TopicPartition, ListedOffset | ClientError]]:
    """The offsets that leaders report now, or their errors. Nothing is retried.

    One exception: if a partition has a new leader, that one is asked.
    """
    yield from ensure_topics(session, (partition.topic for partition in wanted), create=False)
    found: dict[TopicPartition, ListedOffset | ClientError] = {}
    left = dict(wanted)
    for attempt in range(2):
        if attempt:
            yield Refresh()
        by_leader, _failure = _group_by_leader(session, left)
        asks = [
            Ask(leader, LIST_OFFSETS, _list_offsets_fields(session, group, False))
            for leader, group in by_leader.items()
        ]
        for group, reply in zip(by_leader.values(), (yield AskAll(asks)), strict=True):
            if isinstance(reply, ClientError):
                found |= dict.fromkeys(group, reply)
            else:
                found |= _offsets_in(reply)
        errors = {each: error for each, error in found.items() if isinstance(error, ClientError)}
        left = {each: wanted[each] for each, error in errors.items() if error.stale_metadata}
        if not left:
            break
    return found


def _group_by_leader(
    session: Session, wanted: Mapping[TopicPartition, int]
) -> tuple[dict[int, dict[TopicPartition, int]], ClientError | None]:
    groups: dict[int, dict[TopicPartition, int]] = {}
    failure: ClientError | None = None
    for partition, at in wanted.items():
        if session.cluster.partition(*partition) is None:
            error = UnknownTopic(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"unknown partition {partition}"
            )
            error.retriable = False
            raise error
        leader = session.cluster.leader(*partition)
        if leader is None:
            failure = request_failed(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader at the moment"
            )
            continue
        groups.setdefault(leader, {})[partition] = at
    return groups, failure


def _list_offsets_fields(
    session: Session, group: Mapping[TopicPartition, int], read_committed: bool
) -> dict[str, Any]:
    topics: dict[str, list[dict[str, int]]] = {}
    for partition, at in group.items():
        info = session.cluster.partition(*partition)
        topics.setdefault(partition.topic, []).append(
            {
                "partition_index": partition.partition,
                "current_leader_epoch": info.leader_epoch if info is not None else -1,
                "timestamp": at,
            }
        )
    return {
        "replica_id": -1,
        "isolation_level": int(read_committed),
        "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        "timeout_ms": int(session.options.request_timeout_ms),
    }


def _take_offsets(
    reply: Mapping[str, Any], found: dict[TopicPartition, ListedOffset]
) -> ClientError | None:
    failure: ClientError | None = None
    for partition, offset in _offsets_in(reply).items():
        if isinstance(offset, ListedOffset):
            found[partition] = offset
            continue
        failure = offset
        if not failure.retriable:
            raise failure
    return failure


def _offsets_in(reply: Mapping[str, Any]) -> dict[TopicPartition, ListedOffset | ClientError]:
    offsets: dict[TopicPartition, ListedOffset | ClientError] = {}
    for topic in reply["topics"]:
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


def timestamps(at: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
    """The ListOffsets timestamps of starts that are not offsets."""
    wanted: dict[TopicPartition, int] = {}
    for partition, start in at.items():
        timestamp = start_timestamp(start)
        if timestamp is None:
            raise ValueError(f"{start!r} is an offset, which needs no lookup")
        wanted[partition] = timestamp
    return wanted


def resolve_starts(
    session: Session,
    starts: Mapping[TopicPartition, Start],
    *,
    read_committed: bool = False,
) -> Operation[dict[TopicPartition, int]]:
    """The offsets of any kind of start; a time after the last record is the log end."""
    yield from ensure_topics(session, (partition.topic for partition in starts), create=False)
    requested = {partition: start_timestamp(start) for partition, start in starts.items()}
    wanted = {partition: at for partition, at in requested.items() if at is not None}
    offsets = {partition: start for partition, start in starts.items() if isinstance(start, int)}
    if wanted:
        listed = yield from list_offsets(session, wanted, read_committed=read_committed)
        offsets |= {partition: found.offset for partition, found in listed.items()}
    late = {partition: LATEST for partition, offset in offsets.items() if offset < 0}
    if late:
        listed = yield from list_offsets(session, late, read_committed=read_committed)
        offsets |= {partition: found.offset for partition, found in listed.items()}
    return {partition: offsets[partition] for partition in starts}
