"""Checks whether a topic can be created, and selects the brokers of its replicas.

Pure: the image, the limits and a random number are arguments. Returns the new states, or raises
ApiError. Does not change the image.

1. A partition's replicas are different brokers, and its first leader is a registered broker.
2. Leaders are distributed evenly over the registered brokers, and the replicas of a partition over
   as many racks as possible.
3. A broker whose connection was just lost, or that is stopping, gets a replica only if too few
   other brokers are registered. Kafka treats fenced brokers in the same way.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from headrace.model.cluster import BrokerInfo, ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.model.topics import (
    INTERNAL_TOPICS,
    NO_LEADER,
    PartitionState,
    TopicState,
    already_exists,
    check_topic_name,
    collision_key,
)

DEFAULT = -1
_RESERVED_TOPICS = INTERNAL_TOPICS | {"__cluster_metadata"}
_RESERVED_IDS = (UUID(int=0), UUID(int=1))

Assignment = tuple[tuple[int, ...], ...]


class TopicLimits(NamedTuple):
    partitions_default: int = 1
    replication_factor_default: int = 1
    partitions_per_topic_max: int = 10_000
    """The store supports so many partitions per topic: see rule 1 of coordination/layout.py."""
    partitions_per_broker_max: int = 20_000


class NewTopic(NamedTuple):
    """The topic that a client requests. DEFAULT: the broker chooses the number."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignment: Mapping[int, Sequence[int]] | None = None
    internal: bool = False
    """Requested by a broker. Clients cannot create internal topics."""
    topic_id: UUID | None = None
    """The id in existing logs; None for a new id."""
    leader_epochs: Sequence[int] = ()
    """The initial leader epoch of each partition: above all in an existing log, otherwise 0."""


def decide_creation(
    image: ClusterImage,
    new: NewTopic,
    limits: TopicLimits,
    start: int,
    replicas_before: int,
    avoided: Collection[int] = (),
) -> tuple[PartitionState, ...]:
    """The initial state of each partition of a new topic.

    The round-robin over the brokers starts at `start`, which can be any number. `replicas_before`
    is the number of all replicas of the cluster, including those being created. `avoided` are
    registered brokers that are probably stopping or have failed. They get replicas only if there
    are too few others.
    """
    _check_new_name(image, new)
    if new.assignment:
        if (new.partitions, new.replication_factor) != (DEFAULT, DEFAULT):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                "With an assignment, omit the number of partitions and the replication "
                "factor (-1).",
            )
        _check_count(len(new.assignment), limits)
        assignment = _checked_assignment(image, new.assignment)
    else:
        assignment = _assign(image, new, limits, start, avoided)
    _check_load(image, assignment, limits, replicas_before)
    states = [_first_state(image, replicas) for replicas in assignment]
    for index, epoch in enumerate(new.leader_epochs):
        states[index] = replace(states[index], leader_epoch=epoch)
    return tuple(states)


def decide_growth(
    image: ClusterImage,
    name: str,
    count: int,
    assignment: Sequence[Sequence[int]] | None,
    limits: TopicLimits,
    start: int,
    replicas_before: int,
    avoided: Collection[int] = (),
) -> tuple[PartitionState, ...]:
    """The initial states of the partitions that must be added for `count` partitions."""
    topic = existing(image, name)
    _reject_internal(name)
    old_count = len(topic.partitions)
    if count <= old_count:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The number of partitions of {name} is {old_count}; the new number, {count}, must be "
            "greater.",
        )
    _check_count(count, limits)
    first = topic.partitions[0]
    replication_factor = len(first.replicas) - len(first.removing)
    if assignment is None:
        brokers = _usable(image, avoided, replication_factor)
        start = _position_after(brokers, topic.partitions[-1].replicas[0], start)
        added = assign_replicas(brokers, count - old_count, replication_factor, start)
        added = _with_avoided_last(added, avoided)
    elif len(assignment) != count - old_count:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{count - old_count} partitions would be added to {name}, but the request has "
            f"{len(assignment)} assignments.",
        )
    else:
        added = tuple(tuple(replicas) for replicas in assignment)
        for index, replicas in enumerate(added, old_count):
            _check_replicas(image, index, replicas, replication_factor)
    _check_load(image, added, limits, replicas_before)
    return tuple(_first_state(image, replicas) for replicas in added)


def decide_deletion(
    image: ClusterImage, name: str, topic_id: UUID | None, internal: bool
) -> TopicState:
    """The topic to delete, after all checks."""
    topic = existing(image, name)
    if topic_id is not None and topic.topic_id != topic_id:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "Unknown topic id.")
    if not internal:
        _reject_internal(name)
    return topic


def existing(image: ClusterImage, name: str) -> TopicState:
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unknown topic {name[:260]!r}.")
    return topic


def assign_replicas(
    brokers: Sequence[BrokerInfo], partitions: int, replication_factor: int, start: int
) -> Assignment:
    """Assign leaders round-robin from `start`, and the next brokers of the ring as followers.

    The followers shift by one broker in each round. Without the shift, one broker would become the
    leader of all partitions of a dead broker. A rack gets a second replica only after every other
    rack has one.
    """
    ring = _interleaved(brokers)
    size = len(ring)
    if replication_factor > size:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor {replication_factor} is larger than the number of live "
            f"brokers, {size}.",
        )
    assignment = []
    for partition in range(partitions):
        leader = (start + partition) % size
        others = [ring[(leader + step) % size] for step in range(1, size)]
        # The shift changes only between rounds, so that each round is even, also with racks.
        shift = (start + partition // size) % max(1, size - 1)
        order = [ring[leader], *others[shift:], *others[:shift]]
        assignment.append(_over_racks(order, replication_factor))
    return tuple(assignment)


def id_from_entropy(entropy: bytes) -> UUID | None:
    """A topic id from 16 random bytes, or None if the id is reserved or starts with a dash.

    Zero and one are special ids for Kafka's clients. Command-line tools would read an id that
    starts with a dash as an option.
    """
    id_ = UUID(bytes=entropy, version=4)
    # The first six bits are the first character of the text, and '-' stands for 62.
    if id_ in _RESERVED_IDS or id_.bytes[0] >> 2 == 62:
        return None
    return id_


def _check_new_name(image: ClusterImage, new: NewTopic) -> None:
    name = new.name
    check_topic_name(name)
    if not new.internal:
        _reject_internal(name)
    if name in image.topics:
        raise already_exists(name)
    if "." not in name and "_" not in name:
        return
    key = collision_key(name)
    for other in image.topics:
        if len(other) == len(name) and collision_key(other) == key:
            raise ApiError(
                ErrorCode.INVALID_TOPIC,
                f"The name {name!r} collides with the existing topic {other!r}: metrics show both "
                "'.' and '_' as '_'.",
            )


def _reject_internal(name: str) -> None:
    if name in _RESERVED_TOPICS:
        raise ApiError(
            ErrorCode.INVALID_TOPIC, f"{name!r} is an internal topic. Only brokers can change it."
        )


def _assign(
    image: ClusterImage,
    new: NewTopic,
    limits: TopicLimits,
    start: int,
    avoided: Collection[int],
) -> Assignment:
    partitions, replication_factor = new.partitions, new.replication_factor
    if replication_factor == 0 or replication_factor < DEFAULT:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "The replication factor must be larger than 0, or -1 for the default.",
        )
    if partitions == 0 or partitions < DEFAULT:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            "The number of partitions must be larger than 0, or -1 for the default.",
        )
    if partitions == DEFAULT:
        partitions = limits.partitions_default
    if replication_factor == DEFAULT:
        replication_factor = limits.replication_factor_default
    _check_count(partitions, limits)
    brokers = _usable(image, avoided, replication_factor)
    assignment = assign_replicas(brokers, partitions, replication_factor, start)
    return _with_avoided_last(assignment, avoided)


def _checked_assignment(image: ClusterImage, assignment: Mapping[int, Sequence[int]]) -> Assignment:
    if sorted(assignment) != list(range(len(assignment))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The assignment must contain all partitions from 0.",
        )
    replication_factor = len(assignment[0])
    for index in range(len(assignment)):
        _check_replicas(image, index, assignment[index], replication_factor)
    return tuple(tuple(assignment[index]) for index in range(len(assignment)))


def _check_replicas(
    image: ClusterImage, index: int, replicas: Sequence[int], replication_factor: int
) -> None:
    unknown = [node for node in replicas if node not in image.brokers]
    if not replicas:
        problem = "contains no broker"
    elif unknown:
        problem = f"contains broker {unknown[0]}, which is not registered"
    elif len(dict.fromkeys(replicas)) != len(replicas):
        problem = "contains a broker more than once"
    elif len(replicas) != replication_factor:
        problem = f"contains {len(replicas)} brokers, but others contain {replication_factor}"
    else:
        return
    raise ApiError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The assignment of partition {index} {problem}."
    )


def _check_count(partitions: int, limits: TopicLimits) -> None:
    if partitions > limits.partitions_per_topic_max:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partitions} partitions exceed headrace.partitions.max, "
            f"{limits.partitions_per_topic_max}.",
        )


def _check_load(
    image: ClusterImage, assignment: Assignment, limits: TopicLimits, replicas_before: int
) -> None:
    after = replicas_before + sum(len(replicas) for replicas in assignment)
    replicas_max = limits.partitions_per_broker_max * len(image.brokers)
    if after > replicas_max:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The cluster would have {after} replicas; its registered brokers can have "
            f"{replicas_max}.",
        )


def _first_state(image: ClusterImage, replicas: tuple[int, ...]) -> PartitionState:
    isr = tuple(node for node in replicas if node in image.brokers)
    leader = isr[0] if isr else NO_LEADER
    return PartitionState(
        leader, 0, replicas, isr, isr_epochs=tuple(image.brokers[node].epoch for node in isr)
    )


def _usable(
    image: ClusterImage, avoided: Collection[int], replication_factor: int
) -> list[BrokerInfo]:
    """The registered brokers that are not avoided; all registered brokers if these are too few."""
    brokers = [image.brokers[node_id] for node_id in sorted(image.brokers)]
    others = [broker for broker in brokers if broker.node_id not in avoided]
    return others if len(others) >= replication_factor else brokers


def _with_avoided_last(assignment: Assignment, avoided: Collection[int]) -> Assignment:
    """Avoided brokers come last in each list of replicas: the first replica is the first leader."""
    return tuple(
        tuple(sorted(replicas, key=lambda node: node in avoided)) for replicas in assignment
    )


def _interleaved(brokers: Sequence[BrokerInfo]) -> list[BrokerInfo]:
    """The brokers in an order in which neighbours are in different racks, if possible."""
    racks: dict[str, list[BrokerInfo]] = {}
    for broker in sorted(brokers, key=lambda broker: (broker.rack or "", broker.node_id)):
        racks.setdefault(broker.rack or "", []).append(broker)
    longest = max((len(rack) for rack in racks.values()), default=0)
    return [rack[i] for i in range(longest) for rack in racks.values() if i < len(rack)]


def _position_after(brokers: Sequence[BrokerInfo], node_id: int, start: int) -> int:
    """The position after this broker, so that leaders remain evenly distributed; else `start`."""
    ring = [broker.node_id for broker in _interleaved(brokers)]
    return ring.index(node_id) + 1 if node_id in ring else start


def _over_racks(order: Sequence[BrokerInfo], count: int) -> tuple[int, ...]:
    """The first `count` brokers in order; a rack is used again only after every other rack."""
    chosen: list[int] = []
    waiting = list(order)
    while len(chosen) < count:
        racks: dict[str | None, None] = {}
        later = []
        for broker in waiting:
            if broker.rack in racks and len(chosen) < count:
                later.append(broker)
            elif len(chosen) < count:
                racks[broker.rack] = None
                chosen.append(broker.node_id)
        waiting = later
    return tuple(chosen)
