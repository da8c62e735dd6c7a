"""Requests ISR changes of this broker's partitions from the controller.

Sends `Partition.wanted_isr` with AlterPartition (key 56, version 3), one request at a time for all
partitions. Runs on the loop thread. The outcome reaches a partition with the response or with the
image of the cluster, whichever is first; `Partition.apply_state` compares partition epochs.

1. The members of a requested ISR bound the high watermark until its outcome is known (B5). A
   missing response is not an outcome: the request is repeated until its response or a later
   partition state arrives.
2. An error that indicates a later state (INVALID_UPDATE_VERSION, FENCED_LEADER_EPOCH) is not an
   outcome either: a copy of the request can be part of that state. The image will contain it.
3. A leader hands over if its log is damaged, or if its followers are silent (`silence_machine`): it
   requests an ISR without itself, and the controller elects one of the others. If few members are
   silent, the leader requests an ISR without them instead.
4. A leader is isolated if this broker is not connected to ZooKeeper, and most of its followers are
   silent: another broker is probably the leader, and this one cannot commit records. It makes its
   clients look for the other leader (`Partition.is_isolated`).
5. Any other error is final. The partition is checked again after a pause, because nothing else
   causes a check if the partition gets no writes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from headrace.env.clock import Clock
from headrace.model.backoff import backoff
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError, ErrorCode, error_name
from headrace.model.topics import PartitionState
from headrace.replication.append_queue import AppendQueue
from headrace.replication.partition import Partition
from headrace.replication.partition_replicas import Isr
from headrace.replication.silence_machine import CHECK_S, Action, FollowerSilence
from headrace.runtime.link import LinkBroken
from headrace.wire.apis import ALTER_PARTITION

VERSION = 3
_RESPONSE_SECONDS = 10.0
_RETRY_MS_MIN = 50
_RETRY_MS_MAX = 1000
_REJECTED_BACKOFF_MS_MIN = 250
_REJECTED_BACKOFF_MS_MAX = 4000
_LATER_STATE = (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH)
_NO_OUTCOME = (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH)
_LOG = logging.getLogger(__name__)

Message = dict[str, Any]
ToController = Callable[[int, int, Message], Awaitable[Message]]


class _IsrChange(NamedTuple):
    partition: Partition
    isr: Isr
    leader_epoch: int
    partition_epoch: int


class IsrService:
    def __init__(
        self,
        *,
        node_id: int,
        broker_epoch: Callable[[], int],
        image: ClusterImage,
        partitions: Iterable[Partition],
        appends: AppendQueue,
        clock: Clock,
        to_controller: ToController,
        lag_ms_max: int,
        fetch_wait_ms_max: int,
    ) -> None:
        self.lag_ms_max = lag_ms_max
        self.silence = FollowerSilence(fetch_wait_ms_max / 1000)
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._image = image
        self._partitions = partitions
        self._appends = appends
        self._clock = clock
        self._to_controller = to_controller
        self._to_check: dict[Partition, None] = {}
        self._backing_off: dict[Partition, int] = {}
        """The time until which no further ISR change of a partition is requested."""
        self._handing_over: dict[Partition, None] = {}
        """Partitions to hand over, because their followers are silent."""
        self._shrinking: dict[Partition, None] = {}
        """Partitions whose silent followers are to be removed from the ISR."""
        self._isolated: dict[Partition, None] = {}
        """Partitions that are marked as isolated."""
        self._loop = asyncio.get_running_loop()
        self._check_timer: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._request_timer: asyncio.Handle | None = None
        self._backoff_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._rejections = 0
        """The number of consecutive responses with a final error."""

    @property
    def has_isolated_leaders(self) -> bool:
        """Whether any partition is marked as isolated."""
        return bool(self._isolated)

    def start(self) -> None:
        self._tick_timer = self._loop.call_later(self.lag_ms_max / 2000, self._tick)
        self._check_timer = self._loop.call_later(CHECK_S, self._check_silence)

    def stop(self) -> None:
        for timer in (
            self._tick_timer,
            self._check_timer,
            self._request_timer,
            self._backoff_timer,
        ):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def check_isr(self, partition: Partition) -> None:
        """Check the ISR soon: a follower has caught up, or something else has changed."""
        self._to_check[partition] = None
        if self._request_timer is None and self._task is None:
            self._request_timer = self._loop.call_soon(self._request_due_changes)

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(self.lag_ms_max / 2000, self._tick)
        for partition in self._partitions:
            if partition.is_leader:
                self.check_isr(partition)

    def _check_silence(self) -> None:
        self._check_timer = self._loop.call_later(CHECK_S, self._check_silence)
        now = self._clock.monotonic()
        others = (node for node in self._image.brokers if node != self._node_id)
        if not all(map(self.silence.tracks, others)):
            self._expect_fetches(now)
        if self.silence.check(self._image.brokers, now):
            for partition in self._partitions:
                if partition.is_leader and partition.replicas.proposed is None:
                    self._check_followers(partition, now)
        self._mark_isolated()

    def _expect_fetches(self, now: float) -> None:
        """Expect fetches of all members that records wait for."""
        waiting = [
            each.replicas.isr
            for each in self._partitions
            if each.is_leader and each.high_watermark < each.log.written_end_offset
        ]
        for isr in waiting:
            for member, _ in isr:
                if member != self._node_id:
                    self.silence.expect(member, now)

    def _check_followers(self, partition: Partition, now: float) -> None:
        key = (partition.topic, int(partition.index))
        action = self.silence.decide(
            key,
            int(partition.leader_epoch),
            [member for member, _ in partition.replicas.isr if member != self._node_id],
            len(partition.replicas.assigned),
            min(int(partition.rules.min_insync_replicas), len(partition.replicas.assigned)),
            now,
            is_waiting=_is_waiting(partition),
        )
        if action is Action.HAND_OVER:
            _LOG.warning("followers do not respond, handing over leadership: partition=%s-%d", *key)
            self._handing_over[partition] = None
        elif action is Action.REMOVE_SILENT:
            silent = ",".join(str(node) for node in sorted(self.silence.unreached))
            _LOG.warning(
                "followers do not respond, removing them from the ISR: partition=%s-%d "
                "followers=%s",
                *key,
                silent,
            )
            self._shrinking[partition] = None
        if action is not Action.NONE:
            self.check_isr(partition)

    def _mark_isolated(self) -> None:
        """Mark the partitions of isolated leaders, and unmark the others (rule 4)."""
        unreached = self.silence.unreached
        isolated: dict[Partition, None] = {}
        if self.silence.is_isolated and self._appends.may_be_stale():
            for partition in self._partitions:
                members = (member for member, _ in partition.replicas.isr)
                if partition.is_leader and not unreached.isdisjoint(members):
                    isolated[partition] = None
        for partition in self._isolated:
            partition.is_isolated = partition in isolated
        for partition in [each for each in isolated if each not in self._isolated]:
            _LOG.warning(
                "leader is isolated, rejecting clients: partition=%s",
                partition.log.partition,
            )
            partition.is_isolated = True
            self._appends.update_time()
            self._appends.leader_isolated(partition)
            self._appends.send_responses()
        self._isolated = isolated

    def _request_due_changes(self) -> None:
        self._request_timer = None
        changes = self._due_changes()
        if changes:
            self._task = self._loop.create_task(self._request_changes(changes))

    def _due_changes(self) -> list[_IsrChange]:
        """Take the partitions to check, and propose the ISR changes that they need (rule 1)."""
        to_check, self._to_check = self._to_check, {}
        now_ms = self._now_ms()
        changes: list[_IsrChange] = []
        for partition in to_check:
            hands_over = partition in self._handing_over
            is_shrinking = partition in self._shrinking
            self._handing_over.pop(partition, None)
            self._shrinking.pop(partition, None)
            if not partition.is_leader or self._backing_off.get(partition, now_ms) > now_ms:
                continue
            self._backing_off.pop(partition, None)
            isr = partition.replicas.proposed or self._isr_without_this(partition, hands_over)
            if isr is None and is_shrinking:
                isr = self._isr_without_silent(partition)
            if isr is None:
                isr = partition.wanted_isr(now_ms, self.lag_ms_max, self._is_registered)
            if isr is None:
                continue
            if partition.replicas.proposed is None:
                partition.replicas.propose(isr)
            changes.append(
                _IsrChange(
                    partition, isr, int(partition.leader_epoch), int(partition.partition_epoch)
                )
            )
        return changes

    def _isr_without_this(self, partition: Partition, hands_over: bool) -> Isr | None:
        """The ISR without this leader, if it must hand over and another member exists."""
        if partition.damaged_from < 0 and not hands_over:
            return None
        return tuple(each for each in partition.replicas.isr if each[0] != self._node_id) or None

    def _isr_without_silent(self, partition: Partition) -> Isr | None:
        """The ISR to request if followers are silent; None if all of them fetch again."""
        unreached = self.silence.unreached
        isr = tuple(each for each in partition.replicas.isr if each[0] not in unreached)
        return None if isr == partition.replicas.isr else isr

    def _is_registered(self, node_id: int, epoch: int) -> bool:
        broker = self._image.brokers.get(node_id)
        return broker is not None and broker.epoch == epoch

    async def _request_changes(self, changes: list[_IsrChange]) -> None:
        try:
            async with asyncio.timeout(_RESPONSE_SECONDS):
                reply = await self._to_controller(ALTER_PARTITION, VERSION, self._request(changes))
            code = reply.get("error_code", 0)
            error_text = error_name(code) if code else ""
        except (LinkBroken, TimeoutError) as error:
            reply, error_text = {}, str(error) or "no response"
        except ApiError as error:
            reply, error_text = {}, error_name(error.code)
        except Exception:  # noqa: BLE001 - otherwise this broker would request no more ISR changes
            _LOG.exception("ISR change failed, retrying: partitions=%d", len(changes))
            reply, error_text = {}, "internal error"
        unknown = changes if error_text else self._apply_response(changes, _results(reply))
        self._task = None
        self._failures = self._failures + 1 if unknown else 0
        if unknown:
            retry_ms = int(backoff(_RETRY_MS_MIN, _RETRY_MS_MAX, self._failures))
            if self._failures == 1:
                reason = error_text or "no outcome for some partitions"
                _LOG.info("ISR change not accepted by the controller: error=%s", reason)
            self._to_check = {each.partition: None for each in unknown} | self._to_check
            self._request_timer = self._loop.call_later(retry_ms / 1000, self._request_due_changes)
        elif self._to_check:
            self._request_timer = self._loop.call_soon(self._request_due_changes)

    def _request(self, changes: list[_IsrChange]) -> Message:
        topics: dict[Any, list[Message]] = {}
        for each in changes:
            partition = each.partition
            topics.setdefault(partition.topic_id, []).append(
                {
                    "partition_index": int(partition.index),
                    "leader_epoch": each.leader_epoch,
                    "new_isr_with_epochs": [
                        {"broker_id": member, "broker_epoch": epoch} for member, epoch in each.isr
                    ],
                    "leader_recovery_state": 0,
                    "partition_epoch": each.partition_epoch,
                }
            )
        return {
            "broker_id": self._node_id,
            "broker_epoch": self._broker_epoch(),
            "topics": [
                {"topic_id": topic_id, "partitions": parts} for topic_id, parts in topics.items()
            ],
        }

    def _apply_response(
        self, changes: list[_IsrChange], entries: dict[tuple[Any, int], Message]
    ) -> list[_IsrChange]:
        """Apply the response; returns the requests whose outcome is unknown."""
        unknown: list[_IsrChange] = []
        rejected: dict[int, list[Partition]] = {}
        self._appends.update_time()
        for each in changes:
            partition = each.partition
            if (
                partition.replicas.proposed is not each.isr
                or partition.leader_epoch != each.leader_epoch
            ):
                # A later state arrived first, perhaps without the requested change.
                self._backoff(partition, _RETRY_MS_MAX)
                continue
            entry = entries.get((partition.topic_id, int(partition.index)))
            if entry is None or entry["error_code"] in _NO_OUTCOME:
                unknown.append(each)
            elif entry["error_code"] in _LATER_STATE:
                self._backoff(partition, _RETRY_MS_MAX)
            elif entry["error_code"]:
                rejected.setdefault(entry["error_code"], []).append(partition)
                partition.replicas.withdraw()
                self._appends.commit(partition)
            else:
                self._apply_accepted(each, entry)
        self._appends.send_responses()
        self._start_backoff(rejected)
        return unknown

    def _apply_accepted(self, change: _IsrChange, entry: Message) -> None:
        partition = change.partition
        epochs = dict(change.isr)
        if entry["leader_epoch"] != change.leader_epoch or sorted(entry["isr"]) != sorted(epochs):
            # Another leader, or another ISR than requested: the image will contain the state.
            self._backoff(partition, _RETRY_MS_MAX)
            return
        state = PartitionState(
            entry["leader_id"],
            entry["leader_epoch"],
            partition.replicas.assigned,
            tuple(entry["isr"]),
            entry["partition_epoch"],
            tuple(epochs[member] for member in entry["isr"]),
        )
        if (
            not partition.apply_accepted(state, self._now_ms())
            and partition.replicas.proposed is change.isr
        ):
            partition.replicas.withdraw()
        self._appends.commit(partition)

    def _start_backoff(self, rejected: dict[int, list[Partition]]) -> None:
        """Pause partitions with a final error, with exponential backoff."""
        self._rejections = self._rejections + 1 if rejected else 0
        for code, partitions in rejected.items():
            _LOG.info(
                "ISR change rejected: error=%s partitions=%d first=%s",
                error_name(code),
                len(partitions),
                partitions[0].log.partition,
            )
            backoff_ms = int(
                backoff(_REJECTED_BACKOFF_MS_MIN, _REJECTED_BACKOFF_MS_MAX, self._rejections)
            )
            for partition in partitions:
                self._backoff(partition, backoff_ms)

    def _backoff(self, partition: Partition, backoff_ms: int) -> None:
        self._backing_off[partition] = self._now_ms() + backoff_ms
        if self._backoff_timer is None:
            self._backoff_timer = self._loop.call_later(
                _REJECTED_BACKOFF_MS_MIN / 1000, self._end_backoff
            )

    def _end_backoff(self) -> None:
        self._backoff_timer = None
        now_ms = self._now_ms()
        due = [each for each, due_ms in self._backing_off.items() if due_ms <= now_ms]
        for partition in due:
            del self._backing_off[partition]
            self.check_isr(partition)
        if self._backing_off:
            left_ms = min(self._backing_off.values()) - now_ms
            self._backoff_timer = self._loop.call_later(left_ms / 1000, self._end_backoff)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def _results(reply: Message) -> dict[tuple[Any, int], Message]:
    return {
        (topic["topic_id"], part["partition_index"]): {"error_code": 0} | part
        for topic in reply.get("topics", ())
        for part in topic["partitions"]
    }


def _is_waiting(partition: Partition) -> bool:
    """Whether records wait to be committed."""
    return bool(partition.high_watermark < partition.log.written_end_offset)
