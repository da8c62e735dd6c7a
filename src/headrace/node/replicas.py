"""Keeps the partitions of this broker in step with the cluster's image.

The controller says what there is; here logs are made, opened and dropped for it, and the hot
path's table is filled. It runs on the loop, between turns.
"""

from collections.abc import Callable

from headrace.config.broker import BrokerConfig
from headrace.controller.changes import ImageChange
from headrace.handlers.fetch import FetchExchange, FetchHandler
from headrace.handlers.partitions import PartitionTable
from headrace.log.directory import LogDirectory, RemoveDirectory
from headrace.model.cluster import ClusterImage
from headrace.model.topics import TopicPartition, TopicState
from headrace.replication.partition import Partition


class Replicas:
    def __init__(
        self,
        node_id: int,
        config: BrokerConfig,
        image: ClusterImage,
        logs: LogDirectory,
        table: PartitionTable,
        remove: Callable[[RemoveDirectory], None],
    ) -> None:
        self._node_id = node_id
        self._config = config
        self._image = image
        self._logs = logs
        self._table = table
        self._remove = remove
        self.fetch: FetchHandler | None = None

    def load(self) -> None:
        """Open every log that the image gives this broker."""
        self._take_dynamic_settings()
        topics = self._image.topics.values()
        self._logs.load(
            {
                TopicPartition(topic.name, index): (
                    topic.topic_id,
                    self._config.topic_config(topic.configs),
                )
                for topic in topics
                for index in self._mine(topic)
            }
        )
        for topic in topics:
            self._open(topic)
        self._start_removals()

    def changed(self, change: ImageChange) -> None:
        for topic in change.deleted:
            self._drop(topic)
        for topic in change.created:
            self._open(topic)
        for _, topic in change.changed:
            self._update(topic)
        if change.broker_configs and self._take_dynamic_settings():
            for topic in self._image.topics.values():
                self._update(topic)
        self._start_removals()

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(partition.topic, partition.index): partition.high_watermark
            for partition in self._table
        }

    def _mine(self, topic: TopicState) -> list[int]:
        return [
            index for index, state in enumerate(topic.partitions) if self._node_id in state.replicas
        ]

    def _open(self, topic: TopicState) -> None:
        config = self._config.topic_config(topic.configs)
        for index in self._mine(topic):
            if self._table.get(topic.name, index) is not None:
                continue
            log = self._logs.create(TopicPartition(topic.name, index), topic.topic_id, config)
            self._table.add(
                Partition(
                    topic.name,
                    index,
                    topic.topic_id,
                    log,
                    topic.partitions[index].leader_epoch,
                    self._config.get_int("headrace.decompress.bytes.max"),
                )
            )

    def _update(self, topic: TopicState) -> None:
        self._open(topic)
        config = self._config.topic_config(topic.configs)
        for index in self._mine(topic):
            partition = self._table.get(topic.name, index)
            assert partition is not None
            state = topic.partitions[index]
            partition.leader_epoch = max(partition.leader_epoch, state.leader_epoch)
            if partition.config is not config:
                partition.configure(config)

    def _drop(self, topic: TopicState) -> None:
        for partition in self._table.drop_topic(topic.name):
            self._remove(self._logs.delete(TopicPartition(partition.topic, partition.index)))
            for waiter in list(partition.waiters):
                # It finds the topic gone, and says so.
                assert isinstance(waiter, FetchExchange)
                assert self.fetch is not None
                self.fetch.expire(waiter)

    def _take_dynamic_settings(self) -> bool:
        configs = self._image.broker_configs
        return bool(
            self._config.update_dynamic(configs.get(self._node_id, {}), configs.get(None, {}))
        )

    def _start_removals(self) -> None:
        removals = self._logs.removals
        self._logs.removals = []
        for removal in removals:
            self._remove(removal)
