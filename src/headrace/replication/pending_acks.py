"""The acknowledgements of one partition that wait for a sync or for a commit.  # HOT

P8  Acknowledgements that wait for a commit are sorted by offset.
"""

from collections import deque
from typing import final

from mypy_extensions import i64

from headrace.replication.produce_exchange import ProduceExchange


@final
class PendingAck:
    """An acknowledgement that waits until the log is synced, or committed, up to an offset."""

    def __init__(self, offset: i64, exchange: ProduceExchange) -> None:
        self.offset: i64 = offset
        self.exchange = exchange


@final
class PendingAcks:
    def __init__(self) -> None:
        self._awaiting_sync: list[PendingAck] = []
        """With acks=1."""
        self._awaiting_commit: deque[PendingAck] = deque()
        """With acks=all, the lowest offset first."""

    def await_sync(self, offset: i64, exchange: ProduceExchange) -> None:
        self._awaiting_sync.append(PendingAck(offset, exchange))

    def await_commit(self, offset: i64, exchange: ProduceExchange) -> None:
        waiting = self._awaiting_commit
        position: i64 = len(waiting)
        # A retry of an earlier batch has a lower offset than batches that were appended since.
        while position > 0 and waiting[position - 1].offset > offset:
            position -= 1
        if position == len(waiting):
            waiting.append(PendingAck(offset, exchange))
        else:
            waiting.insert(position, PendingAck(offset, exchange))

    def any_awaits_commit(self) -> bool:
        return len(self._awaiting_commit) > 0

    def take_synced(self, sync_from: i64) -> list[PendingAck]:
        """Remove and return the acknowledgements up to this offset: they need no further sync."""
        waiting = self._awaiting_sync
        if not waiting:
            return waiting
        self._awaiting_sync = [ack for ack in waiting if ack.offset > sync_from]
        return [ack for ack in waiting if ack.offset <= sync_from]

    def take_committed(self, high_watermark: i64) -> PendingAck | None:
        """Remove and return the first acknowledgement if it is committed."""
        waiting = self._awaiting_commit
        if waiting and waiting[0].offset <= high_watermark:
            return waiting.popleft()
        return None

    def take_expired(self, now: float) -> list[PendingAck]:
        """Remove and return the waits for a commit that timed out, or whose client disconnected."""
        waiting = self._awaiting_commit
        self._awaiting_commit = deque()
        expired: list[PendingAck] = []
        for ack in waiting:
            if ack.exchange.deadline > now and not ack.exchange.peer.closed:
                self._awaiting_commit.append(ack)
            else:
                expired.append(ack)
        return expired

    def take_awaiting_commit(self) -> list[PendingAck]:
        """Remove and return all waits for a commit."""
        taken = list(self._awaiting_commit)
        self._awaiting_commit = deque()
        return taken

    def take_all(self) -> list[PendingAck]:
        """Remove and return all waits for a sync and for a commit."""
        taken = self._awaiting_sync
        self._awaiting_sync = []
        taken.extend(self.take_awaiting_commit())
        return taken

    def assert_invariants(self) -> None:
        offsets = [int(ack.offset) for ack in self._awaiting_commit]
        assert offsets == sorted(offsets), f"P8: {offsets}"
