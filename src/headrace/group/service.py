"""The group coordinator of one broker: requests, logs and timers brought to the machines.

It owns what waits: joins and syncs for other members, answers for their records to be committed,
groups for their timers. It knows no wire versions; handlers do, and commits bring their own along.

1. An answer is given only for a group whose shard this broker leads and has loaded.
2. What a machine decides is appended, applied, and only then sent (led_shard.py).
3. Memory is bounded by what clients hold open: a join waits with its connection, ids that nobody
   came back for are forgotten by age and by number, a group without anything in it goes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import cast

from headrace.env.clock import Clock
from headrace.group.classic_machine import ClassicGroup
from headrace.group.commit_batch import CommitBatch
from headrace.group.consumer_classic import ConsumerGroup
from headrace.group.expiry import Expiry
from headrace.group.led_shard import LedShard, Status, as_coordinator
from headrace.group.messages import (
    NO_GENERATION,
    BeatReply,
    BeatRequest,
    JoinReply,
    JoinRequest,
    Leaver,
    Moment,
    Outcome,
    Reply,
    SyncReply,
    SyncRequest,
)
from headrace.group.offsets_machine import FetchedOffset
from headrace.group.pending_ids import PendingIds
from headrace.group.port import GroupLog, TopicMaker
from headrace.group.records import GroupRecord
from headrace.group.settings import GroupSettings
from headrace.group.shard_machine import ListedGroup, type_of
from headrace.group.shards import Shards
from headrace.group.timers import CallLater, Timers
from headrace.group.views import ConsumerGroupView, GroupView, consumer_view_of, view_of
from headrace.group.waits import Waits
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.offset_commit import CommitRequest

RECORDS_PER_BATCH_MAX = 1_000
RESUBSCRIBED_PAUSE_S = 0.01

_log = logging.getLogger(__name__)
FetchedTopics = list[tuple[str, list[FetchedOffset]]]


class GroupService:
    def __init__(
        self,
        settings: GroupSettings,
        image: ClusterImage,
        clock: Clock,
        make_topic: TopicMaker,
        call_later: CallLater,
        is_time_trusted: Callable[[], bool],
    ) -> None:
        self.settings = settings
        self.shards = Shards(settings, image, make_topic, self._loaded)
        self._waits: Waits[Reply] = Waits()
        self._timers = Timers(clock, call_later, self._woken)
        self._expiry = Expiry(clock, is_time_trusted, settings, self.shards.active, self._clean)
        self._pending_ids = PendingIds()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answering: set[asyncio.Task[None]] = set()
        """Of commits. They go on when this ends: what is committed by then is told."""

    # Leading

    def start(self) -> None:
        """Begin to look for offsets that expire; all else begins with `lead`."""
        self._expiry.start()

    def lead(self, index: int, log: GroupLog) -> None:
        """This broker leads a partition of __consumer_offsets from now on."""
        self.shards.lead(index, log)

    def resign(self, index: int) -> None:
        """Another broker leads it now, or nobody does."""
        led = self.shards.resign(index)
        if led is None:
            return
        for group in led.shard.groups.values():
            for ticket, reply in group.unloaded(ErrorCode.NOT_COORDINATOR).replies:
                self._waits.settle(ticket, reply)

    def stop(self) -> None:
        """Answer whoever waits; clients find the group's next coordinator, or this one again."""
        self._timers.stop()
        self._expiry.stop()
        self.shards.stop()
        for led in self.shards:
            self.resign(led.shard.index)
        for task in self._tasks:
            task.cancel()

    def topics_changed(self) -> None:
        """Topics were made or deleted, or have more partitions: members hear of it in time."""
        self.shards.topics.changed()

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Their offsets go with them."""
        for led in self.shards:
            for name in names:
                if led.status is Status.LOADING:
                    led.deleted_topics.append(name)
                elif led.status is Status.ACTIVE:
                    self._clean(led, led.shard.offsets.decide_deletion_of_topic(name))

    def _loaded(self, led: LedShard) -> None:
        now = self._timers.now()
        for group in list(led.shard.groups.values()):
            self._carry_out(led, group.group_id, group.loaded(now), now)
        for name in led.deleted_topics:
            self._clean(led, led.shard.offsets.decide_deletion_of_topic(name))

    # Membership

    def join(self, group_id: str, request: JoinRequest) -> JoinReply | Awaitable[JoinReply]:
        led = self.shards.find(group_id)
        group = led.shard.find(group_id)
        if group is None:
            if request.member_id:
                return JoinReply(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            group = led.shard.find_or_make(group_id)
        now = self._timers.now()
        before = led.shard.before_join(group_id, request, now)
        if before.records:
            self._append(led, before.records, now)
            self._follow(led, group_id, before, now)
            group = led.shard.find_or_make(group_id)
        ticket = self._waits.take()
        self._pending_ids.discard(group_id, request.member_id)
        self._carry_out(led, group_id, group.join(request, ticket, now), now)
        if request.new_member_id in group.pending:
            self._pending_ids.add(led, group_id, request.new_member_id)
            self._forget_surplus_ids(now)
        answer = self._answer(led, group_id, ticket)
        return cast("JoinReply | Awaitable[JoinReply]", answer)

    def sync(self, group_id: str, request: SyncRequest) -> SyncReply | Awaitable[SyncReply]:
        led = self.shards.find(group_id)
        group = led.shard.find(group_id)
        if group is None:
            return SyncReply(ErrorCode.UNKNOWN_MEMBER_ID)
        now = self._timers.now()
        ticket = self._waits.take()
        self._carry_out(led, group_id, group.sync(request, ticket, now), now)
        answer = self._answer(led, group_id, ticket)
        return cast("SyncReply | Awaitable[SyncReply]", answer)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        led = self.shards.find(group_id)
        group = led.shard.find(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        now = self._timers.now()
        error = group.heartbeat(member_id, instance_id, generation, now)
        self._timers.note(led, group_id, group.alarm_ms, now)
        return error

    def leave(
        self, group_id: str, leavers: list[Leaver]
    ) -> list[ErrorCode] | Awaitable[list[ErrorCode]]:
        led = self.shards.find(group_id)
        group = led.shard.find(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers)
        now = self._timers.now()
        outcome, errors = group.leave(leavers, now)
        self._carry_out(led, group_id, outcome, now)
        return led.when_committed(errors)

    def beat(self, group_id: str, request: BeatRequest) -> BeatReply | Awaitable[BeatReply]:
        """A heartbeat of the newer protocol (KIP-848), which does all there is to do in it."""
        if not self.settings.offers_consumer_protocol:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                "group.coordinator.rebalance.protocols does not contain consumer.",
            )
        led = self.shards.find(group_id)
        now = self._timers.now()
        outcome, reply = led.shard.beat(group_id, request, now)
        self._append(led, outcome.records, now)
        self._follow(led, group_id, outcome, now)
        coming = led.when_committed(reply)
        is_new_wish = request.topics is not None or request.regex is not None
        if request.member_epoch > 0 and is_new_wish and outcome.records:
            return _with_a_pause(coming)
        return coming

    def _append(self, led: LedShard, records: list[GroupRecord], now: Moment) -> None:
        try:
            led.append(records, now.wall_ms)
        except ApiError as error:
            raise ApiError(as_coordinator(error.code), error.message) from None

    def _carry_out(self, led: LedShard, group_id: str, outcome: Outcome, now: Moment) -> None:
        """Append, apply, send: in this order, and without a pause between the first two."""
        while outcome.records:
            try:
                led.append(outcome.records, now.wall_ms)
                break
            except ApiError as error:
                _log.warning(
                    "group generation not stored: group=%r error=%s", group_id[:200], error
                )
                group = led.shard.find(group_id)
                assert group is not None
                outcome = group.append_failed(outcome, as_coordinator(error.code), now)
        self._follow(led, group_id, outcome, now)

    def _follow(self, led: LedShard, group_id: str, outcome: Outcome, now: Moment) -> None:
        """The log has it: send what is to be sent, and wake the group when it wants to be."""
        self._send(led, outcome.replies)
        group = led.shard.find(group_id)
        if group is not None:
            follow_up = group.applied(outcome, now)
            if follow_up.records or follow_up.replies:
                self._carry_out(led, group_id, follow_up, now)
        led.shard.drop_if_vacant(group_id)
        group = led.shard.find(group_id)
        if group is None:
            self._timers.forget(led, group_id)
        else:
            self._timers.note(led, group_id, group.alarm_ms, now)

    def _send(self, led: LedShard, replies: list[tuple[int, Reply]]) -> None:
        if led.is_committed:
            for ticket, reply in replies:
                self._waits.settle(ticket, reply)
        elif replies:
            self._start(self._send_later(led, replies), self._tasks)

    async def _send_later(self, led: LedShard, replies: list[tuple[int, Reply]]) -> None:
        failure: ErrorCode | None = None
        try:
            await led.wait_committed()
        except ApiError as error:
            failure = error.code
        for ticket, reply in replies:
            self._waits.settle(ticket, reply if failure is None else _failed(reply, failure))

    def _start(self, work: Coroutine[None, None, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _answer(self, led: LedShard, group_id: str, ticket: int) -> Reply | Awaitable[Reply]:
        answer = self._waits.answer_now(ticket)
        if answer is not None:
            return answer
        return self._waits.wait(ticket, lambda: self._abandoned(led, group_id, ticket))

    def _abandoned(self, led: LedShard, group_id: str, ticket: int) -> None:
        group = led.shard.find(group_id)
        if group is not None and led.status is Status.ACTIVE:
            now = self._timers.now()
            self._carry_out(led, group_id, group.abandoned(ticket, now), now)

    def _woken(self, led: LedShard, group_id: str, now: Moment) -> None:
        group = led.shard.find(group_id)
        while group is not None and led.status is Status.ACTIVE and group.alarm_ms <= now.ms:
            self._carry_out(led, group_id, group.ticked(now), now)
            group = led.shard.find(group_id)
        if group is not None and led.status is Status.ACTIVE:
            self._timers.note(led, group_id, group.alarm_ms, now)

    def _forget_surplus_ids(self, now: Moment) -> None:
        while (surplus := self._pending_ids.pop_surplus()) is not None:
            led, group_id, member_id = surplus
            group = led.shard.find(group_id)
            if group is not None and led.status is Status.ACTIVE:
                self._carry_out(led, group_id, group.forget_pending(member_id, now), now)

    # Offsets

    def commit_all(
        self, requests: Iterable[CommitRequest], late: Callable[[list[CommitRequest]], None]
    ) -> list[CommitRequest]:
        """Commit the offsets of these requests; each request then has the codes of its response.

        Returns those that can be answered now. `late` is called with the others when they can be.
        A request waits if this broker becomes its coordinator (`Shards.settling`).
        """
        return self._commit_now(requests, late, may_wait=True)

    async def _commit_when_settled(
        self,
        settling: Awaitable[None],
        request: CommitRequest,
        late: Callable[[list[CommitRequest]], None],
    ) -> None:
        await settling
        late(self._commit_now([request], late, may_wait=False))

    def _commit_now(
        self,
        requests: Iterable[CommitRequest],
        late: Callable[[list[CommitRequest]], None],
        *,
        may_wait: bool,
    ) -> list[CommitRequest]:
        now = self._timers.now()
        answered: list[CommitRequest] = []
        batches: dict[LedShard, CommitBatch] = {}
        for request in requests:
            try:
                led = self.shards.find(request.group_id)
                led.shard.check_commit(request, now)
                batch = batches.get(led)
                if batch is None:
                    batch = batches[led] = CommitBatch(now.wall_ms, self.settings.metadata_size_max)
                batch.add(request)
            except Exception as error:  # noqa: BLE001 (it is told, and others are served on)
                settling = self.shards.settling([request.group_id]) if may_wait else None
                if settling is not None:
                    work = self._commit_when_settled(settling, request, late)
                    self._start(work, self._answering)
                    continue
                request.refuse(_code_of(error, f"group {request.group_id[:200]!r}"))
                answered.append(request)
                continue
            if batch.record_count >= RECORDS_PER_BATCH_MAX:
                answered += self._append_commits(led, batches.pop(led), late)
        for led, batch in batches.items():
            answered += self._append_commits(led, batch, late)
        return answered

    def _append_commits(
        self, led: LedShard, batch: CommitBatch, late: Callable[[list[CommitRequest]], None]
    ) -> list[CommitRequest]:
        """Returns those that can be answered now."""
        requests = batch.requests
        try:
            led.append_commits(batch)
        except Exception as error:  # noqa: BLE001 (it is told, and others are served on)
            code = _code_of(error, f"shard {led.shard.index}")
            if code is ErrorCode.MESSAGE_TOO_LARGE:
                if len(requests) > 1:
                    return self._append_one_by_one(led, batch, late)
                code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            for request in requests:
                request.refuse(as_coordinator(code))
            return requests
        if led.is_committed:
            return requests
        self._start(self._answer_later(led, requests, late), self._answering)
        return []

    def _append_one_by_one(
        self, led: LedShard, batch: CommitBatch, late: Callable[[list[CommitRequest]], None]
    ) -> list[CommitRequest]:
        """Together they are too large for a batch: each has one of its own."""
        answered: list[CommitRequest] = []
        for request in batch.requests:
            alone = CommitBatch(batch.wall_ms, batch.metadata_size_max)
            alone.add(request)
            answered += self._append_commits(led, alone, late)
        return answered

    async def _answer_later(
        self,
        led: LedShard,
        requests: list[CommitRequest],
        late: Callable[[list[CommitRequest]], None],
    ) -> None:
        try:
            await led.wait_committed()
        except ApiError as error:
            for request in requests:
                request.refuse(error.code)
        late(requests)

    def fetch_offsets(
        self,
        group_id: str,
        topics: Iterable[tuple[str, Iterable[int]]] | None,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = NO_GENERATION,
    ) -> FetchedTopics | Awaitable[FetchedTopics]:
        """Of the named partitions, or with None of all that have one."""
        led = self.shards.find(group_id)
        offsets = led.shard.offsets
        group = led.shard.find(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)
        if topics is None:
            return led.when_committed(list(offsets.fetch_all(group_id, require_stable)))
        fetched = [
            (topic, offsets.fetch(group_id, topic, partitions, require_stable))
            for topic, partitions in topics
        ]
        return led.when_committed(fetched)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> list[ErrorCode] | Awaitable[list[ErrorCode]]:
        led = self.shards.find(group_id)
        records, errors = led.shard.decide_offset_deletion(group_id, partitions)
        self._append_in_parts(led, records)
        return led.when_committed(errors)

    def _append_in_parts(self, led: LedShard, records: list[GroupRecord]) -> None:
        """Many tombstones do not fit one batch, and need not go together."""
        now = self._timers.now()
        for at in range(0, len(records), RECORDS_PER_BATCH_MAX):
            self._append(led, records[at : at + RECORDS_PER_BATCH_MAX], now)

    def _clean(self, led: LedShard, records: list[GroupRecord]) -> None:
        """Remove what is not needed. If that fails nobody waits for it, and it is tried again."""
        try:
            self._append_in_parts(led, records)
        except ApiError as error:
            _log.warning(
                "expired offsets not deleted: partition=__consumer_offsets-%d error=%s",
                led.shard.index,
                error,
            )

    # Groups as a whole

    def delete_group(self, group_id: str) -> Awaitable[None] | None:
        led = self.shards.find(group_id)
        self._append_in_parts(led, led.shard.decide_group_deletion(group_id))
        return led.when_committed(None)

    def describe(self, group_id: str) -> GroupView | Awaitable[GroupView | None] | None:
        """None if there is no such group, or it is one of the newer protocol."""
        led = self.shards.find(group_id)
        group = led.shard.find(group_id)
        return led.when_committed(view_of(group) if isinstance(group, ClassicGroup) else None)

    def describe_consumer(
        self, group_id: str
    ) -> ConsumerGroupView | Awaitable[ConsumerGroupView | None] | None:
        """None if there is no such group, or it is a classic one."""
        led = self.shards.find(group_id)
        group = led.shard.find(group_id)
        view = consumer_view_of(group) if isinstance(group, ConsumerGroup) else None
        return led.when_committed(view)

    def type_of(self, group_id: str) -> str | None:
        group = self.shards.find(group_id).shard.find(group_id)
        return None if group is None else type_of(group)

    def list_groups(
        self, states: frozenset[str], types: frozenset[str]
    ) -> list[ListedGroup] | Awaitable[list[ListedGroup]]:
        """All that this broker answers for; raises ApiError while any of them is loading."""
        listed: list[ListedGroup] = []
        for led in self.shards:
            led.check_active()
            listed += led.shard.list_groups(states, types)
        if all(led.is_committed for led in self.shards):
            return listed
        return self._list_later(listed)

    async def _list_later(self, listed: list[ListedGroup]) -> list[ListedGroup]:
        for led in self.shards:
            await led.wait_committed()
        return listed


async def _with_a_pause(coming: BeatReply | Awaitable[BeatReply]) -> BeatReply:
    """For a member that reads other topics now, and may do so again in a moment.

    librdkafka (2.15) never joins again when an assignment comes while its user unsubscribes and
    subscribes anew. Kafka's answer takes longer than that.
    """
    reply = coming if isinstance(coming, BeatReply) else await coming
    await asyncio.sleep(RESUBSCRIBED_PAUSE_S)
    return reply


def _failed(reply: Reply, error: ErrorCode) -> Reply:
    if isinstance(reply, JoinReply):
        return JoinReply(error, reply.member_id)
    return SyncReply(error)


def _code_of(error: Exception, whose: str) -> ErrorCode:
    """What those whose commits failed are told."""
    if isinstance(error, ApiError):
        return error.code
    _log.error("offset commits failed with an internal error: partition=%s", whose, exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR
