"""Replication in one broker of a cluster: who fetches, who is in sync, who must be told.

Wires the followers' sessions, the keeper of in-sync replicas and the leader's side of fetches to
this broker's image of the cluster. It decides nothing.
"""

from headrace.config.broker import BrokerConfig
from headrace.controller.changes import ImageChange
from headrace.controller.service import Controller
from headrace.env.clock import Clock
from headrace.node.outside import Front
from headrace.replication.fetcher_service import FetcherSettings, ReplicaFetchers
from headrace.replication.isr_service import IsrKeeper
from headrace.replication.partition import Partition
from headrace.replication.partition_table import PartitionTable
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
        front: Front,
    ) -> None:
        self._config = config
        self._clock = clock
        self._controller = controller
        self._table = table
        self._lost: dict[Partition, None] = {}
        """Whose disks have failed, as the controller was told."""
        self._to_followers = front.replica_fetch.throttle
        self._from_leaders = Throttle()
        self._fetchers = ReplicaFetchers(
            network,
            clock,
            config.node_id,
            lambda: controller.broker_epoch,
            controller.image,
            config.internal_listener,
            front.appends.replicated,
            FetcherSettings.of(config),
            self._from_leaders,
        )
        self._isr = IsrKeeper(
            config.node_id,
            lambda: controller.broker_epoch,
            controller.image,
            table,
            front.appends,
            clock,
            controller.to_controller,
            config.get_int("replica.lag.time.max.ms"),
            config.get_int("replica.fetch.wait.max.ms"),
        )
        front.replica_fetch.epoch_of = self._epoch_of
        front.replica_fetch.consider = self._isr.consider

    def is_cut_off(self) -> bool:
        """Whether clients should use other brokers: see `isr_service`."""
        return self._isr.is_cut_off

    def start(self) -> None:
        self._set_rates()
        self._isr.start()

    async def hand_over(self) -> None:
        """Before this broker stops, let others lead what it leads."""
        if self._config.get_bool("controlled.shutdown.enable"):
            await self._controller.shut_down()

    def stop(self) -> None:
        self._isr.stop()
        self._fetchers.stop()

    def follow(self, partition: Partition) -> None:
        self._fetchers.follow(partition)

    def unfollow(self, partition: Partition) -> None:
        self._fetchers.unfollow(partition)

    def repair(self, partition: Partition) -> None:
        """Get anew what a partition's disk has lost; where it leads here, others lead first."""
        if partition.is_leader:
            self._isr.consider(partition)
        else:
            self._fetchers.repair(partition)

    def report_failed_disks(self) -> None:
        """Let others lead what this broker cannot write any more (B13)."""
        for partition in self._table:
            if partition.log.is_offline and partition not in self._lost:
                self._lost[partition] = None
                self._controller.replica_offline(partition.topic_id, int(partition.index))

    def changed(self, change: ImageChange) -> None:
        if change.brokers:
            self._fetchers.brokers_changed()
        if change.broker_configs:
            self._set_rates()
            settings = FetcherSettings.of(self._config)
            if settings != self._fetchers.settings:
                self._fetchers.use(settings)

    def _set_rates(self) -> None:
        now_ms = int(self._clock.monotonic() * 1000)
        rate = self._config.get_int("leader.replication.throttled.rate")
        self._to_followers.set_rate(rate, now_ms)
        rate = self._config.get_int("follower.replication.throttled.rate")
        self._from_leaders.set_rate(rate, now_ms)

    def _epoch_of(self, node_id: int) -> int:
        """The registered epoch of a follower, which has sent a fetch."""
        self._isr.silence.fetched(node_id, self._clock.monotonic())
        broker = self._controller.image.brokers.get(node_id)
        return -1 if broker is None else broker.epoch
