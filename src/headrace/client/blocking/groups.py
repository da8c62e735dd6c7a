# Generated from client/aio by tools/blocking_client.py: edit that, not this.
"""A member of a consumer group for programs without an event loop.

It has no thread: heartbeats are sent while `poll` waits. So a program that works longer than the
session timeout between two polls loses its partitions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from headrace.client.blocking.driver import Driver, OnPartitions, TimeBetweenCalls, notify
from headrace.client.core.errors import ClientError
from headrace.client.core.lookups import resolve_starts
from headrace.client.core.options import POLL_RECORDS_MAX, GroupSettings
from headrace.client.core.values import Record, Start
from headrace.client.member.group_member import CommitOffsets, create_member, to_offsets
from headrace.client.member.membership_machine import Event
from headrace.model.topics import TopicPartition

T = TypeVar("T")


class GroupConsumer:
    """Reads the partitions that the group assigns: `poll` or iterate, and `commit`."""

    def __init__(
        self,
        driver: Driver,
        group: str,
        topics: str | Sequence[str],
        pattern: str | None,
        on_assigned: OnPartitions | None,
        on_revoked: OnPartitions | None,
        on_lost: OnPartitions | None,
        settings: GroupSettings,
    ) -> None:
        self._driver = driver
        self._member, self._protocol = create_member(
            driver.engine, group, topics, pattern, settings
        )
        self._callbacks = {
            "assigned": on_assigned,
            "revoked": on_revoked,
            "lost": on_lost or on_revoked,
        }
        self._is_closed = False
        self._between_calls = TimeBetweenCalls(driver)
        driver.engine.attach(self._member.fetching)
        self._member.start_protocol(self._protocol.run())
        driver.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(has_failed=kind is not None)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that this member owns."""
        return tuple(sorted(self._member.owned))

    @property
    def member_id(self) -> str:
        """The id of this member in the group; "" before it has joined."""
        return self._member.member_id

    @property
    def generation_id(self) -> int:
        """The generation, or in the consumer protocol the member epoch; -1 without a group."""
        return self._member.epoch

    def poll(
        self, timeout_ms: float | None = None, max_records: int = POLL_RECORDS_MAX
    ) -> list[Record]:
        """The next records; empty after the timeout (None: wait forever)."""
        return self._take(lambda: self._member.take(max_records), timeout_ms) or []

    def __iter__(self) -> Iterator[Record]:
        while True:
            record = self._take(self._member.take_one, None)
            if record is not None:
                yield record

    def _take(self, take: Callable[[], T | None], timeout_ms: float | None) -> T | None:
        driver, member = self._driver, self._member
        self._between_calls.call_started(member.request_heartbeat)
        member.poll_called(driver.now_ms())
        deadline_ms = None if timeout_ms is None else driver.now_ms() + timeout_ms
        is_over, has_waited = False, False
        try:
            while True:
                while (event := member.next_event()) is not None:
                    self._handle(event)
                taken = take()
                if taken or is_over:
                    driver.wake()
                    return taken
                has_waited = True
                is_over = not driver.poll_until(member.ready(), deadline_ms)
        finally:
            member.poll_returned(driver.now_ms())
            if has_waited:
                self._between_calls.call_waited()

    def _handle(self, event: Event) -> None:
        try:
            if event.kind == "revoked" and self._member.options.auto_commit:
                self._commit_quietly(event.partitions)
            notify(self._callbacks[event.kind], event.partitions)
        finally:
            self._member.handled(event)

    def _commit_quietly(
        self, partitions: Sequence[TopicPartition], *, has_failed: bool = False
    ) -> None:
        """Commit before partitions are revoked. After an error, others read records again."""
        member = self._member
        offsets = member.to_commit(has_failed=has_failed)
        revoked = {
            partition: offset for partition, offset in offsets.items() if partition in partitions
        }
        with suppress(ClientError):
            self._driver.run(member.commit(revoked, member.options.close_timeout_ms))

    def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commit these offsets, or those after all returned records, and wait.

        Raises CommitFailed if the group has assigned the partitions to other members.
        """
        wanted = self._member.to_commit() if offsets is None else to_offsets(offsets)
        self._driver.run(self._member.commit(wanted))

    def seek(self, partition: TopicPartition, start: Start) -> None:
        """Continue at another offset of a partition that this member owns."""
        operation = resolve_starts(
            self._driver.engine,
            {partition: start},
            read_committed=self._member.fetching.options.isolation == "read_committed",
        )
        self._member.seek(partition, self._driver.run(operation)[partition])

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record; None if it is unknown."""
        return self._member.position(partition)

    def pause(self, partition: TopicPartition) -> None:
        """Return no records of a partition until `resume`, or until it is revoked."""
        self._member.fetching.pause(partition)

    def resume(self, partition: TopicPartition) -> None:
        self._member.fetching.resume(partition)
        self._driver.wake()

    def close(self) -> None:
        """Commit, if auto_commit is on, and leave the group."""
        self._close(has_failed=False)

    def _close(self, *, has_failed: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        driver, member = self._driver, self._member
        try:
            if not driver.engine.closed and member.failure is None:
                if member.options.auto_commit:
                    self._commit_quietly(self.partitions, has_failed=has_failed)
                if self.partitions:
                    notify(self._callbacks["revoked"], self.partitions)
                # If the request fails, the coordinator removes the member after its session
                # timeout.
                with suppress(ClientError):
                    driver.run(member.leave(self._protocol.leave()))
        finally:
            member.close()
            driver.engine.detach(member.fetching)
            if not driver.engine.closed:
                driver.do_io()
