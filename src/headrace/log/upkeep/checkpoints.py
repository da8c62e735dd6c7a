"""Encodes and decodes the small files that are read at start-up instead of the logs.

The offset checkpoints, leader epochs, partition metadata, meta.properties and the clean-shutdown
marker have Kafka's format. They have no checksum. So if a wrong value could change a response, the
value is taken from `headrace-checkpoint`, one per partition, which has a checksum.

1. A partition's checkpoint covers only data that was synced before the checkpoint was written.
2. A file that cannot be decoded is treated as missing.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from headrace.model.ids import id_from_text, id_text
from headrace.model.topics import TopicPartition
from headrace.record.batch import crc32c

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
LOG_CHECKPOINT = "headrace-checkpoint"
NEW_LOG = "headrace-new-log"
"""An empty file in a partition's directory.

It means that Kafka's checkpoint files have offsets of an earlier partition of this name.
"""


class SegmentFacts(NamedTuple):
    """The facts about one segment in a checkpoint; the checksums are those of its index files."""

    base_offset: int
    size: int
    created_ms: int
    first_timestamp: int
    largest_timestamp: int
    largest_timestamp_offset: int
    index_size: int
    index_crc: int
    time_index_size: int
    time_index_crc: int
    aborted_size: int
    aborted_crc: int


class LogCheckpoint(NamedTuple):
    topic_id: UUID
    log_start_offset: int
    recovery_point: int
    """Records below are synced and need no scan: `segments` and a snapshot cover them."""
    epochs: list[tuple[int, int]]
    segments: list[SegmentFacts]
    discard_from: int = -1
    """The offset of a truncation in progress, which start-up finishes; -1 if none."""


def checkpoint_of(
    topic_id: UUID,
    log_start_offset: int,
    recovery_point: int,
    epochs: Iterable[tuple[int, int]] = (),
    segments: Iterable[SegmentFacts] = (),
) -> LogCheckpoint:
    """The checkpoint of a log, with the epochs that begin below the recovery point.

    The epoch that contains the log start is also included.
    """
    included = [each for each in epochs if each[1] < recovery_point or each[1] <= log_start_offset]
    return LogCheckpoint(topic_id, log_start_offset, recovery_point, included, list(segments))


def encode_log_checkpoint(checkpoint: LogCheckpoint) -> bytes:
    lines = [
        f"topic_id {checkpoint.topic_id.int}",
        f"log_start_offset {checkpoint.log_start_offset}",
        f"recovery_point {checkpoint.recovery_point}",
    ]
    if checkpoint.discard_from >= 0:
        lines.append(f"discard_from {checkpoint.discard_from}")
    lines += [f"epoch {epoch} {offset}" for epoch, offset in checkpoint.epochs]
    lines += ["segment " + " ".join(map(str, facts)) for facts in checkpoint.segments]
    body = "".join(line + "\n" for line in lines).encode()
    return f"headrace 1 {crc32c(body):08x}\n".encode() + body


def decode_log_checkpoint(data: bytes) -> LogCheckpoint | None:
    """None if the checksum is wrong."""
    head, _, body = data.partition(b"\n")
    if head != b"headrace 1 %08x" % crc32c(body):
        return None
    numbers: dict[str, int] = {}
    epochs: list[tuple[int, int]] = []
    segments: list[SegmentFacts] = []
    for line in body.decode().splitlines():
        name, *words = line.split()
        fields = list(map(int, words))
        if name == "segment":
            segments.append(SegmentFacts(*fields))
        elif name == "epoch":
            epochs.append((fields[0], fields[1]))
        else:
            numbers[name] = fields[0]
    return LogCheckpoint(
        UUID(int=numbers["topic_id"]),
        numbers["log_start_offset"],
        numbers["recovery_point"],
        epochs,
        segments,
        numbers.get("discard_from", -1),
    )


def _encode_lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in ("0", str(len(lines)), *lines)).encode()


def _decode_lines(data: bytes) -> list[list[str]]:
    """The lines of a version 0 checkpoint, split into words; ValueError for other content."""
    lines = data.decode().splitlines()
    if len(lines) < 2 or int(lines[0]) != 0 or int(lines[1]) != len(lines) - 2:
        raise ValueError("not a checkpoint of version 0")
    return [line.split() for line in lines[2:]]


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    rows = sorted(offsets.items())
    return _encode_lines([f"{each.topic} {each.partition} {offset}" for each, offset in rows])


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Raises ValueError if the file is not valid."""
    offsets: dict[TopicPartition, int] = {}
    for topic, partition, offset in _decode_lines(data):
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    return offsets


def encode_epochs(entries: list[tuple[int, int]]) -> bytes:
    return _encode_lines([f"{epoch} {offset}" for epoch, offset in entries])


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """Raises ValueError if the file is not valid."""
    return [(int(epoch), int(offset)) for epoch, offset in _decode_lines(data)]


def encode_partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {id_text(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> UUID | None:
    """The topic id; None if the file is not valid."""
    try:
        pairs = dict(line.split(": ", 1) for line in data.decode().splitlines() if line)
        return id_from_text(pairs["topic_id"])
    except (ValueError, KeyError):
        return None


def encode_meta_properties(properties: Mapping[str, str]) -> bytes:
    return "".join(f"{name}={value}\n" for name, value in sorted(properties.items())).encode()


def decode_meta_properties(data: bytes) -> dict[str, str]:
    lines = (line.strip() for line in data.decode(errors="replace").splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {name.strip(): value.strip() for name, _, value in pairs}
