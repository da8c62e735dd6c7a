"""A member of a group, in either protocol: its partitions, positions and commits. Pure.

The protocol (classic_member.py, consumer_member.py) is an operation that runs until the member
leaves. It calls `assign`, `revoke` and `lose_partitions`, which queue events. In `poll`, the client
API first handles these events, and then takes records.

1. Records of a partition are returned only while it is owned. After the event that revokes it was
   queued, no record of it is returned.
2. A revoked partition stays owned until the program has handled the event. So it is not assigned to
   another member while the program still processes its records.
3. The commits of a member are sent one at a time, so that an older commit never overwrites a newer
   one.
4. Automatic commits contain only records that were returned before the current poll.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from headrace.client.admin.group_values import GroupOffset
from headrace.client.admin.groups import commit_fields, find_coordinator, group_offsets
from headrace.client.core.errors import (
    ClientClosed,
    ClientError,
    CommitFailed,
    NoOffset,
    TimedOut,
    UnknownTopic,
    error_code,
    request_failed,
)
from headrace.client.core.lookups import EARLIEST, LATEST, list_offsets
from headrace.client.core.machine_interfaces import MachineEngine
from headrace.client.core.operation import (
    Operation,
    Outcome,
    Pause,
    Send,
    Wait,
    backoff_ms,
    retrying,
)
from headrace.client.core.options import POLL_RECORDS_MAX, ConsumerOptions, GroupOptions
from headrace.client.core.values import Record
from headrace.client.fetch.fetch_machine import FetchMachine
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import OFFSET_COMMIT

Kind = Literal["assigned", "revoked", "lost"]

# The group has removed this member, or replaced it by a newer one with the same instance id.
NOT_A_MEMBER = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
_COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# A commit that failed with these codes can succeed after the rebalance.
_DURING_REBALANCE = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH})
NO_EPOCH = -1


class Event:
    """Partitions that were assigned, revoked or lost. The protocol waits until it is handled."""

    __slots__ = ("handled", "kind", "partitions")

    def __init__(self, kind: Kind, partitions: Iterable[TopicPartition]) -> None:
        self.kind = kind
        self.partitions = tuple(sorted(partitions))
        self.handled: Outcome[None] = Outcome()


class Membership:
    def __init__(
        self,
        engine: MachineEngine,
        group: str,
        options: GroupOptions,
        consumer_options: ConsumerOptions,
    ) -> None:
        self.engine = engine
        self.group = group
        self.options = options
        self.fetching = FetchMachine(engine, consumer_options, waits_for_topics=True)
        self.lane = engine.open_lane()
        """Connections for joins and heartbeats, which other requests must not delay."""
        self.member_id = ""
        self.epoch = NO_EPOCH
        """The generation, or the member epoch."""
        self.owned: set[TopicPartition] = set()
        self.failure: ClientError | None = None
        """The permanent error that ended the protocol."""
        self.is_rebalancing = False
        """Whether a rebalance is in progress. The group might then have a newer epoch."""
        self.is_polling = False
        """Whether the program is waiting in `poll`."""
        self._coordinator: int | None = None
        self._last_returned: list[Record] = []
        """The records of the last poll, which the program might be processing."""
        self._unreturned: deque[Record] = deque()
        """Records that were taken from `fetching`, but not returned to the program yet."""
        self._events: deque[Event] = deque()
        self._current_event: Event | None = None
        self._signal: Outcome[None] = Outcome()
        self._position_lookups: dict[TopicPartition, object] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._commit_in_flight: Outcome[None] | None = None
        self._polled_ms = engine.now_ms
        self._auto_commit_ms = engine.now_ms + options.auto_commit_interval_ms
        self._protocol_run: Outcome[None] | None = None
        self._is_heartbeat_requested = False

    # Calls of the client API.

    def start_protocol(self, protocol_run: Operation[None]) -> None:
        """Start the operation that runs the protocol."""
        self._protocol_run = self.engine.start(protocol_run)
        self._protocol_run.on_done(self._protocol_ended)

    def poll_called(self, now_ms: float) -> None:
        """The program calls `poll`, so it has processed the records of the last poll."""
        if self.is_idle:
            self.wake()
        self._polled_ms = now_ms
        self.is_polling = True
        self._last_returned = []
        if self.options.auto_commit and now_ms >= self._auto_commit_ms:
            self._auto_commit_ms = now_ms + self.options.auto_commit_interval_ms
            offsets = self.to_commit()
            if offsets and (self._commit_in_flight is None or self._commit_in_flight.done):
                # The program gets no error, because the next automatic commit retries.
                self.engine.start(self.commit(offsets))

    def next_event(self) -> Event | None:
        """Remove and return the next event. It must be handled before records are taken."""
        if self.failure is not None:
            raise self.failure
        self._current_event = self._events.popleft() if self._events else None
        return self._current_event

    def handled(self, event: Event) -> None:
        self._current_event = None
        if event.kind == "revoked" and not event.handled.done:
            self._drop(event.partitions)
        if not event.handled.done:
            event.handled.succeed(None)
        self.wake()

    def ready(self) -> Outcome[None]:
        """An outcome that is done when an event, a record or an error can be taken."""
        if self._events or self._unreturned or self.failure is not None:
            outcome: Outcome[None] = Outcome()
            outcome.succeed(None)
            return outcome
        return self.fetching.ready()

    def position(self, partition: TopicPartition) -> int | None:
        for record in self._unreturned:
            if (record.topic, record.partition) == partition:
                return record.offset
        if partition not in self.fetching.partitions:
            return None
        return self.fetching.position(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition not in self.owned:
            raise KeyError(partition)
        self._position_lookups.pop(partition, None)
        self._unreturned = deque(
            record for record in self._unreturned if (record.topic, record.partition) != partition
        )
        if partition in self.fetching.partitions:
            self.fetching.seek(partition, offset)
        else:
            self.fetching.add(partition, offset)

    def take(self, count_max: int) -> list[Record]:
        """Up to `count_max` records that have arrived."""
        if self._unreturned:
            count = min(count_max, len(self._unreturned))
            self._last_returned = [self._unreturned.popleft() for _ in range(count)]
        else:
            self._last_returned = self.fetching.take_records(count_max)
        return self._last_returned

    def take_one(self) -> Record | None:
        if not self._unreturned:
            self._unreturned.extend(self.fetching.take_records(POLL_RECORDS_MAX))
        self._last_returned = [self._unreturned.popleft()] if self._unreturned else []
        return self._last_returned[0] if self._last_returned else None

    def to_commit(self, *, has_failed: bool = False) -> dict[TopicPartition, GroupOffset]:
        """The offsets to commit: those after the returned records, if not committed yet.

        Includes the records of the last poll, unless the program failed to process them.
        """
        positions = {
            partition: self.fetching.position(partition) for partition in self.fetching.partitions
        }
        unprocessed = (
            [*self._last_returned, *self._unreturned] if has_failed else list(self._unreturned)
        )
        for record in reversed(unprocessed):
            partition = TopicPartition(record.topic, record.partition)
            if partition in positions:
                positions[partition] = record.offset
        return {
            partition: GroupOffset(offset, self.fetching.epoch_before(partition, offset))
            for partition, offset in positions.items()
            if self._committed.get(partition) != offset
        }

    def request_heartbeat(self) -> None:
        """Send a heartbeat as soon as possible."""
        self._is_heartbeat_requested = True
        self.wake()

    def leave(self, leave_group: Operation[None]) -> Operation[None]:
        """Stop the protocol. Leave the group, unless the protocol has failed."""
        if self._protocol_run is not None:
            self.engine.cancel(self._protocol_run)
        if self.failure is None:
            yield from leave_group
        else:
            leave_group.close()

    def close(self) -> None:
        self.failure = self.failure or ClientClosed("the consumer is closed")
        if self._protocol_run is not None:
            self.engine.cancel(self._protocol_run)
        self.fetching.close(ClientClosed("the consumer is closed"))
        self.engine.close_lane(self.lane)

    # Calls of a protocol.

    def wake(self) -> None:
        signal, self._signal = self._signal, Outcome()
        signal.succeed(None)

    def wait_until(self, until_ms: float) -> Wait:
        """A step that waits for a call of `wake`, or until this time."""
        return Wait(self._signal, until_ms - self.engine.now_ms)

    def take_heartbeat_request(self) -> bool:
        is_requested, self._is_heartbeat_requested = self._is_heartbeat_requested, False
        return is_requested

    @property
    def is_idle(self) -> bool:
        """Whether the program has not polled for max_poll_interval_ms."""
        idle_ms = self.engine.now_ms - self._polled_ms
        return not self.is_polling and idle_ms >= self.options.max_poll_interval_ms

    def poll_returned(self, now_ms: float) -> None:
        """The call of `poll` has returned, and the program processes the records."""
        self.is_polling = False
        self._polled_ms = now_ms

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions, and look up their committed offsets."""
        added = set(partitions)
        if added:
            self.owned |= added
            self._queue_event(Event("assigned", added))
            token = object()
            self._position_lookups.update(dict.fromkeys(added, token))
            self.engine.start(self._look_up_positions(added, token))

    def revoke(self, partitions: Iterable[TopicPartition]) -> Event:
        """Queue an event that revokes partitions. When it is handled, they are dropped."""
        event = Event("revoked", partitions)
        if event.partitions:
            self._queue_event(event)
        else:
            event.handled.succeed(None)
        return event

    def lose_partitions(self) -> None:
        """Drop all partitions, because other members might own them already.

        Queues an event for the partitions that the program knows.
        """
        self.epoch = NO_EPOCH
        lost = set(self.owned)
        self._drop(lost)
        unhandled, self._events = self._events, deque()
        if self._current_event is not None and self._current_event.kind == "revoked":
            lost -= set(self._current_event.partitions)
            self._current_event.handled.succeed(None)
        for event in unhandled:
            if event.kind == "assigned":
                lost -= set(event.partitions)
            elif event.kind == "revoked":
                event.handled.succeed(None)
            else:
                self._events.append(event)
        if lost:
            self._queue_event(Event("lost", lost))

    def coordinator(self) -> Operation[int]:
        """The broker id of the group's coordinator."""
        if self._coordinator is None or self._coordinator not in self.engine.cluster.nodes:
            self._coordinator = yield from find_coordinator(self.engine, self.group)
        return self._coordinator

    def forget_coordinator_after(self, error: ClientError) -> None:
        """Look up the coordinator again, unless the error came from the correct coordinator."""
        code = getattr(error, "code", None)
        if code is None or code in _COORDINATOR_MOVED:
            self._coordinator = None

    # Internals.

    def _queue_event(self, event: Event) -> None:
        self._events.append(event)
        self.fetching.wake_waiters()

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.owned.discard(partition)
            self._position_lookups.pop(partition, None)
            self._committed.pop(partition, None)
            self.fetching.unassign(partition)
        if self._unreturned:
            self._unreturned = deque(
                record
                for record in self._unreturned
                if TopicPartition(record.topic, record.partition) in self.owned
            )

    def _protocol_ended(self, protocol_run: Outcome[None]) -> None:
        if isinstance(protocol_run.error, ClientError):
            self.failure = protocol_run.error
            self.fetching.wake_waiters()

    def _look_up_positions(self, partitions: set[TopicPartition], token: object) -> Operation[None]:
        """Look up the start offsets of new partitions. Retries while they are owned."""
        attempt = 0
        while partitions := {
            partition for partition in partitions if self._position_lookups.get(partition) is token
        }:
            try:
                found = yield from self._positions(partitions)
            except (ClientError, TimedOut) as error:
                if isinstance(error, ClientClosed):
                    return
                if not (error.retriable or isinstance(error, TimedOut | UnknownTopic)):
                    self.fetching.raise_later(error)
                    return
                self.engine.note_retry("reading committed offsets", error)
                yield Pause(backoff_ms(self.engine, attempt))
                attempt += 1
                continue
            for partition, (offset, is_committed) in found.items():
                if self._position_lookups.get(partition) is token:
                    del self._position_lookups[partition]
                    self.fetching.add(partition, offset)
                    if is_committed:
                        self._committed[partition] = offset
            return

    def _positions(
        self, partitions: set[TopicPartition]
    ) -> Operation[dict[TopicPartition, tuple[int, bool]]]:
        known = yield from group_offsets(self.engine, self.group, partitions)
        found = {
            partition: (known[partition].offset, True)
            for partition in partitions
            if partition in known
        }
        missing = sorted(partitions - found.keys())
        if not missing:
            return found
        reset = self.options.auto_offset_reset
        if reset == "none":
            raise NoOffset(
                f"the group {self.group!r} has no offset for {missing[0]}: call seek, or set "
                "auto_offset_reset to earliest or latest"
            )
        listed = yield from list_offsets(
            self.engine,
            dict.fromkeys(missing, EARLIEST if reset == "earliest" else LATEST),
            read_committed=self.fetching.options.isolation == "read_committed",
        )
        return found | {partition: (listed[partition].offset, False) for partition in missing}

    # Commits.

    def commit(
        self, offsets: Mapping[TopicPartition, GroupOffset], timeout_ms: float | None = None
    ) -> Operation[None]:
        """Commit offsets of owned partitions; CommitFailed if other members own them."""
        if not offsets:
            return
        previous, this_commit = self._commit_in_flight, Outcome[None]()
        self._commit_in_flight = this_commit
        try:
            if previous is not None and not previous.done:
                yield Wait(previous)
            attempt = lambda: self._commit_once(offsets)  # noqa: E731
            yield from retrying(self.engine, "committing offsets", attempt, timeout_ms)
        finally:
            this_commit.succeed(None)
        self._committed.update(
            {
                partition: offset.offset
                for partition, offset in offsets.items()
                if partition in self.owned
            }
        )

    def _commit_once(self, offsets: Mapping[TopicPartition, GroupOffset]) -> Operation[None]:
        if self.failure is not None:
            raise self.failure
        if self.epoch == NO_EPOCH or not offsets.keys() <= self.owned:
            raise CommitFailed(
                ErrorCode.UNKNOWN_MEMBER_ID,
                "the partitions are no longer assigned to this member: nothing was committed",
            )
        fields = commit_fields(self.group, offsets)
        fields["member_id"] = self.member_id
        fields["generation_id_or_member_epoch"] = epoch = self.epoch
        fields["group_instance_id"] = self.options.instance_id
        try:
            response = yield Send((yield from self.coordinator()), OFFSET_COMMIT, fields)
            self._check_commit(response, epoch)
        except ClientError as error:
            self.forget_coordinator_after(error)
            raise

    def _check_commit(self, response: Mapping[str, Any], epoch: int) -> None:
        might_have_changed = self.is_rebalancing or epoch != self.epoch
        for topic in response["topics"]:
            for part in topic["partitions"]:
                code = error_code(part["error_code"])
                if code == ErrorCode.NONE:
                    continue
                error = request_failed(code, f"committing {topic['name']} failed ({code.name})")
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    error.retriable = False
                elif code in _DURING_REBALANCE or (code in NOT_A_MEMBER and might_have_changed):
                    error.retriable = True
                elif code in NOT_A_MEMBER:
                    self.request_heartbeat()
                    error = CommitFailed(code, "this member was removed from the group")
                raise error
