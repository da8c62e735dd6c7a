"""Values that planning and reading share: offset ranges, and offsets of streams.

Pure. A stream's offset is what Spark keeps in its checkpoint, as JSON: the connector's own form,
{"topic": {"0": 23}}, and beside the topics the group under which progress is shown.

1. Equal positions have equal texts: Spark compares texts to see whether there is anything new.
2. The group's place is no topic name: those have no colon.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from headrace.model.topics import TopicPartition

GROUP = "headrace:group"
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


def stream_offset(positions: Positions, group: str | None) -> dict[str, Any]:
    """Positions as Spark keeps them."""
    offset: dict[str, Any] = {} if group is None else {GROUP: group}
    for (topic, partition), position in sorted(positions.items()):
        offset.setdefault(topic, {})[str(partition)] = position
    return offset


def stream_positions(offset: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """What a stream's offset says of its partitions."""
    return {
        TopicPartition(topic, int(partition)): position
        for topic, partitions in offset.items()
        if topic != GROUP
        for partition, position in partitions.items()
    }


def stream_group(offset: Mapping[str, Any]) -> str | None:
    """The group that a stream's offset carries, if it does."""
    return offset.get(GROUP)


def named(partitions: Iterable[TopicPartition]) -> str:
    """A few of the partitions, for a message."""
    names = [str(partition) for partition in sorted(partitions)]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
