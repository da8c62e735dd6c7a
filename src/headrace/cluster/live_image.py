"""This broker's image of the cluster, and the listeners for its changes.

Owns the image, the versions of the nodes from which it was read, and the listeners. Reads the
store, but never writes to it.

1. A change of the image calls all listeners before any other task runs.
2. The ClusterImage object is never replaced, because handlers keep a reference to it.
3. The state of a partition is never replaced by one with a lower partition epoch of the same topic.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from headrace.cluster import acl_reader, quota_reader, store_reader, token_reader
from headrace.cluster.changes import ImageChange, brokers_change, newest, topic_change
from headrace.coordination import acl_layout, layout, token_layout
from headrace.coordination.port import Store, Watch
from headrace.model.acls import Acl
from headrace.model.cluster import ClusterImage
from headrace.model.quotas import Entity, Quotas, user_entity
from headrace.model.tokens import Token
from headrace.model.topics import TopicState

_log = logging.getLogger(__name__)


class LiveImage:
    def __init__(self, store: Store) -> None:
        self.image = ClusterImage("")
        self.versions: dict[str, int] = {}
        """The versions of nodes, by path. Later writes check them."""
        self.replica_count = 0
        """The number of replicas of all partitions in the cluster."""
        self._users_with_clients: dict[str, bool] = {}
        """Users whose node in the store has, or had, children: client ids with quotas."""
        self._is_complete = False
        """Whether the first image is complete. Until then, no listener is called."""
        self._store = store
        self._reading_brokers = asyncio.Lock()
        self._listeners: list[Callable[[ImageChange], None]] = []

    def on_change(self, listener: Callable[[ImageChange], None]) -> None:
        self._listeners.append(listener)

    def set_topic(self, name: str, after: TopicState | None) -> None:
        before = self.image.topics.get(name)
        after = newest(before, after)
        change = topic_change(before, after)
        if change is None:
            return
        self.replica_count += _replicas_of(after) - _replicas_of(before)
        if change.deleted:
            self.image.drop_topic(name)
        if after is not None:
            self.image.put_topic(after)
        self.notify(change)

    def set_broker_config(self, node_id: int | None, config: Mapping[str, str]) -> None:
        self.image.broker_configs[node_id] = config
        self.notify(ImageChange(broker_configs=(node_id,)))

    def set_group_config(self, group: str, config: Mapping[str, str]) -> None:
        """Set the settings of a group. Calls no listener: their users read them from the image."""
        if config:
            self.image.group_configs[group] = config
        else:
            self.image.group_configs.pop(group, None)

    def set_user(self, user: str, config: Mapping[str, str]) -> None:
        before = self.image.users.get(user, {})
        if config:
            self.image.users[user] = config
        else:
            self.image.users.pop(user, None)
        self.set_quotas({user_entity(user): quota_reader.limits_in(user, config)})
        if config != before:
            self.notify(ImageChange(users=((user, before, config),)))

    def set_acls(self, nodes: Mapping[int, tuple[Acl, ...] | None]) -> None:
        changed = {
            node: acls for node, acls in nodes.items() if self.image.acls.get(node, ()) != acls
        }
        self.image.acls.update(nodes)
        if changed:
            self.notify(ImageChange(acls=tuple(changed)))

    def set_tokens(self, found: Mapping[str, Token | None]) -> None:
        """Set some delegation tokens, by id; None removes a token."""
        tokens = self.image.tokens
        new = tuple(id_ for id_, token in found.items() if token and id_ not in tokens)
        removed = tuple(id_ for id_, token in found.items() if token is None and id_ in tokens)
        for token_id, token in found.items():
            if token is None:
                tokens.pop(token_id, None)
            else:
                tokens[token_id] = token
        if new or removed:
            self.notify(ImageChange(new_tokens=new, removed_tokens=removed))

    def set_quotas(self, found: Quotas) -> None:
        """Set the limits of some entities; an entity without limits is removed."""
        known = self.image.quotas
        changed = {
            entity: limits for entity, limits in found.items() if known.get(entity, {}) != limits
        }
        for entity, limits in changed.items():
            if limits:
                known[entity] = limits
            else:
                del known[entity]
        if changed:
            self.notify(ImageChange(has_new_quotas=True))

    def set_controller(self, node_id: int) -> None:
        self.image.controller_id = node_id
        self.notify(ImageChange(has_new_controller=True))

    async def read_topic(self, name: str) -> None:
        found = await store_reader.read_topic(self._store, name)
        for path in _paths_of(name, self.image.topics.get(name)):
            self.versions.pop(path, None)
        if found is not None:
            self.versions |= found.versions
        self.set_topic(name, None if found is None else found.state)

    async def read_states(self, name: str, first: int) -> None:
        """Read one node with partition states, or the complete topic if they do not match it.

        `first` is the first partition of the node.
        """
        topic = self.image.topics.get(name)
        read = None if topic is None else await store_reader.read_states(self._store, topic, first)
        if topic is None or read is None:
            await self.read_topic(name)
            return
        states, self.versions[layout.states_path(name, first)] = read
        partitions = (
            *topic.partitions[:first],
            *states,
            *topic.partitions[first + len(states) :],
        )
        self.set_topic(name, replace(topic, partitions=partitions))

    async def read_broker_configs(self) -> None:
        configs, versions = await store_reader.read_broker_configs(self._store)
        self.versions |= versions
        for node_id, config in configs.items():
            if self.image.broker_configs.get(node_id) != config:
                self.set_broker_config(node_id, config)

    async def read_group_configs(self) -> None:
        configs, versions = await store_reader.read_group_configs(self._store)
        for group in [*self.image.group_configs, *configs]:
            self.versions.pop(layout.group_config_path(group), None)
            self.set_group_config(group, configs.get(group, {}))
        self.versions |= versions

    async def read_users(self, names: Iterable[str] | None = None) -> None:
        """Read some users, or all of them."""
        if names is None:
            names = [*await store_reader.read_user_names(self._store), *self.image.users]
        found, versions, users_with_clients = await store_reader.read_users(
            self._store, dict.fromkeys(names)
        )
        self._users_with_clients.update(users_with_clients)
        for user, config in found.items():
            self.versions.pop(layout.user_config_path(user), None)
            self.set_user(user, config)
        self.versions |= versions

    async def read_acls(self, nodes: Iterable[int] | None = None) -> None:
        """Read some nodes of ACLs, or all of them, and again the nodes that could not be read."""
        if nodes is not None:
            nodes = {*nodes, *(node for node, acls in self.image.acls.items() if acls is None)}
        found, versions = await acl_reader.read_acls(self._store, nodes)
        if nodes is None:
            found = {**dict.fromkeys(self.image.acls, ()), **found}
        for node in found:
            self.versions.pop(acl_layout.acl_path(node), None)
        self.versions |= versions
        self.set_acls(found)

    async def read_tokens(self, ids: Iterable[str] | None = None) -> None:
        """Read some delegation tokens, or all of them."""
        found, versions = await token_reader.read_tokens(self._store, ids)
        if ids is None:
            found = {**dict.fromkeys(self.image.tokens), **found}
        for token_id in found:
            self.versions.pop(token_layout.token_path(token_id), None)
        self.versions |= versions
        self.set_tokens(found)

    async def read_quotas(self, entities: Iterable[Entity] | None = None) -> None:
        """Read the quotas of some entities, or of all except named users.

        Quotas of named users are stored with the users.
        """
        if entities is None:
            known = [each for each in self.image.quotas if not quota_reader.is_named_user(each)]
            stored = await quota_reader.stored_entities(self._store, self._users_with_clients)
            entities = [*stored, *known]
        found, versions = await quota_reader.read_quotas(self._store, entities)
        for entity in found:
            for path in quota_reader.paths_of(entity):
                self.versions.pop(path, None)
        self.versions |= versions
        self.set_quotas(found)

    async def read_brokers(self, watch: Watch | None = None) -> None:
        # Of two concurrent reads, the older result could arrive last and replace the newer one.
        async with self._reading_brokers:
            before = self.image.brokers
            self.image.brokers = await store_reader.read_brokers(self._store, watch)
            change = brokers_change(before, self.image.brokers)
            if change is not None:
                self.notify(change)

    async def topic_names(self) -> list[str]:
        """The names of all topics in the image or in the store."""
        stored = await self._store.children(layout.TOPICS)
        return sorted(dict.fromkeys([*stored, *self.image.topics]))

    def start_notifying(self) -> None:
        """Call the listeners from now on: the first image is complete."""
        self._is_complete = True

    def notify(self, change: ImageChange) -> None:
        for listener in self._listeners.copy() if self._is_complete else ():
            try:
                listener(change)
            except Exception:  # noqa: BLE001 - a bug of one listener must not affect the others
                # Names only: the values can contain credentials.
                changed = [name for name, value in change._asdict().items() if value]
                _log.exception("image listener failed with an internal error: changed=%s", changed)


def _replicas_of(topic: TopicState | None) -> int:
    return 0 if topic is None else sum(len(state.replicas) for state in topic.partitions)


def _paths_of(name: str, topic: TopicState | None) -> list[str]:
    count = 0 if topic is None else len(topic.partitions)
    states = [layout.states_path(name, first) for first in layout.state_node_partitions(count)]
    return [layout.topic_path(name), layout.topic_config_path(name), *states]
