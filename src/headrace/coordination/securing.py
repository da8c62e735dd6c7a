"""Sets the ACLs of existing nodes in ZooKeeper, or removes them.

Brokers that have the credentials can run at the same time. A node that is created in the meantime
keeps the ACL of its creator.

1. A node gets its ACL before its children. After that, a client without the credentials cannot add
   children.
2. ZooKeeper's own nodes, below /zookeeper, are secured as well. Otherwise every client could create
   nodes there until ZooKeeper has no memory left. ZooKeeper itself protects /zookeeper/config.
"""

import asyncio

from headrace.coordination.layout import is_sensitive
from headrace.coordination.node_acl import WRITE_PERMISSIONS, NodeAcl
from headrace.coordination.port import NoNode
from headrace.coordination.zookeeper import ZooKeeperStore

_OWN_NODES = "/zookeeper"
_PROTECTED = "/zookeeper/config"
_CONCURRENT_MAX = 50


async def is_open(store: ZooKeeperStore) -> bool:
    """Whether every client of ZooKeeper can change the root, or ZooKeeper's own nodes.

    `store` has no chroot.
    """
    acls = [*await store.get_acl("/"), *await store.get_acl(_OWN_NODES)]
    return any(
        scheme == "world" and permissions & WRITE_PERMISSIONS for scheme, _, permissions in acls
    )


async def secure_tree(store: ZooKeeperStore, *, undo: bool = False) -> int:
    """Set the ACLs of the root and of all nodes below it. Returns the number of nodes.

    With `undo`, every client can change all nodes again.
    """
    count = 0
    level = ["/"]
    while level:
        following: list[str] = []
        for start in range(0, len(level), _CONCURRENT_MAX):
            paths = level[start : start + _CONCURRENT_MAX]
            names = await asyncio.gather(*(_secure(store, path, undo=undo) for path in paths))
            for path, children in zip(paths, names, strict=True):
                if children is not None:
                    count += 1
                    following += [f"{path.rstrip('/')}/{name}" for name in children]
        level = [path for path in following if path != _PROTECTED]
    return count


async def _secure(store: ZooKeeperStore, path: str, *, undo: bool) -> list[str] | None:
    """Set the ACL of one node; returns its children, or None if it was deleted."""
    acl = NodeAcl.SECRET if is_sensitive(path) else NodeAcl.READABLE
    try:
        await store.set_acl(path, NodeAcl.OPEN if undo else acl)
        return await store.children(path)
    except NoNode:
        return None
