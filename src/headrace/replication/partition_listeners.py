"""Notifies everything that waits for a change of one partition.  # HOT

Fetches of consumers wait for records (long polls), and the coordinator waits for the commit of its
records. Callbacks wait for the end of a job and for a new log start.
"""

from collections.abc import Callable
from typing import final

from headrace.replication.commit_listener import CommitListener
from headrace.runtime.exchange import Exchange


@final
class PartitionListeners:
    def __init__(self) -> None:
        self._long_polls: dict[Exchange, None] = {}
        self._coordinator: CommitListener | None = None
        self._on_job_done: list[Callable[[], None]] = []
        """Called once, after the log's next job."""
        self._on_start_moved: list[Callable[[], None]] = []
        """Called when the log start of this or another replica moves, or the leadership ends."""

    def add_long_poll(self, exchange: Exchange) -> None:
        self._long_polls[exchange] = None

    def remove_long_poll(self, exchange: Exchange) -> None:
        self._long_polls.pop(exchange, None)

    def has_long_polls(self) -> bool:
        return len(self._long_polls) > 0

    def wake_long_polls(self) -> None:
        for exchange in self._long_polls:
            exchange.wake()

    def set_coordinator(self, listener: CommitListener) -> None:
        """Set the coordinator to notify; it replaces the one of an earlier leadership."""
        self._coordinator = listener

    def committed(self) -> None:
        """The high watermark has risen."""
        if self._coordinator is not None:
            self._coordinator.advanced()
        self.wake_long_polls()

    def isr_shrunk(self) -> None:
        """The ISR is smaller than min.insync.replicas."""
        if self._coordinator is not None:
            self._coordinator.shrunk()

    def failed(self) -> None:
        """The log is offline, or this broker is no longer the leader."""
        self.start_moved()
        if self._coordinator is not None:
            self._coordinator.failed()

    def when_job_done(self, call: Callable[[], None]) -> None:
        """Call this once, after the log's next job."""
        self._on_job_done.append(call)

    def job_done(self) -> None:
        calls = self._on_job_done
        self._on_job_done = []
        for call in calls:
            call()

    def add_start_listener(self, call: Callable[[], None]) -> None:
        """Call this when the log start of any replica moves, or the leadership ends."""
        self._on_start_moved.append(call)

    def remove_start_listener(self, call: Callable[[], None]) -> None:
        self._on_start_moved.remove(call)

    def start_moved(self) -> None:
        for call in self._on_start_moved:
            call()
