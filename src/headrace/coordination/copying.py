"""Copies the store of a single broker to ZooKeeper, so that it can join a cluster.

The last node of a copy is the cluster id. No broker of the cluster may start before it exists. An
interrupted copy is repeated.

1. All durable nodes are copied with their data. ZooKeeper assigns new versions and zxids.
2. If ZooKeeper has a cluster id, nothing is written. It is the id of another cluster, or of this
   cluster, which can have changed since it was copied.
"""

import asyncio
import os

from headrace.coordination import layout
from headrace.coordination.access import ANONYMOUS, ZooKeeperAccess
from headrace.coordination.database import Database
from headrace.coordination.port import NodeExists, NoNode, Store, StoreUnavailable, UnknownOutcome
from headrace.coordination.zookeeper import ZooKeeperStore

COPIED_SUFFIX = ".copied-to-zookeeper"


async def copy_to_zookeeper(file: str, connect: str, access: ZooKeeperAccess = ANONYMOUS) -> None:
    """Copy a store file, and rename it. Raises StoreFileError or StoreUnavailable."""
    database = Database(file)
    nodes = {path: node.data for path, node in database.open().nodes if path != "/"}
    try:
        store = await ZooKeeperStore.open(connect, access=access)
        try:
            await _copy(store, nodes, connect)
        finally:
            await store.close()
    finally:
        database.close()
    os.rename(file, file + COPIED_SUFFIX)


async def _copy(store: Store, nodes: dict[str, bytes], connect: str) -> None:
    cluster_id = nodes.pop(layout.CLUSTER_ID, None)
    if cluster_id is None:
        # The broker was never ready, so its store has no data.
        return
    if await _is_copied(store, cluster_id, connect):
        return
    by_depth: dict[int, list[str]] = {}
    for path in nodes:
        by_depth.setdefault(path.count("/"), []).append(path)
    for _, paths in sorted(by_depth.items()):
        await asyncio.gather(*(_create_or_set(store, path, nodes[path]) for path in paths))
    await _create_or_set(store, layout.CLUSTER_ID, cluster_id)


async def _is_copied(store: Store, cluster_id: bytes, connect: str) -> bool:
    try:
        other, _ = await store.get(layout.CLUSTER_ID)
    except NoNode:
        return False
    if other != cluster_id:
        raise StoreUnavailable(
            f"ZooKeeper at {connect} already contains the cluster "
            f"{layout.decode_cluster_id(other)}. Use another path, as in HOST:PORT/path, or "
            "another data directory."
        )
    return True


async def _create_or_set(store: Store, path: str, data: bytes) -> None:
    while True:
        try:
            await store.create(path, data)
        except NodeExists:
            # An interrupted copy created this node.
            await store.set(path, data)
        except UnknownOutcome:
            continue
        return
