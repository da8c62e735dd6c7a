"""Paths and documents of the store.

Owns the names and the JSON of the shared cluster state, for the embedded store and for ZooKeeper.
Does no I/O. Each document has a version; readers ignore unknown fields.

    /cluster/id               {"id"}: created once
    /controller               ephemeral {"broker"}: the current controller
    /controller_epoch         a number; each write of a controller checks this node's version (B8)
    /brokers/ids/N            ephemeral {"endpoints", "rack", "previous_epoch", "kept_since",
                              "lost_until", "restarted"}; its czxid is the broker's epoch (B6),
                              see BrokerInfo
    /brokers/incarnations/N   {"directory_id", "kept_since", "lost_until"} of the last registration
                              of broker N; the node's version counts registrations, and its mzxid
                              is the last epoch
    /brokers/topics/T         {"topic_id", "assignment", "moves"}: the replicas of each partition;
                              per reassignment, the replicas to add and to remove
    /brokers/topics/T/state-F states of partitions F to F+99, see encode_states
    /config/topics/T          {"config"}: the topic's settings, created and deleted with it
    /config/brokers/N         {"config"}: dynamic settings of a broker; `<default>` is for all
    /config/groups/G          {"config"}: a group's settings; its name is URL-encoded
    /config/users/U           {"config"}: SCRAM credentials and quotas of user U, as Kafka stores
                              them; its name is URL-encoded, `<default>` is for all other users
    /config/users/U/clients/C {"config"}: quotas of client id C of user U
    /config/clients/C         {"config"}: quotas of client id C; `<default>` as above
    /config/ips/A             {"config"}: quotas of IP address A; `<default>` as above
    /acl/NN                   {"acls"}: ACLs, in 64 nodes 00 to 3f; see coordination/acl_layout.py
    /delegation_token/tokens/ID  a delegation token: see token_layout.py
    /cluster/secret           {"secret"}: the password with which brokers log in to each other
    /producer_ids             {"next"}: the first producer id that was never allocated
    /changes                  {"last", "rows"}: the latest changes of the controller, see ChangeRow

1. All nodes of one topic fit into one request to the store, up to 10,000 partitions of three
   replicas. For this reason the state of a partition is a row and not an object.
2. A registration also changes /brokers/incarnations/N, in the same `multi`. A controller that
   removes /brokers/ids/N of a dead process checks the version of this node, so it cannot remove the
   registration of the next process. The version of /brokers/ids/N would not show this, because a
   new node has version 0 again.
3. Each `multi` that changes topics, states or settings also sets /changes. So a broker that watches
   this node is notified of all changes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from headrace.model.cluster import BrokerInfo, Endpoint
from headrace.model.ids import id_from_text, id_text
from headrace.model.quotas import CLIENT_ID, IP, USER, Entity, entity_of
from headrace.model.topics import PartitionState, TopicState

CLUSTER_ID = "/cluster/id"
CLUSTER_SECRET = "/cluster/secret"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_INCARNATIONS = "/brokers/incarnations"
TOPICS = "/brokers/topics"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
GROUP_CONFIGS = "/config/groups"
USER_CONFIGS = "/config/users"
ACLS = "/acl"
DELEGATION_TOKENS = "/delegation_token"
CLIENT_CONFIGS = "/config/clients"
IP_CONFIGS = "/config/ips"
PRODUCER_IDS = "/producer_ids"
CHANGES = "/changes"
BASE_NODES = (
    "/cluster",
    "/brokers",
    BROKER_IDS,
    BROKER_INCARNATIONS,
    TOPICS,
    "/config",
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    USER_CONFIGS,
    CLIENT_CONFIGS,
    IP_CONFIGS,
    ACLS,
    DELEGATION_TOKENS,
    f"{DELEGATION_TOKENS}/tokens",
)
"""Nodes that only have children, each after its parent."""

SENSITIVE = (CLUSTER_SECRET, USER_CONFIGS, BROKER_CONFIGS, DELEGATION_TOKENS)
"""Nodes with secrets, with all nodes below them."""

DEFAULT_BROKER = "<default>"
DEFAULT_ENTITY = "<default>"
PARTITIONS_PER_NODE = 100
PRODUCER_IDS_PER_BLOCK = 1000
CHANGE_ROWS_MAX = 200
CHANGE_BYTES_MAX = 16_000
"""The limit of all names in /changes together, because each change writes them again."""
_STATE_PREFIX = "state-"
_VERSION = 1


class LayoutError(Exception):
    """A document in the store that cannot be decoded."""


class TopicDocument(NamedTuple):
    topic_id: UUID
    assignment: tuple[tuple[int, ...], ...]
    """The replicas of each partition."""
    reassignments: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    """The replicas to add, and the replicas to remove, by partition."""


class DirectoryHistory(NamedTuple):
    """Facts about a broker's data directory, in its registration; see BrokerInfo."""

    directory_id: str = ""
    """Empty if unknown."""
    kept_since: int = -1
    lost_until: int = -1


UNKNOWN_DIRECTORY = DirectoryHistory()


class ChangeRow(NamedTuple):
    """The name of an object to read again. Each change has a row; a row can be without a change."""

    kind: str
    """"topic", "states" (one node of states), "config", "broker", "group" (settings), "user"
    (credentials and quotas of a user), "acl" (one node of ACLs), "quota" (other quotas; the name
    is a path), or "token" (a delegation token)."""
    name: str
    first: int = 0
    """The first partition of the node, for "states"."""


class ChangeLog(NamedTuple):
    last: int
    """The number of the last row. The row before it has the number before it, and so on."""
    rows: tuple[ChangeRow, ...]

    def since(self, seen: int) -> tuple[ChangeRow, ...] | None:
        """The rows after row number `seen`; None if some of them were dropped."""
        count = self.last - seen
        if not 0 <= count <= len(self.rows):
            return None
        return self.rows[len(self.rows) - count :]

    def with_rows(self, rows: Iterable[ChangeRow]) -> "ChangeLog":
        """A copy with these rows added, and the oldest rows dropped if a limit is exceeded."""
        added = tuple(rows)
        kept = (*self.rows, *added)[-CHANGE_ROWS_MAX:]
        size = sum(len(row.name) for row in kept)
        while size > CHANGE_BYTES_MAX:
            size -= len(kept[0].name)
            kept = kept[1:]
        return ChangeLog(self.last + len(added), kept)


def is_sensitive(path: str) -> bool:
    """Whether a node contains secrets, so that only the brokers may read it."""
    return any(path == each or path.startswith(each + "/") for each in SENSITIVE)


def broker_path(node_id: int) -> str:
    return f"{BROKER_IDS}/{node_id}"


def incarnation_path(node_id: int) -> str:
    return f"{BROKER_INCARNATIONS}/{node_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def states_path(topic: str, partition: int) -> str:
    """The node with the states of this partition and of up to 99 others."""
    first = partition - partition % PARTITIONS_PER_NODE
    return f"{TOPICS}/{topic}/{_STATE_PREFIX}{first}"


def state_node_partitions(partition_count: int) -> range:
    """The first partition of each state node of a topic; a node holds 100 partitions."""
    return range(0, partition_count, PARTITIONS_PER_NODE)


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(node_id: int | None) -> str:
    return f"{BROKER_CONFIGS}/{DEFAULT_BROKER if node_id is None else node_id}"


def broker_of_config(name: str) -> int | None:
    """The broker of a child of BROKER_CONFIGS, or None for all brokers."""
    return None if name == DEFAULT_BROKER else int(name)


def group_config_path(group: str) -> str:
    """The name is URL-encoded, because a group name can be invalid as a node name."""
    name = quote(group, safe="")
    return f"{GROUP_CONFIGS}/{name.replace('.', '%2E') if name in ('.', '..') else name}"


def group_of_config(name: str) -> str:
    """The group of a child of GROUP_CONFIGS."""
    return unquote(name)


def user_config_path(user: str) -> str:
    """A user can have any name. Names are encoded as Kafka encodes them."""
    return f"{USER_CONFIGS}/{_entity_name(user)}"


def user_of_config(name: str) -> str | None:
    """The user of a child of USER_CONFIGS; None for the defaults of all users."""
    return None if name == DEFAULT_ENTITY else unquote(name)


def _entity_name(name: str | None) -> str:
    if name is None:
        return DEFAULT_ENTITY
    encoded = quote(name, safe="").replace("~", "%7E")
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def user_clients_path(user: str | None) -> str:
    """The node whose children are the client ids with quotas of one user, or of all others."""
    return f"{USER_CONFIGS}/{_entity_name(user)}/clients"


def quota_path(entity: Entity) -> str:
    names = dict(entity)
    if IP in names:
        return f"{IP_CONFIGS}/{names[IP] or DEFAULT_ENTITY}"
    if USER not in names:
        return f"{CLIENT_CONFIGS}/{_entity_name(names[CLIENT_ID])}"
    if CLIENT_ID not in names:
        return f"{USER_CONFIGS}/{_entity_name(names[USER])}"
    return f"{user_clients_path(names[USER])}/{_entity_name(names[CLIENT_ID])}"


def entity_of_path(path: str) -> Entity:
    """The entity whose quotas are stored at a path; see `quota_path`."""
    _, _, kind, *rest = path.split("/")
    first, last = user_of_config(rest[0]), user_of_config(rest[-1])
    if kind == "ips":
        return ((IP, first),)
    if kind == "clients":
        return ((CLIENT_ID, first),)
    return ((USER, first),) if len(rest) == 1 else entity_of({USER: first, CLIENT_ID: last})


def encode_cluster_id(cluster_id: str) -> bytes:
    return encode_document({"id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return str(decode_document(CLUSTER_ID, data)["id"])


def encode_cluster_secret(secret: str) -> bytes:
    return encode_document({"secret": secret})


def decode_cluster_secret(data: bytes) -> str:
    return str(decode_document(CLUSTER_SECRET, data)["secret"])


def encode_controller(node_id: int) -> bytes:
    return encode_document({"broker": node_id})


def decode_controller(data: bytes) -> int:
    return int(decode_document(CONTROLLER, data)["broker"])


def encode_controller_epoch(epoch: int) -> bytes:
    return b"%d" % epoch


def decode_controller_epoch(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise LayoutError(f"{CONTROLLER_EPOCH} contains {data[:40]!r}, not a number.") from None


def encode_broker(
    endpoints: Iterable[Endpoint],
    rack: str | None,
    previous_epoch: int = -1,
    history: DirectoryHistory = UNKNOWN_DIRECTORY,
    *,
    is_restarted: bool = False,
) -> bytes:
    rows = [
        {"listener": e.listener, "host": e.host, "port": e.port, "protocol": e.protocol}
        for e in endpoints
    ]
    return encode_document(
        {
            "endpoints": rows,
            "rack": rack,
            "previous_epoch": previous_epoch,
            "kept_since": history.kept_since,
            "lost_until": history.lost_until,
            "restarted": is_restarted,
        }
    )


def decode_broker(node_id: int, data: bytes, epoch: int) -> BrokerInfo:
    document = decode_document(broker_path(node_id), data)
    endpoints = tuple(
        Endpoint(row["listener"], row["host"], row["port"], row["protocol"])
        for row in document["endpoints"]
    )
    return BrokerInfo(
        node_id,
        endpoints,
        document["rack"],
        epoch,
        document.get("previous_epoch", -1),
        document.get("kept_since", -1),
        document.get("lost_until", -1),
        document.get("restarted", False),
    )


def encode_incarnation(history: DirectoryHistory) -> bytes:
    return encode_document(history._asdict())


def decode_incarnation(node_id: int, data: bytes) -> DirectoryHistory:
    if not data:
        return UNKNOWN_DIRECTORY  # An earlier version of Headrace wrote the node.
    document = decode_document(incarnation_path(node_id), data)
    return DirectoryHistory(
        document["directory_id"], document.get("kept_since", -1), document["lost_until"]
    )


def encode_topic(topic: TopicDocument) -> bytes:
    document: dict[str, Any] = {
        "topic_id": id_text(topic.topic_id),
        "assignment": topic.assignment,
    }
    if topic.reassignments:
        rows = sorted(topic.reassignments.items())
        document["moves"] = {str(index): change for index, change in rows}
    return encode_document(document)


def decode_topic(name: str, data: bytes) -> TopicDocument:
    document = decode_document(topic_path(name), data)
    assignment = tuple(tuple(replicas) for replicas in document["assignment"])
    reassignments = {
        int(index): (tuple(adding), tuple(removing))
        for index, (adding, removing) in document.get("moves", {}).items()
    }
    return TopicDocument(id_from_text(document["topic_id"]), assignment, reassignments)


def topic_document(topic: TopicState) -> TopicDocument:
    """The content of a topic's node."""
    return TopicDocument(
        topic.topic_id,
        tuple(state.replicas for state in topic.partitions),
        {
            index: (state.adding, state.removing)
            for index, state in enumerate(topic.partitions)
            if state.adding or state.removing
        },
    )


def encode_states(topic_id: UUID, states: Iterable[PartitionState], controller_epoch: int) -> bytes:
    """Encode a row per partition: leader, leader epoch, partition epoch, and the ISR.

    The ISR is a list of (broker, broker epoch). "elr" maps row numbers to the eligible and the last
    known eligible leader replicas, if any exist.
    """
    rows = []
    elr: dict[str, Any] = {}
    for number, state in enumerate(states):
        isr = tuple(zip(state.isr, state.isr_epochs, strict=True))
        rows.append((state.leader, state.leader_epoch, state.partition_epoch, isr))
        if state.elr or state.last_known_elr:
            elr[str(number)] = (state.elr, state.last_known_elr)
    document = {
        "topic_id": id_text(topic_id),
        "controller_epoch": controller_epoch,
        "partitions": rows,
    }
    return encode_document(document | {"elr": elr} if elr else document)


def decode_states(
    path: str, data: bytes, topic_id: UUID, assignment: Sequence[tuple[int, ...]]
) -> list[PartitionState]:
    """The states of partitions with these replicas, in order."""
    document = decode_document(path, data)
    rows = document["partitions"]
    # Earlier versions did not write the topic id.
    if document.get("topic_id", id_text(topic_id)) != id_text(topic_id):
        raise LayoutError(f"{path} belongs to a deleted topic of the same name.")
    if len(rows) != len(assignment):
        raise LayoutError(f"{path} contains {len(rows)} partitions, not {len(assignment)}.")
    states = []
    for number, (leader, leader_epoch, partition_epoch, isr) in enumerate(rows):
        elr, last_known_elr = document.get("elr", {}).get(str(number), ((), ()))
        states.append(
            PartitionState(
                leader,
                leader_epoch,
                assignment[number],
                tuple(member for member, _ in isr),
                partition_epoch,
                tuple(epoch for _, epoch in isr),
                elr=_members(elr),
                last_known_elr=_members(last_known_elr),
            )
        )
    return states


def _members(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((member, epoch) for member, epoch in rows)


def encode_config(config: Mapping[str, str]) -> bytes:
    return encode_document({"config": dict(sorted(config.items()))})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    return dict(decode_document(path, data)["config"])


def encode_producer_ids(next_id: int) -> bytes:
    return encode_document({"next": next_id})


def decode_producer_ids(data: bytes) -> int:
    return int(decode_document(PRODUCER_IDS, data)["next"])


def encode_changes(changes: ChangeLog) -> bytes:
    return encode_document({"last": changes.last, "rows": changes.rows})


def decode_changes(data: bytes) -> ChangeLog:
    document = decode_document(CHANGES, data)
    return ChangeLog(document["last"], tuple(ChangeRow(*row) for row in document["rows"]))


def encode_document(document: dict[str, Any]) -> bytes:
    return json.dumps({"version": _VERSION} | document, separators=(",", ":")).encode()


def decode_document(path: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
        version = document["version"]
    except (ValueError, KeyError, TypeError):
        raise LayoutError(f"{path} contains {data[:40]!r}, not a document.") from None
    if version > _VERSION:
        raise LayoutError(f"{path} was written by a newer Headrace (version {version}).")
    return document  # type: ignore[no-any-return]
