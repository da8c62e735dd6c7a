"""The interface of a store: a small versioned tree with ZooKeeper's semantics.

Owns the types that a store and its callers share. Does no I/O. `embedded` and `zookeeper` implement
the interface, and pass the same tests.

1. Writes of one session are applied in the order of the calls. A read sees all earlier writes of
   its session.
2. The result of a write is returned only after the write is durable.
3. A `multi` is atomic and has one zxid.
4. A zxid is never reused, not even after a restart of the store. So a node that is deleted and
   created again has another `czxid`, which can serve as a broker epoch.
5. A watch fires at most once, on the loop. It fires after the change is readable and before the
   result of a later write. One event can stand for several changes.
6. When the session leaves CONNECTED, its watches are removed without an event. A listener that
   receives CONNECTED must read again, and set its watches again.
7. An ephemeral node is deleted at the end of the session that created it.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

ANY_VERSION = -1
PERSISTENT = 0
REQUEST_BYTES_MAX = 1_000_000
"""Slightly below the default request limit of a ZooKeeper server (jute.maxbuffer)."""


class SessionState(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The server is unreachable. The session and its ephemeral nodes can still exist."""
    LOST = "lost"
    """The session has ended and its ephemeral nodes are deleted.

    The next CONNECTED is a new session.
    """


class EventType(Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    type: EventType
    path: str


Watch = Callable[[WatchEvent], None]
SessionListener = Callable[[SessionState], None]


class Stat(NamedTuple):
    """The metadata of a node."""

    czxid: int
    mzxid: int
    pzxid: int
    version: int = 0
    cversion: int = 0
    ephemeral_owner: int = PERSISTENT
    created_ms: int = 0
    """The time by the clock of the store; 0 if the store uses the clock of this broker."""


# Operations. A version of ANY_VERSION matches every version.


class Create(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False


class Set(NamedTuple):
    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    path: str
    version: int = ANY_VERSION


class Check(NamedTuple):
    path: str
    version: int = ANY_VERSION


Op = Create | Set | Delete | Check


class StoreError(Exception):
    """The store rejected a request; nothing was changed."""


class NoNode(StoreError):
    pass


class NodeExists(StoreError):
    pass


class BadVersion(StoreError):
    pass


class NotEmpty(StoreError):
    pass


class NoChildrenForEphemerals(StoreError):
    pass


class TooLarge(StoreError):
    """The request exceeds the size limit of a store; it was not sent."""


class MultiFailed(StoreError):
    """A `multi` was rejected because of its operation number `index`, counted from 0."""

    def __init__(self, index: int, op: Op, error: StoreError) -> None:
        super().__init__(f"operation {index}, {op}: {type(error).__name__} {error}")
        self.index = index
        self.op = op
        self.error = error


class StoreUnavailable(Exception):
    """The store did not process the request, or its outcome is unknown."""


class ConnectionLost(StoreUnavailable):
    """The store is unreachable: nothing was sent, so nothing was changed."""


class SessionExpired(StoreUnavailable):
    """The session has ended: nothing was sent, so nothing was changed."""


class AccessDenied(StoreUnavailable):
    """The store does not allow this request with the credentials of the session."""


class StoreFull(StoreUnavailable):
    """The disk of the store is full: nothing was changed, and a later write can succeed."""


class UnknownOutcome(StoreUnavailable):
    """It is unknown whether the store applied a write. Read the node again to find out (B5)."""


class Store(Protocol):
    """One session with the store. Used on one event loop only."""

    @property
    def state(self) -> SessionState: ...

    @property
    def session_id(self) -> int: ...

    @property
    def session_timeout_ms(self) -> int:
        """The negotiated timeout; 0 if a session ends with its process."""

    def on_session(self, listener: SessionListener) -> None:
        """Call `listener` on the loop at each state change, in order."""

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """The data of a node, and its Stat. NoNode sets no watch.

        The watch fires when the node is changed or deleted.
        """

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """The Stat of a node, or None; the watch fires when it is created, changed or deleted."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """The sorted names of the children.

        The watch fires when a child is created or deleted, or the node is deleted.
        """

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Stat: ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat: ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None: ...

    async def multi(self, ops: Sequence[Op]) -> list[Stat | None]:
        """Apply all operations, or raise MultiFailed and apply none.

        Returns the new Stat of each Set, and None for other operations.
        """

    async def sync(self) -> None:
        """Make later reads see all writes that any session has completed before this call."""

    async def close(self) -> None:
        """End the session: its ephemeral nodes are deleted immediately, not after a timeout."""


def parent_of(path: str) -> str:
    return path[: path.rfind("/")] or "/"


def check_path(path: str) -> None:
    """Raise ValueError if a path is malformed, which is a bug of the caller."""
    if path == "/":
        return
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"not an absolute path: {path!r}")
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise ValueError(f"not a normal path: {path!r}")


def check_ops(ops: Sequence[Op]) -> None:
    """Reject a request for which a ZooKeeper server would close the connection."""
    size = 0
    for op in ops:
        check_path(op.path)
        size += 32 + len(op.path)
        if isinstance(op, Create | Set):
            size += len(op.data)
    if size > REQUEST_BYTES_MAX:
        raise TooLarge(f"the request has {size} bytes; the maximum is {REQUEST_BYTES_MAX}")
