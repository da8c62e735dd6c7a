"""Progress and lag of streaming flows, read from their checkpoints.

1. Positions are those of finished micro-batches; planned micro-batches are ignored.
2. Only files are read: neither Spark nor the metastore is needed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.client import connect
from headrace.client.core.options import SecuritySettings
from headrace.model.topics import TopicPartition
from headrace.pipelines.graph import TOPIC, Graph
from headrace.spark.values import stream_positions

Positions = dict[TopicPartition, int]
REACH_TIMEOUT_MS = 30_000.0
"""The time after which a broker that does not respond is considered unavailable."""


@dataclass(frozen=True)
class Checkpoint:
    batch: int | None
    """The number of the last finished micro-batch; None if no micro-batch has finished."""
    time_s: float | None
    """When this micro-batch finished, in seconds since 1970."""
    positions: Positions
    """The offsets from which the flow resumes reading its topics."""


def read_checkpoint(checkpoints: Path, target: str, flow: str) -> Checkpoint | None:
    """Read the newest checkpoint of a flow; each full refresh of the flow begins a new one."""
    newest = newest_checkpoint(checkpoints, target, flow)
    return None if newest is None else _read(newest)


def begin_checkpoint(checkpoints: Path, target: str, flow: str) -> None:
    """Begin an empty checkpoint with the highest number: Spark uses it and reads from the start."""
    newest = newest_checkpoint(checkpoints, target, flow)
    if newest is not None:
        newest.with_name(str(int(newest.name) + 1)).mkdir()


def newest_checkpoint(checkpoints: Path, target: str, flow: str) -> Path | None:
    """The directory of a flow's newest checkpoint; None if the flow has none."""
    target, flow = target.rpartition(".")[2], flow.rpartition(".")[2]
    found = [path for path in checkpoints.glob(f"**/{target}/{flow}/*") if path.name.isdigit()]
    return max(found, key=lambda path: int(path.name), default=None)


def _read(directory: Path) -> Checkpoint:
    finished = [path for path in directory.glob("commits/*") if path.name.isdigit()]
    if not finished:
        return Checkpoint(None, None, {})
    last = max(finished, key=lambda path: int(path.name))
    lines = (directory / "offsets" / last.name).read_text(encoding="utf-8").splitlines()
    positions: Positions = {}
    # The first line is the version, the second the settings; each other line is a source.
    for line in lines[2:]:
        positions |= _positions(line)
    return Checkpoint(int(last.name), last.stat().st_mtime, positions)


def _positions(line: str) -> Positions:
    try:
        offset = json.loads(line)
        return stream_positions(offset)
    except (ValueError, AttributeError):
        # This source is not a topic.
        return {}


def flow_checkpoints(checkpoints: Path | None, graph: Graph) -> dict[str, Checkpoint]:
    """The checkpoints of the flows that have one, if they are on this machine."""
    if checkpoints is None:
        return {}
    found = {
        flow.name: read_checkpoint(checkpoints, flow.target, flow.name)
        for flow in graph.flows.values()
    }
    return {name: checkpoint for name, checkpoint in found.items() if checkpoint is not None}


def topic_ends(bootstrap: str, graph: Graph, settings: SecuritySettings) -> Positions:
    """The ends of the partitions that a pipeline reads from a cluster.

    A pattern can match any topic but internal ones and those that the pipeline writes.
    Raises ClientError if no broker responds.
    """
    topic = "topic "
    read = {node.name.removeprefix(topic) for node in graph.nodes.values() if node.kind == TOPIC}
    written = {node.detail.removeprefix(topic) for node in graph.nodes.values() if node.detail}
    with connect(bootstrap, operation_timeout_ms=REACH_TIMEOUT_MS, **settings) as client:
        topics = client.list_topics()
        if not read <= topics.keys():
            read |= {name for name in topics if not name.startswith("__")} - written
        wanted = [
            TopicPartition(name, number)
            for name in sorted(read & topics.keys())
            for number in range(len(topics[name].partitions))
        ]
        ends = client.list_offsets(dict.fromkeys(wanted, "latest")) if wanted else {}
    return {partition: end.offset for partition, end in ends.items()}


def flow_lags(
    bootstrap: str, checkpoints: Mapping[str, Checkpoint], settings: SecuritySettings
) -> dict[str, int]:
    """The lag of each flow that reads topics, in records. Requests the end offsets from a broker.

    Partitions that do not exist add no lag. The lag is omitted if a partition ends before the
    flow's position: its topic was deleted and created again. Raises ClientError if no broker
    responds.
    """
    wanted = {name: each.positions for name, each in checkpoints.items() if each.positions}
    if not wanted:
        return {}
    partitions = {partition for positions in wanted.values() for partition in positions}
    with connect(bootstrap, operation_timeout_ms=REACH_TIMEOUT_MS, **settings) as client:
        topics = client.list_topics()
        existing = [
            each
            for each in partitions
            if each.topic in topics and each.partition < len(topics[each.topic].partitions)
        ]
        ends = client.list_offsets(dict.fromkeys(existing, "latest")) if existing else {}
    lags = {
        name: [ends[partition].offset - at for partition, at in each.items() if partition in ends]
        for name, each in wanted.items()
    }
    return {name: sum(each) for name, each in lags.items() if min(each, default=0) >= 0}
