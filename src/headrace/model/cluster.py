"""The cluster image of one broker: brokers, topics, partition leaders, settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from headrace.model.acls import Acl
from headrace.model.quotas import Entity
from headrace.model.tokens import Token
from headrace.model.topics import PartitionState, TopicState


@dataclass(frozen=True, slots=True)
class Endpoint:
    listener: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"

    @property
    def address(self) -> str:
        """`host:port` as clients expect it; an IPv6 address is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    node_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    """The epoch of the last registration, if the broker still has all data of it; otherwise -1."""
    kept_since: int = -1
    """The broker also has all data of earlier registrations from this epoch on; -1: of none."""
    lost_until: int = -1
    """The data of registrations up to this epoch was in another or newer directory, and is lost."""
    is_restarted: bool = False
    """Whether this is the first registration of a process."""

    def kept(self, epoch: int) -> bool:
        """Whether the broker still has all data that it had under a registration."""
        return has_kept(epoch, self.epoch, self.previous_epoch, self.kept_since)


def has_kept(epoch: int, broker_epoch: int, previous_epoch: int, kept_since: int) -> bool:
    """See `BrokerInfo.kept`."""
    first = previous_epoch if kept_since < 0 else kept_since
    return epoch == broker_epoch or 0 <= first <= epoch <= previous_epoch


class LiveBroker(NamedTuple):
    """A broker that the controller considers live (see `liveness_machine`)."""

    epoch: int
    previous_epoch: int = -1
    is_stopping: bool = False
    """Whether it has requested a controlled shutdown."""
    kept_since: int = -1
    lost_until: int = -1
    """See BrokerInfo."""

    def kept(self, epoch: int) -> bool:
        """Whether the broker still has all data that it had under a registration."""
        return has_kept(epoch, self.epoch, self.previous_epoch, self.kept_since)


@dataclass(slots=True)
class ClusterImage:
    """The image. `cluster.live_image` changes it on the loop; all other code only reads it."""

    cluster_id: str
    controller_id: int = -1
    brokers: dict[int, BrokerInfo] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    names_by_id: dict[UUID, str] = field(default_factory=dict)
    broker_configs: dict[int | None, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic broker settings by node id; the key None has the defaults for all brokers."""
    group_configs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings of consumer groups, by group id."""
    users: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Stored settings by user name: credentials under the name of their mechanism, and quotas."""
    acls: dict[int, tuple[Acl, ...] | None] = field(default_factory=dict)
    """ACLs by the number of their node in the store; None for a node that cannot be read."""
    tokens: dict[str, Token] = field(default_factory=dict)
    """Delegation tokens by id. Expired ones can be among them."""
    quotas: dict[Entity, Mapping[str, float]] = field(default_factory=dict)
    """Limits by entity and kind."""

    def put_topic(self, topic: TopicState) -> None:
        self.topics[topic.name] = topic
        self.names_by_id[topic.topic_id] = topic.name

    def drop_topic(self, name: str) -> TopicState | None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            self.names_by_id.pop(topic.topic_id, None)
        return topic

    def partition(self, topic: str, index: int) -> PartitionState | None:
        state = self.topics.get(topic)
        if state is None or not 0 <= index < len(state.partitions):
            return None
        return state.partitions[index]
