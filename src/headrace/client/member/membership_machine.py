"""A member of a group, in either protocol: its partitions, positions and commits. Pure.

The protocol (classic_member.py, consumer_member.py) is an operation that runs as long as the member
exists, and reports assigned and revoked partitions to this machine. The client API takes events,
which it handles in the program's `poll`, and records.

1. Records of a partition are returned only while it is owned, and none after the event that revokes
   it was queued.
2. A partition that is to be revoked stays owned until the program has handled the event. So it is
   not assigned to another member while this one still processes its records.
3. The commits of a member are sent one at a time, so that an older one is never applied last.
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
from headrace.client.core.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.core.operation import (
    Ask,
    Operation,
    Outcome,
    Pause,
    Wait,
    backoff_ms,
    retrying,
)
from headrace.client.core.options import ConsumerOptions, GroupOptions
from headrace.client.core.ports import Port
from headrace.client.core.values import Record
from headrace.client.fetch.fetch_machine import FetchMachine
from headrace.model.errors import ErrorCode
from headrace.model.topics import TopicPartition
from headrace.wire.apis import OFFSET_COMMIT

Kind = Literal["assigned", "revoked", "lost"]

# The group continues without the member, or with a newer member of the same instance.
NOT_A_MEMBER = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
_COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# A commit during a rebalance can succeed after it.
_IN_BETWEEN = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH})
NO_EPOCH = -1
RECORDS_AT_ONCE = 1_000


class Event:
    """Assigned or revoked partitions; the protocol waits until the program has handled it."""

    __slots__ = ("handled", "kind", "partitions")

    def __init__(self, kind: Kind, partitions: Iterable[TopicPartition]) -> None:
        self.kind = kind
        self.partitions = tuple(sorted(partitions))
        self.handled: Outcome[None] = Outcome()


class Membership:
    def __init__(
        self,
        port: Port,
        group: str,
        options: GroupOptions,
        consumer_options: ConsumerOptions,
    ) -> None:
        self.port = port
        self.group = group
        self.options = options
        self.fetching = FetchMachine(port, consumer_options, waits_for_topics=True)
        self.lane = port.open_lane()
        """Connections for joins and heartbeats, which other requests must not delay."""
        self.member_id = ""
        self.epoch = NO_EPOCH
        """The generation, or the member epoch."""
        self.owned: set[TopicPartition] = set()
        self.failure: ClientError | None = None
        """The permanent error that ended the membership."""
        self.is_changing = False
        """Whether a rebalance is in progress, so that the group can have a newer epoch."""
        self.is_polling = False
        """Whether the program is waiting in `poll`."""
        self._coordinator: int | None = None
        self._last: list[Record] = []
        """The records of the last poll, which the program might be processing."""
        self._rest: deque[Record] = deque()
        """Taken from the fetches, but not returned yet."""
        self._events: deque[Event] = deque()
        self._in_hand: Event | None = None
        self._signal: Outcome[None] = Outcome()
        self._locating: dict[TopicPartition, object] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._committing: Outcome[None] | None = None
        self._polled_ms = port.now_ms
        self._auto_commit_ms = port.now_ms + options.auto_commit_interval_ms
        self._life: Outcome[None] | None = None
        self._hurried = False

    # Calls of the client API.

    def begin(self, life: Operation[None]) -> None:
        """Start a protocol."""
        self._life = self.port.start(life)
        self._life.on_done(self._ended)

    def polled(self, now_ms: float) -> None:
        """The program polls: it is alive, and has processed the records of the last poll."""
        if self.is_idle:
            self.wake()
        self._polled_ms = now_ms
        self.is_polling = True
        self._last = []
        if self.options.auto_commit and now_ms >= self._auto_commit_ms:
            self._auto_commit_ms = now_ms + self.options.auto_commit_interval_ms
            offsets = self.to_commit()
            if offsets and (self._committing is None or self._committing.done):
                # After an error, the next commit retries, and the protocol learns of it.
                self.port.start(self.commit(offsets))

    def next_event(self) -> Event | None:
        """The next event, which must be handled before records are taken."""
        if self.failure is not None:
            raise self.failure
        self._in_hand = self._events.popleft() if self._events else None
        return self._in_hand

    def handled(self, event: Event) -> None:
        self._in_hand = None
        if event.kind == "revoked" and not event.handled.done:
            self._drop(event.partitions)
        if not event.handled.done:
            event.handled.succeed(None)
        self.wake()

    def ready(self) -> Outcome[None]:
        """Done when there is an event, a record or an error."""
        if self._events or self._rest or self.failure is not None:
            outcome: Outcome[None] = Outcome()
            outcome.succeed(None)
            return outcome
        return self.fetching.ready()

    def position(self, partition: TopicPartition) -> int | None:
        for record in self._rest:
            if (record.topic, record.partition) == partition:
                return record.offset
        if partition not in self.fetching.partitions:
            return None
        return self.fetching.position(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition not in self.owned:
            raise KeyError(partition)
        self._locating.pop(partition, None)
        self._rest = deque(
            record for record in self._rest if (record.topic, record.partition) != partition
        )
        if partition in self.fetching.partitions:
            self.fetching.seek(partition, offset)
        else:
            self.fetching.add(partition, offset)

    def take(self, count_max: int) -> list[Record]:
        """The records to return; empty if there are none."""
        if self._rest:
            count = min(count_max, len(self._rest))
            self._last = [self._rest.popleft() for _ in range(count)]
        else:
            self._last = self.fetching.take_records(count_max)
        return self._last

    def take_one(self) -> Record | None:
        if not self._rest:
            self._rest.extend(self.fetching.take_records(RECORDS_AT_ONCE))
        self._last = [self._rest.popleft()] if self._rest else []
        return self._last[0] if self._last else None

    def to_commit(self, *, has_failed: bool = False) -> dict[TopicPartition, GroupOffset]:
        """The positions of the program that are not committed yet.

        The records of the last poll are included, unless the program failed while processing them.
        """
        positions = {
            partition: self.fetching.position(partition) for partition in self.fetching.partitions
        }
        unread = [*self._last, *self._rest] if has_failed else list(self._rest)
        for record in reversed(unread):
            partition = TopicPartition(record.topic, record.partition)
            if partition in positions:
                positions[partition] = record.offset
        return {
            partition: GroupOffset(offset, self.fetching.epoch_before(partition, offset))
            for partition, offset in positions.items()
            if self._committed.get(partition) != offset
        }

    def hurry(self) -> None:
        """Send a heartbeat as soon as possible: the program has not polled for long."""
        self._hurried = True
        self.wake()

    def leave(self, goodbye: Operation[None]) -> Operation[None]:
        """Stop the protocol, and leave the group if possible."""
        if self._life is not None:
            self.port.cancel(self._life)
        if self.failure is None:
            yield from goodbye
        else:
            goodbye.close()

    def close(self, now_ms: float) -> None:
        self.failure = self.failure or ClientClosed("the consumer is closed")
        if self._life is not None:
            self.port.cancel(self._life)
        self.fetching.close(ClientClosed("the consumer is closed"), now_ms)
        self.port.close_lane(self.lane)

    # Calls of a protocol.

    def wake(self) -> None:
        signal, self._signal = self._signal, Outcome()
        signal.succeed(None)

    def rest(self, until_ms: float) -> Wait:
        """Wait for an event, or until this time."""
        return Wait(self._signal, until_ms - self.port.now_ms)

    def take_hurry(self) -> bool:
        hurried, self._hurried = self._hurried, False
        return hurried

    @property
    def is_idle(self) -> bool:
        """Whether the program has not polled for max_poll_interval_ms."""
        idle_ms = self.port.now_ms - self._polled_ms
        return not self.is_polling and idle_ms >= self.options.max_poll_interval_ms

    def rested(self, now_ms: float) -> None:
        """The poll has returned, and the program processes its records."""
        self.is_polling = False
        self._polled_ms = now_ms

    def give(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions, and look up their committed offsets."""
        added = set(partitions)
        if added:
            self.owned |= added
            self._tell(Event("assigned", added))
            token = object()
            self._locating.update(dict.fromkeys(added, token))
            self.port.start(self._locate(added, token))

    def revoke(self, partitions: Iterable[TopicPartition]) -> Event:
        """Request the program to release partitions; they are dropped when the event is handled."""
        event = Event("revoked", partitions)
        if event.partitions:
            self._tell(event)
        else:
            event.handled.succeed(None)
        return event

    def lose(self) -> None:
        """Drop all partitions: other members already own them.

        The program learns of it in `poll`.
        """
        self.epoch = NO_EPOCH
        lost = set(self.owned)
        self._drop(lost)
        untold, self._events = self._events, deque()
        if self._in_hand is not None and self._in_hand.kind == "revoked":
            lost -= set(self._in_hand.partitions)
            self._in_hand.handled.succeed(None)
        for event in untold:
            if event.kind == "assigned":
                lost -= set(event.partitions)
            elif event.kind == "revoked":
                event.handled.succeed(None)
            else:
                self._events.append(event)
        if lost:
            self._tell(Event("lost", lost))

    def node(self) -> Operation[int]:
        """The coordinator."""
        if self._coordinator is None or self._coordinator not in self.port.cluster.nodes:
            self._coordinator = yield from find_coordinator(self.port, self.group)
        return self._coordinator

    def doubt_coordinator(self, error: ClientError) -> None:
        """Look up the coordinator again, unless it is correct and only not ready."""
        code = getattr(error, "code", None)
        if code is None or code in _COORDINATOR_MOVED:
            self._coordinator = None

    # Internals.

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        self.fetching.announce()

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.owned.discard(partition)
            self._locating.pop(partition, None)
            self._committed.pop(partition, None)
            self.fetching.unassign(partition)
        if self._rest:
            self._rest = deque(
                record
                for record in self._rest
                if TopicPartition(record.topic, record.partition) in self.owned
            )

    def _ended(self, life: Outcome[None]) -> None:
        if isinstance(life.error, ClientError):
            self.failure = life.error
            self.fetching.announce()

    def _locate(self, partitions: set[TopicPartition], token: object) -> Operation[None]:
        """Find the start positions of new partitions, as long as they are owned."""
        attempt = 0
        while partitions := {
            partition for partition in partitions if self._locating.get(partition) is token
        }:
            try:
                found = yield from self._positions(partitions)
            except (ClientError, TimedOut) as error:
                if isinstance(error, ClientClosed):
                    return
                if not (error.retriable or isinstance(error, TimedOut | UnknownTopic)):
                    self.fetching.show(error)
                    return
                self.port.note_retry("reading committed offsets", error)
                yield Pause(backoff_ms(self.port, attempt))
                attempt += 1
                continue
            for partition, (offset, is_committed) in found.items():
                if self._locating.get(partition) is token:
                    del self._locating[partition]
                    self.fetching.add(partition, offset)
                    if is_committed:
                        self._committed[partition] = offset
            return

    def _positions(
        self, partitions: set[TopicPartition]
    ) -> Operation[dict[TopicPartition, tuple[int, bool]]]:
        known = yield from group_offsets(self.port, self.group, partitions)
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
            self.port,
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
        before, mine = self._committing, Outcome[None]()
        self._committing = mine
        try:
            if before is not None and not before.done:
                yield Wait(before)
            attempt = lambda: self._commit_once(offsets)  # noqa: E731
            yield from retrying(self.port, "committing offsets", attempt, timeout_ms)
        finally:
            mine.succeed(None)
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
            reply = yield Ask((yield from self.node()), OFFSET_COMMIT, fields)
            self._check_commit(reply, epoch)
        except ClientError as error:
            self.doubt_coordinator(error)
            raise

    def _check_commit(self, reply: Mapping[str, Any], epoch: int) -> None:
        has_changed = self.is_changing or epoch != self.epoch
        for topic in reply["topics"]:
            for part in topic["partitions"]:
                code = error_code(part["error_code"])
                if code == ErrorCode.NONE:
                    continue
                error = request_failed(code, f"committing {topic['name']} failed ({code.name})")
                if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    error.retriable = False
                elif code in _IN_BETWEEN or (code in NOT_A_MEMBER and has_changed):
                    error.retriable = True
                elif code in NOT_A_MEMBER:
                    self.hurry()
                    error = CommitFailed(code, "this member was removed from the group")
                raise error
