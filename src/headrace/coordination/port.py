"""The store port: a small versioned tree with ZooKeeper's semantics.

Owns the words that a coordination store and its callers share. It does no I/O and knows no
implementation; `embedded` is one, a real ZooKeeper is another, and both pass the same tests.

1. Writes of one session take effect in the order in which they were asked for, and a read sees
   every write that the same session asked for before it.
2. A write's result is returned only when the write is durable.
3. A `multi` happens as a whole, under one zxid, or not at all.
4. A zxid is never given twice, not even after the store was restarted: a node that was deleted
   and made again has another `czxid`. That is what makes it fit to be a broker's epoch.
5. A watch fires at most once, on the loop, after the change can be read and before the result of
   a write that was asked for later. It is a hint: several changes may hide behind one event.
6. Watches are lost, without an event, when the session leaves CONNECTED. Whoever hears of
   CONNECTED again reads and sets its watches again.
7. An ephemeral node lives as long as the session that made it.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

ANY_VERSION = -1
PERSISTENT = 0
REQUEST_BYTES_MAX = 1_000_000
"""Just under what a ZooKeeper server takes in one request by default (jute.maxbuffer)."""


class SessionState(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The server is out of reach; the session, and its ephemerals, may or may not live on."""
    LOST = "lost"
    """The session is over and its ephemerals are gone; CONNECTED after this is a new session."""


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
    """What the store knows of a node beside its data."""

    czxid: int
    mzxid: int
    pzxid: int
    version: int = 0
    cversion: int = 0
    ephemeral_owner: int = PERSISTENT
    created_ms: int = 0
    """By the store's own clock; 0 if it has none but the broker's."""


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
    """The store refused; nothing was changed."""


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
    """More bytes in one request than a store takes; it was not sent."""


class MultiFailed(StoreError):
    """A `multi` was refused as a whole because of its operation number `index`."""

    def __init__(self, index: int, op: Op, error: StoreError) -> None:
        super().__init__(f"operation {index}, {op}: {type(error).__name__} {error}")
        self.index = index
        self.op = op
        self.error = error


class StoreUnavailable(Exception):
    """The store could not be asked."""


class ConnectionLost(StoreUnavailable):
    """Out of reach: nothing was sent, so nothing was changed."""


class SessionExpired(StoreUnavailable):
    """The session is over: nothing was sent, so nothing was changed."""


class StoreFull(StoreUnavailable):
    """No room on the store's disk: nothing was changed, and the next write may succeed."""


class UnknownOutcome(StoreUnavailable):
    """A write that may or may not have happened. Not a failure: read again to know (B5)."""


class Store(Protocol):
    """One session with the store. Used on one event loop only."""

    @property
    def state(self) -> SessionState: ...

    @property
    def session_id(self) -> int: ...

    def on_session(self, listener: SessionListener) -> None:
        """Call `listener` on the loop at each change of state, in order."""

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Data of a node; the watch fires when it is changed or deleted. NoNode arms nothing."""

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Whether there is a node; the watch fires when it is created, changed or deleted."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names below a node, sorted; the watch fires when one comes or goes, or the node goes."""

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Stat: ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat: ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None: ...

    async def multi(self, ops: Sequence[Op]) -> list[Stat | None]:
        """All or nothing: the new Stat for each Set and None for the rest, or MultiFailed."""

    async def sync(self) -> None:
        """Reads that follow see every write that was acknowledged to anybody before."""

    async def close(self) -> None:
        """End the session: its ephemerals go at once, not after a timeout."""


def parent_of(path: str) -> str:
    return path[: path.rfind("/")] or "/"


def check_path(path: str) -> None:
    """A malformed path is the caller's bug, not a state of the store."""
    if path == "/":
        return
    if not path.startswith("/") or "\0" in path:
        raise ValueError(f"not an absolute path: {path!r}")
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise ValueError(f"not a normal path: {path!r}")


def check_ops(ops: Sequence[Op]) -> None:
    """Refuse here what a ZooKeeper server would answer by cutting the connection."""
    size = 0
    for op in ops:
        check_path(op.path)
        size += 32 + len(op.path)
        if isinstance(op, Create | Set):
            size += len(op.data)
    if size > REQUEST_BYTES_MAX:
        raise TooLarge(f"the request has {size} bytes; the maximum is {REQUEST_BYTES_MAX}")
