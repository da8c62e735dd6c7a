"""Converts arguments that both client APIs take. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from headrace.client.core.errors import UnknownTopic
from headrace.client.core.lookups import LATEST, ensure_topics, list_offsets, resolve_starts
from headrace.client.core.operation import Operation, OperationEngine
from headrace.client.core.options import ClientOptions, parse_addresses
from headrace.client.core.values import AtTime, Header, Record, Start, Until
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition

Data = bytes | str | None
"""A key or a value; text is encoded as UTF-8."""
HeadersArgument = Mapping[str, Data] | Sequence[tuple[str, Data]]


def client_options(bootstrap: str | Sequence[str], options: Mapping[str, Any]) -> ClientOptions:
    text = bootstrap if isinstance(bootstrap, str) else ",".join(bootstrap)
    return replace(ClientOptions(parse_addresses(text)), **options)


def to_bytes(data: Data) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def to_headers(headers: HeadersArgument) -> tuple[Header, ...]:
    pairs: Iterable[tuple[str, Data]]
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, to_bytes(content)) for name, content in pairs)


class ReadLimits:
    """Where reading ends: before an offset per partition, or before the first record at a time."""

    def __init__(self, offsets: Mapping[TopicPartition, int], time_ms: int | None = None) -> None:
        self._offsets = dict(offsets)
        self.time_ms = time_ms
        """Set if reading ends at a time that is still in the future."""

    def end_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the time, which has passed, by the current end offsets."""
        self._offsets = dict(offsets)
        self.time_ms = None

    def reached(self, partition: TopicPartition, position: int) -> bool:
        limit = self._offsets.get(partition)
        return limit is not None and position >= limit

    def cut(self, records: list[Record]) -> list[Record]:
        """The records before the limits."""
        if not records or (not self._offsets and self.time_ms is None):
            return records
        first, last = records[0], records[-1]
        end = TopicPartition(last.topic, last.partition)
        is_one = self.time_ms is None and first.partition == last.partition
        # Usually all records are of one partition, in order. Then check only the last record.
        if is_one and not self.reached(end, last.offset):
            return records
        return [record for record in records if self.admits(record)]

    def admits(self, record: Record) -> bool:
        partition = TopicPartition(record.topic, record.partition)
        if self.time_ms is not None and record.timestamp_ms >= self.time_ms:
            self._offsets.setdefault(partition, record.offset)
        return not self.reached(partition, record.offset)


def plan_reading(
    engine: OperationEngine,
    topic: str,
    partitions: Sequence[int] | None,
    start: Start,
    until: Until,
    *,
    read_committed: bool,
    wall_ms: int,
) -> Operation[tuple[dict[TopicPartition, int], ReadLimits]]:
    """Look up the start offsets and the ends for reading a topic, or some of its partitions."""
    yield from ensure_topics(engine, [topic], create=False)
    known = [part.index for part in engine.cluster.topics[topic].partitions]
    for index in partitions or ():
        if index not in known:
            raise UnknownTopic(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{topic!r} has partitions 0 to {len(known) - 1}, not {index}",
            )
    chosen = [TopicPartition(topic, index) for index in partitions or known]
    if partitions is not None and not partitions:
        chosen = []
    limits = yield from _limits(engine, chosen, until, read_committed, wall_ms)
    starts = yield from resolve_starts(
        engine, dict.fromkeys(chosen, start), read_committed=read_committed
    )
    return starts, limits


def _limits(
    engine: OperationEngine,
    partitions: Sequence[TopicPartition],
    until: Until,
    read_committed: bool,
    wall_ms: int,
) -> Operation[ReadLimits]:
    if until is None:
        return ReadLimits({})
    if until == "end":
        return ReadLimits((yield from end_offsets(engine, partitions, read_committed)))
    if isinstance(until, int):
        return ReadLimits(dict.fromkeys(partitions, until))
    if isinstance(until, datetime):
        until = AtTime(int(until.timestamp() * 1000))
    if not isinstance(until, AtTime):
        raise ValueError(f"cannot read until {until!r}: use 'end', an offset, a datetime, AtTime")
    if until.timestamp_ms > wall_ms:
        return ReadLimits({}, until.timestamp_ms)
    wanted = dict.fromkeys(partitions, until)
    return ReadLimits((yield from resolve_starts(engine, wanted, read_committed=read_committed)))


def end_offsets(
    engine: OperationEngine, partitions: Sequence[TopicPartition], read_committed: bool
) -> Operation[dict[TopicPartition, int]]:
    """The offsets after the last readable records."""
    listed = yield from list_offsets(
        engine, dict.fromkeys(partitions, LATEST), read_committed=read_committed
    )
    return {partition: found.offset for partition, found in listed.items()}
