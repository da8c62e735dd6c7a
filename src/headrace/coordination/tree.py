"""The tree of nodes in memory, with the semantics of ZooKeeper's data tree.

Owns versions, zxids, the counters of parents and the events of a write. Pure. The embedded store
and a simulated one use it. It has no sessions, no pending requests and no I/O.

1. `commit` applies all operations, or none.
2. Only `put` and `remove` change the tree. Replaying the changes of all commits in order on an
   equal tree gives an equal tree.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.coordination.port import (
    ANY_VERSION,
    PERSISTENT,
    BadVersion,
    Check,
    Create,
    Delete,
    EventType,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Set,
    Stat,
    StoreError,
    WatchEvent,
    parent_of,
)


class Node(NamedTuple):
    data: bytes
    stat: Stat


class Change(NamedTuple):
    """The change of one node by a commit."""

    path: str
    node: Node | None
    """The new state, or None if the node was deleted."""
    is_durable: bool
    """False for an ephemeral node, and for the counters of its parent: they end with the session.
    """


class Commit:
    """The result of operations that were applied together."""

    __slots__ = ("changes", "events", "results")

    def __init__(self) -> None:
        self.results: list[Stat | None] = []
        """One per operation: the new Stat of a Set, else None."""
        self.changes: list[Change] = []
        self.events: list[WatchEvent] = []


class Tree:
    def __init__(self, nodes: Iterable[tuple[str, Node]] = ()) -> None:
        self.nodes: dict[str, Node] = {"/": Node(b"", Stat(0, 0, 0))}
        self._names: dict[str, set[str]] = {"/": set()}
        """The names of the children of each node."""
        for path, node in sorted(nodes, key=lambda item: item[0].count("/")):
            self.put(path, node)

    def copy(self) -> "Tree":
        copy = Tree()
        copy.nodes = self.nodes.copy()
        copy._names = {path: names.copy() for path, names in self._names.items()}
        return copy

    def node(self, path: str) -> Node:
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    def children(self, path: str) -> list[str]:
        self.node(path)
        return sorted(self._names[path])

    def owned_by(self, session_id: int) -> list[str]:
        """The paths of a session's ephemeral nodes."""
        return sorted(
            path for path, node in self.nodes.items() if node.stat.ephemeral_owner == session_id
        )

    def put(self, path: str, node: Node) -> None:
        if path not in self.nodes:
            self._names[parent_of(path)].add(path[path.rfind("/") + 1 :])
            self._names[path] = set()
        self.nodes[path] = node

    def remove(self, path: str) -> None:
        del self.nodes[path]
        del self._names[path]
        self._names[parent_of(path)].discard(path[path.rfind("/") + 1 :])

    def replay(self, changes: Iterable[Change]) -> None:
        for path, node, _ in changes:
            if node is None:
                self.remove(path)
            else:
                self.put(path, node)

    def commit(self, ops: Sequence[Op], session_id: int, zxid: int) -> Commit:
        """Apply all operations, or raise MultiFailed and leave the tree unchanged."""
        commit = Commit()
        before: list[tuple[str, Node | None]] = []
        for index, op in enumerate(ops):
            try:
                changes = self._decide(op, session_id, zxid, commit)
            except StoreError as error:
                self._undo(before)
                raise MultiFailed(index, op, error) from None
            before += [(change.path, self.nodes.get(change.path)) for change in changes]
            self.replay(changes)
            commit.changes += changes
        return commit

    def _undo(self, before: list[tuple[str, Node | None]]) -> None:
        for path, node in reversed(before):
            if node is not None:
                self.put(path, node)
            else:
                self.remove(path)

    def _decide(self, op: Op, session_id: int, zxid: int, commit: Commit) -> list[Change]:
        """The changes of one operation. Adds its result and its events to the commit."""
        if isinstance(op, Create):
            commit.results.append(None)
            return self._created(op, session_id, zxid, commit.events)
        if isinstance(op, Set):
            return [self._changed(op, zxid, commit)]
        commit.results.append(None)
        if isinstance(op, Delete):
            return self._deleted(op, zxid, commit.events)
        self._check(op)
        return []

    def _check(self, op: Set | Delete | Check) -> Node:
        """The node of an operation. Raises BadVersion or NoNode."""
        node = self.node(op.path)
        if op.version not in (ANY_VERSION, node.stat.version):
            raise BadVersion(f"{op.path} is at version {node.stat.version}, not {op.version}")
        return node

    def _created(
        self, op: Create, session_id: int, zxid: int, events: list[WatchEvent]
    ) -> list[Change]:
        if op.path in self.nodes:
            raise NodeExists(op.path)
        parent = parent_of(op.path)
        if self.node(parent).stat.ephemeral_owner != PERSISTENT:
            raise NoChildrenForEphemerals(parent)
        owner = session_id if op.ephemeral else PERSISTENT
        node = Node(op.data, Stat(zxid, zxid, zxid, ephemeral_owner=owner))
        events.append(WatchEvent(EventType.CREATED, op.path))
        return [
            Change(op.path, node, not op.ephemeral),
            self._with_changed_children(parent, zxid, not op.ephemeral, events),
        ]

    def _changed(self, op: Set, zxid: int, commit: Commit) -> Change:
        old = self._check(op).stat
        stat = old._replace(mzxid=zxid, version=old.version + 1)
        commit.results.append(stat)
        commit.events.append(WatchEvent(EventType.CHANGED, op.path))
        return Change(op.path, Node(op.data, stat), old.ephemeral_owner == PERSISTENT)

    def _deleted(self, op: Delete, zxid: int, events: list[WatchEvent]) -> list[Change]:
        if op.path == "/":
            raise NotEmpty("/ cannot be deleted")
        node = self._check(op)
        if self._names[op.path]:
            raise NotEmpty(op.path)
        is_durable = node.stat.ephemeral_owner == PERSISTENT
        events.append(WatchEvent(EventType.DELETED, op.path))
        return [
            Change(op.path, None, is_durable),
            self._with_changed_children(parent_of(op.path), zxid, is_durable, events),
        ]

    def _with_changed_children(
        self, path: str, zxid: int, is_durable: bool, events: list[WatchEvent]
    ) -> Change:
        old = self.nodes[path]
        stat = old.stat._replace(pzxid=zxid, cversion=old.stat.cversion + 1)
        events.append(WatchEvent(EventType.CHILDREN, path))
        return Change(path, Node(old.data, stat), is_durable)
