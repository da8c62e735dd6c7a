"""Names of partition directories, and the topic ids that they contain."""

from uuid import UUID

from headrace.env.files import Files
from headrace.log.recovery.leftovers import offset_of
from headrace.log.recovery.opening import read_log_checkpoint
from headrace.log.upkeep import checkpoints
from headrace.model.errors import ApiError
from headrace.model.topics import TopicPartition, check_topic_name

_LISTED_MAX = 20


def parse_partition(name: str) -> TopicPartition | None:
    """The partition of a directory name; None for other names."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not partition.isascii() or not partition.isdigit():
        return None
    try:
        check_topic_name(topic)
    except ApiError:
        return None
    return TopicPartition(topic, int(partition))


def summary(partitions: list[TopicPartition]) -> str:
    """Partitions in one line, for logs. Several partitions of a topic are shown as their number."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    names = [
        str(each[0]) if len(each) == 1 else f"{topic} ({len(each)} partitions)"
        for topic, each in by_topic.items()
    ]
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return ", ".join(names[:_LISTED_MAX]) + more


def belongs_to(files: Files, path: str, topic_id: UUID) -> bool:
    """Whether a directory has this topic id, or neither a topic id nor records."""
    known = _topic_id_of(files, path)
    return known == topic_id or (known is None and is_empty(files, path))


def _topic_id_of(files: Files, path: str) -> UUID | None:
    checkpoint = read_log_checkpoint(files, path)
    # The checkpoint has a checksum and was synced.
    return checkpoint.topic_id if checkpoint else read_topic_id(files, path)


def read_topic_id(files: Files, path: str) -> UUID | None:
    """The topic id in partition.metadata."""
    try:
        data = files.read_file(f"{path}/{checkpoints.PARTITION_METADATA}")
    except FileNotFoundError:
        return None
    return checkpoints.decode_partition_metadata(data)


def write_topic_id(files: Files, path: str, topic_id: UUID) -> None:
    data = checkpoints.encode_partition_metadata(topic_id)
    files.write_file(f"{path}/{checkpoints.PARTITION_METADATA}", data, sync=False)


def is_empty(files: Files, path: str) -> bool:
    """Whether a partition directory has no records."""
    return not any(
        info.size > 0 and info.name.endswith(".log") and offset_of(info.name) >= 0
        for info in files.list_directory(path)
    )
