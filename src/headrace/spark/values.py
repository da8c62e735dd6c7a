"""Values that planning and reading share: offset ranges, and offsets of streams.

Pure. A stream's offset is JSON in Spark's checkpoint, in the connector's format, {"topic": {"0":
23}}. It also contains the group that shows the progress, and the ids of the topics. The ids
distinguish a topic from a deleted one of the same name, to which other offsets apply.

1. Equal positions have equal texts, because Spark compares texts to detect new records.
2. The keys of the group and of the ids contain a colon, so they cannot be topic names.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from headrace.model.topics import TopicPartition

GROUP = "headrace:group"
TOPIC_IDS = "headrace:topics"
Positions = Mapping[TopicPartition, int]


class DataLoss(Exception):
    """Records that a query needs no longer exist."""


class OffsetRange(NamedTuple):
    """Records of one partition, from `start` up to and without `end`."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def stream_offset(
    positions: Positions, group: str | None, topic_ids: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Positions in the format of Spark's checkpoint."""
    offset: dict[str, Any] = {} if group is None else {GROUP: group}
    if topic_ids:
        offset[TOPIC_IDS] = dict(sorted(topic_ids.items()))
    for (topic, partition), position in sorted(positions.items()):
        offset.setdefault(topic, {})[str(partition)] = position
    return offset


def stream_positions(offset: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """The positions in a stream's offset."""
    return {
        TopicPartition(topic, int(partition)): position
        for topic, partitions in offset.items()
        if topic not in (GROUP, TOPIC_IDS)
        for partition, position in partitions.items()
    }


def stream_group(offset: Mapping[str, Any]) -> str | None:
    """The group in a stream's offset, or None."""
    return offset.get(GROUP)


def stream_topic_ids(offset: Mapping[str, Any]) -> dict[str, str]:
    """The ids of the topics that a stream has read; none in an offset of Kafka's connector."""
    ids: Mapping[str, str] = offset.get(TOPIC_IDS, {})
    return {topic: id_ for topic, id_ in ids.items() if any(offset.get(topic, {}).values())}


def named(partitions: Iterable[TopicPartition]) -> str:
    """The names of at most five partitions, and the number of the others, for a message."""
    names = [str(partition) for partition in sorted(partitions)]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
