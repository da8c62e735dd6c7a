"""Quotas in a cluster: every broker has them, and any broker can become the controller."""

from collections.abc import Mapping

from headrace.coordination import layout
from headrace.model.quotas import CLIENT_ID, IP, PRODUCER_BYTE_RATE, USER, Entity, entity_of
from tests.unit.controller.cluster_scenario import Cluster, cluster_of
from tests.unit.controller.controller_scenario import until

NAMES: list[Mapping[str, str | None]] = [
    {USER: "alice"},
    {USER: None},
    {CLIENT_ID: "app"},
    {USER: "alice", CLIENT_ID: "app"},
    {USER: "alice", CLIENT_ID: None},
    {USER: None, CLIENT_ID: None},
    {IP: "10.0.0.1"},
]
ENTITIES = [entity_of(names) for names in NAMES]


async def set_limit(cluster: Cluster, entity: Entity, limit: float | None) -> None:
    limits = {} if limit is None else {PRODUCER_BYTE_RATE: limit}
    await cluster.leader.controller.alter_quotas(entity, lambda _: limits)


async def all_have(cluster: Cluster, expected: dict[Entity, float]) -> None:
    wanted = {entity: {PRODUCER_BYTE_RATE: limit} for entity, limit in expected.items()}
    for member in cluster.members.values():
        image = member.controller.image
        await until(lambda image=image: image.quotas == wanted)  # type: ignore[misc]


@cluster_of(3)
async def test_every_broker_has_the_quotas_and_forgets_removed_ones(cluster: Cluster) -> None:
    for entity in ENTITIES:
        await set_limit(cluster, entity, 5.0)
    await all_have(cluster, dict.fromkeys(ENTITIES, 5.0))
    for entity in ENTITIES:
        await set_limit(cluster, entity, None)
    await all_have(cluster, {})


@cluster_of(3)
async def test_next_controller_changes_and_removes_quotas(cluster: Cluster) -> None:
    for entity in ENTITIES:
        await set_limit(cluster, entity, 5.0)
    await all_have(cluster, dict.fromkeys(ENTITIES, 5.0))
    await cluster.kill(1)
    await cluster.agree()
    for entity in ENTITIES:
        await set_limit(cluster, entity, 6.0)
    await all_have(cluster, dict.fromkeys(ENTITIES, 6.0))
    for entity in ENTITIES:
        await set_limit(cluster, entity, None)
    await all_have(cluster, {})
    for room in (layout.USER_CONFIGS, layout.CLIENT_CONFIGS, layout.IP_CONFIGS):
        assert await cluster.leader.store.children(room) == []


@cluster_of(3)
async def test_former_controller_writes_below_nodes_that_another_one_deleted(
    cluster: Cluster,
) -> None:
    """Its versions of the nodes above a quota are old: it reads them again and succeeds."""
    below = entity_of({USER: "alice", CLIENT_ID: "app"})
    default = entity_of({USER: None, CLIENT_ID: None})
    former = cluster.leader
    for entity in (below, default):
        await set_limit(cluster, entity, 1.0)
        await former.store.delete(layout.quota_path(entity))
        await former.store.delete(layout.user_clients_path(dict(entity)[USER]))
        await former.store.delete(layout.quota_path(entity_of({USER: dict(entity)[USER]})))
        await set_limit(cluster, entity, 2.0)
    await all_have(cluster, {below: 2.0, default: 2.0})


@cluster_of(2)
async def test_quota_of_unknown_outcome_is_read_again_b5(cluster: Cluster) -> None:
    for applied in (True, False):
        for entity in ENTITIES:
            for limit in (5.0, None, 6.0):
                cluster.leader.store.faults.leave_next_outcome_unknown(applied=applied)
                await set_limit(cluster, entity, limit)
    await all_have(cluster, dict.fromkeys(ENTITIES, 6.0))
