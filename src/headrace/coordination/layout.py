"""Where everything stands in the store: paths, and the documents at them.

Owns the names and the JSON of what a cluster agrees on; the same for the embedded store and for
ZooKeeper. It does no I/O and decides nothing. A document names its version; a field that a reader
does not know is left alone.

    /cluster/id               {"id"}: made once
    /controller               ephemeral {"broker"}: who is the controller
    /controller_epoch         a number; its node's version fences every write of a controller (B8)
    /brokers/ids/N            ephemeral {"endpoints", "rack"}; its czxid is the broker's epoch (B6)
    /brokers/incarnations/N   empty; its node's version counts the registrations of broker N
    /brokers/topics/T         {"topic_id", "assignment"}: the replicas of each partition
    /brokers/topics/T/state-F states of partitions F to F+99, see encode_states
    /config/topics/T          {"config"}: the topic's own settings, made and deleted with it
    /config/brokers/N         {"config"}: dynamic settings of a broker; `<default>` is for all
    /config/users, /config/clients, /acl, /reassignments   room for users, quotas, ACLs, moves
    /producer_ids             {"next"}: the first producer id that was never given out

1. Everything of one topic fits in one request of the store, up to 10,000 partitions of three
   replicas: that is why the state of a partition is a row and not an object.
2. A registration changes /brokers/incarnations/N in the same `multi`, so that whoever removes
   /brokers/ids/N for a dead process can check that it is still that process's (a new node starts
   at version 0 again and would not tell).
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from headrace.model.cluster import BrokerInfo, Endpoint
from headrace.model.topics import PartitionState

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_INCARNATIONS = "/brokers/incarnations"
TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
PRODUCER_IDS = "/producer_ids"
ROOMS = (
    "/cluster",
    "/brokers",
    BROKER_IDS,
    BROKER_INCARNATIONS,
    TOPICS,
    "/config",
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    "/config/users",
    "/config/clients",
    "/acl",
    "/reassignments",
)
"""Nodes that only hold others, each after its parent."""

DEFAULT_BROKER = "<default>"
PARTITIONS_PER_NODE = 100
PRODUCER_IDS_PER_BLOCK = 1000
_STATE_PREFIX = "state-"
_VERSION = 1


class LayoutError(Exception):
    """A document in the store that cannot be understood."""


class TopicDocument(NamedTuple):
    topic_id: UUID
    assignment: tuple[tuple[int, ...], ...]


def broker_path(node_id: int) -> str:
    return f"{BROKER_IDS}/{node_id}"


def incarnation_path(node_id: int) -> str:
    return f"{BROKER_INCARNATIONS}/{node_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def states_path(topic: str, partition: int) -> str:
    """The node that holds the state of this partition, and of its hundred."""
    first = partition - partition % PARTITIONS_PER_NODE
    return f"{TOPICS}/{topic}/{_STATE_PREFIX}{first}"


def states_firsts(partition_count: int) -> range:
    """The first partition of each state node of a topic."""
    return range(0, partition_count, PARTITIONS_PER_NODE)


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(node_id: int | None) -> str:
    return f"{BROKER_CONFIGS}/{DEFAULT_BROKER if node_id is None else node_id}"


def broker_of_config(name: str) -> int | None:
    """The broker, or None for all, that a child of BROKER_CONFIGS is about."""
    return None if name == DEFAULT_BROKER else int(name)


def id_text(id_: UUID) -> str:
    """An id as Kafka writes it: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(id_.bytes).rstrip(b"=").decode()


def id_from_text(text: str) -> UUID:
    return UUID(bytes=urlsafe_b64decode(text + "=="))


def encode_cluster_id(cluster_id: str) -> bytes:
    return _encode({"id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return str(_decode(CLUSTER_ID, data)["id"])


def encode_controller(node_id: int) -> bytes:
    return _encode({"broker": node_id})


def decode_controller(data: bytes) -> int:
    return int(_decode(CONTROLLER, data)["broker"])


def encode_controller_epoch(epoch: int) -> bytes:
    return b"%d" % epoch


def decode_controller_epoch(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise LayoutError(f"{CONTROLLER_EPOCH} holds {data[:40]!r}, not a number.") from None


def encode_broker(endpoints: Iterable[Endpoint], rack: str | None) -> bytes:
    rows = [
        {"listener": e.listener, "host": e.host, "port": e.port, "protocol": e.protocol}
        for e in endpoints
    ]
    return _encode({"endpoints": rows, "rack": rack})


def decode_broker(node_id: int, data: bytes, epoch: int) -> BrokerInfo:
    document = _decode(broker_path(node_id), data)
    endpoints = tuple(
        Endpoint(row["listener"], row["host"], row["port"], row["protocol"])
        for row in document["endpoints"]
    )
    return BrokerInfo(node_id, endpoints, document["rack"], epoch)


def encode_topic(topic: TopicDocument) -> bytes:
    return _encode({"topic_id": id_text(topic.topic_id), "assignment": topic.assignment})


def decode_topic(name: str, data: bytes) -> TopicDocument:
    document = _decode(topic_path(name), data)
    assignment = tuple(tuple(replicas) for replicas in document["assignment"])
    return TopicDocument(id_from_text(document["topic_id"]), assignment)


def encode_states(states: Iterable[PartitionState], controller_epoch: int) -> bytes:
    """A row for each: leader, leader epoch, partition epoch, and (member, its epoch) of the ISR."""
    rows = [
        (
            state.leader,
            state.leader_epoch,
            state.partition_epoch,
            tuple(zip(state.isr, state.isr_epochs, strict=True)),
        )
        for state in states
    ]
    return _encode({"controller_epoch": controller_epoch, "partitions": rows})


def decode_states(
    path: str, data: bytes, assignment: Sequence[tuple[int, ...]]
) -> list[PartitionState]:
    """States of the partitions whose replicas are given, in order."""
    rows = _decode(path, data)["partitions"]
    if len(rows) != len(assignment):
        raise LayoutError(f"{path} holds {len(rows)} partitions, not {len(assignment)}.")
    return [
        PartitionState(
            leader,
            leader_epoch,
            replicas,
            tuple(member for member, _ in isr),
            partition_epoch,
            tuple(epoch for _, epoch in isr),
        )
        for (leader, leader_epoch, partition_epoch, isr), replicas in zip(
            rows, assignment, strict=True
        )
    ]


def encode_config(config: Mapping[str, str]) -> bytes:
    return _encode({"config": dict(sorted(config.items()))})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    return dict(_decode(path, data)["config"])


def encode_producer_ids(next_id: int) -> bytes:
    return _encode({"next": next_id})


def decode_producer_ids(data: bytes) -> int:
    return int(_decode(PRODUCER_IDS, data)["next"])


def _encode(document: dict[str, Any]) -> bytes:
    return json.dumps({"version": _VERSION} | document, separators=(",", ":")).encode()


def _decode(path: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
        version = document["version"]
    except (ValueError, KeyError, TypeError):
        raise LayoutError(f"{path} holds {data[:40]!r}, not a document.") from None
    if version > _VERSION:
        raise LayoutError(f"{path} was written by a newer Headrace (version {version}).")
    return document  # type: ignore[no-any-return]
