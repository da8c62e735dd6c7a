"""Applies changes of the cluster image to the partitions of this broker.

The controller decides which partitions exist, and which brokers lead them. This module creates,
opens and removes logs, fills the hot path's table, and makes partitions leaders or followers. It
runs on the loop, between iterations of the server.

1. A partition never goes back to a lower leader epoch.
2. This broker becomes leader only if the ISR contains it with its current broker epoch. It ignores
   elections of its former incarnations (B7).
3. A deleted topic is removed from the table immediately. The logs of a new topic are opened in
   slices, so that they do not block the loop; `opened` waits until they are open.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol
from uuid import UUID

from headrace.cluster.changes import ImageChange, changed_partitions
from headrace.config.broker import BrokerConfig
from headrace.controller.failover_machine import complete_members
from headrace.env.clock import Clock
from headrace.env.rate_limited_log import RecurringProblem
from headrace.log.directory.directory_jobs import RemoveDirectories
from headrace.log.directory.log_directory import LogDirectory
from headrace.model.cluster import ClusterImage
from headrace.model.errors import ApiError
from headrace.model.topics import (
    INTERNAL_TOPICS,
    NO_LEADER,
    PartitionState,
    TopicPartition,
    TopicState,
)
from headrace.replication.append_queue import AppendQueue
from headrace.replication.partition import Partition
from headrace.replication.partition_table import PartitionTable
from headrace.runtime.slices import Slices

_RETRY_SECONDS = 1.0
_logger = logging.getLogger(__name__)


class Fetchers(Protocol):
    """Starts and stops the fetchers of partitions that this broker follows."""

    def follow(self, partition: Partition) -> None: ...

    def unfollow(self, partition: Partition) -> None: ...


class Replicas:
    def __init__(
        self,
        *,
        node_id: int,
        config: BrokerConfig,
        image: ClusterImage,
        logs: LogDirectory,
        table: PartitionTable,
        clock: Clock,
        appends: AppendQueue,
        remove: Callable[[RemoveDirectories], None],
        broker_epoch: Callable[[], int],
        fetchers: Fetchers | None,
    ) -> None:
        self._node_id = node_id
        self._config = config
        self._image = image
        self._logs = logs
        self._table = table
        self._clock = clock
        self._appends = appends
        self._remove = remove
        self._broker_epoch = broker_epoch
        self._fetchers = fetchers
        self._unopened: dict[str, dict[int, None]] = {}
        """Partitions by topic whose logs are not open yet."""
        self._retries: dict[str, asyncio.TimerHandle] = {}
        """For each topic with logs that could not be opened: the timer of the next attempt."""
        self._open_problem = RecurringProblem(_logger, clock.monotonic)
        self._slices = Slices(self._next_step, clock.monotonic, self._slice_ended)
        self._slice_done = asyncio.Event()

    def load(self) -> None:
        """Open the logs of all partitions that this broker has in the image."""
        self._apply_dynamic_settings()
        topics = self._image.topics.values()
        self._logs.load(
            {
                TopicPartition(topic.name, index): (
                    topic.topic_id,
                    self._config.topic_config(topic.configs),
                )
                for topic in topics
                for index in self._own_partitions(topic)
            },
            dict(self._reassigned_partitions()),
            {
                TopicPartition(topic.name, index)
                for topic in topics
                for index in self._own_partitions(topic)
                if self._is_only_copy(topic.partitions[index])
            },
        )
        for topic in topics:
            self._update(topic)
        while self._open_next():
            pass
        self._slices.run()

    def stop(self) -> None:
        """Stop opening logs. The next start of the broker opens the others."""
        self._slices.stop()
        for timer in self._retries.values():
            timer.cancel()

    async def opened(self, topic: str) -> None:
        """Wait until this broker's partitions of a topic have their logs."""
        while topic in self._unopened:
            await self._slice_done.wait()

    def changed(self, change: ImageChange) -> None:
        if change.is_lost:
            self._resign_all()
        for topic in change.deleted:
            self._topic_deleted(topic)
        for topic in change.created:
            self._update(topic)
        for before, topic in change.changed:
            indexes = changed_partitions(before, topic)
            if before.configs != topic.configs:
                # New settings affect all own partitions. `indexes` has reassigned ones as well.
                indexes = sorted({*indexes, *self._own_partitions(topic)})
            self._update(topic, indexes)
        if change.broker_configs and self._apply_dynamic_settings():
            for topic in self._image.topics.values():
                self._update(topic)
        self._slices.run()
        self._appends.send_responses()

    def _resign_all(self) -> None:
        """Resign from all partitions, because the registration of this broker is lost."""
        for partition in self._table:
            self._resign(partition, partition.retire)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(partition.topic, partition.index): partition.high_watermark
            for partition in self._table
        }

    def _own_partitions(self, topic: TopicState) -> list[int]:
        return [
            index for index, state in enumerate(topic.partitions) if self._node_id in state.replicas
        ]

    def _is_only_copy(self, state: PartitionState) -> bool:
        """Whether no other broker is known to hold every committed record."""
        return set(complete_members(state)) <= {self._node_id}

    def _reassigned_partitions(self) -> Iterator[tuple[TopicPartition, UUID]]:
        """Partitions on disk that were reassigned to other brokers while this one was down."""
        for partition in self._logs.unopened:
            state = self._image.partition(*partition)
            if state is not None and self._node_id not in state.replicas:
                yield partition, self._image.topics[partition.topic].topic_id

    def _update(self, topic: TopicState, indexes: Iterable[int] | None = None) -> None:
        """Apply the states of these partitions, or of all partitions of the topic."""
        config = self._config.topic_config(topic.configs)
        for index in self._own_partitions(topic) if indexes is None else indexes:
            if self._node_id not in topic.partitions[index].replicas:
                self._table.set_unopened(topic.name, topic.topic_id, index, "")
                self._remove_replica(topic.name, index)
                continue
            partition = self._table.get(topic.name, index)
            if partition is None and topic.name not in INTERNAL_TOPICS:
                self._unopened.setdefault(topic.name, {})[index] = None
            elif partition is None:
                # The coordinators receive this change next, and look up their partitions.
                self._open(topic, index)
            else:
                if partition.log.config is not config:
                    partition.configure(config)
                    # A lower min.insync.replicas can commit records.
                    self._appends.commit(partition)
                self._apply_state(partition, topic.partitions[index])

    def _next_step(self) -> bool:
        return self._open_next() or self._logs.put_aside()

    def _slice_ended(self) -> None:
        removal = self._logs.removal_job()
        if removal is not None:
            self._remove(removal)
        self._slice_done.set()
        self._slice_done.clear()

    def _open_next(self) -> bool:
        if not self._unopened:
            return False
        name, indexes = next(iter(self._unopened.items()))
        index = next(iter(indexes))
        del indexes[index]
        if not indexes:
            del self._unopened[name]
        self._open(self._image.topics[name], index)
        return True

    def _open(self, topic: TopicState, index: int) -> None:
        partition_name = TopicPartition(topic.name, index)
        config = self._config.topic_config(topic.configs)
        state = topic.partitions[index]
        is_only_copy = self._is_only_copy(state)
        try:
            log = self._logs.create(
                partition_name, topic.topic_id, config, is_only_copy=is_only_copy
            )
        except ApiError as error:
            self._table.set_unopened(topic.name, topic.topic_id, index, error.message)
            self._retry_opening(topic.name, error)
            return
        self._table.set_unopened(topic.name, topic.topic_id, index, "")
        if self._node_id in state.isr or self._node_id in dict(state.elr):
            self._logs.go_offline_if_incomplete(log)
        known = min(self._logs.high_watermarks.get(partition_name, 0), int(log.log_end_offset))
        partition = Partition(
            topic.name,
            index,
            topic.topic_id,
            log,
            self._node_id,
            max(known, int(log.log_start_offset)),
            self._config.get_int("headrace.decompress.bytes.max"),
        )
        self._table.add(partition)
        self._apply_state(partition, state)

    def _retry_opening(self, topic: str, error: ApiError) -> None:
        if topic in self._retries:
            return
        self._open_problem.log(f"{error.message} Headrace retries.")
        loop = asyncio.get_running_loop()
        self._retries[topic] = loop.call_later(_RETRY_SECONDS, self._open_again, topic)

    def _open_again(self, name: str) -> None:
        del self._retries[name]
        topic = self._image.topics.get(name)
        if topic is not None:
            self._update(topic)
            self._slices.run()
            self._appends.send_responses()

    def _apply_state(self, partition: Partition, state: PartitionState) -> None:
        """Become leader or follower of a partition, as its state requires."""
        if state.leader_epoch <= partition.leader_epoch:
            if partition.apply_state(state, self._now_ms()):
                self._appends.commit(partition)
            return
        fetchers = self._fetchers
        if fetchers is not None:
            fetchers.unfollow(partition)
        if state.leader == self._node_id and self._can_lead(partition, state):
            self._resign(partition, partition.retire)
            partition.become_leader(state, self._broker_epoch(), self._now_ms())
            self._appends.commit(partition)
            return
        self._resign(partition, lambda: partition.follow(state))
        if fetchers is not None and state.leader not in (self._node_id, NO_LEADER):
            fetchers.follow(partition)

    def _can_lead(self, partition: Partition, state: PartitionState) -> bool:
        """Whether the state elects this incarnation, and the log is not offline."""
        members = zip(state.isr, state.isr_epochs, strict=True)
        return (self._node_id, self._broker_epoch()) in members and not partition.log.is_offline

    def _resign(self, partition: Partition, step_down: Callable[[], None]) -> None:
        was_leader = partition.is_leader
        step_down()
        if was_leader:
            self._appends.leadership_lost(partition)

    def _topic_deleted(self, topic: TopicState) -> None:
        self._unopened.pop(topic.name, None)
        for partition in self._table.drop_topic(topic.name):
            self._delete_partition(partition)
        for index in self._own_partitions(topic):
            self._table.set_unopened(topic.name, topic.topic_id, index, "")
            self._logs.discard(TopicPartition(topic.name, index))

    def _remove_replica(self, topic: str, index: int) -> None:
        """Remove the replica of a partition that was reassigned to other brokers."""
        unopened = self._unopened.get(topic, {})
        if index in unopened:
            del unopened[index]
            if not unopened:
                del self._unopened[topic]
        partition = self._table.drop(topic, index)
        if partition is not None:
            self._delete_partition(partition)
        self._logs.discard(TopicPartition(topic, index))

    def _delete_partition(self, partition: Partition) -> None:
        if self._fetchers is not None:
            self._fetchers.unfollow(partition)
        # Waiting requests continue, and return an error because the partition is deleted.
        partition.retire()
        self._appends.leadership_lost(partition)
        self._logs.delete(TopicPartition(partition.topic, partition.index))
        partition.listeners.job_done()

    def _apply_dynamic_settings(self) -> bool:
        configs = self._image.broker_configs
        return bool(
            self._config.update_dynamic(configs.get(self._node_id, {}), configs.get(None, {}))
        )

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
