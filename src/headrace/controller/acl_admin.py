"""Writes changes of ACLs, on the controller.

1. Changes are made one at a time, so that they cannot overwrite each other.
2. If a change fits into one request to the store, it is one write. Otherwise, it is several writes,
   in the order of the nodes. If one fails, the earlier ones remain; the client can repeat its
   request.
3. After a write with an unknown outcome, its nodes are read again (B5).
4. Nodes that could not be read are read again before a change: an operator can have repaired them.
"""

from collections.abc import Iterable, Mapping, Sequence

from headrace.cluster.keyed_locks import KeyedLocks
from headrace.cluster.live_image import LiveImage
from headrace.controller.fenced_writer import FencedWriter
from headrace.coordination import layout
from headrace.coordination.acl_layout import acl_node, acl_path, encode_acls, node_name
from headrace.coordination.layout import ChangeRow
from headrace.coordination.port import REQUEST_BYTES_MAX, Store, StoreUnavailable
from headrace.model.acls import Acl, AclFilter
from headrace.model.errors import ApiError, ErrorCode

ACLS_MAX = 100_000
CHANGES_MAX = 10_000
"""The limit of one request, as in Kafka."""
_ATTEMPTS_MAX = 10

Nodes = dict[int, tuple[Acl, ...]]


class AclAdmin:
    def __init__(
        self, store: Store, live_image: LiveImage, writer: FencedWriter, locks: KeyedLocks
    ) -> None:
        self._store = store
        self._live_image = live_image
        self._writer = writer
        self._locks = locks

    async def create(self, acls: Sequence[Acl]) -> None:
        async with self._locks.hold(layout.ACLS):
            for _ in range(_ATTEMPTS_MAX):
                changed = self._with_added(await self._known_acls(), acls)
                if await self._write(changed):
                    return
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        deleted: list[dict[Acl, None]] = [{} for _ in filters]
        async with self._locks.hold(layout.ACLS):
            for _ in range(_ATTEMPTS_MAX):
                known = await self._known_acls()
                matching = [
                    [acl for acls in known.values() for acl in acls if each.matches(acl)]
                    for each in filters
                ]
                # An earlier attempt, with an unknown outcome, might have deleted its ACLs.
                for deleted_by_filter, acls in zip(deleted, matching, strict=True):
                    deleted_by_filter.update(dict.fromkeys(acls))
                to_delete = {acl for acls in matching for acl in acls}
                if len(to_delete) > CHANGES_MAX:
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST,
                        f"The filters match {len(to_delete)} ACLs, more than {CHANGES_MAX}. Use "
                        "filters that match fewer.",
                    )
                changed = _without(known, to_delete)
                if await self._write(changed):
                    return [list(acls) for acls in deleted]
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT)

    async def _known_acls(self) -> Nodes:
        if None in self._live_image.image.acls.values():
            await self._read_again(())
        known: Nodes = {}
        for node, acls in self._live_image.image.acls.items():
            if acls is None:
                raise ApiError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"{acl_path(node)} cannot be read. The log of the broker contains the reason.",
                )
            known[node] = acls
        return known

    def _with_added(self, known: Nodes, acls: Sequence[Acl]) -> Nodes:
        """The nodes that change if these ACLs are added, with their new content."""
        added: dict[int, dict[Acl, None]] = {}
        for acl in acls:
            node = acl_node(acl)
            if acl not in known.get(node, ()):
                added.setdefault(node, {})[acl] = None
        new = sum(map(len, added.values()))
        if new > CHANGES_MAX:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"The request has {new} new ACLs, more than {CHANGES_MAX}. Use several requests.",
            )
        count = sum(map(len, known.values())) + new
        if added and count > ACLS_MAX:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"The cluster would have {count} ACLs, more than {ACLS_MAX}. Delete others first.",
            )
        return {node: (*known.get(node, ()), *new_acls) for node, new_acls in added.items()}

    async def _write(self, changed: Nodes) -> bool:
        """Write the nodes and update the image.

        Returns False if a node had changed, or the outcome is unknown: decide again.
        """
        for nodes in _in_requests({node: encode_acls(acls) for node, acls in changed.items()}):
            ops = [self._writer.put(acl_path(node), data) for node, data in nodes.items()]
            rows = [ChangeRow("acl", node_name(node)) for node in nodes]
            if not await self._writer.commit(ops, rows):
                await self._read_again(changed)
                return False
            self._live_image.set_acls({node: changed[node] for node in nodes})
        return True

    async def _read_again(self, nodes: Iterable[int]) -> None:
        try:
            await self._store.sync()
            await self._live_image.read_acls(nodes)
        except StoreUnavailable:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                "The connection to the store was lost before it responded.",
            ) from None


def _without(known: Nodes, to_delete: set[Acl]) -> Nodes:
    """The nodes that contain these ACLs, without them."""
    return {
        node: tuple(acl for acl in acls if acl not in to_delete)
        for node, acls in known.items()
        if not to_delete.isdisjoint(acls)
    }


def _in_requests(nodes: Mapping[int, bytes]) -> list[dict[int, bytes]]:
    """Split the nodes into writes that the store accepts."""
    requests: list[dict[int, bytes]] = [{}]
    free_bytes = REQUEST_BYTES_MAX // 2
    for node, data in sorted(nodes.items()):
        if requests[-1] and len(data) > free_bytes:
            requests.append({})
            free_bytes = REQUEST_BYTES_MAX // 2
        requests[-1][node] = data
        free_bytes -= len(data)
    return requests
