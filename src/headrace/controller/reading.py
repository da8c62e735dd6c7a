"""The cluster's state read out of the store, with the versions that a later write compares.

Owns the order of reads and what to do when the state changes between two of them. It changes
nothing, neither the store nor the image.
"""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.coordination import layout
from headrace.coordination.port import NoNode, Store
from headrace.model.cluster import BrokerInfo
from headrace.model.topics import PartitionState, TopicState

_ATTEMPTS_MAX = 10

Versions = dict[str, int]


class StoredTopic(NamedTuple):
    state: TopicState
    versions: Versions


async def read_topic(store: Store, name: str) -> StoredTopic | None:
    """One topic as a whole, or None if there is none."""
    trouble = ""
    for _ in range(_ATTEMPTS_MAX):
        try:
            data, stat = await store.get(layout.topic_path(name))
        except NoNode:
            return None
        versions = {layout.topic_path(name): stat.version}
        try:
            return await _read_rest(store, name, layout.decode_topic(name, data), versions)
        except NoNode as error:
            # It was deleted while we read, or made again: its nodes come and go together.
            trouble = f"There is a topic {name} in the store, but no {error}."
        except layout.LayoutError as error:
            # Likewise when it grew.
            trouble = str(error)
    raise layout.LayoutError(trouble)


async def _read_rest(
    store: Store, name: str, document: layout.TopicDocument, versions: Versions
) -> StoredTopic:
    config_path = layout.topic_config_path(name)
    data, stat = await store.get(config_path)
    versions[config_path] = stat.version
    config = layout.decode_config(config_path, data)
    partitions: list[PartitionState] = []
    for first in layout.states_firsts(len(document.assignment)):
        path = layout.states_path(name, first)
        data, stat = await store.get(path)
        versions[path] = stat.version
        assignment = document.assignment[first : first + layout.PARTITIONS_PER_NODE]
        partitions += layout.decode_states(path, data, assignment)
    return StoredTopic(TopicState(name, document.topic_id, tuple(partitions), config), versions)


async def read_topic_names(store: Store) -> list[str]:
    return await store.children(layout.TOPICS)


async def read_brokers(store: Store) -> dict[int, BrokerInfo]:
    brokers = {}
    for name in await store.children(layout.BROKER_IDS):
        try:
            data, stat = await store.get(layout.broker_path(int(name)))
        except NoNode:
            continue
        brokers[int(name)] = layout.decode_broker(int(name), data, stat.czxid)
    return brokers


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


async def read_cluster_id(store: Store) -> str:
    return layout.decode_cluster_id((await store.get(layout.CLUSTER_ID))[0])
