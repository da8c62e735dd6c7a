"""Reads records for Fetch responses, to consumers and to followers.  # HOT

Locates records without reading them: the server sends slices from file to socket. Copies a small
slice that is in the page cache, because one send is cheaper than a send and a sendfile. If the
search for an offset needs uncached data, a thread reads it first (`warm`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from headrace.log.file import NotCached
from headrace.log.log import Log
from headrace.model.errors import ErrorCode
from headrace.replication.append_queue import AppendQueue
from headrace.replication.partition import Partition
from headrace.runtime.exchange import Exchange
from headrace.wire.fetch import FetchPartition, FetchResult

if TYPE_CHECKING:
    from headrace.runtime.worker import Worker


@final
class FetchReader:
    def __init__(self, appends: AppendQueue, worker: "Worker") -> None:
        self.appends = appends
        self.worker = worker

    def read(
        self,
        result: FetchResult,
        log: Log,
        offset: i64,
        size_max: i64,
        bound: i64,
        is_first: bool,
        copied_max: i64,
    ) -> bool:
        """Add the records from `offset` to `bound` to a result. False if no records were added.

        Copies a slice of at most `copied_max` bytes. Raises NotCached, or the ApiError of the log.
        """
        records = log.read(offset, size_max, bound, is_first, False)
        if records is None:
            return False
        result.size = records.size
        result.records = records
        if records.size <= copied_max:
            file = records.file
            copied = file.files.pread_cached(file.fd, records.size, records.position)
            if copied is not None and len(copied) == records.size:
                result.records = copied
        return True

    def warm(self, exchange: Exchange, cold: NotCached, retry: Callable[[], None]) -> None:
        """Read the data that the search for an offset needs, on a thread. Then call `retry`.

        Until then, `is_reading` prevents other attempts to respond.
        """
        peer = exchange.peer
        was_muted = peer.muted
        peer.muted = True
        exchange.is_reading = True

        def done(_result: object, error: BaseException | None) -> None:
            exchange.is_reading = False
            if error is not None:
                peer.fail(f"the log cannot be read: {error}")
                return
            if not peer.closed:
                is_open = exchange.pieces is None
                peer.muted = was_muted and is_open
                self.appends.update_time()
                if is_open:
                    retry()
                self.appends.send_responses()

        self.worker.submit(cold.run, done)


def divergence(part: FetchPartition, partition: Partition) -> tuple[int, int] | None:
    """The end of the largest common epoch, if the reader's log diverges (KIP-595, B2)."""
    if part.last_fetched_epoch < 0:
        return None
    epoch, end_offset = partition.end_of_epoch(part.last_fetched_epoch)
    if epoch == part.last_fetched_epoch and end_offset >= part.fetch_offset:
        return None
    return epoch, end_offset


def epoch_error(part: FetchPartition, partition: Partition) -> i64:
    """The error for another leader epoch: FENCED if it is older, UNKNOWN if it is newer."""
    if part.current_leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH
