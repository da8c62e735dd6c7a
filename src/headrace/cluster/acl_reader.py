"""Reads ACLs from the store. Changes nothing."""

import logging
from collections.abc import Iterable

from headrace.coordination import acl_layout, layout
from headrace.coordination.port import NoNode, Store
from headrace.model.acls import Acl
from headrace.runtime.gather_bounded import gather_bounded

_log = logging.getLogger(__name__)

Nodes = dict[int, tuple[Acl, ...] | None]


async def read_acls(store: Store, nodes: Iterable[int] | None) -> tuple[Nodes, dict[str, int]]:
    """Read the ACLs in some nodes, or in all of them, and the versions of these nodes.

    The value None means that the node cannot be decoded.
    """
    versions: dict[str, int] = {}

    async def read(node: int) -> tuple[int, tuple[Acl, ...] | None]:
        path = acl_layout.acl_path(node)
        try:
            data, stat = await store.get(path)
        except NoNode:
            return node, ()
        versions[path] = stat.version
        try:
            return node, acl_layout.decode_acls(path, data)
        except layout.LayoutError as error:
            _log.error("ACLs cannot be read, only super users are allowed: error=%s", error)
            return node, None

    if nodes is None:
        # Ignore nodes with other names, which another version of Headrace could have written.
        names = await store.children(layout.ACLS)
        nodes = [node for node in range(acl_layout.NODES) if acl_layout.node_name(node) in names]
    return dict(await gather_bounded(read, dict.fromkeys(nodes))), versions
