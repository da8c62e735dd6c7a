"""The group coordinator of one broker: passes requests to the state machines of groups.

The coordinator runtime executes their decisions. Requests and replies do not depend on the version
of the API, except for OffsetCommit requests.

1. Clients cannot exhaust the memory with joins: a waiting join needs an open connection, unused
   member ids are limited in age and number, and a group without state is deleted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import cast

from headrace.coordinator.ports import CoordinatorLog, CreateTopic, WaitForElection
from headrace.coordinator.runtime import RECORDS_PER_BATCH_MAX, CoordinatorRuntime, start_task
from headrace.coordinator.shard import Moment
from headrace.coordinator.shard_runtime import Status, coordinator_error
from headrace.coordinator.timers import CallLater
from headrace.env.clock import Clock
from headrace.group.classic.machine import ClassicGroup
from headrace.group.commit_batch import CommitBatch
from headrace.group.consumer.group import ConsumerGroup
from headrace.group.coordinator_kind import GroupRuntime, GroupShardRuntime, group_coordinator
from headrace.group.expiry import Expiry
from headrace.group.messages import (
    NO_GENERATION,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    JoinReply,
    JoinRequest,
    Leaver,
    SyncReply,
    SyncRequest,
)
from headrace.group.offsets_machine import FetchedOffset
from headrace.group.pending_ids import PendingIds
from headrace.group.records import GroupRecord
from headrace.group.settings import GroupSettings
from headrace.group.shard_machine import ListedGroup, type_of
from headrace.group.topics import Topics
from headrace.group.views import ConsumerGroupView, GroupView, consumer_view_of, view_of
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode
from headrace.wire.offset_commit import CommitRequest

RESUBSCRIBED_PAUSE_S = 0.01

_logger = logging.getLogger(__name__)
FetchedTopics = list[tuple[str, list[FetchedOffset]]]


class GroupService:
    def __init__(
        self,
        settings: GroupSettings,
        image: ClusterImage,
        clock: Clock,
        create_topic: CreateTopic,
        wait_for_election: WaitForElection,
        call_later: CallLater,
        is_time_trusted: Callable[[], bool],
    ) -> None:
        self.settings = settings
        self._topics = Topics(image)
        self._runtime: GroupRuntime = CoordinatorRuntime(
            group_coordinator(settings, self._topics),
            image,
            clock,
            create_topic,
            wait_for_election,
            call_later,
            self._loaded,
        )
        self.shards = self._runtime.shards
        self._timers = self._runtime.timers
        self._expiry = Expiry(
            clock, is_time_trusted, settings, self.shards.active, self._delete_unused
        )
        self._pending_ids = PendingIds()
        self._commit_tasks: set[asyncio.Task[None]] = set()
        """Tasks that wait for commits.

        They continue after `stop`, so that successful commits get a response.
        """

    # Leadership

    def start(self) -> None:
        """Start the expiry of offsets."""
        self._expiry.start()

    def become_leader(self, index: int, log: CoordinatorLog) -> None:
        """This broker has become the leader of a partition of __consumer_offsets."""
        self._runtime.become_leader(index, log)

    def resign(self, index: int) -> None:
        """This broker is no longer the leader of a partition of __consumer_offsets."""
        self._runtime.resign(index)

    def stop(self) -> None:
        """Fail all waiting requests. Their clients then look for another coordinator."""
        self._expiry.stop()
        self._runtime.stop()

    def topics_changed(self) -> None:
        """Topics were created or deleted, or have more partitions. Groups notice a new version."""
        self._topics.changed()

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Delete the offsets of deleted topics."""
        for shard_runtime in self.shards:
            for name in names:
                if shard_runtime.status is Status.LOADING:
                    shard_runtime.shard.deleted_topics.append(name)
                elif shard_runtime.status is Status.ACTIVE:
                    self._delete_unused(
                        shard_runtime, shard_runtime.shard.offsets.decide_deletion_of_topic(name)
                    )

    def _loaded(self, shard_runtime: GroupShardRuntime) -> None:
        for name in shard_runtime.shard.deleted_topics:
            self._delete_unused(
                shard_runtime, shard_runtime.shard.offsets.decide_deletion_of_topic(name)
            )

    # Membership

    def join(self, group_id: str, request: JoinRequest) -> JoinReply | Awaitable[JoinReply]:
        """Join by the classic protocol. This can first convert a consumer group."""
        shard_runtime = self.shards.find(group_id)
        group = shard_runtime.shard.find(group_id)
        if group is None:
            if request.member_id:
                return JoinReply(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            group = shard_runtime.shard.find_or_create(group_id)
        now = self._timers.now()
        before = shard_runtime.shard.before_join(group_id, request, now)
        if before.records:
            self._runtime.append(shard_runtime, before.records, now)
            self._runtime.complete(shard_runtime, group_id, before, now)
            group = shard_runtime.shard.find_or_create(group_id)
        ticket = self._runtime.replies.new_ticket()
        self._pending_ids.discard(group_id, request.member_id)
        self._runtime.execute(shard_runtime, group_id, group.join(request, ticket, now), now)
        if request.new_member_id in group.pending:
            self._pending_ids.add(shard_runtime, group_id, request.new_member_id)
            self._forget_surplus_ids(now)
        response = self._runtime.reply_to(shard_runtime, group_id, ticket)
        return cast("JoinReply | Awaitable[JoinReply]", response)

    def sync(self, group_id: str, request: SyncRequest) -> SyncReply | Awaitable[SyncReply]:
        shard_runtime = self.shards.find(group_id)
        group = shard_runtime.shard.find(group_id)
        if group is None:
            return SyncReply(ErrorCode.UNKNOWN_MEMBER_ID)
        now = self._timers.now()
        ticket = self._runtime.replies.new_ticket()
        self._runtime.execute(shard_runtime, group_id, group.sync(request, ticket, now), now)
        response = self._runtime.reply_to(shard_runtime, group_id, ticket)
        return cast("SyncReply | Awaitable[SyncReply]", response)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        shard_runtime = self.shards.find(group_id)
        group = shard_runtime.shard.find(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        now = self._timers.now()
        error = group.heartbeat(member_id, instance_id, generation, now)
        self._runtime.set_timer(shard_runtime, group_id, now)
        return error

    def leave(
        self, group_id: str, leavers: list[Leaver]
    ) -> list[ErrorCode] | Awaitable[list[ErrorCode]]:
        shard_runtime = self.shards.find(group_id)
        group = shard_runtime.shard.find(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leavers)
        now = self._timers.now()
        outcome, errors = group.leave(leavers, now)
        self._runtime.execute(shard_runtime, group_id, outcome, now)
        return shard_runtime.when_committed(errors)

    def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat
    ) -> ConsumerHeartbeatReply | Awaitable[ConsumerHeartbeatReply]:
        """A heartbeat of the consumer protocol (KIP-848). Members also join and leave with it."""
        if not self.settings.offers_consumer_protocol:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                "group.coordinator.rebalance.protocols does not contain consumer.",
            )
        shard_runtime = self.shards.find(group_id)
        now = self._timers.now()
        outcome, reply = shard_runtime.shard.consumer_heartbeat(group_id, request, now)
        self._runtime.append(shard_runtime, outcome.records, now)
        self._runtime.complete(shard_runtime, group_id, outcome, now)
        committed = shard_runtime.when_committed(reply)
        is_new_subscription = request.topics is not None or request.regex is not None
        if request.member_epoch > 0 and is_new_subscription and outcome.records:
            return _reply_after_pause(committed)
        return committed

    def _forget_surplus_ids(self, now: Moment) -> None:
        while (surplus := self._pending_ids.pop_surplus()) is not None:
            shard_runtime, group_id, member_id = surplus
            group = shard_runtime.shard.find(group_id)
            if group is not None and shard_runtime.status is Status.ACTIVE:
                self._runtime.execute(
                    shard_runtime, group_id, group.forget_pending(member_id, now), now
                )

    # Offsets

    def commit_all(
        self, requests: Iterable[CommitRequest], on_completed: Callable[[list[CommitRequest]], None]
    ) -> list[CommitRequest]:
        """Commit the offsets of these requests, and set the error codes of their partitions.

        Returns the requests that are complete. Calls `on_completed` with the other ones later. A
        request waits if this broker is about to become its coordinator
        (`ShardRegistry.wait_until_ready`).
        """
        return self._commit_now(requests, on_completed, may_wait=True)

    async def _commit_when_ready(
        self,
        ready: Awaitable[None],
        request: CommitRequest,
        on_completed: Callable[[list[CommitRequest]], None],
    ) -> None:
        await ready
        on_completed(self._commit_now([request], on_completed, may_wait=False))

    def _commit_now(
        self,
        requests: Iterable[CommitRequest],
        on_completed: Callable[[list[CommitRequest]], None],
        *,
        may_wait: bool,
    ) -> list[CommitRequest]:
        now = self._timers.now()
        completed: list[CommitRequest] = []
        batches: dict[GroupShardRuntime, CommitBatch] = {}
        for request in requests:
            try:
                shard_runtime = self.shards.find(request.group_id)
                shard_runtime.shard.check_commit(request, now)
                batch = batches.get(shard_runtime)
                if batch is None:
                    batch = batches[shard_runtime] = CommitBatch(
                        now.wall_ms, self.settings.metadata_size_max
                    )
                batch.add(request)
            except Exception as error:  # noqa: BLE001 (the request gets an error; others continue)
                ready = self.shards.wait_until_ready([request.group_id]) if may_wait else None
                if ready is not None:
                    work = self._commit_when_ready(ready, request, on_completed)
                    start_task(work, self._commit_tasks)
                    continue
                request.set_error(_error_code(error, f"group={request.group_id[:200]!r}"))
                completed.append(request)
                continue
            if batch.record_count >= RECORDS_PER_BATCH_MAX:
                completed += self._append_commits(
                    shard_runtime, batches.pop(shard_runtime), on_completed
                )
        for shard_runtime, batch in batches.items():
            completed += self._append_commits(shard_runtime, batch, on_completed)
        return completed

    def _append_commits(
        self,
        shard_runtime: GroupShardRuntime,
        batch: CommitBatch,
        on_completed: Callable[[list[CommitRequest]], None],
    ) -> list[CommitRequest]:
        """Returns the requests that are complete."""
        requests = batch.requests
        try:
            shard_runtime.append_encoded(
                batch.payload(),
                batch.record_count,
                batch.wall_ms,
                partial(_apply_commits, batch, shard_runtime),
            )
        except Exception as error:  # noqa: BLE001 (the request gets an error; others continue)
            code = _error_code(error, f"partition=__consumer_offsets-{shard_runtime.shard.index}")
            if code is ErrorCode.MESSAGE_TOO_LARGE:
                if len(requests) > 1:
                    return self._append_separately(shard_runtime, batch, on_completed)
                code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            for request in requests:
                request.set_error(coordinator_error(code))
            return requests
        if shard_runtime.is_committed:
            return requests
        start_task(self._complete_later(shard_runtime, requests, on_completed), self._commit_tasks)
        return []

    def _append_separately(
        self,
        shard_runtime: GroupShardRuntime,
        batch: CommitBatch,
        on_completed: Callable[[list[CommitRequest]], None],
    ) -> list[CommitRequest]:
        """Append one batch per request, because one batch of all requests is too large."""
        completed: list[CommitRequest] = []
        for request in batch.requests:
            alone = CommitBatch(batch.wall_ms, batch.metadata_size_max)
            alone.add(request)
            completed += self._append_commits(shard_runtime, alone, on_completed)
        return completed

    async def _complete_later(
        self,
        shard_runtime: GroupShardRuntime,
        requests: list[CommitRequest],
        on_completed: Callable[[list[CommitRequest]], None],
    ) -> None:
        try:
            await shard_runtime.wait_committed()
        except ApiError as error:
            for request in requests:
                request.set_error(error.code)
        on_completed(requests)

    def fetch_offsets(
        self,
        group_id: str,
        topics: Iterable[tuple[str, Iterable[int]]] | None,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = NO_GENERATION,
    ) -> FetchedTopics | Awaitable[FetchedTopics]:
        """The committed offsets of these partitions, or of all partitions if `topics` is None."""
        shard_runtime = self.shards.find(group_id)
        offsets = shard_runtime.shard.offsets
        group = shard_runtime.shard.find(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)
        if topics is None:
            return shard_runtime.when_committed(list(offsets.fetch_all(group_id, require_stable)))
        fetched = [
            (topic, offsets.fetch(group_id, topic, partitions, require_stable))
            for topic, partitions in topics
        ]
        return shard_runtime.when_committed(fetched)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> list[ErrorCode] | Awaitable[list[ErrorCode]]:
        shard_runtime = self.shards.find(group_id)
        records, errors = shard_runtime.shard.decide_offset_deletion(group_id, partitions)
        self._runtime.append_in_batches(shard_runtime, records)
        return shard_runtime.when_committed(errors)

    def _delete_unused(self, shard_runtime: GroupShardRuntime, records: list[GroupRecord]) -> None:
        """Append tombstones that no request waits for. If that fails, expiry repeats it."""
        try:
            self._runtime.append_in_batches(shard_runtime, records)
        except ApiError as error:
            _logger.warning(
                "unused offsets not deleted: partition=__consumer_offsets-%d error=%s",
                shard_runtime.shard.index,
                error,
            )

    # Deletion and description of groups

    def delete_group(self, group_id: str) -> Awaitable[None] | None:
        shard_runtime = self.shards.find(group_id)
        self._runtime.append_in_batches(
            shard_runtime, shard_runtime.shard.decide_group_deletion(group_id)
        )
        return shard_runtime.when_committed(None)

    def describe(self, group_id: str) -> GroupView | Awaitable[GroupView | None] | None:
        """None if the group does not exist or uses the consumer protocol."""
        shard_runtime = self.shards.find(group_id)
        group = shard_runtime.shard.find(group_id)
        return shard_runtime.when_committed(
            view_of(group) if isinstance(group, ClassicGroup) else None
        )

    def describe_consumer(
        self, group_id: str
    ) -> ConsumerGroupView | Awaitable[ConsumerGroupView | None] | None:
        """None if the group does not exist or is a classic one."""
        shard_runtime = self.shards.find(group_id)
        group = shard_runtime.shard.find(group_id)
        view = consumer_view_of(group) if isinstance(group, ConsumerGroup) else None
        return shard_runtime.when_committed(view)

    def type_of(self, group_id: str) -> str | None:
        group = self.shards.find(group_id).shard.find(group_id)
        return None if group is None else type_of(group)

    def list_groups(
        self, states: frozenset[str], types: frozenset[str]
    ) -> list[ListedGroup] | Awaitable[list[ListedGroup]]:
        """All groups that this broker coordinates. Raises ApiError while a shard is loading."""
        listed: list[ListedGroup] = []
        for shard_runtime in self.shards:
            shard_runtime.check_active()
            listed += shard_runtime.shard.list_groups(states, types)
        if all(shard_runtime.is_committed for shard_runtime in self.shards):
            return listed
        return self._list_later(listed)

    async def _list_later(self, listed: list[ListedGroup]) -> list[ListedGroup]:
        for shard_runtime in self.shards:
            await shard_runtime.wait_committed()
        return listed


async def _reply_after_pause(
    reply: ConsumerHeartbeatReply | Awaitable[ConsumerHeartbeatReply],
) -> ConsumerHeartbeatReply:
    """Delay the reply to a member that has changed its subscription.

    If librdkafka (2.15) receives an assignment while its user unsubscribes and subscribes again, it
    never rejoins. Apache Kafka's reply arrives after that.
    """
    ready = reply if isinstance(reply, ConsumerHeartbeatReply) else await reply
    await asyncio.sleep(RESUBSCRIBED_PAUSE_S)
    return ready


def _error_code(error: Exception, affected: str) -> ErrorCode:
    """The error code for commits that failed with this exception."""
    if isinstance(error, ApiError):
        return error.code
    _logger.error("offset commits failed with an internal error: %s", affected, exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR


def _apply_commits(batch: CommitBatch, shard_runtime: GroupShardRuntime, offset: int) -> None:
    batch.apply(shard_runtime.shard.topic_offsets, offset)
