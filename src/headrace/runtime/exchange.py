"""One request on its way through the broker, and the connection that it arrived on.  # HOT

A connection responds in request order. So each request joins its peer's queue when it arrives, and
gets its response later: in the same loop iteration, after a sync, or when a long poll ends.
Nothing here does I/O.
"""

from collections import deque
from typing import Protocol, final

from mypy_extensions import i64, mypyc_attr

from headrace.model.sasl import ANONYMOUS
from headrace.runtime.peer_quota import PeerQuota


class Timer(Protocol):
    def cancel(self) -> None: ...


@final
class Rejection:
    """A batch that its producer must send again, and the error code that it got."""

    def __init__(self, producer_id: i64, epoch: i64, sequence: i64, code: i64) -> None:
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch
        self.sequence: i64 = sequence
        self.code: i64 = code


@mypyc_attr(allow_interpreted_subclasses=True)
class Peer:
    """A connection as handlers see it."""

    def __init__(self, completed: "list[Exchange] | None" = None) -> None:
        self.completed: list[Exchange] = [] if completed is None else completed
        """Exchanges with a response, until the server sends it; all connections share one list."""
        self.exchanges: deque[Exchange] = deque()
        self.closed = False
        self.muted = False
        """Whether a response must be sent before the next request is parsed."""
        self.work: i64 = 0
        """The estimated CPU time of its requests since other connections were served, in us."""
        self.rejections: dict[tuple[bytes, int], Rejection] = {}
        """Rejected batches by topic and partition, until the next batch of this partition."""
        self.is_internal = False
        """Whether it arrived on the inter-broker listener: the peer is usually another broker."""
        self.principal = ANONYMOUS
        """The user of the login; authorization and forwarding use it."""
        self.host = ""
        """The address of the client, without the port."""
        self.rights_version: i64 = -1
        """The version of the rules of the rights below: see requests/topic_permissions.py."""
        self.rights_by_name: dict[bytes, int] = {}
        self.rights_by_id: dict[bytes, int] = {}
        self.quota = PeerQuota()

    def fail(self, reason: str) -> None:
        """Close the connection: no response can report the error."""
        raise NotImplementedError

    def throttle(self, throttle_ms: i64) -> None:
        """Read no request for this time: the client is beyond its quota."""

    def defer(self, exchange: "Exchange", kept_bytes: i64) -> None:
        """A request waits for a sync or for followers, and keeps only this much memory."""


class Exchange:
    """One request and its response."""

    def __init__(self, peer: Peer, correlation_id: i64, version: i64) -> None:
        self.peer = peer
        self.correlation_id: i64 = correlation_id
        self.version: i64 = version
        self.api_key: i64 = -1
        self.began: float = 0.0
        """When its request was read; 0 if the request closed its connection."""
        self.pieces: list[object] | None = None
        """The response: bytes and file slices. Empty if none is sent, None if not known yet."""
        self.woken = False
        """Whether it is in a list of waiting requests to retry."""
        self.is_reading = False
        """Whether a thread reads for it. The response is built after that."""
        self.must_respond = False
        """Whether its wait is over: the next attempt responds with the records at hand."""
        self.request_bytes: i64 = 0
        """The size of a large request in the memory budget, until its response or release."""
        self.deferred_bytes: i64 = 0
        """The memory that a released request still uses, until its response."""

    def respond(self, pieces: list[object]) -> None:
        """Set the response. The server sends it at the end of the loop iteration."""
        self.pieces = pieces
        self.peer.completed.append(self)

    def wake(self) -> None:
        """Records that a long poll waits for might exist now."""
        raise NotImplementedError
