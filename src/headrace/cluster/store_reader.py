"""Reads the cluster state from the store, with the versions that later writes check.

Reads a topic again if it changes between the reads of its nodes. Changes neither the store nor the
image.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from headrace.coordination import layout
from headrace.coordination.port import NoNode, Store, Watch
from headrace.model.cluster import BrokerInfo
from headrace.model.topics import PartitionState, TopicState
from headrace.runtime.gather_bounded import gather_bounded

_ATTEMPTS_MAX = 10
_log = logging.getLogger(__name__)

Versions = dict[str, int]


class StoredTopic(NamedTuple):
    state: TopicState
    versions: Versions


async def read_topic(store: Store, name: str) -> StoredTopic | None:
    """A complete topic, or None if it does not exist."""
    problem = ""
    for _ in range(_ATTEMPTS_MAX):
        try:
            data, stat = await store.get(layout.topic_path(name))
        except NoNode:
            return None
        versions = {layout.topic_path(name): stat.version}
        try:
            document = layout.decode_topic(name, data)
            return await _read_other_nodes(store, name, document, versions)
        except NoNode as error:
            # One write changes all nodes of a topic. The topic was probably deleted, or also
            # created again, between two of the reads.
            problem = f"Topic {name} is in the store, but {error} is missing."
        except layout.LayoutError as error:
            # Partitions were probably added between two of the reads.
            problem = str(error)
    raise layout.LayoutError(problem)


async def _read_other_nodes(
    store: Store, name: str, document: layout.TopicDocument, versions: Versions
) -> StoredTopic:
    config_path = layout.topic_config_path(name)
    data, stat = await store.get(config_path)
    versions[config_path] = stat.version
    config = layout.decode_config(config_path, data)
    partitions: list[PartitionState] = []
    for first in layout.state_node_partitions(len(document.assignment)):
        path = layout.states_path(name, first)
        data, stat = await store.get(path)
        versions[path] = stat.version
        assignment = document.assignment[first : first + layout.PARTITIONS_PER_NODE]
        partitions += layout.decode_states(path, data, document.topic_id, assignment)
    for index, (adding, removing) in document.reassignments.items():
        partitions[index] = replace(partitions[index], adding=adding, removing=removing)
    # Replicas and states are in different nodes. If the topic changed, they might not match.
    stat_after = await store.exists(layout.topic_path(name))
    if stat_after is None or stat_after.version != versions[layout.topic_path(name)]:
        raise layout.LayoutError(f"Topic {name} changes faster than it can be read.")
    return StoredTopic(TopicState(name, document.topic_id, tuple(partitions), config), versions)


async def read_states(
    store: Store, topic: TopicState, first: int
) -> tuple[list[PartitionState], int] | None:
    """The partition states in one node, and its version; None if they do not match the topic."""
    path = layout.states_path(topic.name, first)
    part = topic.partitions[first : first + layout.PARTITIONS_PER_NODE]
    try:
        data, stat = await store.get(path)
        assignment = [state.replicas for state in part]
        read = layout.decode_states(path, data, topic.topic_id, assignment)
        states = [
            replace(state, adding=known.adding, removing=known.removing)
            if known.adding or known.removing
            else state
            for state, known in zip(read, part, strict=True)
        ]
    except (NoNode, layout.LayoutError):
        return None
    return states, stat.version


async def read_changes(store: Store, watch: Watch | None = None) -> layout.ChangeLog:
    return layout.decode_changes((await store.get(layout.CHANGES, watch))[0])


async def read_brokers(store: Store, watch: Watch | None = None) -> dict[int, BrokerInfo]:
    async def read(name: str) -> BrokerInfo | None:
        try:
            data, stat = await store.get(layout.broker_path(int(name)))
        except NoNode:
            return None
        return layout.decode_broker(int(name), data, stat.czxid)

    found = await gather_bounded(read, await store.children(layout.BROKER_IDS, watch))
    return {info.node_id: info for info in found if info is not None}


async def read_broker_configs(
    store: Store,
) -> tuple[dict[int | None, Mapping[str, str]], Versions]:
    configs: dict[int | None, Mapping[str, str]] = {}
    versions: Versions = {}
    for name in await store.children(layout.BROKER_CONFIGS):
        path = layout.broker_config_path(layout.broker_of_config(name))
        data, stat = await store.get(path)
        versions[path] = stat.version
        configs[layout.broker_of_config(name)] = layout.decode_config(path, data)
    return configs, versions


async def read_group_configs(store: Store) -> tuple[dict[str, Mapping[str, str]], Versions]:
    configs: dict[str, Mapping[str, str]] = {}
    versions: Versions = {}
    for name in await store.children(layout.GROUP_CONFIGS):
        path = f"{layout.GROUP_CONFIGS}/{name}"
        try:
            data, stat = await store.get(path)
        except NoNode:
            continue
        versions[path] = stat.version
        configs[layout.group_of_config(name)] = layout.decode_config(path, data)
    return configs, versions


async def read_user_names(store: Store) -> list[str]:
    names = map(layout.user_of_config, await store.children(layout.USER_CONFIGS))
    return [name for name in names if name is not None]


async def read_users(
    store: Store, users: Iterable[str]
) -> tuple[dict[str, Mapping[str, str]], Versions, dict[str, bool]]:
    """The settings of each user, the versions of their nodes, and users whose node has children.

    The settings of a user that does not exist are empty.
    """
    versions: Versions = {}
    users_with_clients: dict[str, bool] = {}

    async def read(user: str) -> tuple[str, Mapping[str, str]]:
        path = layout.user_config_path(user)
        try:
            data, stat = await store.get(path)
            versions[path] = stat.version
            if stat.cversion > 0:
                users_with_clients[user] = True
            return user, layout.decode_config(path, data) if data else {}
        except NoNode:
            return user, {}
        except layout.LayoutError as error:
            # Only this user cannot log in.
            _log.error("user ignored: error=%s", error)
            return user, {}

    found = dict(await gather_bounded(read, users))
    return found, versions, users_with_clients


async def read_cluster_id(store: Store) -> str:
    return layout.decode_cluster_id((await store.get(layout.CLUSTER_ID))[0])
