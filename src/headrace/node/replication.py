"""Replication in one broker of a cluster: both sides of replica fetches, and the ISR.

It connects the replica fetchers, the leader's fetch sessions and `IsrService` to the cluster image
of this broker. It makes no decisions.
"""

import asyncio

from headrace.cluster.changes import ImageChange
from headrace.config.broker import BrokerConfig
from headrace.controller.service import Controller
from headrace.env.clock import Clock
from headrace.model.topics import TopicPartition
from headrace.replication.append_queue import AppendQueue
from headrace.replication.fetch_reader import FetchReader
from headrace.replication.fetcher_service import FetcherSettings, ReplicaFetchers
from headrace.replication.isr_service import IsrService
from headrace.replication.leader_sessions import LeaderSessions
from headrace.replication.partition import Partition
from headrace.replication.partition_table import PartitionTable
from headrace.replication.read_replicas import RACK_AWARE
from headrace.replication.throttle import Throttle
from headrace.runtime.link import Network


class Replication:
    def __init__(
        self,
        config: BrokerConfig,
        network: Network,
        clock: Clock,
        controller: Controller,
        table: PartitionTable,
        appends: AppendQueue,
        reader: FetchReader,
    ) -> None:
        self._config = config
        self._clock = clock
        self._controller = controller
        self._table = table
        self._reported_offline: dict[Partition, None] = {}
        """Partitions that were reported to the controller because their logs are offline."""
        self._leader_throttle = Throttle()
        self._follower_throttle = Throttle()
        self._fetchers = ReplicaFetchers(
            network=network,
            clock=clock,
            node_id=config.node_id,
            broker_epoch=lambda: controller.broker_epoch,
            image=controller.image,
            listener=config.internal_listener,
            replicated=appends.follower_appended,
            settings=FetcherSettings.of(config),
            throttle=self._follower_throttle,
            log_in=controller.secret.log_in,
        )
        self._isr = IsrService(
            node_id=config.node_id,
            broker_epoch=lambda: controller.broker_epoch,
            image=controller.image,
            partitions=table,
            appends=appends,
            clock=clock,
            to_controller=controller.to_controller,
            lag_ms_max=config.get_int("replica.lag.time.max.ms"),
            fetch_wait_ms_max=config.get_int("replica.fetch.wait.max.ms"),
        )
        self.sessions = LeaderSessions(
            partitions=table,
            appends=appends,
            reader=reader,
            call_later=asyncio.get_running_loop().call_later,
            monotonic=clock.monotonic,
            registered_epoch=self._registered_epoch,
            check_isr=self._isr.check_isr,
            throttle=self._leader_throttle,
            responds_to_commits=config.get_optional_str("replica.selector.class") == RACK_AWARE,
        )

    def has_isolated_leaders(self) -> bool:
        """Whether other brokers probably lead the partitions of this broker: see `isr_service`."""
        return self._isr.has_isolated_leaders

    def start(self) -> None:
        self._set_rates()
        self._isr.start()

    async def hand_over(self) -> None:
        """Hand over all leaderships before this broker stops."""
        if self._config.get_bool("controlled.shutdown.enable"):
            await self._controller.controlled_shutdown()

    def stop(self) -> None:
        self._isr.stop()
        self._fetchers.stop()

    def follow(self, partition: Partition) -> None:
        self._fetchers.follow(partition)

    def unfollow(self, partition: Partition) -> None:
        self._fetchers.unfollow(partition)

    def repair(self, partition: Partition) -> None:
        """Replace damaged records with those of the leader. A damaged leader first hands over."""
        if partition.is_leader:
            self._isr.check_isr(partition)
        else:
            self._fetchers.repair(partition)

    def report_failed_disk(self, failed: TopicPartition) -> None:
        """Report an offline log, so that another replica becomes leader (B13)."""
        partition = self._table.get(*failed)
        if partition is not None and partition not in self._reported_offline:
            self._reported_offline[partition] = None
            self._controller.report_failed_log(partition.topic_id, int(partition.index))

    def report_failed_disks(self) -> None:
        """Report logs that were offline before this broker had their partitions."""
        for partition in self._table:
            if partition.log.is_offline:
                self.report_failed_disk(partition.log.partition)

    def changed(self, change: ImageChange) -> None:
        if change.brokers:
            self._fetchers.brokers_changed()
        if change.broker_configs:
            self._set_rates()
            settings = FetcherSettings.of(self._config)
            if settings != self._fetchers.settings:
                self._fetchers.apply_settings(settings)

    def _set_rates(self) -> None:
        now_ms = int(self._clock.monotonic() * 1000)
        rate = self._config.get_int("leader.replication.throttled.rate")
        self._leader_throttle.set_rate(rate, now_ms)
        rate = self._config.get_int("follower.replication.throttled.rate")
        self._follower_throttle.set_rate(rate, now_ms)

    def _registered_epoch(self, node_id: int) -> int:
        """Note a fetch of a follower, and return its registered broker epoch."""
        self._isr.silence.fetched(node_id, self._clock.monotonic())
        broker = self._controller.image.brokers.get(node_id)
        return -1 if broker is None else broker.epoch
