"""Reads quotas from the store, which uses Kafka's paths.

The quotas of a user are in the node with its credentials, /config/users/USER. The quotas of a
client id of this user are in /config/users/USER/clients/CLIENT_ID.
"""

import logging
from collections.abc import Iterable, Mapping

from headrace.coordination import layout
from headrace.coordination.port import NoNode, Store, parent_of
from headrace.model.cluster import ClusterImage
from headrace.model.quotas import USER, Entity, limits_from_text, user_entity
from headrace.runtime.gather_bounded import gather_bounded

_log = logging.getLogger(__name__)


def limits_in(name: object, config: Mapping[str, str]) -> Mapping[str, float]:
    limits, invalid = limits_from_text(config)
    if invalid:
        _log.error("invalid quotas ignored: entity=%r kinds=%s", name, ",".join(invalid))
    return limits


async def read_quotas(
    store: Store, entities: Iterable[Entity]
) -> tuple[dict[Entity, Mapping[str, float]], dict[str, int]]:
    """The limits of each entity, empty if it does not exist; and the versions of the nodes."""
    versions: dict[str, int] = {}

    async def read(entity: Entity) -> tuple[Entity, Mapping[str, float]]:
        path = layout.quota_path(entity)
        if is_client_of_user(entity):
            parent = layout.user_clients_path(dict(entity)[USER])
            stat = await store.exists(parent)
            if stat is not None:
                versions[parent] = stat.version
        try:
            data, stat = await store.get(path)
            versions[path] = stat.version
            return entity, limits_in(entity, layout.decode_config(path, data) if data else {})
        except NoNode:
            return entity, {}
        except layout.LayoutError as error:
            _log.error("quota ignored: error=%s", error)
            return entity, {}

    return dict(await gather_bounded(read, dict.fromkeys(entities))), versions


async def stored_entities(store: Store, users: Iterable[str]) -> list[Entity]:
    """All entities in the store except named users.

    `users` are the named users that can have client ids with quotas.
    """
    parents = [layout.CLIENT_CONFIGS, layout.IP_CONFIGS]
    parents += map(layout.user_clients_path, (None, *users))

    async def read(parent: str) -> list[Entity]:
        try:
            names = await store.children(parent)
        except NoNode:
            return []
        return [layout.entity_of_path(f"{parent}/{name}") for name in names]

    found = await gather_bounded(read, parents)
    return [user_entity(None), *(entity for entities in found for entity in entities)]


def paths_of(entity: Entity) -> list[str]:
    """The nodes whose versions `read_quotas` returns for an entity."""
    path = layout.quota_path(entity)
    return [path, parent_of(path)] if is_client_of_user(entity) else [path]


def is_client_of_user(entity: Entity) -> bool:
    """Whether the entity is a client id of a user, or of the default user."""
    return len(entity) == 2


def is_named_user(entity: Entity) -> bool:
    """Whether the quotas of the entity are stored with the credentials of a user."""
    return len(entity) == 1 and entity[0][0] == USER and entity[0][1] is not None


def has_client_quotas(image: ClusterImage, user: str | None, except_for: Entity = ()) -> bool:
    """Whether a client id of this user has quotas, so that the user's node has children."""
    return any(
        is_client_of_user(entity) and entity != except_for and dict(entity)[USER] == user
        for entity in image.quotas
    )
