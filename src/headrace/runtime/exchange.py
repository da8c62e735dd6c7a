"""One request on its way through the broker, and the connection that it came by.  # HOT

A connection answers in the order it was asked, so each request takes a place in its peer's queue
at once and is filled in when its answer is known: in the same turn, after a sync, or when a long
poll ends. Nothing here does I/O.
"""

from collections import deque
from typing import final

from mypy_extensions import i64, mypyc_attr


@final
class Refusal:
    """A batch that its producer was told to send again, and why."""

    def __init__(self, producer_id: i64, epoch: i64, sequence: i64, code: i64) -> None:
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch
        self.sequence: i64 = sequence
        self.code: i64 = code


@mypyc_attr(allow_interpreted_subclasses=True)
class Peer:
    """A connection as handlers see it."""

    def __init__(self) -> None:
        self.exchanges: deque[Exchange] = deque()
        self.closed = False
        self.muted = False
        """Set while an answer must come before the next request is even read."""
        self.work: i64 = 0
        """What its requests cost since others last had their turn: about a microsecond each."""
        self.refusals: dict[tuple[bytes, int], Refusal] = {}
        """By topic and partition, until another batch is staged there: mostly empty."""

    def fail(self, reason: str) -> None:
        """End the connection: there is no other way to tell this peer."""
        raise NotImplementedError


class Exchange:
    def __init__(self, peer: Peer, correlation_id: i64, version: i64) -> None:
        self.peer = peer
        self.correlation_id: i64 = correlation_id
        self.version: i64 = version
        self.pieces: list[object] | None = None
        """The answer: bytes and file slices in order; empty where none is due; None: not yet."""
        self.woken = False
        self.is_reading = False
        """While a thread reads for it. The response is built after that, and only then."""
        self.must_answer = False
        """Whether its wait is over: the next attempt responds with the records at hand."""
        self.request_bytes: i64 = 0
        """The size of a large request in the memory budget, until it is answered or released."""
        self.deferred_bytes: i64 = 0
        """The memory that a released request still takes, until it is answered."""
