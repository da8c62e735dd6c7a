"""Runs the shards of one coordinator: decisions, records, replies and timers.

It owns waiting requests and timers. It does not know what the entities of a shard are.

1. A request reaches a shard only if this broker is the coordinator of this shard and has loaded it.
2. A decision's records are appended, then applied, then its replies are sent (shard_runtime.py).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Generic

from headrace.coordinator.pending_replies import PendingReplies
from headrace.coordinator.ports import CoordinatorLog, CreateTopic, WaitForElection
from headrace.coordinator.shard import Decision, Moment, Record, RecordCodec, Reply
from headrace.coordinator.shard_registry import CoordinatorTopic, ShardRegistry
from headrace.coordinator.shard_runtime import S, ShardRuntime, Status, coordinator_error
from headrace.coordinator.timers import CallLater, Timers
from headrace.env.clock import Clock
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode

RECORDS_PER_BATCH_MAX = 1_000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CoordinatorKind(Generic[S, Record, Reply]):
    """What a type of coordinator, such as the group coordinator, provides to the runtime."""

    topic: CoordinatorTopic
    codec: RecordCodec[Record]
    new_shard: Callable[[int], S]
    check_key: Callable[[str], None]
    """Raises ApiError if the key is invalid, for example if it is too long."""
    failed_reply: Callable[[Reply, ErrorCode], Reply]
    """Converts a reply to the one that is sent if the records of its decision are not committed."""
    compression: int = 0
    commit_seconds: float = 5.0


class CoordinatorRuntime(Generic[S, Record, Reply]):
    def __init__(
        self,
        kind: CoordinatorKind[S, Record, Reply],
        image: ClusterImage,
        clock: Clock,
        create_topic: CreateTopic,
        wait_for_election: WaitForElection,
        call_later: CallLater,
        on_loaded: Callable[[ShardRuntime[S, Record]], None],
    ) -> None:
        self._kind = kind
        self._on_loaded = on_loaded
        self.shards: ShardRegistry[S, Record] = ShardRegistry(
            kind.topic,
            image,
            create_topic,
            wait_for_election,
            self._new_shard,
            kind.check_key,
            self._loaded,
        )
        self.replies: PendingReplies[Reply] = PendingReplies()
        self.timers: Timers[ShardRuntime[S, Record]] = Timers(clock, call_later, self._timer_due)
        self._tasks: set[asyncio.Task[None]] = set()

    def _new_shard(self, index: int, log: CoordinatorLog) -> ShardRuntime[S, Record]:
        kind = self._kind
        shard = kind.new_shard(index)
        return ShardRuntime(shard, log, kind.codec, kind.compression, kind.commit_seconds)

    # Leadership

    def become_leader(self, index: int, log: CoordinatorLog) -> None:
        """This broker has become the leader of a partition of the topic."""
        self.shards.become_leader(index, log)

    def resign(self, index: int) -> None:
        """This broker is no longer the leader of a partition: fail its waiting requests."""
        shard_runtime = self.shards.resign(index)
        if shard_runtime is not None:
            for ticket, reply in shard_runtime.shard.unloaded(ErrorCode.NOT_COORDINATOR):
                self.replies.reply(ticket, reply)

    def stop(self) -> None:
        """Fail all waiting requests. Their clients then look for another coordinator."""
        self.timers.stop()
        self.shards.stop()
        for shard_runtime in self.shards:
            self.resign(shard_runtime.shard.index)
        for task in self._tasks:
            task.cancel()

    def _loaded(self, shard_runtime: ShardRuntime[S, Record]) -> None:
        now = self.timers.now()
        for key, decision in shard_runtime.shard.loaded(now):
            self.execute(shard_runtime, key, decision, now)
        self._on_loaded(shard_runtime)

    # Decisions

    def append(
        self, shard_runtime: ShardRuntime[S, Record], records: list[Record], now: Moment
    ) -> None:
        """Append and apply records. Raises an ApiError whose code can be returned to clients."""
        try:
            shard_runtime.append(records, now.wall_ms)
        except ApiError as error:
            raise ApiError(coordinator_error(error.code), error.message) from None

    def append_in_batches(
        self, shard_runtime: ShardRuntime[S, Record], records: list[Record]
    ) -> None:
        """Append independent records, such as tombstones. Each batch is applied separately."""
        now = self.timers.now()
        for at in range(0, len(records), RECORDS_PER_BATCH_MAX):
            self.append(shard_runtime, records[at : at + RECORDS_PER_BATCH_MAX], now)

    def execute(
        self,
        shard_runtime: ShardRuntime[S, Record],
        key: str,
        decision: Decision[Record, Reply],
        now: Moment,
    ) -> None:
        """Append and apply the records of a decision, then send its replies."""
        while decision.records:
            try:
                shard_runtime.append(decision.records, now.wall_ms)
                break
            except ApiError as error:
                _logger.warning("coordinator records not stored: key=%r error=%s", key[:200], error)
                code = coordinator_error(error.code)
                decision = shard_runtime.shard.append_failed(key, decision, code, now)
        self.complete(shard_runtime, key, decision, now)

    def complete(
        self,
        shard_runtime: ShardRuntime[S, Record],
        key: str,
        decision: Decision[Record, Reply],
        now: Moment,
    ) -> None:
        """Send the replies of a decision whose records are applied, and set the timer."""
        self._send(shard_runtime, decision.replies)
        follow_up: Decision[Record, Reply] = shard_runtime.shard.applied(key, decision, now)
        if follow_up.records or follow_up.replies:
            self.execute(shard_runtime, key, follow_up, now)
        shard_runtime.shard.drop_if_vacant(key)
        self.set_timer(shard_runtime, key, now)

    def set_timer(self, shard_runtime: ShardRuntime[S, Record], key: str, now: Moment) -> None:
        due_ms = shard_runtime.shard.due_ms(key)
        if due_ms is None:
            self.timers.forget(shard_runtime, key)
        else:
            self.timers.set(shard_runtime, key, due_ms, now)

    def _timer_due(self, shard_runtime: ShardRuntime[S, Record], key: str, now: Moment) -> None:
        while shard_runtime.status is Status.ACTIVE:
            due_ms = shard_runtime.shard.due_ms(key)
            if due_ms is None or due_ms > now.ms:
                self.set_timer(shard_runtime, key, now)
                return
            self.execute(shard_runtime, key, shard_runtime.shard.tick(key, now), now)

    # Replies

    def reply_to(
        self, shard_runtime: ShardRuntime[S, Record], key: str, ticket: int
    ) -> Reply | Awaitable[Reply]:
        """The reply of a ticket, or an awaitable of it."""
        reply = self.replies.take(ticket)
        if reply is not None:
            return reply
        return self.replies.wait(ticket, lambda: self._cancelled(shard_runtime, key, ticket))

    def _cancelled(self, shard_runtime: ShardRuntime[S, Record], key: str, ticket: int) -> None:
        if shard_runtime.status is Status.ACTIVE and shard_runtime.shard.due_ms(key) is not None:
            now = self.timers.now()
            self.execute(shard_runtime, key, shard_runtime.shard.cancelled(key, ticket, now), now)

    def _send(
        self, shard_runtime: ShardRuntime[S, Record], replies: list[tuple[int, Reply]]
    ) -> None:
        if shard_runtime.is_committed:
            for ticket, reply in replies:
                self.replies.reply(ticket, reply)
        elif replies:
            start_task(self._send_later(shard_runtime, replies), self._tasks)

    async def _send_later(
        self, shard_runtime: ShardRuntime[S, Record], replies: list[tuple[int, Reply]]
    ) -> None:
        failure: ErrorCode | None = None
        try:
            await shard_runtime.wait_committed()
        except ApiError as error:
            failure = error.code
        for ticket, reply in replies:
            sent = reply if failure is None else self._kind.failed_reply(reply, failure)
            self.replies.reply(ticket, sent)


def start_task(work: Coroutine[None, None, None], tasks: set[asyncio.Task[None]]) -> None:
    """Start a task and keep a reference until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
